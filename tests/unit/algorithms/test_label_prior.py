"""The label prior by hand, in use, and in what it goes with."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from one_sample import data as one_sample
from one_sample import method
from tiny import Net, config, run
from torch import nn
from torch.nn.functional import cross_entropy

from medpfl.algorithms.fedimpres import Impression, ImpressionSettings
from medpfl.algorithms.label_prior import LabelPrior, PriorSettings, log_frequencies
from medpfl.algorithms.mechanism import LocalRound
from medpfl.core.declarations import Nothing
from medpfl.core.errors import UserError
from medpfl.core.messages import Message
from medpfl.core.parameters import ParameterSplit
from medpfl.core.site_data import ImageTensors, SiteLoaders
from medpfl.engine.federation import Federation
from medpfl.models import build_model, model_rows
from medpfl.site.store import MODEL, RECEIVED


def test_log_frequencies_by_hand():
    found = log_frequencies(torch.tensor([3.0, 1.0, 0.0]), 1.0)
    torch.testing.assert_close(found, torch.tensor([4 / 7, 2 / 7, 1 / 7]).log())
    unseen = log_frequencies(torch.tensor([3.0, 1.0, 0.0]), 0.0)
    torch.testing.assert_close(unseen[:2], torch.tensor([0.75, 0.25]).log())
    assert unseen[2] == pytest.approx(math.log(1e-30))


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=20).filter(any), st.floats(0, 50))
def test_they_are_frequencies(counts, smoothing):
    found = log_frequencies(torch.tensor(counts, dtype=torch.float64), smoothing).exp()
    assert found.sum().item() == pytest.approx(1)
    assert bool((found > 0).all())


@pytest.mark.parametrize("tau", [1.0, 0.5])
def test_what_is_minimised_has_them_and_what_leaves_does_not(tau):
    """The weights are the logits of the two classes; the site's only sample is of the first (p = 2/3, 1/3)."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
    x, y = next(one_sample().batches("train", 1))
    whole = method(config("fedavg", settings={"prior": tau}), model)
    whole.begin()
    reported, minimised = whole.objective(model)(x, y)
    expected = cross_entropy(model(x) + tau * torch.tensor([2 / 3, 1 / 3]).log(), y)
    torch.testing.assert_close(reported, expected)
    torch.testing.assert_close(minimised, expected)


def test_where_the_model_has_the_frequencies_the_loss_is_plain():
    """At the end and where a site joins: added again, they would count twice."""
    model, part = nn.Sequential(nn.Flatten(), nn.Linear(1, 2)), LabelPrior(PriorSettings(prior=1.0))
    split, nothing = ParameterSplit(model, Nothing()), lambda: None
    for when, plain in (("end", True), ("join", True), (3, False)):
        given = (when, Message("train", 3, {}), model, split, one_sample(), nothing, nothing)
        loss = part.loss(LocalRound("site-1", config("fedavg"), *given), cross_entropy)
        x, y = torch.tensor([[1.0, 2.0]]), torch.tensor([1])
        expected = x if plain else x + torch.tensor([2 / 3, 1 / 3]).log()
        torch.testing.assert_close(loss(x, y), cross_entropy(expected, y))


@pytest.mark.parametrize(
    "algorithm",
    [
        *("fedavg", "fedper", "ditto"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedprox", "apfl", "fedrep", "scaffold", "fedbn")),
    ],
)
def test_the_model_in_use_is_the_received_one_with_frequencies_in_its_bias(algorithm):
    run_config = config(algorithm, settings={"prior": 1.0})
    _, sites = run(run_config)
    for site in sites.values():
        used = site.store.get(MODEL, 3)
        if algorithm not in ("ditto", "apfl"):  # there it is their own model that has them
            received = site.store.get(RECEIVED, 3)
            shift = log_frequencies(torch.bincount(site.data.labels["train"], minlength=3).float(), 1.0)
            assert {n for n in used if not torch.equal(used[n], received[n])} == {"fc2.bias"}
            torch.testing.assert_close(used["fc2.bias"], received["fc2.bias"] + shift)


def test_it_undoes_what_fine_tuning_would():
    """Fine-tuning goes on from the model in use on the plain loss: the same function that was minimised before."""
    model, x, y = Net(), torch.randn(5, 1, 4, 4), torch.tensor([0, 0, 1, 2, 0])
    adjustment = log_frequencies(torch.bincount(y).float(), 1.0)
    before = cross_entropy(model.eval()(x) + adjustment, y)
    with torch.no_grad():
        model.fc2.bias.add_(adjustment)
    torch.testing.assert_close(cross_entropy(model(x), y), before)


def test_off_by_default_and_refused_in_words():
    assert not any(isinstance(m, LabelPrior) for m in config("fedavg").mechanisms)
    with pytest.raises(UserError, match="prior"):
        config("local", settings={"prior": 1.0})
    with pytest.raises(UserError, match="prior"):
        config("fedavg", settings={"prior": -1.0})
    for name in ("class_weights", "sampling"):
        with pytest.raises(UserError, match=f"{name}=balanced would do so again: leave one"):
            config("fedavg", settings={"prior": 1.0, name: "balanced"})


class Scaled(nn.Module):
    """Its last linear layer is not what it ends in."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return 2 * self.layer(x)


def test_a_network_that_does_not_end_in_its_classifier_is_refused_and_left_as_it_was():
    part = LabelPrior(PriorSettings(prior=1.0))
    model = Scaled()
    before = model.layer.bias.detach().clone()
    with pytest.raises(UserError, match="does not end in its last linear layer"):
        part.suits(model, ParameterSplit(model, Nothing()), torch.zeros(2, 4))
    assert torch.equal(model.layer.bias, before)
    with pytest.raises(UserError, match="has no bias"):
        bare = nn.Sequential(nn.Linear(4, 3, bias=False))
        part.suits(bare, ParameterSplit(bare, Nothing()), torch.zeros(2, 4))


MASKS = ("unet", "segresnet-small")
"""Networks that classify nothing."""


LARGE = ("alexnet-bn", "impression-cnn", "resnet110", "vit-small")
OWN = [row.name for row in model_rows() if ":" not in row.name and row.name not in MASKS]


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LARGE else n for n in OWN])
def test_own_networks_suit_it(name):
    size = (64,) if name == "fcn-1d" else (64, 64)
    model = build_model(name, in_channels=1, num_classes=3, image_size=size, model_args={}, pooling="mean").eval()
    x = torch.zeros(2, 1, *size)
    split = ParameterSplit(model, Nothing(), x)
    LabelPrior(PriorSettings(prior=1.0)).suits(model, split, x)
    Impression(ImpressionSettings()).suits(model, split, x)


def test_class_counts_of_tensors_and_loaders():
    labels = torch.tensor([0, 2, 2, 1, 2])
    tensors = ImageTensors({"train": torch.zeros(5, 1, 2, 2)}, {"train": labels})
    loaders = SiteLoaders([(torch.zeros(3, 1, 2, 2), labels[:3]), (torch.zeros(2, 1, 2, 2), labels[3:])])
    assert tensors.class_counts(4).tolist() == loaders.class_counts(4).tolist() == [1, 1, 3, 0]


@pytest.mark.parametrize(
    ("prior", "smoothing", "said"),
    [(0.5, 0.0, {"never_predicted": ["b", "d"]}), (0.49, 0.0, {}), (0.5, 0.1, {}), (2.0, 1.0, {})],
)
def test_classes_without_samples_are_never_predicted_from_half_of_the_prior_on(prior, smoothing, said):
    data = ImageTensors({"train": torch.zeros(3, 1, 2, 2)}, {"train": torch.tensor([0, 2, 2])})
    assert LabelPrior(PriorSettings(prior=prior, prior_smoothing=smoothing)).card(data, list("abcd")) == said


MORE = [pytest.param(name, marks=pytest.mark.slow) for name in ("fedprox", "fedreg", "ditto", "apfl")]


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedcurv", "fedvss", *MORE])
def test_a_site_of_one_class_teaches_others_nothing_of_it(algorithm):
    """Without smoothing its loss is 0 whatever the model, so that a change would tell its class."""

    def one_class(sites):
        for number, site in enumerate(sites.values()):
            site.data.labels["train"].fill_(number % 3)

    run_config = config(algorithm, settings={"prior": 1.0, "prior_smoothing": 0.0})
    first = Federation.of(run_config).first()
    _, sites = run(run_config, one_class)
    for site in sites.values():
        received = site.store.get(RECEIVED, 3)
        for name in ("fc1.weight", "fc2.weight", "fc2.bias"):
            torch.testing.assert_close(received[name], first[name], rtol=0, atol=1e-6)
