"""Names of files."""

import pytest

from medpfl.data.files import nifti_stem


@pytest.mark.parametrize(
    ("name", "stem"),
    [("P001.nii.gz", "P001"), ("P1.NII.GZ", "P1"), ("a.b.Nii", "a.b"), ("x.gz", "x.gz"), ("nii.gz.nii", "nii.gz")],
)
def test_what_tells_the_format_goes_and_no_more(name, stem):
    assert nifti_stem(name) == stem
