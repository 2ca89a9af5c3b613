"""Images with masks as training sees them: cases, patches, what is counted and what is told apart."""

import pytest
import torch

from medpfl.core.masked_data import MaskedImages, MaskedVolumes
from medpfl.core.site_data import ImageTensors

SHAPES = ((9, 12, 10), (5, 7, 20), (3, 4, 4))
WINDOW = (4, 6, 6)
NONE = {"validation": [], "test": []}


def volumes(shapes=SHAPES, window=WINDOW, **options) -> MaskedVolumes:
    """Volumes whose every voxel says which it is: 1, 2, 3, ...; a mask is 1 where that is a multiple of 7."""
    images, masks, last = [], [], 0
    for shape in shapes:
        number = torch.Size(shape).numel()
        values = torch.arange(last + 1, last + number + 1, dtype=torch.float32).reshape(1, *shape)
        images.append(values)
        masks.append((values[0] % 7 == 0).to(torch.uint8))
        last += number
    return MaskedVolumes({"train": images} | NONE, {"train": masks} | NONE, window, **options)


def patches(data: MaskedVolumes, seed=0, batch_size=2):
    return list(data.training_batches(batch_size, torch.Generator().manual_seed(seed)))


def test_patches_lie_inside_and_image_and_mask_agree():
    for x, y in patches(volumes(SHAPES[:2], patches=20)):
        assert x.shape[1:] == (1, *WINDOW) and y.shape[1:] == WINDOW
        assert (x > 0).all()  # nothing but voxels of the volume
        assert torch.equal(y, (x[:, 0] % 7 == 0).to(torch.uint8))
        assert (x[:, 0, :, :, 1:] - x[:, 0, :, :, :-1] == 1).all()  # one piece, not turned


def test_a_small_volume_is_padded_behind_with_background():
    data = volumes(SHAPES[2:], patches=1)
    (x, y), *_ = patches(data)
    assert torch.equal(x[0, :, :3, :4, :4], data.images["train"][0])
    assert torch.equal(y[0, :3, :4, :4], data.masks["train"][0])
    x[0, :, :3, :4, :4] = 0
    assert set(x.unique().tolist()) == {0, float(data.images["train"][0].min())}
    assert y.sum() == data.masks["train"][0].sum()


def test_every_volume_has_as_many_patches_and_no_batch_has_one():
    data = volumes(SHAPES[:2], patches=5)
    seen = patches(data, batch_size=3)
    assert [len(x) for x, _ in seen] == [3, 3, 4]
    first = data.images["train"][0].numel()
    assert sum(int((x.flatten(1).amax(1) <= first).sum()) for x, _ in seen) == 5


@pytest.mark.parametrize("foreground", [0.0, 0.3, 1.0])
def test_a_structure_is_in_the_middle_as_often_as_asked(foreground):
    """One voxel in the middle of 9³: a 3³ patch that lies anywhere is centred on it in one of 7³ places."""
    mask = torch.zeros(9, 9, 9, dtype=torch.uint8)
    mask[4, 4, 4] = 1
    data = MaskedVolumes(
        {"train": [torch.zeros(1, 9, 9, 9)]} | NONE, {"train": [mask]} | NONE, (3, 3, 3), 2000, foreground
    )
    middle = torch.cat([y for _, y in patches(data, batch_size=500)])[:, 1, 1, 1].float().mean()
    assert abs(middle - (foreground + (1 - foreground) / 7**3)) < 0.03  # three standard errors


def test_a_volume_without_structure_gives_patches_too():
    empty = torch.zeros(6, 6, 6, dtype=torch.uint8)
    data = MaskedVolumes({"train": [torch.ones(1, 6, 6, 6)]} | NONE, {"train": [empty]} | NONE, (4, 4, 4), 3, 1.0)
    assert sum(len(x) for x, _ in patches(data)) == 3


def test_an_epoch_repeats_by_its_generator():
    one, same, other = (patches(volumes(), seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) and torch.equal(c, d) for (a, c), (b, d) in zip(one, same, strict=True))
    assert not all(torch.equal(a, b) for (a, _), (b, _) in zip(one, other, strict=True))


def test_evaluation_sees_every_voxel_once():
    data = volumes()
    seen = torch.cat([x.flatten() for x, _ in data.batches("train", 3)])
    every = torch.cat([image.flatten() for image in data.images["train"]])
    values, times = seen.unique(return_counts=True)
    assert torch.equal(values, every)
    around = {float(image.min()) for image in data.images["train"]}
    assert {float(v) for v in values[times > 1]} <= around
    marked = sum(int(y.sum()) for _, y in data.batches("train", 3))
    assert marked == sum(int(mask.sum()) for mask in data.masks["train"])


def test_volumes_are_cases_in_their_order():
    data = volumes(spacings={"train": [(3.0, 1.0, 1.0), (2.0, 1.0, 1.0), (1.0, 1.0, 1.0)]})
    cases = list(data.cases("train"))
    assert [case.images.shape for case in cases] == [(1, 1, *shape) for shape in SHAPES]
    assert all(torch.equal(c.images[0], image) for c, image in zip(cases, data.images["train"], strict=True))
    assert [case.spacing[0] for case in cases] == [3, 2, 1]
    assert [case.spacing for case in volumes().cases("train")] == [None] * 3
    assert list(data.cases("test")) == []


def test_voxels_of_each_class_are_counted():
    total = sum(torch.Size(shape).numel() for shape in SHAPES)
    assert volumes().class_counts(3).tolist() == [total - total // 7, total // 7, 0]


def test_a_digest_tells_one_voxel():
    def digest(change=lambda data: None):
        data = volumes()
        change(data)
        return data.digest()

    def image(data):
        data.images["train"][1][0, 2, 3, 4] += 1

    def mirrored(data):
        data.images["train"][1] = data.images["train"][1].flip(2)

    def mask(data):
        data.masks["train"][1][2, 3, 4] += 1

    def shape(data):
        data.masks["train"][0] = data.masks["train"][0].reshape(9, 10, 12)

    assert digest() == digest()
    assert len({digest(), digest(image), digest(mirrored), digest(mask), digest(shape)}) == 5


@pytest.mark.parametrize("shape", [(5,), (2, 5), (3, 6, 6), (2, 1, 6, 6), (2, 3, 4, 6, 6)])
def test_a_digest_tells_samples_that_are_mirrored_or_turned(shape):
    """A run went on with pictures that had been put upright meanwhile."""
    images = torch.randint(0, 256, (7, *shape), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    axes = [axis for axis in range(1, images.ndim) if images.shape[axis] > 1]
    changed = [images.flip(axis) for axis in axes] + [images.transpose(-2, -1)] * (shape[-2:] == (6, 6))
    digests = [
        ImageTensors({"train": x.contiguous()}, {"train": torch.zeros(7, dtype=torch.long)}).digest()
        for x in (images, images.clone(), *changed)
    ]
    assert digests[0] == digests[1] and len(set(digests)) == 1 + len(changed)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.uint8])
def test_a_digest_takes_volumes_as_loaders_give_them(dtype):
    data = volumes(SHAPES[2:])
    other = MaskedVolumes({"train": [data.images["train"][0].to(dtype)]} | NONE, data.masks, WINDOW)
    assert other.digest() == other.digest() != data.digest()


def slices(**options) -> MaskedImages:
    """Three cases, of two slices, one and three; each slice is of one value, and its mask 1 where that is above 100."""
    images = torch.arange(6, dtype=torch.uint8).reshape(6, 1, 1, 1).expand(6, 1, 4, 5).contiguous() * 50
    masks = (images[:, 0] > 100).to(torch.uint8)
    numbers = torch.tensor([0, 0, 1, 2, 2, 2])
    parts = {"train": slice(None), "validation": slice(0), "test": slice(0)}
    images, masks, numbers = ({part: x[rows] for part, rows in parts.items()} for x in (images, masks, numbers))
    return MaskedImages(images, masks, **({"patients": numbers} | options))


def test_slices_of_a_case_are_judged_together():
    data = slices(spacings={"train": [(5.0, 1.0, 2.0), (6.0, 1.0, 2.0), (7.0, 1.0, 2.0)]})
    cases = list(data.cases("train"))
    assert [len(case.mask) for case in cases] == [2, 1, 3]
    assert [case.spacing for case in cases] == [(5, 1, 2), (6, 1, 2), (7, 1, 2)]
    assert torch.equal(torch.cat([case.mask for case in cases]), data.labels["train"])
    assert cases[0].images.dtype == torch.float32 and cases[0].images.min() == -1
    assert list(data.cases("test")) == []


def test_without_patients_every_picture_is_a_case():
    assert [len(case.mask) for case in slices(patients={}).cases("train")] == [1] * 6


def test_pixels_of_each_class_are_counted():
    assert slices().class_counts(3).tolist() == [60, 60, 0]


def test_a_digest_of_slices_tells_one_pixel():
    def digest(what=None):
        data = slices()
        if what:
            getattr(data, what)["train"][3, ..., 2, 1] += 1
        return data.digest()

    assert digest() == digest()
    assert len({digest(), digest("images"), digest("labels")}) == 3


def test_slices_come_in_batches_with_their_masks():
    seen = list(slices().training_batches(4, torch.Generator().manual_seed(0)))
    assert [len(x) for x, _ in seen] == [4, 2]
    for x, y in seen:
        assert torch.equal(y, (x[:, 0] * 127.5 + 127.5 > 101).to(torch.uint8))
