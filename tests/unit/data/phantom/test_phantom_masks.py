"""The phantom with masks: the same scans where they lie, masks that are the truth, and data that can be segmented."""

import csv

import nibabel
import numpy as np
import pydicom
import pytest
import torch
from nibabel.orientations import aff2axcodes

from medpfl.config.run import make_config
from medpfl.data.phantom.cohort import make_phantom
from medpfl.data.phantom.six_centres import CENTRES
from medpfl.data.sites import open_source


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """The patients of the cohort of DICOM series."""
    return make_phantom(tmp_path_factory.mktemp("masks") / "ct", patients=12, matrix=48, seed=1, masks=True).parent


def truth(folder):
    with open(folder / "truth.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_volume_is_the_series_of_the_same_patient_where_it_lies(cohort, masked):
    row = truth(masked)[5]
    volume = nibabel.load(masked / row["centre"] / row["volume"])
    assert aff2axcodes(volume.affine) == ("L", "P", "S")
    slices = [pydicom.dcmread(f) for f in (cohort / row["centre"] / row["patient"]).glob("*.dcm")]
    slices.sort(key=lambda image: image.ImagePositionPatient[2])
    x, y, z = map(float, slices[3].ImagePositionPatient)
    np.testing.assert_allclose(volume.affine @ (0, 0, 3, 1), (-x, -y, z, 1), atol=1e-3)
    hu = slices[3].pixel_array * float(slices[3].RescaleSlope) + float(slices[3].RescaleIntercept)
    middle = slice(12, 36)  # beyond the circle some centres have padding
    np.testing.assert_array_equal(volume.get_fdata()[middle, middle, 3].T, hu[middle, middle])
    mask = nibabel.load(masked / row["centre"] / row["volume"].replace(".nii", "_mask.nii"))
    np.testing.assert_array_equal(mask.affine, volume.affine)
    assert mask.shape == volume.shape


@pytest.mark.slow
def test_masks_are_the_truth(cohort, masked):
    """What voxels of 8 mm leave of it: the share of emphysema follows the truth; lung is dark, emphysema darker."""
    rows, found = truth(masked), []
    for row in rows:
        volume = nibabel.load(masked / row["centre"] / row["volume"]).get_fdata()
        mask = nibabel.load(masked / row["centre"] / row["volume"].replace(".nii", "_mask.nii")).get_fdata()
        assert set(np.unique(mask)) <= {0, 1, 2}
        assert 0.05 < (mask > 0).mean() < 0.4
        assert -920 < np.median(volume[mask == 1]) < -700
        if row["label"] == "emphysema":
            assert volume[mask == 2].mean() < volume[mask == 1].mean() - 30
        found.append((mask == 2).sum() / (mask > 0).sum())
    shares = [float(row["emphysema_share"]) for row in rows]
    assert np.corrcoef(found, shares)[0, 1] > 0.95
    dicom = {row["patient"]: row["emphysema_share"] for row in truth(cohort)}
    assert {row["patient"]: row["emphysema_share"] for row in rows} == dicom


@pytest.mark.slow
def test_the_same_bytes_again(masked, tmp_path):
    again = make_phantom(tmp_path / "again", patients=12, matrix=48, seed=1, masks=True).parent
    files = sorted(path.relative_to(masked) for path in masked.rglob("*") if path.is_file())
    assert len(files) == 2 * 12 + 2
    assert all((masked / file).read_bytes() == (again / file).read_bytes() for file in files)


@pytest.mark.slow
def test_it_is_data_to_segment(masked, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    arguments = {"classes": ["background", "lung", "emphysema"], "patch": [16, 32, 32]}
    source = open_source(
        make_config(
            algorithm="fedbn",
            task="segmentation",
            data=str(masked),
            data_args=arguments,
            partition="natural",
            sites=6,
            fractions=(0.5, 0.0, 0.5),
        )
    )
    assert [site["centre"] for site in source.describe()["sites"].values()] == [centre.name for centre in CENTRES]
    data = source.site("site-2", torch.device("cpu"))
    x, y = next(data.training_batches(2, torch.Generator()))
    assert x.shape == (2, 1, 16, 32, 32)
    assert set(y.unique().tolist()) <= {0, 1, 2}
    assert data.samples("train") == data.samples("test") == 1
