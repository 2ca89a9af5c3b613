"""The end of a run as a server that means harm, or a damaged disk, would have it."""

import numpy as np
import pytest
import tiny
import torch
from tiny import Net, config, run, same

from medpfl.core.messages import Failure, Message, Update
from medpfl.engine.federation import Federation
from medpfl.models.blend import blended, is_blend, restored
from medpfl.server.rounds import QuorumNotMet
from medpfl.site.answer import answer
from medpfl.site.candidates import between
from medpfl.site.choice import LEVEL, chosen
from medpfl.site.coarse import coarsened
from medpfl.site.ending import final_state
from medpfl.site.policy import HOSPITAL, SitePolicy
from medpfl.site.rival import ALONE, ALONE_BEST, Rival
from medpfl.site.store import PERSONAL, USED, DiskStore, MemoryStore


class Asked:
    """One site, asked by hand."""

    def __init__(self, algorithm, store=None, **fields):
        self.federation = Federation.of(config(algorithm, alone="yes", **fields))
        self.site = self.federation.site("site-1", store or MemoryStore())
        self.model = self.federation.model()
        assert isinstance(self.ask("prepare", split=self.federation.split.description()), Update)

    def ask(self, task, round_=0, shared=None, **info):
        return answer(self.site, Message(task, round_, shared or {}, info), self.model)

    def trained(self, rounds):
        shared = self.federation.initial_shared
        for round_ in range(1, rounds + 1):
            shared = self.ask("train", round_, shared, best_round=0).tensors
        return shared


def close(found, expected):
    return all(found[k] == pytest.approx(expected[k], abs=1e-6) for k in ("n", "accuracy", "auroc"))


def without_an_answer(shared):
    """Finite weights under which a network in eval mode gives NaN: features that overflow, and cancel."""
    far = {"norm.weight": 3e38, "norm.running_var": 0.0}
    return {k: torch.full_like(t, far[k]) if k in far else t for k, t in shared.items()}


@pytest.mark.parametrize("use", ["best", "blend"])
def test_a_last_model_without_an_answer_does_not_take_the_site_its_own(use):
    asked = Asked("fedavg", use=use)
    shared = asked.trained(3)
    asked.ask("validate", 3, without_an_answer(shared), best_round=3)
    metrics = asked.ask("test", 3, selected_round=3).metrics
    alone, used = metrics["verdict"]["alone"], metrics["test"]["last"]
    assert alone["accuracy"] > 0
    assert close(used, alone)
    kept = restored(asked.federation.model(), final_state(asked.site.store, 3))
    assert close(asked.site.config.learned.evaluate(kept, asked.site.data, "test"), alone)


def test_a_last_model_from_which_fine_tuning_diverges_does_not_take_the_site_its_own():
    asked = Asked("fedblend")
    shared = asked.trained(3)
    asked.ask("validate", 3, {k: torch.full_like(t, 3e38) for k, t in shared.items()}, best_round=3)
    reply = asked.ask("test", 3, selected_round=3)
    assert not isinstance(reply, Failure), reply.reason
    assert reply.metrics["test"]["last"]["n"] == 7
    assert final_state(asked.site.store, 3) is not None


@pytest.mark.parametrize("use", ["best", "blend"])
def test_fine_tuning_whose_one_step_leads_to_infinity_leaves_a_site_its_models(use):
    """The loss is of before the step: it says nothing."""
    settings = {"finetune_epochs": 1, "finetune_lr": 1e38, "batch_size": 64}
    state, _ = run(config("fedavg", alone="yes", use=use, sites=2, rounds=1, settings=settings))
    assert not state.failures
    for metrics in state.final.values():
        assert metrics["verdict"]["alone"]["auroc"] is not None
        assert metrics["test"]["selected"]["auroc"] is not None


@pytest.mark.parametrize("use", ["best", "blend"])
def test_training_alone_without_an_answer_does_not_take_the_site_the_federations(use):
    asked = Asked("fedavg", use=use, data_args={"validation": 12})
    asked.ask("validate", 3, asked.trained(3), best_round=3)
    rival = asked.site.rival
    asked.site.store.put(ALONE_BEST, rival.round, without_an_answer(rival.best()))
    metrics = asked.ask("test", 3, selected_round=3).metrics
    assert metrics["verdict"]["alone"]["accuracy"] == 0
    assert metrics["verdict"]["used"]["selected"]["weight"] > 0
    assert metrics["test"]["selected"]["auroc"] is not None
    kept = restored(asked.federation.model(), final_state(asked.site.store, 3))
    assert close(asked.site.config.learned.evaluate(kept, asked.site.data, "test"), metrics["test"]["selected"])


def test_averaged_weights_keep_what_is_the_same_in_both():
    mask = torch.tensor([0.0, float("-inf")])
    before = {"mask": mask, "w": torch.zeros(2, dtype=torch.float64), "steps": torch.tensor(3)}
    after = {"mask": mask.clone(), "w": torch.ones(2, dtype=torch.float64), "steps": torch.tensor(9)}
    found = between(before, after, 0.25)
    assert same(found, {"mask": mask, "w": torch.full((2,), 0.25, dtype=torch.float64), "steps": torch.tensor(9)})


def test_a_blend_goes_by_one_network_where_the_other_gives_no_number():
    state = Net().state_dict()
    broken = without_an_answer(state)
    x = torch.randn(4, 1, 4, 4)
    blend = restored(Net(), blended(state, broken, 0.4)).eval()
    one = restored(Net(), state).eval()
    assert torch.allclose(blend(x).softmax(1), one(x).softmax(1))
    blend = restored(Net(), blended(broken, state, 0.4)).eval()
    assert torch.allclose(blend(x).softmax(1), one(x).softmax(1))


def test_a_network_of_ones_own_may_have_an_entry_called_as_a_blends():
    assert not is_blend({"blend_weight": torch.ones(1), "fc.weight": torch.ones(1)})


@pytest.mark.parametrize("missed", [1, 4])
def test_a_round_asked_for_again_after_missed_ones_gets_the_same_answer(missed):
    asked = Asked("fedper", rounds=8)
    shared = asked.trained(1)
    first, own = (asked.ask("train", 2 + missed, shared), asked.site.store.get(ALONE, 2 + missed))
    again = asked.ask("train", 2 + missed, shared)
    assert same(first.tensors, again.tensors)
    assert same(own, asked.site.store.get(ALONE, 2 + missed))
    assert asked.site.store.rounds(PERSONAL) == [1, 2 + missed]


def test_stores_know_their_rounds(tmp_path):
    for store in (MemoryStore(), DiskStore(tmp_path, durable=False)):
        for kind, round_ in (("alone", 3), ("alone", 1), ("alone_best", 7)):
            store.put(kind, round_, {"a": torch.ones(1)})
        assert store.rounds("alone") == [1, 3]
        assert store.rounds("none") == []


def test_a_site_that_has_neither_round_is_judged_by_what_came_last():
    """A server names a round that the site has not kept, and does not let it validate the last."""
    asked = Asked("fedblend", rounds=9)
    asked.trained(3)
    metrics = asked.ask("test", 9, selected_round=7).metrics
    assert metrics["tested"] == {"selected": 2, "last": 2}
    assert asked.site.store.get(USED, 2) is not None


def test_where_its_own_model_is_damaged_a_site_keeps_what_it_says(tmp_path):
    """An earlier answer to the same question has left a blend."""
    asked = Asked("fedblend", DiskStore(tmp_path, durable=False))
    others = {name: 1.5 * tensor for name, tensor in asked.trained(3).items()}
    asked.ask("validate", 3, others, best_round=3)
    asked.ask("test", 3, selected_round=3)
    assert is_blend(asked.site.store.get(USED, 3))
    for file in tmp_path.glob("alone*"):
        file.write_bytes(b"damaged")
    metrics = asked.ask("test", 3, selected_round=3).metrics
    kept = restored(asked.federation.model(), final_state(asked.site.store, 3))
    assert "verdict" not in metrics
    assert close(asked.site.config.learned.evaluate(kept, asked.site.data, "test"), metrics["test"]["last"])


@pytest.mark.slow
def test_all_train_alone_from_the_first_model_side_by_side(monkeypatch):
    began, before = [], Rival._before

    def noted(self, round_):
        began.append(before(self, round_))
        return began[-1]

    monkeypatch.setattr(Rival, "_before", noted)
    for _ in range(5):
        run(config("fedavg", alone="yes", sites=6, rounds=1), workers=6)
    assert len(began) == 30
    assert all(same(began[0][1], state) for _, state in began)


def test_the_best_of_several_models_needs_more_support():
    """The least loss of four models that are no better is below the own one's more often than any single one's."""
    rng = np.random.default_rng(1)
    taken, trials = 0, 400
    for _ in range(trials):
        alone, *others = -np.log(rng.beta(2, 0.5, (5, 20)).clip(1e-5, 1))
        other = min(others, key=np.mean)
        taken += chosen("best", lambda w, a=alone, b=other: b if w else a, 50, len(others))
    assert taken / trials <= LEVEL + 3 * np.sqrt(LEVEL * (1 - LEVEL) / trials)


class Odd(Net):
    def forward(self, x):
        return 3 * super().forward(x)


def test_a_network_that_does_not_end_in_its_classifier_is_refused_where_only_sites_have_images(monkeypatch):
    monkeypatch.setattr(Odd, "__module__", "tiny")
    monkeypatch.setattr(tiny, "Odd", Odd, raising=False)
    with pytest.raises(QuorumNotMet, match="Odd does not end in its last linear layer"):
        run(config("fedavg", model="tiny:Odd", settings={"prior": 1}))


def test_a_site_that_joins_keeps_how_training_alone_did_as_its_policy_says():
    measured = {"n": 50, "accuracy": 0.7, "balanced_accuracy": 0.7, "auroc": None, "auroc_ci95": None}
    measured |= {"auroc_classes": 0}
    joined = {"adapted": measured, "alone": measured, "alone_epoch": 1, "alone_validation": [measured, measured]}
    kept = coarsened(joined, HOSPITAL)
    assert kept["adapted"]["n"] == 50
    assert (kept["alone"], kept["alone_epoch"], kept["alone_validation"]) == (None, None, [])
    assert coarsened(joined, SitePolicy()) == joined
