"""Images with masks in one npz file, the embedded sample among them, and a user's function that returns masks."""

import numpy as np
import pytest
import torch
from masked import CPU, config, draw

from medpfl.core.errors import UserError
from medpfl.core.masked_data import MaskedImages, MaskedVolumes
from medpfl.core.site_data import PARTS
from medpfl.data.kinds.function.own_data import OwnData
from medpfl.data.kinds.masks import masked_source
from medpfl.data.kinds.masks.mask_kind import MaskKind
from medpfl.data.kinds.masks.masked_npz import read_arrays
from medpfl.data.kinds.npz.catalog import MASKED_IMAGES, MASKED_SAMPLE, rows
from medpfl.data.kinds.npz.npz_kind import NpzKind
from medpfl.data.kinds.registry import kind_of
from medpfl.data.sites import fixed_sites, open_source


@pytest.fixture
def write_masked(home):
    """12 images of 20 × 24 pixels: three patients of two images each at each of two sites."""

    def write(**change):
        drawn = [draw(k, (20, 24)) for k in range(12)]
        content = {
            "train_images": np.stack([image[..., 0] for image, _ in drawn]),
            "train_masks": np.stack([mask for _, mask in drawn]),
            "train_patients": np.arange(12) // 2,
            "train_sites": np.repeat(["x", "y"], 6),
        } | change
        np.savez(home / "mine.npz", **{key: array for key, array in content.items() if array is not None})
        return home / "mine.npz"

    return write


def test_masks_in_a_file_are_told_from_labels(write_masked, write):
    assert isinstance(kind_of(str(write_masked()), {}), MaskKind)
    masks = np.load(write_masked())["train_masks"]
    assert isinstance(kind_of(str(write_masked(train_masks=None, train_labels=masks)), {}), MaskKind)
    assert isinstance(kind_of(str(write("labels.npz")), {}), NpzKind)


def test_sites_and_patients_are_the_files(write_masked):
    file = write_masked(spacing=np.array([5.0, 1.0, 2.0]))
    assert fixed_sites(str(file), "natural", {}) == 2
    source = open_source(config(file))
    assert source.model_arguments() == {"in_channels": 1, "num_classes": 2, "image_size": (20, 24)}
    data = source.site("site-2", CPU)
    assert [data.samples(part) for part in PARTS] == [4, 0, 2]
    cases = list(data.cases("test"))
    assert len(cases) == 1 and cases[0].spacing == (5, 1, 2)
    drawn = {draw(k, (20, 24))[1].tobytes() for k in range(6, 12)}
    assert {mask.numpy().tobytes() for mask in cases[0].mask} <= drawn
    assert source.inputs() is None  # not square: how a file would become such an image is not said


@pytest.mark.parametrize(("partition", "sites", "read"), [("iid", 3, 1), ("natural", 2, 1 + 1 + 2)])
def test_a_file_is_not_read_whole_for_each_site(write_masked, monkeypatch, partition, sites, read):
    file = write_masked(**({"train_sites": None} if partition == "iid" else {}))
    whole = []
    monkeypatch.setattr(masked_source, "read_arrays", lambda path: whole.append(path) or read_arrays(path))
    source = open_source(config(file, partition=partition, sites=sites))
    source.prepare()
    source.describe()
    masks = [mask for name in source.config.site_names for part in source.site(name, CPU).labels.values()
             for mask in part]  # fmt: skip
    assert len(whole) == read  # a site that is one of many in a file keeps none of the others' images
    assert {mask.numpy().tobytes() for mask in masks} == {draw(k, (20, 24))[1].tobytes() for k in range(12)}


def test_official_parts_are_kept(write_masked):
    whole = np.load(write_masked())
    parts = {f"test_{key.removeprefix('train_')}": array[:4] for key, array in whole.items()}
    with pytest.raises(UserError, match=r"patient [01] is in test and train"):
        open_source(config(write_masked(**parts), official=True)).site("site-1", CPU)
    parts["test_patients"] = np.array([7, 7, 8, 8])
    source = open_source(config(write_masked(**parts), official=True))
    data = source.site("site-1", CPU)
    assert [data.samples(part) for part in PARTS] == [6, 0, 4]
    assert [len(case.mask) for case in data.cases("test")] == [2, 2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train_masks": np.zeros((12, 20, 23), int)}, "train_masks is 12×20×23; for train_images 12×20×24 is needed"),
        ({"train_masks": np.zeros((12, 20, 24))}, "train_masks is float64; whole numbers"),
        ({"train_images": np.zeros((12, 20, 24), np.float32)}, "train_images is float32 12×20×24; uint8"),
        ({"train_patients": np.arange(3)}, r"train_patients is int64 3; text or integers, \(12,\)"),
        ({"spacing": np.array([1.0, 0.0, 1.0])}, "spacing is 3; .* lengths in mm, above 0"),
        (
            {"train_images": np.zeros((12, 0, 24), np.uint8), "train_masks": np.zeros((12, 0, 24), int)},
            "train_images is uint8 12×0×24; uint8, ",
        ),
        ({"train_masks": np.full((12, 20, 24), 3) * (np.arange(24) % 8)}, "the mask has the values 0, 3, 6, 9"),
        (
            {"classes": np.array(["a", "background"])},
            r"mine\.npz: background is a class after the first, a; the first is",
        ),
        ({"classes": np.array(["a", "b", "c"])}, None),
    ],
)
def test_what_does_not_fit_is_refused(write_masked, change, words):
    file = write_masked(**change)
    if words is None:
        assert open_source(config(file)).model_arguments()["num_classes"] == 3
        return
    with pytest.raises(UserError, match=words):
        open_source(config(file)).prepare()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"size": 64}, "images of 24×20 pixels; the job has 64"),
        ({"channels": "rgb"}, "images of 1 channels; the job has 3"),
        ({"fit": "pad"}, "--data-arg fit: images in an npz file"),
    ],
)
def test_a_job_that_says_otherwise_is_refused(write_masked, said, words):
    with pytest.raises(UserError, match=words):
        open_source(config(write_masked(), data_args=said)).model_arguments()


def test_the_sample_has_three_vendors_and_knows_its_patients(home):
    assert isinstance(kind_of(MASKED_SAMPLE, {}), MaskKind)
    source = open_source(config(MASKED_SAMPLE, sites=fixed_sites(MASKED_SAMPLE, "natural", {})))
    described = source.describe()
    assert described["name"] == MASKED_SAMPLE and described["classes"] == ["background", "tumour"]
    assert [site["centre"] for site in described["sites"].values()] == ["ge", "philips", "siemens"]
    assert [site["patients"] for site in described["sites"].values()] == [12, 8, 8]
    images = sum(site[part] for site in described["sites"].values() for part in PARTS)
    assert images == MASKED_IMAGES == {row.name: row.images for row in rows()}[MASKED_SAMPLE]
    case = next(source.site("site-3", CPU).cases("test"))
    assert case.images.shape[1:] == (1, 96, 96) and case.spacing[1:] == (2, 2) and case.mask.max() == 1
    inputs = source.inputs()
    assert (inputs.kind, inputs.size, inputs.classes) == ("masked picture", 96, ("background", "tumour"))


def test_a_users_function_may_return_masks(home, monkeypatch):
    images, none = torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.zeros(0, 1, 8, 8, dtype=torch.uint8)
    x = {"train": images, "validation": none, "test": images}
    y = {part: tensor[:, 0] for part, tensor in x.items()}
    volumes = {part: [torch.zeros(1, 6, 8, 8)] * len(tensor) for part, tensor in x.items()}
    masks = {part: [torch.zeros(6, 8, 8, dtype=torch.uint8)] * len(tensor) for part, tensor in x.items()}
    made = {
        "slices": MaskedImages(x, y),
        "volumes": MaskedVolumes(volumes, masks, (4, 4, 4)),
        "narrow": MaskedImages(x, {part: mask[..., 1:] for part, mask in y.items()}),
        "signed": MaskedImages(x, {part: mask.long() for part, mask in y.items()}),
        "short": MaskedVolumes(volumes, masks | {"train": masks["train"][:3]}, (4, 4, 4)),
        "shallow": MaskedVolumes(volumes, masks | {"test": [mask[1:] for mask in masks["test"]]}, (4, 4, 4)),
    }
    monkeypatch.setattr(OwnData, "function", lambda self, site, seed, what: made[what])
    for what, part in (("slices", "train"), ("volumes", "test")):
        assert open_source(config("own:data", data_args={"what": what})).site("site-1", CPU).samples(part) == 4
    for what, words in (
        ("narrow", r"site-1: train: masks of 4×8×7, and images of 4×1×8×8"),
        ("signed", "site-1: train: masks are int64; uint8"),
        ("short", "site-1: train: 3 masks, and 4 images"),
        ("shallow", r"site-1: test: masks of 5×8×8, and images of 1×6×8×8"),
    ):
        with pytest.raises(UserError, match=words):
            open_source(config("own:data", data_args={"what": what})).site("site-1", CPU)
