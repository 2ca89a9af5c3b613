"""The network between a model and what further training made of it."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import Net, config, images, same
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from medpfl.core.site_data import SiteLoaders, scale
from medpfl.site.candidates import Candidate, between, evidence, partly_trained_further, training_cases
from medpfl.site.choice import chosen


@pytest.fixture(scope="module")
def twins():
    """Two networks that say the same, the second's hidden units in another order: between them lies a bad one."""
    torch.manual_seed(0)
    data, model = images(train=60, validation=1), Net()
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    x, y = scale(data.images["train"]), data.labels["train"]
    for _ in range(150):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    one = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    order = torch.tensor([3, 4, 5, 0, 1, 2])
    other = {name: t[order] if t.ndim and len(t) == 6 else t.clone() for name, t in one.items()}
    other["fc2.weight"] = one["fc2.weight"][:, order]
    return data, one, other


def partly(data, one, other):
    return partly_trained_further("p", Candidate("b", 1, one), Candidate("a", 1, other), config(), data, Net())


@torch.no_grad()
def summed(state, data, part):
    network = Net().eval()
    network.load_state_dict(state)
    return float(cross_entropy(network(scale(data.images[part])), data.labels[part], reduction="sum"))


def test_weights_averaged_over_a_barrier_are_not_used_though_one_validation_case_does_not_tell(twins):
    data, one, other = twins
    middle = between(one, other, 0.5)
    assert summed(middle, data, "validation") < summed(one, data, "validation") + 1.6
    assert summed(middle, data, "train") > summed(one, data, "train") + 10
    images, labels = (of | {"test": of["validation"]} for of in (data.images, data.labels))  # which would not tell
    found = partly(replace(data, images=images, labels=labels), one, other).state
    assert same(found, one) or same(found, other)


@pytest.mark.parametrize("best", [0.0, 0.125, 1.0])
def test_the_share_that_the_cases_speak_for_is_taken_by_hand(best):
    """A network of one weight, 0 before and 1 after."""
    learned = SimpleNamespace(
        predict=lambda model, data, part: model.weight.item(),
        losses=lambda weight: np.full(5, 1e5 * (weight - best) ** 2),
    )
    before, after = (Candidate("end", r, {"weight": torch.tensor([[w]])}) for r, w in ((2, 0.0), (3, 1.0)))
    network = nn.Linear(1, 1, bias=False)
    found = partly_trained_further("partly", before, after, SimpleNamespace(learned=learned), images(), network)
    assert (found.name, found.round, found.state["weight"].item()) == ("partly", 3, best)


def test_what_both_have_alike_stays_so_between_them():
    """A mask of -inf too, between which and itself there is nothing; what counts is the latter's."""
    before = {"mask": torch.tensor([0.0, -torch.inf]), "weight": torch.tensor([0.0, 4.0]), "n": torch.tensor(3)}
    after = {"mask": before["mask"].clone(), "weight": torch.tensor([4.0, 0.0]), "n": torch.tensor(7)}
    found = between(before, after, 0.25)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        "mask": [0.0, -torch.inf],
        "weight": [1.0, 3.0],
        "n": 7,
    }


def test_with_loaders_that_only_train_the_validation_cases_alone_decide(twins):
    data, one, other = twins
    sets = {p: TensorDataset(scale(data.images[p]), data.labels[p]) for p in ("train", "validation", "test")}
    loaders = [DataLoader(sets[p], batch_size=8, shuffle=p == "train") for p in ("train", "validation", "test")]
    found = partly(SiteLoaders(*loaders), one, other).state
    assert not same(found, one) and not same(found, other)
    plain = SiteLoaders(*loaders, plain=DataLoader(sets["train"], batch_size=8))
    found = partly(plain, one, other).state
    assert same(found, one) or same(found, other)


def repeated(data, times):
    """Every image as so many of one person's."""
    persons = {part: torch.arange(len(labels)).repeat_interleave(times) for part, labels in data.labels.items()}
    images, labels = (
        {part: tensor.repeat_interleave(times, 0) for part, tensor in of.items()} for of in (data.images, data.labels)
    )
    return replace(data, images=images, labels=labels, persons=persons)


def test_a_patients_loss_is_the_mean_over_the_cases():
    data = images(train=4, validation=4)
    losses = np.array([1.0, 2.0, 3.0, 10.0])
    assert evidence(data)(losses).tolist() == losses.tolist()
    known = replace(data, persons={part: torch.tensor([7, 7, 7, 2]) for part in data.labels})
    assert sorted(evidence(known)(losses)) == [2.0, 10.0]


UNIFORM = np.full((4, 3), 1 / 3), np.zeros(4, int)


def labelled(train, **others):
    """Sites' data with these training labels."""
    data = images(train=len(train), validation=4)
    return replace(data, labels=data.labels | {"train": torch.tensor(train)}, **others)


def test_training_cases_are_patients_where_they_are_known():
    owners = {"train": torch.tensor([7, 7, 2]), "validation": torch.arange(4), "test": torch.arange(2)}
    assert training_cases(config(), labelled([0, 1, 2]), UNIFORM) == pytest.approx(3)
    assert training_cases(config(), labelled([0, 1, 2], persons=owners), UNIFORM) == pytest.approx(2)


@pytest.mark.parametrize(
    ("labels", "count_as"),
    [
        ([0, 0, 1, 1, 2, 2], 6),
        ([1, 1, 1, 1, 1, 1], 6 * 3),
        ([0, 0, 0, 2, 2, 2], 6 * 3 / 2),
        ([0, 0, 0, 0, 2], 5 * 3 * 0.8**0.8 * 0.2**0.2),
    ],
)
def test_training_cases_of_few_classes_count_for_more(labels, count_as):
    """By hand, C / exp(H) times as many: exp(H) is 3 where three classes are alike, 1 of one class, 2 of two."""
    assert training_cases(config(), labelled(labels), UNIFORM) == pytest.approx(count_as)


def test_a_loaders_training_cases_are_counted_in_what_is_read_plainly():
    """A sampler that balances classes changes what is trained on, and not what the site has."""
    sets = {n: TensorDataset(torch.rand(n, 1, 4, 4), torch.zeros(n, dtype=torch.long)) for n in (6, 4)}
    even = TensorDataset(torch.rand(6, 1, 4, 4), torch.arange(6) % 3)
    sampled = DataLoader(even, batch_size=2, shuffle=True)
    others = [DataLoader(sets[4], batch_size=2)] * 2
    assert training_cases(config(), SiteLoaders(sampled, *others), UNIFORM) == pytest.approx(6)
    plain = SiteLoaders(sampled, *others, plain=DataLoader(sets[6], batch_size=2))
    assert training_cases(config(), plain, UNIFORM) == pytest.approx(18)


def test_labels_that_a_loss_leaves_out_are_no_class_and_their_samples_no_cases():
    labels = torch.tensor([0, 1, 2, -100, -100, -100])
    others = [DataLoader(TensorDataset(torch.rand(4, 1, 4, 4), torch.zeros(4, dtype=torch.long)), batch_size=2)] * 2
    for shuffle in (False, True):
        train = DataLoader(TensorDataset(torch.rand(6, 1, 4, 4), labels), batch_size=2, shuffle=shuffle)
        assert training_cases(config(), SiteLoaders(train, *others), UNIFORM) == pytest.approx(3)
    assert training_cases(config(), labelled([-100] * 3), UNIFORM) == 0


def test_those_of_several_labels_each_count_as_they_are():
    data = labelled([[1, 0, 0]] * 6)
    assert training_cases(config(task="multi-label"), data, (np.full((4, 3), 0.5), np.zeros((4, 3)))) == 6


def test_many_images_of_the_same_patients_tell_no_more_than_one_of_each(twins):
    _, one, other = twins
    half = between(one, other, 0.02)  # near one end, so that the training cases show no ridge
    some = images(train=60, validation=6)
    found = []
    for own in (some, repeated(some, 5)):
        partial = partly_trained_further("p", Candidate("b", 1, one), Candidate("a", 1, half), config(), own, Net())
        two = Candidate("o", 1, other)
        mine, theirs = (c.predictions("validation", config(), own, Net()) for c in (partial, two))
        told, train = evidence(own), training_cases(config(), own, mine)
        weights = [
            chosen(rule, lambda w, t=told, pair=(mine, theirs): t(config().learned.mixed_losses(*pair, w)), train)
            for rule in ("blend", "best")
        ]
        found.append((partial.state, train, weights))
    (state, train, weights), (state_, train_, weights_) = found
    assert all(torch.allclose(tensor, state_[name]) for name, tensor in state.items())
    assert train == pytest.approx(60) and train_ == pytest.approx(60)
    assert weights == pytest.approx(weights_, abs=1e-6) and 0 < weights[0] < 1


def test_a_ridge_is_seen_by_the_training_cases_however_few_the_patients(twins):
    """What the training data show of a broken network has nothing to do with how alike a patient's images are."""
    data, one, other = twins
    for patients in (1, 3):
        known = replace(data, persons={part: torch.arange(len(of)) % patients for part, of in data.labels.items()})
        found = partly(known, one, other).state
        assert same(found, one) or same(found, other)


def test_a_patient_of_many_slices_is_one_training_case():
    """Twenty patients of ten slices train and four of thirty validate: no ratio of slices tells how many they are."""
    data = images(train=200, validation=120)
    bags = {"train": torch.arange(200) // 10, "validation": torch.arange(120) // 30}
    known = replace(data, patients=bags)
    predicted = config().learned.predict(Net(), known, "validation")
    assert len(predicted[0]) == 4
    assert training_cases(config(), known, predicted) == pytest.approx(20, rel=1e-4)
    assert evidence(known)(np.arange(4.0)).tolist() == [0, 1, 2, 3]


def test_best_counts_patients_and_not_their_cases():
    data = images(validation=40)
    known = replace(data, persons={part: torch.arange(len(of)) % 4 for part, of in data.labels.items()})
    for own, taken in ((data, 1.0), (known, 0.0)):
        told = evidence(own)
        assert chosen("best", lambda w, t=told: t(np.full(40, 0.6 - 0.1 * w)), 50) == taken
