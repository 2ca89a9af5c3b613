"""Class weights and balanced sampling."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils.class_weight import compute_class_weight
from tiny import config, images, run, same
from torch.nn.functional import cross_entropy

from medpfl.core.balanced import balanced_order
from medpfl.core.errors import UserError
from medpfl.core.own_loaders import LEFT_OUT
from medpfl.core.seeding import Chance, generator
from medpfl.core.site_data import ImageTensors, SiteLoaders
from medpfl.tasks import TASKS, Task
from medpfl.training.trainer import Trainer, class_weights

LABELS = torch.tensor([0] * 70 + [1] * 20 + [3] * 10)


def data():
    x = torch.arange(100.0)[:, None, None, None]
    parts = {"train": x, "validation": x[:0], "test": x[:0]}
    return ImageTensors(parts, {part: LABELS[: len(p)] for part, p in parts.items()})


def test_weights_are_scikit_learns_and_0_for_a_class_that_is_not_there():
    found = class_weights(torch.bincount(LABELS, minlength=5))
    assert found[[2, 4]].tolist() == [0, 0]
    expected = compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=LABELS.numpy())
    assert found[[0, 1, 3]].tolist() == pytest.approx(expected)


def test_the_loss_of_a_sites_own_samples_has_them():
    loss = TASKS["classification"].loss
    output, y = torch.randn(6, 4, generator=generator(0)), torch.tensor([0, 0, 1, 1, 3, 0])
    weighted = Trainer.of({"class_weights": "balanced"}).loss(loss, data())
    weights = class_weights(torch.bincount(LABELS, minlength=4))
    torch.testing.assert_close(weighted(output, y), cross_entropy(output, y, weights))
    assert Trainer.of({}).loss(loss, data()) == loss


def test_the_loss_of_a_network_in_float64_has_them_too():
    loss, y = TASKS["classification"].loss, torch.tensor([0, 0, 1, 1, 3, 0])
    output = torch.randn(6, 4, generator=generator(0), dtype=torch.float64)
    weighted = Trainer.of({"class_weights": "balanced"}).loss(loss, data())
    weights = class_weights(torch.bincount(LABELS, minlength=4)).double()
    torch.testing.assert_close(weighted(output, y), cross_entropy(output, y, weights))


def test_loaders_are_read_for_the_weights_before_an_epoch_and_move_no_other_numbers():
    """In the middle of one a loader may have a single iterator, and a resumed run would draw otherwise."""
    begun = []

    class Shuffling:
        def __iter__(self):
            begun.append(1)
            for chosen in torch.randperm(len(LABELS)).split(10):
                np.random.rand()
                yield torch.zeros(len(chosen), 1, 2, 2), LABELS[chosen]

    before, state = torch.get_rng_state(), np.random.get_state()[2]
    weighted = Trainer.of({"class_weights": "balanced"}).loss(TASKS["classification"].loss, SiteLoaders(Shuffling()))
    assert len(begun) == 1
    weighted(torch.zeros(2, 4), torch.tensor([0, 1]))
    assert len(begun) == 1
    assert torch.equal(torch.get_rng_state(), before)
    assert np.random.get_state()[2] == state


def test_every_class_is_drawn_as_often_and_an_epoch_is_as_long():
    order, drawn = generator(0), torch.zeros(4)
    trainer = Trainer.of({"batch_size": 32, "sampling": "balanced"})
    for _ in range(60):
        batches = [y for _, y in trainer.batches(data(), order)]
        assert sum(map(len, batches)) == 100
        drawn += torch.bincount(torch.cat(batches), minlength=4)
    assert drawn[2] == 0
    # Of 6,000 draws 2,000 a class are expected, with a standard deviation of 37.
    assert all(abs(count - 2000) < 150 for count in drawn[[0, 1, 3]])


def test_samples_that_the_loss_leaves_out_are_of_no_class():
    """What a function of one's own returns may have some, as loaders may."""
    own = data()
    own.labels["train"] = LABELS.where(torch.arange(100) % 4 > 0, LEFT_OUT)
    expected = torch.bincount(LABELS[torch.arange(100) % 4 > 0], minlength=6)  # none of the last two either
    assert (
        own.class_counts(6).tolist()
        == expected.tolist()
        == SiteLoaders([(torch.zeros(100, 1), own.labels["train"])]).class_counts(6).tolist()
    )
    trainer = Trainer.of({"batch_size": 32, "sampling": "balanced"})
    for one_order, samples in ((False, 100), (True, 3 * int(expected[0]))):
        order = Chance(0, one_order=one_order).order("a", 1, "shuffle")
        drawn = torch.cat([y for _, y in trainer.batches(own, order)])
        assert len(drawn) == own.samples_in_epoch(repeats=one_order)
        assert set(drawn.tolist()) == {0, 1, 3}
        assert len(drawn) == pytest.approx(samples, rel=0.1)


@pytest.mark.parametrize(
    "settings", [{"class_weights": "balanced"}, pytest.param({"sampling": "balanced"}, marks=pytest.mark.slow)]
)
def test_both_reach_the_method_and_the_rival(settings):
    (plain, first), (other, second) = (run(config("fedavg", alone="yes", settings=s)) for s in ({}, settings))
    name = "site-1"  # with 5, 4 and 4 images of the classes
    assert not same(plain.shared[name], other.shared[name])
    assert not same(first[name].store.get("alone", 3), second[name].store.get("alone", 3))


class ManyLabels(type(TASKS["classification"])):
    name, one_class = "many-labels", False


class NoWeights(type(TASKS["classification"])):
    name = "no-weights"

    def loss(self, output, labels):
        return cross_entropy(output, labels)


@pytest.mark.parametrize(
    ("settings", "task", "words"),
    [
        ({"class_weights": "balanced", "sampling": "balanced"}, Task, "would both balance the classes: choose one"),
        (
            {"class_weights": "balanced"},
            ManyLabels(),
            "class_weights=balanced is for tasks in which",
        ),
        ({"sampling": "balanced"}, ManyLabels(), "sampling=balanced is for tasks in which a sample is of one class"),
        ({"class_weights": "balanced"}, NoWeights(), "the loss of no-weights takes no weights"),
    ],
)
def test_where_it_makes_no_sense(settings, task, words):
    assert words in Trainer.of(settings).refuses(task)


@pytest.mark.parametrize("name", ["class_weights", "sampling"])
def test_the_label_prior_makes_up_for_frequencies_already(name):
    with pytest.raises(UserError, match=f"{name}=balanced would do so again"):
        config("fedavg", settings={"prior": 1, name: "balanced"})


def test_loaders_draw_their_own():
    with pytest.raises(UserError, match="draw their samples themselves, so sampling=balanced cannot"):
        SiteLoaders([]).training_batches(4, generator(0), balanced=True)


def test_in_one_order_every_sample_is_met_in_every_round():
    """A real site's order is the same in every round: what a draw left out would be left out in all of them."""
    labels, chance = torch.tensor([0] * 900 + [1] * 70 + [2] * 30 + [4] * 650), Chance(3, one_order=True)
    drawn = balanced_order(labels, chance.order("north", 1, "shuffle"))
    assert torch.bincount(labels[drawn]).tolist() == [900, 13 * 70, 900, 0, 650]
    times = torch.bincount(drawn, minlength=len(labels))
    assert [times[labels == c].unique().tolist() for c in (0, 1, 2, 4)] == [[1], [13], [30], [1]]
    assert torch.equal(drawn, balanced_order(labels, chance.order("north", 2, "shuffle")))
    assert not torch.equal(drawn, balanced_order(labels, chance.order("south", 1, "shuffle")))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_in_one_order_classes_are_as_frequent_as_whole_times_make_them(found):
    labels = torch.tensor(found)
    drawn = balanced_order(labels, Chance(0, one_order=True).order("a", 1, "shuffle"))
    counts, most = torch.bincount(labels[drawn], minlength=6)[labels.unique()], torch.bincount(labels).max()
    assert counts.min() >= most * 2 / 3 and counts.max() <= most * 4 / 3
    assert set(drawn.tolist()) == set(range(len(labels)))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(1, 7), st.booleans())
def test_an_epoch_has_as_many_batches_as_it_is_said_to_have(found, batch_size, one_order):
    trainer = Trainer.of({"sampling": "balanced", "batch_size": batch_size, "accumulate": 1})
    own = images(train=len(found))
    own.labels["train"] = torch.tensor(found)
    batches = list(trainer.batches(own, Chance(0, one_order=one_order).order("a", 1, "shuffle")))
    assert len(batches) == trainer.steps(own, even=one_order)
    assert sum(len(y) for _, y in batches) == own.samples_in_epoch(repeats=one_order)
