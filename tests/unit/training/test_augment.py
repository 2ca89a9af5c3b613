"""Augmentation on batches: by hand, reproducible, masks with images, and where it must not be."""

import pytest
import torch
from tiny import config, images, run, same

from medpfl.core.errors import UserError
from medpfl.core.masked_data import MaskedImages
from medpfl.core.seeding import generator
from medpfl.core.site_data import ImageTensors
from medpfl.tasks import TASKS
from medpfl.training.augment import augmenter
from medpfl.training.augment.own import problem
from medpfl.training.augment.presets import LIGHT, PRESETS, Preset, Ranges, _matrices
from medpfl.training.loop import plain_objective, train_epochs
from medpfl.training.trainer import Trainer

CLASSES = torch.zeros(6, dtype=torch.long)


def batch(*shape, seed=1):
    return torch.rand(*shape, generator=generator(seed)) * 2 - 1


def blocks(*shape):
    """Masks of two classes, 0 and 5, in large blocks, uint8: what is interpolated between them is neither."""
    mask = torch.zeros(shape, dtype=torch.uint8)
    mask[..., 8:24, 10:50], mask[..., 24:36, 15:40] = 5, 5
    return mask


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_change_and_repeat(preset):
    x = batch(6, 1, 20, 24)
    change = augmenter(preset)
    (first, y), (again, _), (other, _) = (change(x.clone(), CLASSES, generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert y is CLASSES
    assert first.shape == x.shape and first.isfinite().all()
    # Each sample is changed by numbers of its own.
    same_image = change(x[:1].repeat(3, 1, 1, 1), CLASSES[:3], generator(0))[0]
    assert not torch.equal(same_image[0], same_image[1])


def test_what_comes_in_stays_as_it_was():
    x, mask = batch(2, 1, 40, 60), blocks(2, 40, 60)
    before = x.clone(), mask.clone()
    augmenter("strong:microscopy")(x, mask, generator(0))
    assert torch.equal(x, before[0]) and torch.equal(mask, before[1])


def test_no_strength_is_the_identity():
    x, mask = batch(2, 1, 40, 60), blocks(2, 40, 60)
    same_x, same_mask = Preset(Ranges())(x, mask, generator(0))
    assert same_x is x and same_mask is mask
    # A range so small that nothing can be seen of it goes the whole way and comes back.
    tiny = Ranges(rotation=1e-6, zoom=1e-7, gamma=1e-7, contrast=1e-7, brightness=1e-7, noise=1e-8)
    near, near_mask = Preset(tiny)(x, mask, generator(0))
    torch.testing.assert_close(near, x, atol=1e-4, rtol=0)
    assert torch.equal(near_mask, mask)


@pytest.mark.parametrize("strength", ["light", "strong:microscopy"])
@pytest.mark.parametrize("depth", [(), (5,)])
def test_masks_move_as_images_do(strength, depth):
    """Images whose pixels are their masks' classes are so afterwards, but for seams, where images are interpolated."""
    mask = blocks(4, *depth, 40, 60)
    ranges = PRESETS[strength]
    moves = Ranges(ranges.rotation, ranges.zoom, ranges.shift, ranges.mirrored)
    x, y = Preset(moves)(mask[:, None].float(), mask, generator(3))
    assert y.dtype == torch.uint8 and y.shape == mask.shape
    assert not torch.equal(y, mask)
    inside = (x[:, 0] < 1e-3) | (x[:, 0] > 5 - 1e-3)
    assert inside.float().mean() > 0.85
    assert torch.equal(x[:, 0].round()[inside], y.float()[inside])
    assert set(y.unique().tolist()) == {0, 5}


def test_slices_of_a_sample_move_alike():
    one = batch(3, 1, 20, 20)
    bags = one[:, None].repeat(1, 4, 1, 1, 1)
    moved, _ = Preset(Ranges(rotation=30, zoom=0.2, shift=0.1))(bags, CLASSES[:3], generator(0))
    assert all(torch.equal(moved[:, 0], moved[:, k]) for k in range(4))


def test_a_quarter_turn_by_hand():
    """Of a picture that is no square, too: 90 degrees about the middle, in pixels and not in shares of the sides."""
    x = torch.zeros(1, 1, 5, 9)
    x[0, 0, 2, 6] = 1.0  # two columns right of the middle
    draws = torch.tensor([[1.0, 0.5, 0.9, 0.9, 0.5, 0.5]])
    matrix = _matrices(Ranges(rotation=90), draws, x.shape)
    grid = torch.nn.functional.affine_grid(matrix, [1, 1, 5, 9], align_corners=False)
    found = torch.nn.functional.grid_sample(x, grid, align_corners=False)[0, 0]
    (row,), (column,) = (found > 0.9).nonzero(as_tuple=True)
    assert column == 4 and abs(row - 2) == 2


def test_mirrored_by_hand():
    x = batch(1, 1, 4, 6)
    draws = torch.tensor([[0.5, 0.5, 0.9, 0.1, 0.5, 0.5]])
    matrix = _matrices(Ranges(mirrored=(True, True)), draws, x.shape)
    grid = torch.nn.functional.affine_grid(matrix, [1, 1, 4, 6], align_corners=False)
    torch.testing.assert_close(torch.nn.functional.grid_sample(x, grid, align_corners=False), x.flip(-1))


def test_intensities_stay_in_proportion_to_the_range():
    """Whatever the scale of the images, the change is the same: Hounsfield units as well as [-1, 1]."""
    x = batch(4, 1, 8, 8)
    ranges = Ranges(gamma=0.2, contrast=0.2, brightness=0.1, noise=0.05)
    small, _ = Preset(ranges)(x, CLASSES[:4], generator(0))
    large, _ = Preset(ranges)(x * 500 + 100, CLASSES[:4], generator(0))
    torch.testing.assert_close(large, small * 500 + 100, atol=0.05, rtol=1e-4)
    assert (small - x).abs().max() > 0.05


def test_a_constant_image_stays_finite():
    assert augmenter("strong")(torch.zeros(2, 1, 8, 8), CLASSES[:2], generator(0))[0].isfinite().all()


def test_nothing_is_mirrored_where_sides_mean_something():
    assert [kind for kind, ranges in LIGHT.items() if any(ranges.mirrored)] == ["microscopy"]


def test_the_trainer_augments_and_the_site_evaluates_as_it_is():
    data = images(train=12)
    plain, changed = (
        [x for x, _ in Trainer.of({"batch_size": 4}, augment=a).batches(data, generator(0))] for a in ("none", "light")
    )
    assert not any(torch.equal(a, b) for a, b in zip(plain[1:], changed[1:], strict=True))
    first, second = (torch.cat([x for x, _ in data.batches("train", 4)]) for _ in range(2))
    assert torch.equal(first, second)


def test_a_segmentation_is_trained_with_masks_that_move():
    masks, empty = blocks(6, 40, 60).clamp(max=1), blocks(0, 40, 60)
    images_there = {"train": masks[:, None] * 255, "validation": empty[:, None], "test": empty[:, None]}
    data = MaskedImages(images_there, {"train": masks, "validation": empty, "test": empty})
    trainer = Trainer.of({"batch_size": 3, "lr": 0.01, "optimizer": "adam", "precision": "bf16"}, augment="strong:mr")
    for x, y in trainer.batches(data, generator(0)):
        assert y.shape == (3, 40, 60) and y.dtype == torch.uint8
        # Bright is the structure, but for its seam, whatever became of contrast and brightness.
        assert ((x[:, 0] > x.amax((1, 2, 3)).view(3, 1, 1) - 1) == (y == 1)).float().mean() > 0.9
    model = torch.nn.Conv2d(1, 2, 3, padding=1)
    losses = [
        train_epochs(model, data, trainer, 1, generator(n), plain_objective(model, TASKS["segmentation"].loss))
        for n in range(12)
    ]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "method", ["ditto", *(pytest.param(name, marks=pytest.mark.slow) for name in ("apfl", "fedrep"))]
)
def test_a_run_with_augmentation_repeats_whatever_the_number_of_threads(method):
    run_config = config(method, rounds=2, augment="strong", alone="yes")
    (one, sites), (three, others) = run(run_config), run(run_config, workers=3)
    assert all(same(one.shared[name], three.shared[name]) for name in sites)
    plain, _ = run(config(method, rounds=2, alone="yes"))
    assert not any(same(one.shared[name], plain.shared[name]) for name in sites)
    for name in sites:
        assert same(sites[name].store.get("alone", 2), others[name].store.get("alone", 2))


def test_bags_of_one_shape_and_volumes_go_the_same_way():
    parts = {part: batch(n, 3, 1, 8, 8) for part, n in (("train", 4), ("validation", 1), ("test", 1))}
    bags = ImageTensors(parts, {part: torch.zeros(len(x), dtype=torch.long) for part, x in parts.items()})
    x, _ = next(Trainer.of({"batch_size": 4}, augment="light").batches(bags, generator(0)))
    assert x.shape == (4, 3, 1, 8, 8)


@pytest.mark.parametrize(
    ("augment", "words"),
    [
        ("ligth", r"one of light, strong, .*, got 'ligth' \(did you mean light\?\)"),
        ({"transform": []}, "one entry, transforms"),
        ({"transforms": [{"prob": 1}]}, "a mapping with a _target_"),
        ({"transforms": [{"_target_": "SaveImaged"}]}, "'SaveImaged' is no random transform of monai.transforms"),
        ({"transforms": [{"_target_": "RandFlipd", "keys": "$print(1)"}]}, "which MONAI's bundles take for code"),
        ({"transforms": [{"_target_": "os.system('x')"}]}, "is no name of a class"),
        ({"transforms": [{"_target_": "OneOf", "transforms": [{"_target_": "Lambda"}]}]}, "'Lambda' is no random"),
        (
            {"transforms": [{"_target_": "RandFlipd", "keys": ["image", "label"]}]},
            "RandFlipd is of 'label', which are masks, and the task has none; keys: image",
        ),
        (
            {"transforms": [{"_target_": "OneOf", "transforms": [{"_target_": "RandFlipd", "keys": "img"}]}]},
            "RandFlipd is of 'img'; keys: image",
        ),
    ],
)
def test_what_is_no_augmentation(augment, words):
    with pytest.raises(UserError, match=words):
        config("fedavg", augment=augment)


def test_a_list_for_masks_serves_for_both_where_keys_may_be_missing():
    both = {"_target_": "RandFlipd", "keys": ["image", "label"]}
    config("fedavg", augment={"transforms": [both | {"allow_missing_keys": True}]})
    assert problem({"transforms": [both]}, masks=True) is None
