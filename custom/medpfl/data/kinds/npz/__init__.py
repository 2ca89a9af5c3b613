"""Images in one npz file: a published set divided over simulated sites, or a file that a hospital has."""
