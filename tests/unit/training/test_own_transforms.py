"""The user's own list of MONAI's transforms: from a file to batches, and whose code it may name."""

import pytest
import torch
from tiny import config, run, same

from medpfl.config.named_code import named_code
from medpfl.core.errors import UserError
from medpfl.core.seeding import generator
from medpfl.training.augment import content
from medpfl.training.augment.own import Own

FLIP = {"transforms": [{"_target_": "RandFlipd", "keys": ["image", "label"], "prob": 0.5, "spatial_axis": 1}]}
NOISE = {"transforms": [{"_target_": "RandGaussianNoised", "keys": "image", "prob": 1.0, "std": 0.5}]}


def test_image_and_mask_are_turned_together():
    mask = torch.randint(0, 3, (8, 6, 6), generator=generator(0)).to(torch.uint8)
    x, y = Own(FLIP)(mask[:, None].float(), mask, generator(1))
    assert y.dtype == torch.uint8
    assert torch.equal(x[:, 0], y.float())
    turned = [not torch.equal(a, b) for a, b in zip(mask, y, strict=True)]
    assert 0 < sum(turned) < 8
    assert torch.equal(y[turned.index(True)], mask[turned.index(True)].flip(-1))


def test_the_generator_decides():
    x, y = torch.zeros(3, 1, 4, 4), torch.zeros(3, dtype=torch.long)
    own = Own(NOISE)
    first, again, other = (own(x, y, generator(seed))[0] for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert type(first) is torch.Tensor
    assert not torch.equal(first[0], first[1])


def test_slices_of_a_bag_are_changed_alike():
    flip = {"transforms": [{"_target_": "RandFlipd", "keys": "image", "prob": 1.0, "spatial_axis": 1}]}
    bags = torch.rand(2, 3, 1, 4, 4, generator=generator(0))
    assert torch.equal(Own(flip)(bags, torch.zeros(2, dtype=torch.long), generator(0))[0], bags.flip(-1))


def test_a_file_travels_as_what_is_in_it(tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text("transforms:\n  - {_target_: RandGaussianNoised, keys: image, prob: 1.0, std: 0.5}\n")
    found = content(str(file))
    assert found == NOISE
    run_config = config("fedavg", rounds=1, augment=found)
    assert str(tmp_path) not in run_config.model_dump_json()
    (one, _), (two, _), (plain, _) = run(run_config), run(run_config, workers=3), run(config("fedavg", rounds=1))
    assert all(same(one.shared[name], two.shared[name]) for name in one.shared)
    assert not same(one.shared["site-1"], plain.shared["site-1"])


@pytest.mark.parametrize(
    ("text", "words"), [("- a\n", "a YAML mapping with a list `transforms` is needed"), ("a: [", "wrong YAML")]
)
def test_a_file_that_is_none(tmp_path, text, words):
    file = tmp_path / "own.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=words):
        content(str(file))


def test_code_of_others_must_be_permitted():
    spec = {"transforms": [{"_target_": "elsewhere.Blur", "keys": "image"}]}
    assert ("augmentation", "elsewhere:Blur") in list(named_code(config("fedavg", augment=spec)))
    with pytest.raises(UserError, match="augmentation 'elsewhere:Blur': code of 'elsewhere', which nobody here has"):
        Own(spec)


def test_a_permitted_modules_functions_are_no_transforms():
    """A list of transforms would call them with arguments of the job's."""
    spec = {"transforms": [{"_target_": "tiny.site_data", "site": "site-1", "seed": 0}]}
    with pytest.raises(UserError, match="augmentation 'tiny:site_data': 'tiny' has no transform of this name"):
        Own(spec)


@pytest.mark.parametrize(
    ("target", "arguments", "words"),
    [
        ("RandAffined", {"spatial_size": [9000, 9000]}, "spatial_size=9000: a number from -1 to 1024 is needed"),
        ("RandZoomd", {"min_zoom": 1.0, "max_zoom": 200}, "max_zoom=200: a number from 0 to 10 is needed"),
        ("RandCoarseDropoutd", {"holes": 10**9, "spatial_size": 3}, "holes=1000000000: a number from 0 to 1000"),
        ("RandGaussianSmoothd", {"sigma_x": [0.5, 3e6]}, "sigma_x=3000000.0: a number from 0 to 100 is needed"),
        ("Compose", {"transforms": [{"_target_": "RandBiasFieldd", "degree": 60}]}, "degree=60: a number from 0 to 10"),
    ],
)
def test_numbers_that_would_take_a_sites_memory_or_time(target, arguments, words):
    with pytest.raises(UserError, match=f"augment: {words}"):
        config("fedavg", augment={"transforms": [{"_target_": target, "keys": "image", "prob": 1.0} | arguments]})


def test_wrong_arguments_and_other_shapes():
    with pytest.raises(UserError, match=r"augment: RandFlipd: .*nonsense"):
        Own({"transforms": [{"_target_": "RandFlipd", "keys": "image", "nonsense": 1}]})
    crop = {"transforms": [{"_target_": "RandSpatialCropd", "keys": "image", "roi_size": [2, 2]}]}
    with pytest.raises(UserError, match=r"make image of shape \[1, 4, 4\] one of \[1, .*keep the shape"):
        Own(crop)(torch.zeros(1, 1, 4, 4), torch.zeros(1, dtype=torch.long), generator(0))


@pytest.mark.parametrize(("axis", "dimension"), [(0, 2), (1, 3), (2, 4)])
def test_a_volume_with_a_class_has_its_own_axes(axis, dimension):
    """As one with a mask: (C, D, H, W), not one of slices that are channels."""
    volumes = torch.rand(2, 1, 5, 6, 7)
    flip = {"transforms": [{"_target_": "RandFlipd", "keys": "image", "prob": 1.0, "spatial_axis": axis}]}
    changed, _ = Own(flip)(volumes, torch.zeros(2, dtype=torch.long), generator(0))
    assert torch.equal(changed, volumes.flip(dimension))


def test_labels_between_two_classes_are_refused():
    mask = torch.zeros(1, 16, 16, dtype=torch.long)
    mask[:, 4:12, 4:12] = 3
    turn = {"_target_": "RandRotated", "keys": ["image", "label"], "prob": 1.0, "range_x": 0.5}
    with pytest.raises(UserError, match="make labels between two classes, as interpolation does: give label the mode"):
        Own({"transforms": [turn]})(mask[:, None].float(), mask, generator(0))
    right = {**turn, "mode": ["bilinear", "nearest"]}
    assert set(Own({"transforms": [right]})(mask[:, None].float(), mask, generator(0))[1].unique().tolist()) == {0, 3}
