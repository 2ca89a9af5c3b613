"""APFL's mixture: one step by hand, its share within [0, 1], what the site uses."""

from math import exp

import pytest
import torch
from one_sample import TwoWeights, both, config, data, method, trained, weights
from tiny import config as tiny_config
from tiny import run
from torch import nn
from torch.nn.functional import cross_entropy

from medpfl.algorithms.apfl import train_both
from medpfl.core.site_data import ImageTensors
from medpfl.site.store import MODEL, RECEIVED
from medpfl.training.loop import Epochs, TrainingDiverged, plain_objective
from medpfl.training.part import Outcome
from medpfl.training.trainer import Trainer

P0 = 1 / (1 + exp(-1.0))
"""Probability of class 0 under the weights (1/2, -1/2)."""


def kept(alpha: float):
    return {"mixture": both(1.0, -1.0) | {"alpha/": torch.tensor(alpha, dtype=torch.float64)}}


def test_a_step_by_hand():
    """w = (0, 0), v = (1, -1), alpha = 1/2: at (1/2, -1/2) the gradient is (P0 - 1) * (1, -1)."""
    model = TwoWeights(0.0, 0.0)
    done = trained(config("apfl"), model, kept=kept(0.5))

    assert weights(model.state_dict()) == pytest.approx([0.05, -0.05])
    state = done.states()["mixture"]
    assert weights(state) == pytest.approx([1 + 0.05 * (1 - P0), -1 - 0.05 * (1 - P0)])
    assert done.numbers() == {"alpha": pytest.approx(0.5 + 0.1 * 2 * (1 - P0))}
    assert float(state["alpha/"]) == done.numbers()["alpha"]


def test_the_shares_rate_is_the_rounds():
    """In a round whose rate is a tenth its step is a tenth too."""
    done = trained(config("apfl", schedule="step", step_rounds=1), TwoWeights(0.0, 0.0), kept=kept(0.5))

    assert done.numbers() == {"alpha": pytest.approx(0.5 + 0.01 * 2 * (1 - P0))}


def test_a_share_that_is_not_learned_stays():
    done = trained(config("apfl", adaptive=0), TwoWeights(), kept=kept(0.5))

    assert done.numbers() == {"alpha": 0.5}
    # To the last digit, in the first round too.
    first = trained(config("apfl", alpha=0.1, adaptive=0), TwoWeights())
    assert first.numbers() == {"alpha": 0.1}


def test_of_whom_a_share_was_learned_counts_from_then_on():
    """A later batch of more patients does not make it theirs: its step may be as short as a server likes."""
    own = kept(0.5)["mixture"]
    done = trained(config("apfl"), TwoWeights(0.0, 0.0), kept={"mixture": own})
    assert int(done.states()["mixture"]["alpha/patients"]) == 1
    assert done.numbers().told(1) == done.numbers() and done.numbers().told(2) is None
    earlier = {"mixture": own | {"alpha/patients": torch.tensor(7)}}
    again = trained(config("apfl", adaptive=0), TwoWeights(0.0, 0.0), kept=earlier)
    assert int(again.states()["mixture"]["alpha/patients"]) == 7
    fewer = trained(config("apfl"), TwoWeights(0.0, 0.0), kept=earlier)
    assert int(fewer.states()["mixture"]["alpha/patients"]) == 1


def test_an_own_model_that_diverges_ends_the_task():
    """Where the common model, whose loss is told, does not: it never leaves, so nobody else could notice."""
    own = both(float("nan"), 0.0) | {"alpha/": torch.tensor(0.5, dtype=torch.float64)}
    with pytest.raises(TrainingDiverged, match="weights that are not finite"):
        trained(config("apfl"), TwoWeights(), kept={"mixture": own})


def test_an_overflow_does_not_decide_the_share():
    """The first batch of a scaled loss may overflow: its step is left out, and so is the share's."""
    torch.manual_seed(0)
    x, y = 150 * (torch.randn(32, 1, 4, 4) + 1), torch.zeros(32, dtype=torch.int64)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    trainer = Trainer.of({"lr": 1e-4, "batch_size": 32, "precision": "fp16"})
    epochs = Epochs(
        model, ImageTensors({"train": x}, {"train": y}), trainer, 1, torch.Generator().manual_seed(0),
        plain_objective(model, cross_entropy),
    )  # fmt: skip
    _, alpha = train_both(epochs, nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), 0.5, _overflows, adaptive=True)
    assert alpha == 0.5


def _overflows(output, labels):
    return cross_entropy(output, labels) * 1e4


def test_the_share_stays_within_its_range():
    done = trained(config("apfl", lr=100.0), TwoWeights(), kept=kept(0.5))

    assert done.numbers() == {"alpha": 1.0}


def test_a_site_uses_the_mixture_with_what_it_received():
    model = TwoWeights(0.0, 0.0)
    method(config("apfl"), model, kept=kept(0.25)).use(model)

    assert weights(model.state_dict()) == [0.25, -0.25]
    assert method(config("apfl"), model).use(model) is None


class Tied(TwoWeights):
    """The same weights under a second name."""

    def __init__(self, *weights: float) -> None:
        super().__init__(*weights)
        self.again = nn.Linear(1, 2, bias=False)
        self.again.weight = self.fc.weight


class WithMore(TwoWeights):
    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Linear(2, 2)


def test_parameters_that_the_loss_does_not_reach_have_no_part_in_the_share():
    own = {**WithMore().state_dict(), **both(1.0, -1.0), "alpha/": torch.tensor(0.5, dtype=torch.float64)}
    done = trained(config("apfl"), WithMore(), kept={"mixture": own})

    assert done.numbers() == {"alpha": pytest.approx(0.5 + 0.1 * 2 * (1 - P0))}
    assert done.states()["mixture"]["more.weight"].equal(own["more.weight"])


def test_weights_with_two_names_are_mixed_under_both():
    model, own = Tied(0.0, 0.0), both(1.0, -1.0)
    own |= {"again.weight": own["fc.weight"], "alpha/": torch.tensor(0.25, dtype=torch.float64)}
    method(config("apfl"), model, kept={"mixture": own}).use(model)

    assert weights(model.state_dict()) == [0.25, -0.25]


def test_the_share_of_each_site_is_reported():
    state, _ = run(tiny_config("apfl"))

    shares = [site["numbers"]["alpha"] for record in state.history for site in record["sites"].values()]
    assert len(shares) == 9
    assert all(0 <= share <= 1 for share in shares)
    assert len(set(shares)) > 3


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_site_mixes_what_the_same_round_left(rounds):
    _, sites = run(tiny_config("apfl", rounds=rounds))

    for site in sites.values():
        own, received = site.store.get("mixture", rounds), site.store.get(RECEIVED, rounds)
        alpha = float(own.pop("alpha/"))
        used = site.store.get(MODEL, rounds)
        for name in ("fc1.weight", "fc2.bias"):
            assert torch.allclose(used[name], alpha * own[name] + (1 - alpha) * received[name])
            assert not torch.allclose(used[name], received[name])


def test_the_share_is_learned_once_a_round_whatever_the_batches_weigh():
    """At the first of two batches; and of a batch half as large as a step's, whose loss counts half in it."""
    learned = {"alpha": pytest.approx(0.5 + 0.1 * 2 * (1 - P0))}
    for samples, settings in ((2, {}), (1, {"batch_size": 2, "accumulate": 2})):
        run_config, model = config("apfl", **settings), TwoWeights(0.0, 0.0)
        found = method(run_config, model, kept=kept(0.5))
        found.begin()
        found.train(model, data(samples), 1, torch.Generator().manual_seed(0))
        found.end()
        assert found.numbers() == learned


def test_numbers_of_several_mechanisms_are_told_as_the_fewest_patients_let_them():
    found = method(config("apfl"), TwoWeights())
    for part, patients in zip(found.rounds, (5, 2), strict=False):
        found._outcomes[part] = Outcome(numbers={part.name: 1.0}, patients=patients)
    assert found.numbers().told(2) == {part.name: 1.0 for part in found._outcomes}
    assert found.numbers().told(3) is None
