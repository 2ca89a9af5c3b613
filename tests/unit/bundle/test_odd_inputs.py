"""What `data check` warns of before training, a bundle says of a new picture or scan, and answers all the same."""

import nibabel
import numpy as np
import pytest
from PIL import Image

from medpfl.bundle.inference import items
from medpfl.bundle.pictures import LoadPictured, ReadPictured


def noise(most, kind=np.uint8):
    return np.random.default_rng(0).integers(0, most, (30, 50)).astype(kind)


@pytest.mark.parametrize(
    ("pixels", "said"),
    [
        (noise(4096, np.uint16), "16 bits, and no pixel above 64 of 255: values of 12 bits? rescale it first"),
        (noise(65536, np.uint16), None),
        (noise(60), None),  # of 8 bits, dark as it may be
        (np.full((30, 50), 90, np.uint8), "all its pixels are of one colour"),
    ],
)
@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
def test_an_odd_picture_is_told(tmp_path, caplog, pixels, said, fit):
    file = tmp_path / "x.png"
    Image.fromarray(pixels).save(file)
    read = ReadPictured("image", size=16, fit=fit, channels="grey")({"image": str(file)})["image"]
    assert read.shape == (1, 16, 16)
    assert [record.getMessage() for record in caplog.records] == ([f"{file}: {said}"] if said else [])


def test_a_picture_of_one_colour_of_a_sets_size_is_told(tmp_path, caplog):
    np.save(tmp_path / "black.npy", np.zeros((8, 8), np.uint8))
    Image.fromarray(noise(256)[:8, :8]).save(tmp_path / "good.png")
    for name in ("black.npy", "good.png"):
        LoadPictured("image", 1, 8)({"image": tmp_path / name})
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'black.npy'}: all its pixels are of one colour"
    ]


@pytest.mark.parametrize(
    ("slices", "modality", "said"),
    [(20, "CT", ["a.nii.gz: 100 mm from bottom to top, not a whole chest"]), (40, "CT", []), (20, "MR", [])],
)
def test_a_ct_of_less_than_a_chest_is_told(tmp_path, caplog, slices, modality, said):
    volume = nibabel.Nifti1Image(np.zeros((8, 8, slices), np.int16), np.diag([1.0, 1, 5, 1]))
    nibabel.save(volume, tmp_path / "a.nii.gz")
    [item] = items(tmp_path, "scan", modality=modality)
    assert "problem" not in item
    assert [record.getMessage() for record in caplog.records] == said
