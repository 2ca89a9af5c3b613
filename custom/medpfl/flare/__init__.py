"""Thin shells that run the server and the sites on NVIDIA FLARE."""
