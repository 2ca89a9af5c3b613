"""A chest CT cohort of no patients: bodies from formulas, six scanners, written as DICOM series."""
