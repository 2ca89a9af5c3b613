"""A site that joins chooses what it uses as the sites that trained do."""

import json
from dataclasses import replace

import pytest
import torch
from tiny import FEW_STEPS, config, images, plan_of, sites_of

from medpfl.core.statefile import read_state
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.models.blend import is_blend, restored
from medpfl.server.newcomer import Welcome
from medpfl.site import newcomer as newcomer_module
from medpfl.site.newcomers_choice import trained_alone
from medpfl.site.policy import HOSPITAL
from medpfl.tasks.classification import Classification


def joined(folder, algorithm="fedblend", policy=None, data=None, **fields):
    """The answer of a site that joins a finished run, and its federation."""
    settings = FEW_STEPS if algorithm == "fedblend" else {}
    federation = Federation.of(config(algorithm, alone="yes", rounds=2, settings=settings, **fields))
    plan = plan_of(federation)
    state = run_in_process(plan, sites_of(federation), federation.model, workers=1)
    newcomer = federation.newcomer("new", federation.source, data or images(seed=7), folder)
    party = federation.guarded(newcomer, policy=policy) if policy else newcomer
    welcome = Welcome(plan, state, federation.input_format(), 2)
    message, _ = welcome.offer(None)
    return party.handle(message, federation.model()).metrics, federation


def test_it_delivers_the_blend_that_it_measures(tmp_path):
    metrics, federation = joined(tmp_path)
    state, _ = read_state(tmp_path / "selected" / "model.safetensors")
    assert 0 < metrics["weight"] < 1
    assert is_blend(state)
    found = federation.config.learned.evaluate(restored(federation.model(), state), images(seed=7), "test")
    assert found["accuracy"] == pytest.approx(metrics["used"]["accuracy"])
    assert found["auroc"] == pytest.approx(metrics["used"]["auroc"])
    card = json.loads((tmp_path / "selected" / "card.json").read_text())
    assert card["test"]["accuracy"] == metrics["used"]["accuracy"]
    assert card["joined"]["weight"] == metrics["weight"]
    validated = federation.config.learned.evaluate(restored(federation.model(), state), images(seed=7), "validation")
    assert card["validation"]["auroc"] == pytest.approx(validated["auroc"])


def test_classes_that_it_answers_for_no_test_case_stand_in_its_card(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(Classification, "never_answered", lambda self, predicted: asked.append(predicted) or {1: 3})
    metrics, federation = joined(tmp_path)
    state, _ = read_state(tmp_path / "selected" / "model.safetensors")
    [(probabilities, _)] = asked[-1:]
    expected, _ = federation.config.learned.predict(restored(federation.model(), state), images(seed=7), "test")
    assert probabilities == pytest.approx(expected)
    assert json.loads((tmp_path / "selected" / "card.json").read_text())["never_answered"] == {"1": 3}
    assert "never_answered" not in metrics


def test_it_chooses_by_its_patients(tmp_path):
    """The same models and images: all of one patient they show less than each of another."""
    data = images(validation=40, seed=7)
    one = replace(data, persons={"validation": torch.zeros(40, dtype=torch.long)})
    many, few = (joined(tmp_path / name, data=own)[0] for name, own in (("many", data), ("few", one)))
    assert many["alone"] == few["alone"] and many["adapted"] == few["adapted"]
    assert abs(many["weight"] - few["weight"]) > 0.01


def test_without_validation_cases_it_uses_what_it_trained_alone(tmp_path):
    metrics, _ = joined(tmp_path, data=images(validation=0, seed=7))
    assert metrics["weight"] == 0
    assert metrics["used"]["accuracy"] == metrics["alone"]["accuracy"]


def test_published_methods_give_what_they_give(tmp_path):
    metrics, _ = joined(tmp_path, "fedbn")
    assert not {"used", "weight"} & metrics.keys()
    state, _ = read_state(tmp_path / "selected" / "model.safetensors")
    assert not is_blend(state)


def test_what_it_chose_is_the_hospitals_own(tmp_path):
    policy = HOSPITAL.model_copy(
        update={"least_patients": 0, "measures": "full", "named_pretrained": False, "approved_weights": False}
    )
    metrics, _ = joined(tmp_path, policy=policy)
    assert not {"used", "weight"} & metrics.keys()
    metrics, _ = joined(tmp_path / "open", policy=policy.model_copy(update={"verdict": True}))
    assert {"used", "weight"} <= metrics.keys()


def test_where_training_alone_diverges_the_other_is_used(tmp_path, monkeypatch):
    """Alone from a first model of NaN; what came is finite."""
    federation = Federation.of(config("fedblend", alone="yes", rounds=2, settings=FEW_STEPS))
    plan = plan_of(federation)
    state = run_in_process(plan, sites_of(federation), federation.model, workers=1)
    newcomer = federation.newcomer("new", federation.source, images(seed=7), tmp_path)
    message, _ = Welcome(plan, state, federation.input_format(), 1).offer(None)
    newcomer._fits = True

    def broken(name, run_config, data, first, model, epochs):
        first = {name: t * float("nan") if t.is_floating_point() else t for name, t in first.items()}
        return trained_alone(name, run_config, data, first, model, epochs)

    monkeypatch.setattr(newcomer_module, "trained_alone", broken)
    metrics = newcomer.handle(message, federation.model()).metrics
    assert metrics["alone"] is None
    assert "used" not in metrics
    assert torch.isfinite(torch.tensor(metrics["adapted"]["accuracy"]))


def test_who_joins_a_hospital_tells_what_rests_on_enough_patients(tmp_path):
    """Of three classes validation data have ten cases each, and test data thirty."""
    policy = HOSPITAL.model_copy(update={"verdict": True, "named_pretrained": False, "approved_weights": False})
    data = images(train=60, validation=30, test=90, seed=7)
    metrics, _ = joined(tmp_path, data=data, policy=policy, select_by="accuracy")
    parts = [metrics["received"], metrics["adapted"], metrics["alone"], metrics["used"]]
    assert all(part["auroc"] is not None for part in parts)
    validation = [*metrics["validation"], *metrics["alone_validation"]]
    assert {(v["auroc"], v["balanced_accuracy"]) for v in validation if v} == {(None, None)}
    assert None not in [v["accuracy"] for v in validation if v]
    few, _ = joined(tmp_path, data=images(train=60, validation=19, test=90, seed=7), policy=policy)
    assert not {"used", "weight"} & few.keys()
    assert few["adapted"] is not None


@pytest.mark.parametrize(
    ("algorithm", "validation"),
    [("fedblend", 8), *(pytest.param(*of, marks=pytest.mark.slow) for of in [("fedblend", 0), ("fedbn", 8)])],
)
def test_it_says_what_it_gained_in_its_own_folder_alone(tmp_path, algorithm, validation):
    data = images(validation=validation, test=30, seed=7)
    metrics, _ = joined(tmp_path, algorithm, data=data)
    card = json.loads((tmp_path / "selected" / "card.json").read_text())
    verdict = card["verdict"]
    assert not {"verdict", "gain"} & metrics.keys()
    assert verdict["alone"]["accuracy"] == metrics["alone"]["accuracy"]
    assert verdict["used"]["weight"] == metrics.get("weight", 1.0)
    found = verdict["gain"]["accuracy"]
    used = metrics.get("used", metrics["adapted"])["accuracy"]
    assert found["difference"] == pytest.approx(used - metrics["alone"]["accuracy"])
    assert found["low"] <= found["difference"] <= found["high"]
    page = (tmp_path / "selected" / "verdict.html").read_text()
    assert "the model of a site that joined after round, 2" in page
    said = "trained alone (epoch" if validation else "It uses the model that it trained alone (epoch"
    assert said in page
    assert ("adapted (epoch" in page) == bool(validation)
