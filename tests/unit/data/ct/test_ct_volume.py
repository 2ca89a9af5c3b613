from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from make_dicom import SPACING, chest, write_nifti, write_series
from monai.transforms import EnsureChannelFirstd, Orientationd, Spacingd

from medpfl.core.errors import UserError
from medpfl.data.kinds.scans.lung import find_lungs, square
from medpfl.data.kinds.scans.nifti import read_volume
from medpfl.data.kinds.scans.preprocessing import Preprocessing, pipeline
from medpfl.data.kinds.scans.series import find_series
from medpfl.data.kinds.scans.transforms import AntiAliasd, LoadScand, PlausibleValuesd, evenly

WHOLE = {"spacing": (0, 0, 0), "lung_crop": False}


def _item(path: Path) -> dict:
    kind = "nifti" if path.is_file() else "dicom"
    return {"image": [str(f) for f in (sorted(path.iterdir()) if path.is_dir() else [path])], "kind": kind}


def _load(path: Path):
    return LoadScand("image")(_item(path))["image"]


def _slices(path: Path, **preprocessing) -> torch.Tensor:
    return pipeline(Preprocessing(**preprocessing))(_item(path))["image"]


def test_a_bundle_refuses_values_that_training_refuses(caplog):
    looks = PlausibleValuesd("image")
    hu = chest().transpose(2, 1, 0)
    assert looks({"image": hu, "name": "a"})["image"] is hu
    with pytest.raises(UserError, match="b: every voxel has the value 0"):
        looks({"image": np.zeros((4, 4, 4)), "name": "b"})
    with pytest.raises(UserError, match="look like HU without their offset of -1024"):
        looks({"image": hu + 1024, "name": "c"})
    assert not caplog.text
    looks({"image": np.clip(hu, -5000, -300), "name": "d"})
    assert "d: values from" in caplog.text and "no soft tissue" in caplog.text
    PlausibleValuesd("image", "MR")({"image": hu + 1024, "name": "e"})


def test_hu_are_exact_with_a_slope_and_intercept_of_each_slice(tmp_path):
    volume = chest()
    slopes, intercepts = np.resize([1.0, 0.5, 2.0], 12), np.resize([-1024.0, 0.0, -1000.0], 12)
    volume -= volume % 2
    write_series(tmp_path / "s", volume, slope=slopes, intercept=intercepts)
    assert np.array_equal(_load(tmp_path / "s").numpy(), volume.transpose(2, 1, 0))


def test_slices_are_ordered_by_their_place_and_not_by_name_or_number(tmp_path):
    volume = chest()

    def number(n, dataset):
        dataset.InstanceNumber = (5 * n) % 12

    write_series(tmp_path / "plain", volume)
    write_series(tmp_path / "shuffled", volume, names=lambda n: f"{(7 * n) % 12:02d}", change=number)
    write_series(tmp_path / "none", volume, names=lambda n: f"{99 - n}", change=lambda n, d: d.pop("InstanceNumber"))
    plain = _load(tmp_path / "plain")
    for other in (_load(tmp_path / "shuffled"), _load(tmp_path / "none")):
        assert torch.equal(plain, other) and torch.equal(plain.affine, other.affine)
    names = [file.name for file in next(iter(find_series(tmp_path / "none").values())).files]
    assert names == [f"{99 - n}" for n in range(12)]


def test_the_affine_is_in_ras_millimetres(tmp_path):
    write_series(tmp_path / "s", chest())
    row, column, step = SPACING
    assert _load(tmp_path / "s").affine.tolist() == [
        [-column, 0, 0, 10], [0, -row, 0, 20], [0, 0, pytest.approx(step), -100], [0, 0, 0, 1]
    ]  # fmt: skip


@pytest.mark.parametrize(
    "orientation", [(1, 0, 0, 0, 1, 0), (-1, 0, 0, 0, -1, 0), (0, 1, 0, 0, 0, -1), (1, 0, 0, 0, 0, -1)]
)
def test_voxels_and_their_places_are_those_of_simpleitk(tmp_path, orientation):
    sitk = pytest.importorskip("SimpleITK")
    write_series(tmp_path / "s", chest(), orientation=orientation, slope=2, names=lambda n: f"{(5 * n) % 12}.dcm")
    reader = sitk.ImageSeriesReader()
    reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(tmp_path / "s")))
    other, ours = reader.Execute(), _load(tmp_path / "s")
    array = sitk.GetArrayFromImage(other).transpose(2, 1, 0)
    to_ras = np.diag([-1, -1, 1])
    place = np.eye(4)
    place[:3, :3] = to_ras @ np.array(other.GetDirection()).reshape(3, 3) @ np.diag(other.GetSpacing())
    place[:3, 3] = to_ras @ np.array(other.GetOrigin())
    if not np.allclose(place, ours.affine, atol=1e-4):  # The readers may go through the slices from different ends.
        array = array[..., ::-1]
        place = place @ np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, -1, array.shape[2] - 1], [0, 0, 0, 1]])
    np.testing.assert_allclose(place, ours.affine, atol=1e-4)
    assert np.array_equal(array, ours.numpy())


@pytest.mark.parametrize("value, limit", [(-2000, None), (63536, None), (-2000, -1990), (-1990, -2000)])
def test_padding_becomes_air(tmp_path, value, limit):
    volume = chest()

    def pad(n, dataset):
        stored = np.frombuffer(dataset.PixelData, "<i2").reshape(32, 32).copy()
        stored[:2] = -2000
        dataset.PixelData = stored.tobytes()
        dataset.add_new(0x00280120, "US" if value > 32767 else "SS", value)
        if limit:
            dataset.add_new(0x00280121, "SS", limit)

    write_series(tmp_path / "s", volume, change=pad, intercept=500)
    volume[:, :2] = -1024
    assert np.array_equal(_load(tmp_path / "s").numpy(), volume.transpose(2, 1, 0))


def test_what_a_file_lacks_to_be_decoded_is_named(tmp_path):
    write_series(tmp_path / "s", chest(), change=lambda n, d: d.pop("PhotometricInterpretation"))
    with pytest.raises(UserError, match=r"cannot be decoded: Missing required element: .*'Photometric Interpretation'"):
        _load(tmp_path / "s")


def test_values_far_below_air_and_nan_are_air(tmp_path):
    volume = chest().astype(np.float32)
    volume[:, 0], volume[:, 1] = -3024, np.nan
    clean = chest().astype(np.float32)
    clean[:, :2] = -1024
    assert torch.equal(
        _slices(write_nifti(tmp_path / "a.nii", volume)), _slices(write_nifti(tmp_path / "b.nii", clean))
    )


@pytest.mark.parametrize("settings", [WHOLE, {}, {"spacing": (1, 1, 5)}, {"spacing": (0, 0, 1.5), "slices": 5}])
def test_dicom_and_nifti_of_the_same_volume_give_the_same_slices(tmp_path, settings):
    write_series(tmp_path / "s", chest())
    dicom = _slices(tmp_path / "s", size=16, **settings)
    variants = [
        _slices(write_nifti(tmp_path / f"{axcodes}.nii.gz", chest(), axcodes=axcodes), size=16, **settings)
        for axcodes in ("LPS", "RAS", "LAS", "PIR")
    ]
    for nifti in variants:
        # NIfTI keeps affines in float32, so weights of an interpolation differ in the seventh digit.
        torch.testing.assert_close(nifti, dicom, rtol=0, atol=0 if settings is WHOLE else 1e-3)


def test_a_slice_is_as_on_a_screen_and_the_lowest_comes_first(tmp_path):
    volume = np.full((12, 32, 32), -600, np.int16)
    volume += 10 * np.arange(12, dtype=np.int16)[:, None, None]
    volume[:, 0, 0] = 1000
    write_series(tmp_path / "s", volume, spacing=(1, 1, 5))
    slices = _slices(tmp_path / "s", size=32, **WHOLE)
    assert slices.shape == (12, 1, 32, 32) and slices.dtype == torch.float16
    # In DICOM's first pixel the patient's right meets the front.
    assert (slices[:, 0, 0, 0] == 1).all()
    assert slices[:, 0, 9, 9].tolist() == pytest.approx([10 * n / 750 for n in range(12)], abs=1e-4)


def test_window_ends_are_minus_one_and_one_and_the_rest_is_clipped(tmp_path):
    volume = np.zeros((6, 8, 8), np.int16)
    for n, hu in enumerate((-1000, -900, -600, -150, 100, 3000)):
        volume[n] = hu
    write_series(tmp_path / "s", volume)
    slices = _slices(tmp_path / "s", size=8, window=(-900, 100), **WHOLE)
    assert slices[:, 0, 4, 4].tolist() == pytest.approx([-1, -1, -0.4, 0.5, 1, 1], abs=1e-3)


def test_in_plane_pixels_are_means_over_areas(tmp_path):
    volume = np.tile(np.array([[-900, 100], [100, 100]], np.int16), (2, 8, 8))
    write_series(tmp_path / "s", volume, spacing=(1, 1, 1))
    slices = _slices(tmp_path / "s", size=8, window=(-900, 100), **WHOLE)
    assert slices.shape == (2, 1, 8, 8) and torch.all(slices == 0.5)


def test_spacing_averages_thin_slices_before_it_takes_fewer(tmp_path):
    volume = np.zeros((13, 8, 8), np.int16)
    volume[:] = (-600 + 10 * np.arange(13))[:, None, None]
    write_series(tmp_path / "s", volume, spacing=(1, 1, 2.5))
    slices = _slices(tmp_path / "s", size=8, spacing=(0, 0, 5), lung_crop=False)
    # Box of two slice distances: 1/4, 1/2, 1/4; the ends repeat their own slice.
    expected = [2.5, *(20 * n for n in range(1, 6)), 117.5]
    assert slices[:, 0, 4, 4].tolist() == pytest.approx([hu / 750 for hu in expected], abs=2e-4)


def test_fewer_slices_are_left_as_they_are(tmp_path):
    write_series(tmp_path / "s", chest(), spacing=(1, 1, 5))
    assert _slices(tmp_path / "s", slices=16).shape[0] == 12
    assert _slices(tmp_path / "s", slices=4).shape[0] == 4


@pytest.mark.parametrize("tilt", [-20, 15])
def test_a_tilted_gantry_is_put_straight(tmp_path, tilt):
    """HU rise linearly from front to back in the patient's own coordinates, whatever the slices' plane."""
    rows, sine, cosine = np.arange(32), np.sin(np.radians(tilt)), np.cos(np.radians(tilt))
    back = np.broadcast_to(-20 + rows[:, None] * cosine * 1.0, (32, 32))
    volume = np.stack([np.round(-500 + 10 * back)] * 14).astype(np.int16)
    write_series(tmp_path / "s", volume, spacing=(1, 1, 3), tilt=tilt)
    data = _item(tmp_path / "s")
    for step in (LoadScand("image"), EnsureChannelFirstd("image"), Orientationd("image", axcodes="RAS", labels=None)):
        data = step(data)
    straight = Spacingd("image", pixdim=(0, 0, 3), dtype="float32")(AntiAliasd("image", (0, 0, 3))(data))["image"]
    axes = straight.affine[:3, :3].numpy()
    np.testing.assert_allclose(axes.T @ axes, np.diag(np.diag(axes.T @ axes)), atol=1e-4)
    inside = np.stack(np.meshgrid(*(np.arange(n // 2 - 2, n // 2 + 3) for n in straight.shape[1:]), indexing="ij"), -1)
    places = inside.reshape(-1, 3) @ axes.T + straight.affine[:3, 3].numpy()
    values = straight.numpy()[0][tuple(inside.reshape(-1, 3).T)]
    np.testing.assert_allclose(values, -500 + 10 * -places[:, 1], atol=2)
    assert abs(sine) > 0.2


@given(there=st.integers(1, 600), wanted=st.integers(1, 64))
def test_slices_are_evenly_spaced(there, wanted):
    indices = evenly(there, wanted)
    steps = np.diff(indices)
    assert len(indices) == wanted and 0 <= indices[0] <= indices[-1] < there
    assert len(steps) == 0 or steps.max() - steps.min() <= 1
    assert abs(indices[0] - (there - 1 - indices[-1])) <= 1


def test_the_lungs_are_found_and_the_table_is_not():
    volume = chest(slices=20, edge=128)
    volume[:, 118:122, 4:124] = -200  # The table: a shell around air.
    volume[:, 119:121, 6:122] = -950
    box = find_lungs(volume.transpose(2, 1, 0).astype(np.float32), (2.5, 2.5, 5)).box
    (x0, x1), (y0, y1), (z0, z1) = box
    assert (z0, z1) == (0, 20)
    assert [x0, x1, y0, y1] == pytest.approx([0.17 * 128, 0.79 * 128, 0.26 * 128, 0.74 * 128], abs=2.5)


def test_a_volume_without_lungs_stays_whole(tmp_path):
    volume = chest()
    volume[volume < -700] = -1000
    full = np.where(np.abs(np.mgrid[:32, :32] - 16).max(0) < 12, 40, -1000).astype(np.int16)
    volume[:] = full
    write_series(tmp_path / "s", volume)
    assert torch.equal(_slices(tmp_path / "s", lung_crop=True), _slices(tmp_path / "s", lung_crop=False))
    assert find_lungs(np.full((9, 9, 9), -1000.0), (1, 1, 1)) is None


def test_the_crop_starts_at_the_lowest_lung(tmp_path):
    volume = chest(slices=30, edge=64)
    volume[:10][volume[:10] < -500] = 40
    write_series(tmp_path / "s", volume, spacing=(5, 5, 5))
    whole, cropped = (_slices(tmp_path / "s", slices=64, lung_crop=crop) for crop in (False, True))
    assert len(whole) == 30 and len(cropped) in (20, 21)


def test_the_windpipe_above_the_lungs_is_left_out():
    volume = chest(slices=30, edge=128).astype(np.float32)
    volume[20:][volume[20:] < -600] = 40
    volume[20:, :8] = -1000
    volume[10:, 60:66, 60:66] = -980
    volume[18:20, 60:66, 40:90] = -980
    assert find_lungs(volume.transpose(2, 1, 0), (2.5, 2.5, 5)).box[2] == (0, 25)  # 20 mm, and a voxel


@pytest.mark.parametrize(
    "box, spacing, shape, expected",
    [
        (((10, 20), (10, 30)), (1, 1), (100, 100), ((5, 25), (10, 30))),
        (((0, 4), (10, 30)), (1, 1), (100, 100), ((0, 20), (10, 30))),
        (((96, 100), (10, 30)), (1, 1), (100, 100), ((80, 100), (10, 30))),
        (((0, 8), (0, 30)), (1, 1), (8, 30), ((-11, 19), (0, 30))),
        (((10, 20), (10, 30)), (2, 1), (100, 100), ((10, 20), (10, 30))),
        (((0, 32), (0, 32)), (0.7, 0.7), (32, 32), ((0, 32), (0, 32))),
    ],
)
def test_boxes_are_square_in_millimetres(box, spacing, shape, expected):
    assert square(box, spacing, shape) == expected


@pytest.mark.parametrize(
    "wrong, word",
    [
        ({"window": (0, 0)}, "lower first"),
        ({"window": (0, float("nan"))}, "lower first"),
        ({"spacing": (0, 0, -1)}, "0.1 to 50"),
        ({"size": 4}, "greater than"),
        ({"slices": 0}, "greater than"),
        ({"width": 3}, "Extra inputs"),
    ],
)
def test_preprocessing_refuses_nonsense(wrong, word):
    with pytest.raises(ValueError, match=word):
        Preprocessing(**wrong)


@pytest.mark.parametrize("more", [(1,), (1, 1)])
def test_check_and_load_agree_on_further_dimensions_of_length_one(tmp_path, more):
    plain = write_nifti(tmp_path / "plain.nii.gz", chest())
    image = nibabel.load(plain)
    further = tmp_path / "further.nii.gz"
    nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj).reshape(*image.shape, *more), image.affine), further)
    assert read_volume(further).usable
    assert torch.equal(_load(further), _load(plain)) and torch.equal(_slices(further), _slices(plain))


@pytest.mark.parametrize("shape", [(8, 8, 8, 3), (8, 8, 8, 1, 3), (8, 8)])
def test_check_and_load_agree_on_what_is_no_volume(tmp_path, shape):
    path = tmp_path / "x.nii"
    nibabel.save(nibabel.Nifti1Image(np.zeros(shape, np.int16), np.eye(4)), path)
    assert not read_volume(path).usable
    with pytest.raises(UserError, match="dimensions"):
        _load(path)


def test_a_slice_in_place_of_a_volume_is_said_to_be_one(tmp_path):
    write_series(tmp_path / "s", chest(slices=1))
    (problem,) = read_volume(tmp_path / "s" / "000.dcm").problems
    assert problem.message.endswith("is a DICOM file, one slice: give the folder of its series")
    (problem,) = read_volume(tmp_path / "s").problems
    assert "cannot be read as NIfTI" in problem.message
