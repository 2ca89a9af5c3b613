import itertools
import re

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import images
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

from medpfl.core.moments import input_statistics, training_inputs
from medpfl.core.own_loaders import (
    EMPTY,
    ENDLESS,
    NO_PAIR,
    NOT_IN_ORDER,
    NOT_PLAIN,
    SEVERAL,
    USED_UP,
    LoaderError,
    NotPlain,
)
from medpfl.core.seeding import generator
from medpfl.core.site_data import ImageTensors, SiteLoaders, batch_sizes, scale
from medpfl.server.rounds import QuorumNotMet
from medpfl.site.words import listed

INPUTS, LABELS = torch.zeros(3, 1), torch.zeros(3)


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


def test_epochs_of_the_users_own_loaders_differ():
    data, order = SiteLoaders(DataLoader(numbered(20), 20, shuffle=True)), generator(0)
    first, second = (torch.cat([x for x, _ in data.training_batches(32, order)]).flatten() for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first.sort().values, second.sort().values)


def numbered(n=100):
    return TensorDataset(torch.arange(float(n))[:, None], torch.zeros(n, dtype=torch.int64))


def pairs(batch):
    """A collation that gives every sample twice, as MONAI's random crops do."""
    x, y = default_collate(batch)
    return torch.cat([x, x]), torch.cat([y, y])


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(1), 0)] * 7)


LOADERS = {
    "all": (lambda: DataLoader(numbered(), 8, shuffle=True), 100),
    "a part of them": (lambda: DataLoader(numbered(), 8, sampler=SubsetRandomSampler(range(20))), 20),
    "more than there are": (lambda: DataLoader(numbered(9), 8, sampler=RandomSampler(range(9), True, 30)), 30),
    "whole batches": (lambda: DataLoader(numbered(), 8, shuffle=True, drop_last=True), 96),
    "each twice": (lambda: DataLoader(numbered(10), 8, collate_fn=pairs), 20),
    "a stream": (lambda: DataLoader(Stream(), 2), 7),
    "a list": (lambda: [(torch.zeros(3, 1), torch.zeros(3)), (torch.zeros(2, 1), torch.zeros(2))], 5),
}


@pytest.mark.parametrize("which", LOADERS)
def test_a_loader_counts_what_it_yields_in_an_epoch(which):
    made, n = LOADERS[which]
    data, before = SiteLoaders(made()), torch.get_rng_state()
    assert data.samples("train") == n
    assert torch.equal(torch.get_rng_state(), before)
    assert sum(len(y) for _, y in data.training_batches(32, generator(0))) == n
    assert data.class_counts(2).tolist() == [n, 0]


class Noisy(Dataset):
    """Augments."""

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.randn(1), 0


class LateSampler(Sampler):
    """Begins in one order and goes on in another each time."""

    def __iter__(self):
        yield from range(8)
        yield from (8 + torch.randperm(92)).tolist()

    def __len__(self):
        return 100


class SeldomNoisy(Dataset):
    """Augments one sample of the last batch."""

    def __len__(self):
        return 100

    def __getitem__(self, i):
        return torch.randn(1) if i == 99 else torch.tensor([float(i)]), 0


class Table(list):
    """Labels are a column of a table."""

    def __init__(self):
        super().__init__([(torch.zeros(4, 1), torch.arange(20).reshape(4, 5)[:, 0])] * 2)


LATE = [DataLoader(numbered(), 8, sampler=LateSampler()), DataLoader(SeldomNoisy(), 8)]


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(numbered(), 8, shuffle=True),
        DataLoader(Noisy(), 8),
        DataLoader(numbered(), 8, drop_last=True),
        DataLoader(Stream(), 8, drop_last=True),
        *LATE,
    ],
    ids=["shuffles", "augments", "drops", "drops of a stream", "shuffles late", "augments seldom"],
)
def test_statistics_need_samples_once_and_as_they_are(loader):
    with pytest.raises(NotPlain, match="shuffles, augments or drops samples"):
        next(training_inputs(SiteLoaders(loader)))
    plain = DataLoader(numbered(), 8)
    layer = nn.BatchNorm1d(1)
    mean, variance = input_statistics(layer, {"": layer}, training_inputs(SiteLoaders(loader, plain=plain)))[""]
    assert (mean.item(), variance.item()) == (49.5, 833.25)


@pytest.mark.parametrize("part", ["validation", "test"])
def test_models_are_compared_on_the_same_cases(part):
    """Else one model's case 1 would be compared with another's case 7, and gain or lose by chance."""
    in_order = DataLoader(numbered(), 8)
    assert SiteLoaders(in_order, **{part: in_order}).samples(part) == 100
    once = iter([(INPUTS, LABELS)])
    for loader in (DataLoader(numbered(), 8, shuffle=True), DataLoader(Noisy(), 8), once):
        with pytest.raises(NotPlain, match="gives other samples at another reading"):
            SiteLoaders(in_order, **{part: loader}).samples(part)
    assert listed(NOT_IN_ORDER(), ()) == NOT_IN_ORDER()


@pytest.mark.parametrize("part", ["train", "validation", "test"])
@pytest.mark.parametrize("loader", LATE)
def test_what_differs_late_is_seen_where_all_of_it_is_read(part, loader):
    parts = {"plain" if part == "train" else part: loader}
    before = torch.get_rng_state()
    with pytest.raises(NotPlain, match="gives other samples at another reading"):
        next(SiteLoaders(DataLoader(numbered(), 8), **parts).batches(part, 8))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_part_is_held_against_itself_once():
    class Counted(list):
        readings = 0

        def __iter__(self):
            Counted.readings += 1
            return super().__iter__()

    data = SiteLoaders((), validation=Counted([(torch.zeros(3, 1), torch.zeros(3))] * 4))
    for _ in range(3):
        assert len(list(data.batches("validation", 8))) == 4
    assert Counted.readings == 2 + 2 + 3  # the first batch twice, all twice, and what was asked for


@pytest.mark.parametrize("loader", [DataLoader(numbered(), 8, shuffle=True), DataLoader(Noisy(), 8)])
def test_plain_is_held_to_its_word_at_the_hello(loader):
    with pytest.raises(NotPlain, match="plain loader gives other samples at another reading"):
        SiteLoaders(DataLoader(numbered(), 8, shuffle=True), plain=loader).samples("train")


def test_training_loaders_that_can_be_read_once_are_refused_at_the_hello():
    """Else a site would train on nothing from its first round on, with a loss of 0."""

    def batches():
        yield torch.zeros(3, 1), torch.zeros(3)

    in_order = DataLoader(numbered(), 8)
    for loaders in (SiteLoaders(batches()), SiteLoaders(iter(in_order)), SiteLoaders(in_order, plain=())):
        with pytest.raises(NotPlain, match="gives nothing when it is read again"):
            loaders.samples("train")
    assert SiteLoaders(()).samples("train") == 0
    assert listed(USED_UP(), ()) == USED_UP()


class Endless:
    def __iter__(self):
        while True:
            yield INPUTS, LABELS


class Short(Endless):
    def __len__(self):
        return 3


class EndlessSampler(Sampler):
    def __init__(self):
        pass

    def __iter__(self):
        return itertools.repeat(0)


@pytest.mark.parametrize(
    "reading",
    [
        lambda: SiteLoaders(Endless()).samples("train"),
        lambda: SiteLoaders(Endless()).batches_in_epoch(3),
        lambda: list(SiteLoaders((), validation=Endless()).batches("validation", 3)),
        lambda: SiteLoaders(Short()).samples("train"),
        lambda: SiteLoaders(DataLoader(numbered(), 8, sampler=EndlessSampler())).samples("train"),
    ],
    ids=["samples", "epoch", "validation", "more than its length", "sampler"],
)
def test_a_stream_without_an_end_is_refused(reading, monkeypatch):
    monkeypatch.setattr("medpfl.core.own_loaders._MOST_UNTOLD", 50)
    with pytest.raises(LoaderError, match="has not ended after 50 batches") as said:
        reading()
    assert listed(str(said.value), ()) == str(said.value) == ENDLESS(50)


def test_a_loader_that_tells_its_length_may_be_long(monkeypatch):
    monkeypatch.setattr("medpfl.core.own_loaders._MOST_UNTOLD", 50)
    data = SiteLoaders([(INPUTS, LABELS)] * 60)
    assert (data.samples("train"), data.batches_in_epoch(3)) == (180, 60)


@pytest.mark.parametrize("error", [TypeError, NotImplementedError, ValueError, AttributeError])
def test_a_loader_whose_length_cannot_be_asked_for_is_read(error):
    class Silent(list):
        def __len__(self):
            raise error

    data = SiteLoaders(Silent([(INPUTS, LABELS)] * 4))
    assert (data.samples("train"), data.batches_in_epoch(3)) == (12, 4)
    assert len(list(data.training_batches(3, generator(0)))) == 4


def test_of_a_sampler_without_a_length_samples_are_counted():
    class Every(Sampler):
        def __init__(self):
            pass

        def __iter__(self):
            return iter(range(100))

    whole, dropping = (SiteLoaders(DataLoader(numbered(), 8, sampler=Every(), drop_last=d)) for d in (False, True))
    assert (whole.samples("train"), dropping.samples("train")) == (100, 96)
    assert len(list(whole.batches("train", 8))) == 13
    with pytest.raises(NotPlain, match="drops samples"):
        dropping.batches("train", 8)


def test_a_loader_in_order_serves_for_statistics():
    assert len(list(SiteLoaders(Table()).batches("train", 8))) == 2
    for loader in (DataLoader(numbered(), 8), [(torch.arange(100.0)[:, None], torch.zeros(100))]):
        assert torch.cat(list(training_inputs(SiteLoaders(loader)))).flatten().tolist() == list(range(100))


def test_a_site_says_why_it_sends_no_statistics():
    def shuffled(sites):
        for site in sites.values():
            of = TensorDataset(site.data.images["train"].float(), site.data.labels["train"])
            site.data = SiteLoaders(DataLoader(of, 4, shuffle=True))

    with pytest.raises(QuorumNotMet, match="statistics need each sample once"):
        tiny.run(tiny.config("fedap"), shuffled)
    assert listed(NOT_PLAIN(), ()) == NOT_PLAIN()


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"image": INPUTS, "label": LABELS}, NO_PAIR()),
        ((INPUTS, LABELS, LABELS), NO_PAIR()),
        ((INPUTS.numpy(), LABELS.numpy()), NO_PAIR()),
        ((INPUTS.short(), LABELS), "a batch has int16 inputs: networks take floating point, scaled as training wants"),
        ((INPUTS, torch.zeros(3, 2)), SEVERAL()),
        ((INPUTS[:0], LABELS[:0]), EMPTY()),
    ],
)
def test_what_no_network_could_take_is_said(batch, words):
    data = SiteLoaders([batch], validation=[batch])
    data.one_class = True
    for reading in (lambda: list(data.training_batches(3, generator(0))), lambda: list(data.batches("validation", 3))):
        with pytest.raises(LoaderError, match=re.escape(words)) as said:
            reading()
        assert listed(str(said.value), ()) == str(said.value)


def test_inputs_of_double_precision_are_taken():
    data = SiteLoaders([(torch.ones(3, 1, dtype=torch.float64), LABELS[:, None])])
    [(x, y)] = data.training_batches(3, generator(0))
    assert (x.dtype, y.dtype, y.shape) == (torch.float32, torch.int64, (3,))


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
