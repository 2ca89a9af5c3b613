"""Structures that a hospital's own tools have drawn on DICOM series, made masks of."""
