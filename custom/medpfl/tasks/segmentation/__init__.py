"""Segmentation: a class for every pixel or voxel."""
