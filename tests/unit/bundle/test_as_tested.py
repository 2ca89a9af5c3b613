"""A bundle sees and says of an image what the site's own tests did: the same values, on the same grid, or nothing."""

import json

import nibabel
import numpy as np
import pytest
import torch
from monai.data import Dataset
from PIL import Image

from medpfl.bundle.inference import Classification, items
from medpfl.bundle.masks import Segmentation, _upright_size
from medpfl.bundle.pictures import LoadPictured
from medpfl.core.errors import UserError
from medpfl.data.inputs import composed
from medpfl.data.kinds.folders.picture_file import place_in_square, squared
from medpfl.data.kinds.masks.pair import Pair
from medpfl.data.kinds.masks.reading import Reading
from medpfl.data.kinds.masks.volume_pair import read_volume_pair
from medpfl.data.kinds.masks.volume_steps import steps


class Everywhere(torch.nn.Module):
    """Says that all is of class 1, or numbers that are none."""

    def __init__(self, says=50.0):
        super().__init__()
        self.says, self.unused = says, torch.nn.Parameter(torch.zeros(1))

    def forward(self, x):
        if x.dim() == 3 or x.shape[-1] == 1:
            return torch.full((len(x), 2), self.says)
        shape = x[:, :1].shape
        return torch.cat([torch.full(shape, -50.0), torch.full(shape, self.says)], 1)


def scan(folder, shape, voxel, unit="mm"):
    affine = np.diag([*voxel, 1.0])
    affine[:3, 3] = -90.3, -126.1, -72.7
    image = nibabel.Nifti1Image(np.random.default_rng(0).normal(size=shape).astype(np.float32), affine)
    image.header.set_xyzt_units(unit)
    nibabel.save(image, folder / f"{unit}.nii.gz")
    return folder / f"{unit}.nii.gz"


def segmented(file, reading, folder, network=None):
    found = [{"image": str(file), "kind": "volume", "name": file.name}]
    seen = Dataset(found, composed(steps(reading, masked=False)))
    patch = (8, 8, 8) if reading.dims == 3 else None
    return Segmentation(network or Everywhere(), seen, ["none", "lesion"], patch, "pad", {}, str(folder)).run()


@pytest.mark.parametrize("network_voxel", [1.5, 2.0, 3.0])
@pytest.mark.parametrize("edge", [8, 9, 12, 15, 16, 21])
def test_no_plane_of_a_volume_is_lost_at_its_ends(tmp_path, edge, network_voxel):
    """Its last voxel lies half a voxel of the network's beyond the last of those where twice as many are in its place.

    What the network calls a lesion everywhere is one everywhere.
    """
    file = scan(tmp_path, (edge, edge + 1, edge + 2), (1, 0.75, 1))
    reading = Reading(dims=3, patch=(8, 8, 8), spacing=(network_voxel,) * 3)
    [found] = segmented(file, reading, tmp_path / "out")["results"]
    assert found["voxels"] == {"lesion": edge * (edge + 1) * (edge + 2)}


@pytest.mark.parametrize("normalise", ["zscore", "percentile", "none"])
@pytest.mark.parametrize("dims", [2, 3])
def test_a_volume_is_seen_as_in_training_to_the_last_bit(tmp_path, normalise, dims):
    file = scan(tmp_path, (12, 14, 10), (1, 1, 2))
    mask = tmp_path / "mask.nii.gz"
    nibabel.save(nibabel.Nifti1Image(np.ones((12, 14, 10), np.uint8), nibabel.load(file).affine), mask)
    reading = Reading(dims=dims, patch=(8, 8, 8), size=16, spacing=(2, 1.5, 1.5), normalise=normalise)
    trained = read_volume_pair(Pair("", "p", "p", "c", file, mask), reading, 2)
    new = composed(steps(reading, masked=False))({"image": str(file)})["image"]
    assert trained.image.dtype == (torch.float32 if normalise == "none" else torch.float16)
    torch.testing.assert_close(new.as_subclass(torch.Tensor), trained.image, rtol=0, atol=0)


@pytest.mark.parametrize(("height", "width", "size"), [(400, 600, 128), (528, 1024, 64), (600, 401, 128), (40, 40, 16)])
def test_a_padded_picture_gets_its_mask_back_where_it_was(height, width, size):
    y, x = np.ogrid[:height, :width]
    disc = ((y - height / 2) ** 2 + (x - 0.45 * width) ** 2 < (min(height, width) / 10) ** 2).astype(np.uint8)
    square = np.array(squared(Image.fromarray(disc), size, "pad", Image.Resampling.NEAREST))
    back = _upright_size(torch.from_numpy(square)[None], disc.shape, "pad")[0].numpy()
    assert back.shape == disc.shape
    shift = np.mean(np.nonzero(back), 1) - np.mean(np.nonzero(disc), 1)
    assert np.abs(shift).max() < max(height, width) / size / 3  # a third of the network's pixel


@pytest.mark.parametrize("width", [24, 25])
@pytest.mark.parametrize("turned", [False, True])
def test_a_cropped_picture_gets_its_mask_back_where_it_was(width, turned):
    """Where an odd number of columns goes Pillow begins within a pixel, which many labels a pixel show."""
    for column in range(5, 20):
        right = np.zeros((20, width), np.uint8)
        right[:, column:] = 255
        right = right.T if turned else right
        square = np.asarray(squared(Image.fromarray(right), 100, "crop", Image.Resampling.BILINEAR)) > 127
        back = _upright_size(torch.from_numpy(square.astype(np.uint8))[None], right.shape, "crop")[0].numpy()
        line, first = back.max(0 if not turned else 1), (width - 20) // 2
        assert line.tolist() == [0] * column + [1] * (first + 20 - column) + [0] * (width - 20 - first)


def test_a_thin_picture_fills_the_rows_that_it_has_in_the_square():
    left, top, width, height = place_in_square(1000, 20, 64)
    square = torch.zeros(1, 64, 64, dtype=torch.uint8)
    square[:, top : top + height, left : left + width] = 1
    assert (width, height) == (64, 1)
    assert _upright_size(square, (20, 1000), "pad").all()


def test_a_picture_too_thin_to_be_seen_has_no_mask():
    assert place_in_square(4000, 12, 128)[3] == 0
    assert not _upright_size(torch.ones(1, 128, 128, dtype=torch.uint8), (12, 4000), "pad").any()


@pytest.mark.parametrize(("unit", "said"), [("micron", "measured in micrometres"), ("meter", "measured in metres")])
def test_a_volume_that_training_refuses_is_left_out(tmp_path, unit, said):
    scan(tmp_path, (12, 12, 10), (1, 1, 2), unit)
    scan(tmp_path, (12, 12, 10), (1, 1, 2))
    flat = np.diag([1.0, 1, 0, 1])
    Image.new("L", (4, 4)).save(tmp_path / "beside.png")
    image = nibabel.Nifti1Image(np.ones((12, 12, 10), np.float32), np.eye(4))
    image.set_sform(flat, code=1)
    nibabel.save(image, tmp_path / "flat.nii.gz")
    found = {item["name"]: item.get("problem", "") for item in items(tmp_path, "volume", masks=True)}
    assert found.keys() == {"flat.nii.gz", f"{unit}.nii.gz", "mm.nii.gz"}
    assert said in found[f"{unit}.nii.gz"]
    assert "gives the voxels no place in space" in found["flat.nii.gz"]
    assert not found["mm.nii.gz"]


def test_numbers_that_are_none_are_no_answer(tmp_path):
    file = scan(tmp_path, (12, 14, 10), (1, 1, 2))
    with pytest.raises(UserError, match=r"mm\.nii\.gz: the network's output is not finite"):
        segmented(file, Reading(dims=3, patch=(8, 8, 8)), tmp_path / "out", Everywhere(float("nan")))
    assert not [*(tmp_path / "out").iterdir()]
    picture = Dataset([{"image": torch.zeros(1, 1, 1), "name": "a.png"}])
    with pytest.raises(UserError, match=r"a\.png: the network's output is not finite"):
        Classification(Everywhere(float("nan")), picture, ["a", "b"], True, {}, str(tmp_path / "r.json")).run()
    assert not (tmp_path / "r.json").exists()
    Classification(Everywhere(), picture, ["a", "b"], True, {}, str(tmp_path / "r.json")).run()
    assert json.loads((tmp_path / "r.json").read_text())["results"][0]["probabilities"] == {"a": 0.5, "b": 0.5}


def test_a_picture_for_a_set_of_arrays_is_upright_and_on_black(tmp_path):
    stored = np.zeros((8, 8), np.uint8)
    stored[:4] = 255
    turned = Image.Exif()
    turned[0x0112] = 3  # upside down
    Image.fromarray(stored).save(tmp_path / "turned.png", exif=turned)
    Image.new("RGBA", (8, 8), (200, 200, 200, 0)).save(tmp_path / "clear.png")
    np.save(tmp_path / "array.npy", stored)
    read = {file.stem: LoadPictured("image", 1, 8)({"image": file})["image"][0] for file in tmp_path.iterdir()}
    assert read["turned"][4:].eq(255).all()
    assert read["turned"][:4].eq(0).all()
    assert read["clear"].eq(0).all()
    assert read["array"].equal(torch.from_numpy(stored).float())
