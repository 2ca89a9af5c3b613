"""Data: what sets there are, how a file is read and checked, and which site gets which images."""
