"""The end of a run with models of one number, which is what is measured of them: what is used and said, by hand."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import images
from torch import nn

from medpfl.core.messages import Message
from medpfl.core.parameters import StateError
from medpfl.site.candidates import Candidate
from medpfl.site.ending import AS_RECEIVED, PUBLISHED, Choice, Ending, final_state
from medpfl.site.store import FINISHED, MODEL, RECEIVED, USED, MemoryStore


class Numbers(dict):
    def with_more(self, more):
        return Numbers(self | more)


class Drawn(SimpleNamespace):
    def numbers(self):
        patients = {} if self.whose is None else {"patients": len(set(self.whose.tolist()))}
        return {"cut": self.test + (self.validation or 0)} | patients

    def gains(self, other, signs):
        return {"cut": (self.test - other.test) * signs}


class OneNumber:
    """A model is right about so large a share of all cases."""

    one_class, for_one_sided, sigmoid, signs = False, "", False, 2

    def predict(self, model, data, part):
        self.asked.append((model.weight.item(), part))
        return model.weight.item()

    def losses(self, share):
        return np.full(len(self.cases), 100 * (1 - share))

    def mixed(self, own, other, weight):
        return (1 - weight) * own + weight * other

    def mixed_losses(self, own, other, weight):
        return self.losses(self.mixed(own, other, weight))

    def measured(self, share, cases):
        return Numbers(right=share)

    def compared(self, used, own, cases):
        return Numbers(right=used - own)

    def further(self, test, validation, whose):
        return Drawn(test=test, validation=validation, whose=whose)

    def detail(self, used, model, data):
        return {"used": used, "of": sum(weight.sum().item() for weight in model.parameters())}


def state(share):
    return {"weight": torch.tensor([[share]]), "bias": torch.zeros(1)}


class End:
    """A site at the end of a run: ``models`` by kind and round, and one of 0.5 that it trained alone in round 4."""

    def __init__(self, use, models, *, validation=5, further=None, alone=0.5):
        self.store, self.written, self.learned = MemoryStore(), [], OneNumber()
        self.learned.cases, self.learned.asked = range(validation), []
        for (kind, round_), share in models.items():
            self.store.put(kind, round_, state(share))
        delivery = SimpleNamespace(
            said=lambda data: {"said": "of the method"},
            unanswered=lambda predictions: {"never_answered": predictions()},
            write=lambda which, site, *of: self.written.append((which, *of)),
        )
        finishing = SimpleNamespace(
            finished=lambda message, model, round_: final_state(self.store, round_) is not None,
            alone=lambda message, model: None if further is None else state(further),
        )
        rival = None if alone is None else SimpleNamespace(round=4, best=lambda: state(alone))
        config, data = SimpleNamespace(resolved_use=use, learned=self.learned), images(validation=validation)
        self.ending = Ending("a", config, data, self.store, rival, delivery, finishing)

    def answer(self, selected, last):
        return self.ending.answer(Message("test", last, {}, {}), nn.Linear(1, 1), selected)

    def used(self, selected, last):
        """By which: the candidate, its round and its weight."""
        return {which: tuple(of.values()) for which, of in self.answer(selected, last)["verdict"]["used"].items()}


def test_the_method_has_a_card_of_its_own_model_alone():
    assert Choice(Candidate(PUBLISHED, 1, {}), 1.0).of_method
    assert not Choice(Candidate(PUBLISHED, 1, {}), 0.5).of_method
    assert not Choice(Candidate(AS_RECEIVED, 1, {}), 1.0).of_method


@pytest.mark.parametrize("better", [1, 3])
def test_the_best_of_both_rounds_is_used_in_either(better):
    shares = {(MODEL, r): 0.75 if r == better else 0.625 for r in (1, 3)}
    end = End("best", shares, validation=9)
    assert end.used(1, 3) == dict.fromkeys(("selected", "last"), (PUBLISHED, better, 1.0))
    assert all(final_state(end.store, r)["weight"] == 0.75 for r in (1, 3))
    assert len(set(end.learned.asked)) == len(end.learned.asked)  # no model is asked twice


def test_of_rounds_alike_each_has_its_own():
    end = End("best", {(MODEL, 1): 0.75, (MODEL, 3): 0.75}, validation=9)
    assert end.used(1, 3) == {"selected": (PUBLISHED, 1, 1.0), "last": (PUBLISHED, 3, 1.0)}


@pytest.mark.parametrize("use", ["best", "blend"])
def test_the_model_as_it_came_is_used_where_it_is_better(use):
    end = End(use, {(MODEL, 2): 0.625, (FINISHED, 2): 0.6875, (RECEIVED, 2): 0.875}, validation=9)
    assert {used[0] for used in end.used(2, 2).values()} == {AS_RECEIVED}
    assert {used[0] for used in End("best", {(FINISHED, 2): 0.625, (RECEIVED, 2): 0.75}).used(2, 2).values()} == {
        AS_RECEIVED
    }


def test_the_other_model_is_the_best_for_patients_however_many_cases_one_has():
    end = End("best", {(MODEL, 1): 0.75, (MODEL, 3): 0.625})
    whose = {"validation": torch.tensor([4, 4, 4, 5, 6]), "test": torch.tensor([7, 7, 7, 8, 8, 8, 8])}
    end.ending.data = replace(end.ending.data, persons=whose)
    # The first patient's cases are for the larger number, the two others' for the smaller.
    end.learned.losses = lambda share: np.array([1 - share] * 3 + [share] * 2)
    metrics = end.answer(1, 3)
    assert metrics["verdict"]["used"]["selected"]["round"] == 3
    assert metrics["test"]["selected"]["patients"] == 2


@pytest.mark.parametrize(
    ("others", "weight"),
    [({}, 1), ({RECEIVED: 0.75}, 1), ({RECEIVED: 0.625}, 0), ({FINISHED: 0.75}, 0), ({FINISHED: 0.625}, 0)],
)
def test_five_cases_support_the_only_other_model_and_not_the_better_of_two(others, weight):
    """By chance all five speak for one once in 32 times, for the better of two once in 16."""
    end = End("best", {(MODEL, 2): 0.75} | {(kind, 2): share for kind, share in others.items()})
    assert {used[2] for used in end.used(2, 2).values()} == {weight}
    assert final_state(end.store, 2)["weight"] == (0.75 if weight else 0.5)


def test_of_the_rounds_that_a_site_has_the_last_stands_in_for_both_that_it_has_not():
    end = End("received", {(MODEL, 1): 0.75, (MODEL, 2): 0.625})
    assert end.answer(7, 9)["tested"] == {"selected": 2, "last": 2}
    with pytest.raises(StateError, match="a has a model neither of round 7 nor of round 9"):
        End("received", {}).answer(7, 9)


def test_one_that_no_case_can_choose_gives_way_to_the_model_trained_alone():
    end = End("blend", {(MODEL, 2): 0.75}, validation=0)
    assert end.answer(2, 2)["test"]["selected"]["right"] == 0.5
    assert final_state(end.store, 2)["weight"] == 0.5


def test_as_received_each_rounds_own_model_is_tested_and_compared():
    end = End("received", {(MODEL, 1): 0.75, (MODEL, 3): 0.625, (RECEIVED, 3): 1.0, (FINISHED, 3): 0.875})
    metrics = end.answer(1, 3)
    assert metrics["tested"] == {"selected": 1, "last": 3}
    assert metrics["test"] == {"selected": {"right": 0.75, "cut": 1.5}, "last": {"right": 0.875}}
    assert metrics["validation"] == {"right": 0.75}
    assert [final_state(end.store, r)["weight"] for r in (1, 3)] == [0.75, 0.875]
    assert metrics["verdict"] == {
        "alone": {"right": 0.5, "cut": 1.0},
        "alone_round": 4,
        "used": {
            "selected": {"candidate": PUBLISHED, "round": 1, "weight": 1.0},
            "last": {"candidate": PUBLISHED, "round": 3, "weight": 1.0},
        },
        "gain": {"right": 0.25, "cut": 0.5},
    }


def test_each_folder_gets_what_is_said_of_its_own_model():
    end = End("received", {(MODEL, 1): 0.75, (MODEL, 3): 0.625})
    metrics = end.answer(1, 3)
    (first, round_, kept, record, detail), (second, round_2, kept_2, record_2, detail_2) = end.written
    assert (first, round_, kept["weight"], detail) == ("selected", 1, 0.75, {"used": 0.75, "of": 0.75})
    assert (second, round_2, kept_2["weight"], detail_2) == ("last", 3, 0.625, None)
    assert record["samples"] == {"train": 13, "validation": 5, "test": 7}
    said = [(of["validation"], of["test"], of["never_answered"], of["said"]) for of in (record, record_2)]
    assert said == [
        ({"right": 0.75}, metrics["test"]["selected"], 0.75, "of the method"),
        ({"right": 0.625}, {"right": 0.625}, 0.625, "of the method"),
    ]
    assert record["verdict"] == metrics["verdict"] | {"used": metrics["verdict"]["used"]["selected"]}
    assert record_2["verdict"]["used"] == metrics["verdict"]["used"]["last"]
    assert record_2["verdict"]["gain"] == {"right": 0.125}


@pytest.mark.parametrize("sigmoid", [False, True])
def test_a_blend_is_tested_as_the_two_together_and_not_said_to_be_the_methods_model(sigmoid):
    end = End("blend", {(MODEL, 1): 0.75})
    end.learned.sigmoid = sigmoid
    metrics = end.answer(1, 1)
    weight = metrics["verdict"]["used"]["selected"]["weight"]
    assert 0.9 < weight < 1
    assert metrics["test"]["selected"]["right"] == pytest.approx(0.5 + 0.25 * weight)
    assert metrics["verdict"]["gain"]["right"] == pytest.approx(0.25 * weight)
    kept = final_state(end.store, 1)
    assert (kept["blend_a.weight"], kept["blend_b.weight"]) == (0.5, 0.75)
    assert ("blend_sigmoid" in kept) == sigmoid
    assert all("said" not in record for _, _, _, record, _ in end.written)


def test_models_of_other_rounds_go():
    kinds = (MODEL, FINISHED, USED)
    end = End("received", {(kind, r): 0.75 for kind in kinds for r in (1, 2, 3)})
    end.answer(1, 3)
    assert [end.store.rounds(kind) for kind in kinds] == [[1, 3]] * 3


def test_without_validation_cases_training_alone_has_all_that_the_method_adds():
    verdict = End("received", {(MODEL, 1): 0.75}, validation=0, further=0.875).answer(1, 1)["verdict"]
    assert (verdict["alone"]["right"], verdict["alone_round"]) == (0.875, 4)


def test_validation_cases_speak_for_what_it_adds_or_not():
    alone = [End("received", {(MODEL, 1): 0.75}, further=f).answer(1, 1)["verdict"]["alone"] for f in (0.75, 0.25)]
    assert [of["right"] for of in alone] == pytest.approx([0.75, 0.5], abs=1e-3)
