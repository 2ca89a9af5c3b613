"""NIfTI volumes with masks: orientation, resampling, intensities, slices, and what does not fit."""

import gzip

import nibabel
import numpy as np
import pytest
import torch
from masked import CPU, SMALL, opened, save_nifti, volume, write_volumes
from monai.data import MetaTensor

from medpfl.core.errors import UserError
from medpfl.core.masked_data import MaskedImages, MaskedVolumes
from medpfl.core.site_data import PARTS
from medpfl.data.kinds.masks import transforms
from medpfl.data.kinds.masks.mask_kind import MaskKind
from medpfl.data.kinds.registry import kind_of
from medpfl.data.kinds.scans.transforms import AntiAliasd
from medpfl.data.sites import fixed_sites


@pytest.fixture
def sarcomas(home):
    return write_volumes(home / "sarcomas")


def one(folder, values, mask, affine=None, mask_affine=None, **said):
    """The only volume of a folder, as a network sees it."""
    affine = np.diag([1.0, 1.0, 3.0, 1.0]) if affine is None else affine
    save_nifti(folder / "a.nii.gz", values, affine=affine)
    save_nifti(folder / "a_mask.nii.gz", mask, affine=affine if mask_affine is None else mask_affine)
    source = opened(folder, sites=1, fractions=(1, 0, 0), data_args=said)
    return source.site("site-1", CPU)


def flip_a_bit(file):
    """Of a voxel, in a compressed file whose checksum is that of the one that it was."""
    stored = bytearray(gzip.compress(gzip.decompress(file.read_bytes()), 0))
    stored[-100] ^= 1
    file.write_bytes(stored)


def test_volumes_keep_their_sizes_and_sites_are_folders(sarcomas):
    kind = kind_of(str(sarcomas), {})
    assert isinstance(kind, MaskKind) and kind.task(str(sarcomas), {}) == "segmentation"
    assert fixed_sites(str(sarcomas), "natural", {}) == 2
    source = opened(sarcomas)
    assert source.model_arguments() == {"in_channels": 1, "num_classes": 2, "image_size": (4, 8, 8)}
    data = source.site("site-1", CPU)
    assert isinstance(data, MaskedVolumes) and [data.samples(part) for part in PARTS] == [2, 0, 2]
    for part in ("train", "test"):
        for image, mask, spacing in zip(data.images[part], data.masks[part], data.spacings[part], strict=True):
            assert image.shape[1:] == mask.shape and image.dtype == torch.float16 and spacing == (3, 1, 1)
    assert {len(mask) for part in PARTS for mask in data.masks[part]} == {10, 11, 12, 13}
    x, y = next(data.training_batches(4, torch.Generator().manual_seed(0)))
    assert x.shape == (4, 1, 4, 8, 8) and y.shape == (4, 4, 8, 8)


def test_axes_are_slice_row_column_as_on_a_screen(home):
    """One bright voxel 2 mm left, 5 mm to the front and 6 mm up, however the file's axes lie."""
    seen = []
    for axes in ((0, 1, 2), (2, 0, 1)):
        for signs in ((1, 1, 1), (-1, 1, -1), (-1, -1, 1)):
            size, spacing = (9, 12, 5), (1.0, 1.0, 3.0)
            values, mask = np.zeros(size, np.float32), np.zeros(size, np.uint8)
            values[2, 8, 3], mask[2, 8, 3] = 5, 1  # in RAS: x, y, z
            affine = np.diag([*spacing, 1.0])
            for axis, sign in enumerate(signs):
                if sign < 0:
                    values, mask = np.flip(values, axis), np.flip(mask, axis)
                    affine[:3, 3] += affine[:3, axis] * (size[axis] - 1)
                    affine[:3, axis] *= -1
            values, mask = np.transpose(values, axes), np.transpose(mask, axes)
            affine = affine[:, [*axes, 3]]
            folder = home / f"x{len(seen)}"
            data = one(folder, np.ascontiguousarray(values), np.ascontiguousarray(mask), affine, normalise="none")
            image, found = data.images["train"][0], data.masks["train"][0]
            assert image.shape == (1, 5, 12, 9) and data.spacings["train"] == [(3, 1, 1)]
            # From the patient's right (column 0) to left, from front (row 0) to back, from the feet up.
            assert found.nonzero().tolist() == [[3, 12 - 1 - 8, 9 - 1 - 2]]
            assert (image[0] > 0).nonzero().tolist() == found.nonzero().tolist()
            seen.append(folder)


def test_resampling_is_linear_of_images_and_nearest_of_masks(home):
    ramp = np.broadcast_to(np.arange(9.0, dtype=np.float32), (6, 6, 9)).copy()
    mask = (ramp >= 4).astype(np.uint8)
    data = one(home / "x", ramp, mask, np.eye(4), spacing=[0.5, 0, 0], normalise="none")
    image, found = data.images["train"][0], data.masks["train"][0]
    assert image.shape == (1, 17, 6, 6) and data.spacings["train"] == [(0.5, 1, 1)]
    assert torch.allclose(image[0, :, 0, 0], torch.arange(17) / 2)
    assert set(found.unique().tolist()) == {0, 1} and abs(int(found[:, 0, 0].sum()) - 9) <= 1


@pytest.mark.parametrize("dims", [2, 3])
def test_a_header_that_is_rounded_makes_no_other_shape_of_a_mask(home, dims):
    """200 columns of 0.5 mm become 100 of 1 mm; of 0.50005 mm they would be 101."""
    values, mask = volume(0, (200, 8, 4))
    edges, rounded = np.diag([0.5, 1, 3, 1.0]), np.diag([0.50005, 1, 3, 1.0])
    data = one(home / "x", values, mask, edges, rounded, dims=dims, spacing=[0, 0, 1])
    for case in data.cases("train"):
        assert (case.images.shape[0], *case.images.shape[2:])[dims == 3 :] == case.mask.shape
        assert case.mask.shape[2] == (128 if dims == 2 else 100)
        assert case.spacing == ((3, 100 / 128, 100 / 128) if dims == 2 else (3, 1, 1))


def test_coarser_voxels_are_averages(home):
    rng = np.random.default_rng(0)
    noise = (10 + rng.normal(size=(6, 6, 64))).astype(np.float32)
    data = one(home / "x", noise, (noise > 10).astype(np.uint8), np.eye(4), spacing=[8, 0, 0], normalise="none")
    assert data.images["train"][0].std() < 0.5 and len(data.masks["train"][0]) == 9


def test_intensities(home):
    values, mask = volume(1, (12, 12, 12))
    values[:3] = 0
    image = one(home / "z", values, mask).images["train"][0].float()
    inside = image[image != 0]
    assert abs(inside.mean()) < 0.01 and abs(inside.std() - 1) < 0.01
    assert (image[0, :, :, 9:] == 0).all()  # what was not seen stays 0: x runs from the left here
    image = one(home / "p", values, mask, normalise="percentile").images["train"][0].float()
    assert image.min() == -1 and image.max() == 1 and (image[0, :, :, 9:] == -1).all()
    ct = np.linspace(-1000, 1000, 12**3, dtype=np.float32).reshape(12, 12, 12)
    image = one(home / "c", ct, mask).images["train"][0].float()
    assert (
        image.min() == -1
        and image.max() == 1
        and abs(float(image[0, 6, 6, 5]) - np.clip((ct[6, 5, 6] - 40) / 200, -1, 1)) < 1e-2
    )
    image = one(home / "w", ct, mask, window=[-1000, 1000]).images["train"][0].float()
    assert abs(image.mean()) < 0.01 and abs(float(image.max()) - 1) < 1e-3


def test_ct_and_mr_at_one_site_are_asked_about(home):
    write_volumes(home / "x", sites=("a",), cases=2)
    write_volumes(home / "y", sites=("a",), cases=1, low=-1000.0)
    (home / "y" / "a" / "STS_000").rename(home / "x" / "a" / "CT")
    with pytest.raises(UserError, match=r"CT/image\.nii\.gz looks like CT .* say --data-arg normalise="):
        opened(home / "x", sites=1).prepare()
    opened(home / "x", sites=1, data_args=SMALL | {"normalise": "percentile"}).prepare()


def test_slices_of_a_volume_are_one_case(sarcomas):
    source = opened(sarcomas, data_args={"dims": 2, "size": 12})
    assert source.model_arguments() == {"in_channels": 1, "num_classes": 2, "image_size": (12, 12)}
    data = source.site("site-1", CPU)
    assert isinstance(data, MaskedImages)
    cases = list(data.cases("train"))
    assert len(cases) == 2 and {len(case.mask) for case in cases} <= {10, 11, 12, 13}
    assert all(case.spacing[0] == 3 and case.spacing[1] == case.spacing[2] for case in cases)
    assert all(abs(case.spacing[1] - 2) < 0.2 for case in cases)  # 24 to 26 pixels of 1 mm become 12
    volumes = opened(sarcomas).site("site-1", CPU)
    for case, whole in zip(cases, volumes.masks["train"], strict=True):
        assert (
            abs(case.mask.float().mean() * case.mask[0].numel() * 4 / whole.float().mean() / whole[0].numel() - 1) < 0.3
        )
        bright = case.images[:, 0] > 1.2
        assert (bright != case.mask).float().mean() < 0.1


def test_several_channels_are_in_the_fourth_dimension(home):
    values, mask = volume(0)
    two = np.stack([values, values[::-1]], axis=3)
    image = one(home / "x", two, mask, channels=2).images["train"][0]
    assert image.shape == (2, 10, 24, 20) and torch.equal(image[0].flip(2), image[1])
    with pytest.raises(UserError, match=r"a\.nii\.gz: is 20×24×10 with 2 channels; a volume with 1 channel is needed"):
        one(home / "x", two, mask)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 0, 2)])
@pytest.mark.parametrize("flipped", [(), (0,), (1, 2)])
def test_a_mask_may_have_its_axes_in_another_order_and_direction(home, order, flipped):
    """What counts is where a voxel lies."""
    values, mask = volume(3)
    affine = np.array([[-1.0, 0, 0, 40], [0, 0, 3.0, -7], [0, 1.0, 0, 5], [0, 0, 0, 1]])
    to_image = np.eye(4)  # from the mask's voxels to the image's
    to_image[:3, :3] = np.eye(3)[:, list(order)]
    turned = mask.transpose(order)
    for axis in flipped:
        to_image[:3, 3] += to_image[:3, axis] * (turned.shape[axis] - 1)
        to_image[:3, axis] *= -1
    plain = one(home / "plain", values, mask, affine)
    other = one(home / "other", values, np.flip(turned, flipped), affine, affine @ to_image)
    assert torch.equal(plain.masks["train"][0], other.masks["train"][0]) and plain.masks["train"][0].any()


def without_place(file, values):
    """As no program should write it: all of a row of voxels lie at one place."""
    image = nibabel.Nifti1Image(values, None)
    image.header.set_sform(np.diag([0, 1, 3, 1.0]), code=1)
    nibabel.save(image, file)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda f: save_nifti(f / "mask.nii.gz", np.zeros((20, 24, 9), np.uint8)),
            r"mask\.nii\.gz: has 20×24×9 voxels, its image .* 20×24×10",
        ),
        (
            lambda f: save_nifti(f / "mask.nii.gz", np.zeros((20, 24, 10), np.uint8), (1, 1, 2)),
            r"its voxels are 1×1×2 mm, those of .* 1×1×3 mm",
        ),
        (
            lambda f: save_nifti(
                f / "mask.nii.gz",
                np.zeros((20, 24, 10), np.uint8),
                affine=np.array([[1, 0, 0, 9], [0, 1, 0, 0], [0, 0, 3, 0], [0, 0, 0, 1.0]]),
            ),
            "it lies up to 9 mm beside its image",
        ),
        (
            lambda f: save_nifti(f / "mask.nii.gz", np.full((20, 24, 10), 0.5, np.float32)),
            r"mask\.nii\.gz: has the value 0\.5",
        ),
        (
            lambda f: save_nifti(f / "mask.nii.gz", np.arange(4800).reshape(20, 24, 10).astype(np.uint8) % 4),
            "has the values 0, 1, 2, 3",
        ),
        (lambda f: (f / "image.nii.gz").write_bytes(b"nothing"), r"image\.nii\.gz: cannot be read as NIfTI"),
        (
            lambda f: (f / "image.nii.gz").write_bytes(
                gzip.compress(gzip.decompress((f / "image.nii.gz").read_bytes())[:900])
            ),
            "image.nii.gz: cut short",
        ),
        (
            lambda f: save_nifti(f / "image.nii.gz", np.full((20, 24, 10), np.inf, np.float32)),
            "has values that are no numbers",
        ),
        (
            lambda f: save_nifti(f / "image.nii.gz", np.full((20, 24, 10), 7, np.float32)),
            r"image\.nii\.gz: every voxel has the value 7",
        ),
        (
            lambda f: without_place(f / "image.nii.gz", np.ones((20, 24, 10, 2), np.float32)),
            r"image\.nii\.gz: its affine matrix gives the voxels no place in space",
        ),
        (lambda f: flip_a_bit(f / "image.nii.gz"), r"image\.nii\.gz: cut short or damaged: CRC check failed"),
        (lambda f: flip_a_bit(f / "mask.nii.gz"), r"mask\.nii\.gz: cut short or damaged: CRC check failed"),
        (lambda f: (f / "mask.nii.gz").unlink(), r"image\.nii\.gz: the image has no mask of its own"),
    ],
)
def test_a_volume_that_cannot_be_used_is_named(sarcomas, spoil, words):
    spoil(sarcomas / "ge" / "STS_000")
    with pytest.raises(UserError, match=words):
        opened(sarcomas).prepare()


def test_a_volume_is_read_again_only_when_it_changes(sarcomas, home, monkeypatch):
    opened(sarcomas).prepare()
    kept = sorted((home / "cache" / "medpfl" / "masks").iterdir())
    assert len(kept) == 8
    save_nifti(sarcomas / "ge" / "STS_000" / "mask.nii.gz", volume(5, (20, 24, 10))[1])
    opened(sarcomas, data_args=SMALL | {"patches": 2}).prepare()
    assert len(list((home / "cache" / "medpfl" / "masks").iterdir())) == 9
    kept[0].write_bytes(b"torn")
    opened(sarcomas).prepare()


def test_what_is_ct_is_seen_before_voxels_are_averaged(home):
    """A volume was windowed and another of its site, whose few voxels of gas were averaged away, z-scored."""
    values, mask = np.random.default_rng(0).integers(-120, 200, (24, 24, 24)), np.zeros((24, 24, 24), np.uint8)
    values[4:6, 4:6, 4], mask[10:14] = -260, 1
    auto, windowed = (
        one(home / how, values.astype(np.float32), mask, spacing=[4, 4, 4], normalise=how).images["train"][0]
        for how in ("auto", "window")
    )
    assert torch.equal(auto, windowed)


def test_dicom_with_masks_is_refused_in_words(home):
    save_nifti(home / "x" / "masks" / "a.nii.gz", volume(0)[1])
    (home / "x" / "images" / "a").mkdir(parents=True)
    (home / "x" / "images" / "a" / "1.dcm").write_bytes(b"")
    with pytest.raises(UserError, match=r"a\.nii\.gz: .* convert them to NIfTI"):
        opened(home / "x", sites=1).prepare()


def test_a_new_volume_is_read_as_training_reads_it(sarcomas):
    from monai.bundle import ConfigParser

    for said in (SMALL, {"dims": 2, "size": 12}):
        source = opened(sarcomas, data_args={"spacing": [2, 0, 0], **said})
        inputs = source.inputs()
        assert inputs.kind == "masked volume" and inputs.size == source.model_arguments()["image_size"]
        steps = ConfigParser({"steps": {"_target_": "Compose", "transforms": inputs.steps}}).get_parsed_content("steps")
        pair = source._parts("ge")["train"][0]
        new = steps({"image": str(pair.image)})["image"]
        data = source.site("site-1", CPU)
        known = data.images["train"][0] if "patch" in said else next(data.cases("train")).images
        assert new.shape == known.shape and torch.allclose(new.as_tensor(), known.float(), atol=2e-3)


def hounsfield():
    """(24, 24, 12) of air around soft tissue, in HU."""
    values = np.full((24, 24, 12), -1000.0) + np.random.default_rng(0).integers(-20, 20, (24, 24, 12))
    values[6:18, 6:18] += 1040
    return values.astype(np.float32)


def test_hu_without_their_offset_are_refused_where_hu_are_windowed(home):
    values, mask = hounsfield(), np.zeros((24, 24, 12), np.uint8)
    mask[8:12, 8:12] = 1
    assert one(home / "hu", values, mask, normalise="window").images["train"][0].min() == -1
    with pytest.raises(UserError, match=r"a.nii.gz: values from .* look like HU without their offset of -1024"):
        one(home / "raw", values + 1024, mask, normalise="window")
    told = [f.message for f in kind_of(str(home / "raw"), {}).check(str(home / "raw"), {"normalise": "window"})]
    assert any("look like HU without their offset" in words for words in told)
    for said in ({"normalise": "zscore"}, {"normalise": "window", "window": [0, 2000]}):
        assert one(home / "raw", values + 1024, mask, **said).samples("train") == 1


def test_values_without_their_sign_are_refused_however_they_are_normalised(home):
    values, mask = hounsfield() % 65536, np.zeros((24, 24, 12), np.uint8)
    mask[8:12, 8:12] = 1
    with pytest.raises(UserError, match=r"a.nii.gz: values from .* stored without their sign\?"):
        one(home / "raw", values, mask)


def test_sites_whose_volumes_auto_would_read_in_two_ways_are_told(home):
    for site, values in (("north", hounsfield()), ("south", hounsfield() + 2000)):
        for name in "abc":
            save_nifti(home / "ct" / site / f"{name}.nii.gz", values)
            save_nifti(home / "ct" / site / f"{name}_mask.nii.gz", (values > values.mean()).astype(np.uint8))
    kind = kind_of(str(home / "ct"), {})
    auto, zscore = (
        " | ".join(f.message for f in kind.check(str(home / "ct"), {"normalise": how})) for how in ("auto", "zscore")
    )
    assert "volumes look like CT at north; no CT at south: CT is windowed" in auto and "windowed" not in zscore


def test_what_resampling_would_make_too_large_is_refused_before():
    """2,391 x 2,391 x 177 voxels are fewer than 2^30, and four channels of them more."""
    fine = {"x": MetaTensor(torch.zeros(4, 240, 240, 4), affine=np.diag([1, 1, 50, 1]))}
    with pytest.raises(UserError, match=r"the volume, with spacing .*4×2,391×2,391×177 voxels would need"):
        AntiAliasd(["x"], (0.1, 0.1, 0.85))(fine)
    one = {"x": fine["x"][:1]}
    assert AntiAliasd(["x"], (0.1, 0.1, 0.85))(one)["x"].shape == (1, 240, 240, 4)


@pytest.mark.parametrize("fit", ["pad", "crop", "stretch"])
@pytest.mark.parametrize("mask", [False, True])
def test_slices_are_the_same_however_many_are_made_square_at_once(fit, mask, monkeypatch):
    """A volume whose columns are far finer than its rows would be many times as large if all were padded together."""
    volume = torch.randn((2, 9, 5, 300), generator=torch.Generator().manual_seed(0))
    found = []
    for together in (1, 2 * 2 * 300**2, 1 << 24):
        monkeypatch.setattr(transforms, "_PADDED_TOGETHER", together)
        found.append(transforms.SquareSlicesd(["x"], 8, fit, mask)({"x": (volume > 0).float() if mask else volume}))
    assert found[0]["x"].shape == (9, 2, 8, 8)
    assert all(torch.equal(found[0]["x"], other["x"]) for other in found)


def test_percentiles_are_of_values_in_any_unit(home):
    """An apparent diffusion coefficient is 0.001 mm^2/s and 1e-9 m^2/s."""
    values, mask = volume(1, (12, 12, 12))
    images = [
        one(home / str(n), (values * unit).astype(np.float32), mask, normalise="percentile").images["train"][0]
        for n, unit in enumerate((1.0, 1e-9))
    ]
    assert torch.allclose(images[0].float(), images[1].float(), atol=2e-3)
    assert images[0].std() > 0.1
