"""Images with masks: pictures, slices or volumes, each with the class of every pixel or voxel."""
