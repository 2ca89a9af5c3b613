"""Pictures in folders: one for each centre, in it one for each class."""
