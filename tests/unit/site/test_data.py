import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import images
from torch.utils.data import DataLoader, TensorDataset

from medpfl.core.seeding import generator
from medpfl.core.site_data import ImageTensors, SiteLoaders, batch_sizes, scale


@given(st.integers(0, 500), st.integers(1, 40))
def test_batch_sizes_cover_all_samples_and_leave_nobody_alone(samples, batch_size):
    sizes = batch_sizes(samples, batch_size)
    assert sum(sizes) == samples
    assert all(0 < size <= batch_size + 1 for size in sizes)
    if samples > 1 and batch_size > 1:
        assert 1 not in sizes


@pytest.mark.parametrize(
    ("samples", "batch_size", "sizes"),
    [(0, 4, []), (1, 4, [1]), (4, 4, [4]), (5, 4, [5]), (9, 4, [4, 5]), (10, 4, [4, 4, 2]), (3, 1, [1, 1, 1])],
)
def test_batch_sizes_by_hand(samples, batch_size, sizes):
    assert batch_sizes(samples, batch_size) == sizes


def test_pixels_are_scaled():
    assert scale(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [-1.0, 1.0]
    assert scale(torch.tensor([51], dtype=torch.uint8)).item() == pytest.approx(-0.6)


def test_training_batches_are_an_epoch_in_the_generators_order():
    data = images(train=10)
    epochs = [list(data.training_batches(4, generator(0, name))) for name in ("a", "a", "b")]
    x, y = (torch.cat(parts) for parts in zip(*epochs[0], strict=True))
    assert x.dtype == torch.float32
    # Every image comes once, with its own label.
    for image, label in zip(scale(data.images["train"]), data.labels["train"], strict=True):
        (found,) = (x == image).flatten(1).all(1).nonzero().flatten()
        assert y[found] == label
    assert torch.equal(x, torch.cat([b[0] for b in epochs[1]]))
    assert not torch.equal(x, torch.cat([b[0] for b in epochs[2]]))


def test_epochs_of_one_generator_differ():
    data, order = images(train=10), generator(0)
    first, second = (torch.cat([x for x, _ in data.training_batches(4, order)]) for _ in range(2))
    assert not torch.equal(first, second)


def test_batches_keep_the_order():
    data = images(test=7)
    batches = list(data.batches("test", 3))
    assert [len(y) for _, y in batches] == [3, 3, 1]
    assert torch.equal(torch.cat([x for x, _ in batches]), scale(data.images["test"]))
    assert torch.equal(torch.cat([y for _, y in batches]), data.labels["test"])


def test_loaders_of_the_users_own():
    dataset = TensorDataset(torch.arange(6.0)[:, None], torch.arange(6, dtype=torch.uint8)[:, None])
    loader = DataLoader(dataset, batch_size=4, shuffle=True)
    data = SiteLoaders(loader, validation=[(torch.zeros(2, 1), torch.zeros(2))])
    assert [data.samples(part) for part in ("train", "validation", "test")] == [6, 2, 0]
    x, y = next(data.training_batches(32, generator(0)))
    assert (y.shape, y.dtype) == ((4,), torch.int64)
    assert torch.equal(x.flatten().long(), y)
    again, other = (next(data.training_batches(32, generator(seed)))[1] for seed in (0, 1))
    assert torch.equal(y, again)
    assert not torch.equal(y, other)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32])
def test_a_digest_is_of_the_data_alone(dtype):
    def made(patient=0, label=1, pixel=3):
        images = {part: torch.arange(32).view(2, 1, 4, 4).to(dtype) for part in ("train", "validation", "test")}
        images["test"][1, 0, 2, 2] = pixel
        labels = {part: torch.tensor([0, label]) for part in images}
        return ImageTensors(images, labels, {part: torch.tensor([0, patient]) for part in images}).digest()

    before = torch.get_num_threads()
    first = made()
    torch.set_num_threads(1 if before > 1 else 2)
    assert made() == first
    torch.set_num_threads(before)
    assert len({first, made(patient=1), made(label=2), made(pixel=4)}) == 4


def test_a_part_without_samples_has_a_digest():
    empty = {"train": torch.zeros(1, 1, 4, 4, dtype=torch.uint8), "test": torch.zeros(0, 1, 4, 4, dtype=torch.uint8)}
    assert ImageTensors(empty, {part: torch.zeros(len(x), dtype=torch.long) for part, x in empty.items()}).digest()
