"""CT and MR volumes at a hospital: its manifest and label tables, checked DICOM and NIfTI, axial slices as tensors."""
