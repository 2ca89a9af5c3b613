"""The network between a model and what further training made of it."""

import pytest
import torch
from tiny import Net, config, images, same
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from medpfl.core.site_data import SiteLoaders, scale
from medpfl.site.candidates import Candidate, between, partly_trained_further


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
    found = partly(data, one, other).state
    assert same(found, one) or same(found, other)


def test_with_loaders_that_only_train_the_validation_cases_alone_decide(twins):
    data, one, other = twins
    sets = {p: TensorDataset(scale(data.images[p]), data.labels[p]) for p in ("train", "validation", "test")}
    loaders = [DataLoader(sets[p], batch_size=8, shuffle=p == "train") for p in ("train", "validation", "test")]
    found = partly(SiteLoaders(*loaders), one, other).state
    assert not same(found, one) and not same(found, other)
    plain = SiteLoaders(*loaders, plain=DataLoader(sets["train"], batch_size=8))
    found = partly(plain, one, other).state
    assert same(found, one) or same(found, other)
