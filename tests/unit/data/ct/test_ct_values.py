"""Values that are no HU are told, whatever stands for padding."""

import nibabel
import numpy as np
import pytest
import torch
from make_dicom import chest

from medpfl.data.check import check
from medpfl.data.kinds.scans.preprocessing import AIR
from medpfl.data.kinds.scans.transforms import LoadScand, RaiseToAird
from medpfl.data.kinds.scans.values import EDGES, histogram, odd_values, without_sign

PADDINGS = (-32768, -3024, -2000, -1024, -1000, 0)


def hu():
    return chest(seed=1).transpose(2, 1, 0).astype(np.float32)


def _levels(values):
    return [finding.level for finding in odd_values(values)]


@pytest.mark.parametrize("padding", PADDINGS[:-1])
def test_hu_with_any_padding_are_right(padding):
    values = hu()
    values[:4, :4] = padding
    assert odd_values(values) == odd_values(values[..., 5]) == []


@pytest.mark.parametrize("offset", [1024, 1000])
@pytest.mark.parametrize("padding", PADDINGS)
def test_raw_values_with_any_padding_are_an_error(offset, padding):
    values = hu() + offset
    values[:4, :4] = padding
    for seen in (values, values[..., 5]):
        (finding,) = odd_values(seen)
        assert finding.level == "error" and "look like HU without their offset of -10" in finding.message


@pytest.mark.parametrize("padding", PADDINGS[-3:])
def test_hu_stored_without_their_sign_are_an_error(padding):
    values = hu()
    values[:4, :4] = padding
    (finding,) = odd_values(values % 65536)
    assert finding.level == "error" and "stored without their sign?" in finding.message
    assert without_sign(values) is without_sign(values + 1024) is None


def test_single_slices_without_their_offset_are_an_error():
    values = hu()
    values[..., 3] += 1024
    (finding,) = odd_values(values)
    assert finding.level == "error"
    assert f"1 of {values.shape[2]} slices look like HU without their offset, number 4 from" in finding.message
    values[..., 3] -= 1024
    values[..., 3] = -1000  # a slice of air is none of them
    assert odd_values(values) == []
    rng = np.random.default_rng(0)
    values[..., 3] = rng.normal(40, 60, values.shape[:2])  # nor one of soft tissue, fat and bone without air
    values[:4, :, 3] = rng.normal(1100, 50, values[:4, :, 3].shape)
    values[4:6, :, 3] = rng.normal(-100, 20, values[4:6, :, 3].shape)
    assert odd_values(values) == []


def test_images_that_use_all_of_16_bits_have_lost_no_sign():
    bright = np.linspace(0, 65535, 4096)
    assert without_sign(bright) is without_sign(np.where(bright > 1e4, 62000, 62001)) is None


@pytest.mark.parametrize("place, level", [(np.s_[:3], "warning"), (np.s_[14:18, 14:18, 3], "error")])
@pytest.mark.parametrize("what", [np.nan, np.inf, -np.inf])
def test_what_is_no_number(place, level, what):
    values = hu()
    values[place] = what
    assert _levels(values) == [level]
    assert _levels(np.full((8, 8), what)) == ["error"]


def test_pictures_constants_and_strange_values():
    assert "grey values" in odd_values((hu() + 1100) / 6)[0].message
    assert "grey values" in odd_values((hu() + 1100) / 2000)[0].message
    assert "every voxel has the value 7" in odd_values(np.full((8, 8, 3), 7.0))[0].message
    (finding,) = odd_values(hu() * 40)
    assert finding.level == "warning" and "are these HU?" in finding.message
    (finding,) = odd_values(np.where(hu() < -600, 0, hu()))
    assert finding.level == "warning" and "no air: are these HU?" in finding.message


def test_what_is_odd_of_many_files_is_told_once_and_what_is_wrong_of_each(tmp_path):
    for n in range(6):
        volume = chest(seed=n, slices=6).astype(np.float32)
        volume[:, : 1 + n % 2] = np.nan  # at the image's edge
        if n > 3:
            volume[:, 15:17, 15:17] = np.nan
        image = nibabel.Nifti1Image(volume.T, np.diag([1.0, 1, 2, 1]))
        for form in (image.set_sform, image.set_qform):
            form(None, 0)
        nibabel.save(image, tmp_path / f"p{n}.nii")
    rows = [f"p{n}.nii,{n % 2}" for n in range(6)]
    (tmp_path / "labels.csv").write_text("\n".join(["series,label", *rows]) + "\n")
    told = [(finding.level, finding.message) for finding in check(tmp_path)]
    (oriented,) = [words for _, words in told if "does not say how it is oriented" in words]
    assert "p0.nii: does not say" in oriented and oriented.endswith("(and 5 more like it)")
    (edge,) = [words for _, words in told if "voxels at its edge are not numbers" in words]
    assert "p0.nii: 32 voxels" in edge and edge.endswith("(and 3 more like it)")
    wrong = [words for level, words in told if level == "error" and "in its middle are not numbers" in words]
    assert ["p4.nii: " in wrong[0], "p5.nii: " in wrong[1]] == [True, True]


@pytest.mark.slow
def test_real_scans_are_hu_and_their_stored_values_are_not(lidc):
    for folder in lidc:
        item = {"image": sorted(map(str, folder.iterdir())), "kind": "dicom"}
        values = LoadScand("image")(item)["image"].numpy()
        assert odd_values(values) == odd_values(values.clip(AIR)) == odd_values(values[..., 5]) == []
        for padding in PADDINGS:
            raw = values.clip(AIR) + 1024
            raw[values <= AIR] = padding
            assert _levels(raw) == _levels(raw[..., 5]) == ["error"]


def test_a_histogram_counts_shares():
    shares = histogram(np.array([-3000, -1075, 20, 30, 9000, np.nan]))
    assert len(shares) == len(EDGES) - 1 and shares[0] == 0.4 and shares[-1] == 0.2
    assert shares[int((0 + 1100) / 50)] == 0.4


def test_what_is_infinite_becomes_air():
    volume = torch.tensor([[[[float("inf"), float("nan"), -float("inf"), -5000.0, 40.0]]]])
    assert RaiseToAird("image")({"image": volume})["image"].flatten().tolist() == [AIR, AIR, AIR, AIR, 40.0]
