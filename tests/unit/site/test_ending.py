"""What a site uses at the end, what it says of it, and what stays with it."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from tiny import FEW_STEPS, config, plan_of, run, sites_of

from medpfl.core.errors import UserError
from medpfl.core.messages import Message
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.engine.results import build_results
from medpfl.models.blend import is_blend, restored
from medpfl.site.candidates import between
from medpfl.site.choice import share_of_further
from medpfl.site.ending import final_state
from medpfl.site.policy import HOSPITAL
from medpfl.site.rival import ALONE, ALONE_BEST, ALONE_FINISHED
from medpfl.site.store import FINISHED, MODEL, USED, DiskStore

TRAINED = {"alone": "yes", "rounds": 4}


def measured_of(site, state) -> dict:
    return site.config.learned.evaluate(restored(Federation.of(site.config).model(), state), site.data, "test")


def close(found: dict, expected: dict) -> bool:
    return all(found[k] == pytest.approx(expected[k], abs=1e-6) for k in ("n", "accuracy", "auroc"))


MORE = ("fedbn", "fedper", "apfl", "fedbabu", "fedap")


@pytest.mark.parametrize(
    "algorithm", ["fedavg", "ditto", "fedblend", *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)]
)
def test_a_blend_is_what_the_site_tests_and_keeps(algorithm):
    settings = FEW_STEPS if algorithm == "fedblend" else {}
    state, sites = run(config(algorithm, use="blend", settings=settings, **TRAINED))
    for name, site in sites.items():
        metrics = state.final[name]
        used = metrics["verdict"]["used"]["selected"]
        kept = final_state(site.store, metrics["tested"]["selected"])
        assert 0 < used["weight"] < 1
        assert is_blend(kept)
        assert kept["blend_weight"].item() == used["weight"]
        own = {key.removeprefix("blend_a."): t for key, t in kept.items() if key.startswith("blend_a.")}
        best, finished = (site.store.get(k, metrics["verdict"]["alone_round"]) for k in (ALONE_BEST, ALONE_FINISHED))
        assert 0 <= share_on_the_line(own, best, best if finished is None else finished) <= 1
        assert close(metrics["test"]["selected"], measured_of(site, kept))
        assert close(metrics["verdict"]["alone"], measured_of(site, own))


def test_local_training_can_be_trained_further_as_well():
    plain, further = (run(config("local", rounds=2, settings=settings)) for settings in ({}, FEW_STEPS))
    for name, site in further[1].items():
        round_ = further[0].final[name]["tested"]["selected"]
        assert round_ == plain[0].final[name]["tested"]["selected"]
        assert site.store.get(FINISHED, round_) is not None
        assert further[0].final[name]["test"]["selected"] != plain[0].final[name]["test"]["selected"]
        assert close(further[0].final[name]["test"]["selected"], measured_of(site, final_state(site.store, round_)))


def test_what_a_site_uses_is_chosen_by_its_patients():
    """The same models and images: all of one patient they show less than each of another."""
    federation = Federation.of(config("fedavg", use="blend", data_args={"validation": 40}, **TRAINED))
    found = []
    for known in (False, True):
        sites = sites_of(federation)
        for site in sites.values():
            if known:
                site.data = replace(site.data, persons={"validation": torch.zeros(40, dtype=torch.long)})
        state = run_in_process(plan_of(federation), sites, federation.model, workers=1)
        found.append([metrics["verdict"] for metrics in state.final.values()])
    for many, few in zip(*found, strict=True):
        assert many["alone"]["accuracy"] == few["alone"]["accuracy"]
        assert abs(many["used"]["selected"]["weight"] - few["used"]["selected"]["weight"]) > 0.01


def share_on_the_line(state, before, after) -> float:
    """Where a state lies between two, having made sure that it does."""
    floats = [key for key, tensor in before.items() if tensor.is_floating_point()]
    one, start, end = (torch.cat([s[key].double().flatten() for key in floats]) for s in (state, before, after))
    length = (end - start).square().sum()
    share = float((one - start) @ (end - start) / length) if length else 0.0
    torch.testing.assert_close(one, torch.lerp(start, end, share), atol=1e-4, rtol=0)
    return share


def test_a_blend_takes_the_network_between_before_and_after_fine_tuning_that_the_cases_speak_for():
    state, sites = run(config("fedavg", use="blend", **TRAINED | {"settings": {"finetune_epochs": 20}}))
    for name, site in sites.items():
        used = state.final[name]["verdict"]["used"]["selected"]
        assert used["candidate"] == "partly fine-tuned"
        before, after = (site.store.get(kind, used["round"]) for kind in (MODEL, FINISHED))
        kept = final_state(site.store, state.final[name]["tested"]["selected"])
        other = {key: kept[f"blend_b.{key}"] for key in before}
        shares = np.array([0, 0.25, 0.5, 0.75, 1])
        losses = np.array([_losses_between(site, before, after, share).sum() for share in shares])
        likely = np.exp(losses.min() - losses)
        found = share_on_the_line(other, before, after)
        assert found == pytest.approx(likely @ shares / likely.sum(), abs=1e-3)


def test_what_is_published_stays_as_published():
    plain, sites = run(config("fedbn", rounds=4))
    beside, others = run(config("fedbn", **TRAINED))
    for name, site in sites.items():
        assert beside.final[name]["test"] == plain.final[name]["test"]
        round_ = plain.final[name]["tested"]["selected"]
        one, two = final_state(site.store, round_), final_state(others[name].store, round_)
        assert all(torch.equal(tensor, two[key]) for key, tensor in one.items())
        assert "verdict" not in plain.final[name]


def test_best_leaves_a_site_its_own_model_unless_its_cases_speak_against_it():
    """With five validation cases the test cannot reach its level but by all five."""
    state, sites = run(config("fedavg", use="best", **TRAINED))
    for name, site in sites.items():
        used = state.final[name]["verdict"]["used"]["selected"]
        assert used["weight"] in (0, 1)
        kept = final_state(site.store, state.final[name]["tested"]["selected"])
        other = ALONE_BEST if used["weight"] == 0 else MODEL
        round_ = state.final[name]["verdict"]["alone_round"] if used["weight"] == 0 else used["round"]
        assert all(torch.equal(tensor, kept[key]) for key, tensor in site.store.get(other, round_).items())
    assert any(m["verdict"]["used"]["selected"]["weight"] == 0 for m in state.final.values())


def test_the_same_question_gets_the_same_answer():
    _, sites = run(config("fedbabu", use="blend", **TRAINED))
    site = sites["site-1"]
    model = Federation.of(site.config).model()
    message = Message("test", 4, {}, {"selected_round": 2})
    assert site.handle(message, model).metrics == site.handle(message, model).metrics


@pytest.mark.parametrize(
    ("validation", "use", "told"),
    [(4, "blend", 3), (4, "best", 3), (5, "blend", 0), (6, "best", 3), (7, "best", 0), (4, "received", 0)],
)
def test_results_say_where_next_to_nothing_chose(validation, use, told):
    federation = Federation.of(config("fedbn", use=use, data_args={"validation": validation}, **TRAINED))
    state = run_in_process(plan_of(federation), sites_of(federation), federation.model, workers=1)
    notes = build_results(plan_of(federation), state, env="inprocess", data={}, seconds={})["notes"]
    least = 7 if use == "best" else 5
    found = [note for note in notes if note.startswith(f"Fewer than {least} validation cases chose what")]
    assert [note.count("site-") for note in found] == [told] * bool(told)
    assert all(("the model trained alone is kept" in note) == (use == "best") for note in found)
    weights = {m["verdict"]["used"]["selected"]["weight"] for m in state.final.values() if use == "best"}
    assert weights <= ({0} if validation == 4 else {0, 1})


def test_results_say_where_no_round_was_better_than_another():
    federation = Federation.of(config("fedavg", rounds=2))
    plan = plan_of(federation)
    state = run_in_process(plan, sites_of(federation), federation.model, workers=1)
    state = replace(state, selection={**state.selection, "measure": "accuracy"})

    def notes(*accuracies):
        history = [
            {**record, "sites": {s: {**told, "validation": {"accuracy": a}} for s, told in record["sites"].items()}}
            for record, a in zip(state.history, accuracies, strict=True)
        ]
        found = build_results(plan, replace(state, history=tuple(history)), env="inprocess", data={}, seconds={})
        return [note for note in found["notes"] if note.startswith("Validation ")]

    assert notes(0.0, 0.1) == []
    (told,) = notes(0.0, 0.0)
    assert told.startswith("Validation accuracy was 0.000 at every site in every round")


def test_many_cases_of_few_patients_are_few():
    federation = Federation.of(config("fedbn", use="blend", data_args={"validation": 6}, **TRAINED))
    state = run_in_process(plan_of(federation), sites_of(federation), federation.model, workers=1)
    data = {"sites": {"site-1": {"validation_patients": 2}, "site-2": {"validation_patients": 5}}}
    notes = build_results(plan_of(federation), state, env="inprocess", data=data, seconds={})["notes"]
    assert any(note.startswith("Fewer than 5 validation patients chose what site-1 uses (") for note in notes)


def test_results_say_so_of_the_sites_that_were_tested_also_where_one_missed_the_last_validation():
    federation = Federation.of(config("fedbn", use="blend", data_args={"validation": 4}, **TRAINED))
    state = run_in_process(plan_of(federation), sites_of(federation), federation.model, workers=1)
    last = {**state.history[-1], "sites": state.history[-1]["sites"] | {"site-1": {"validation": None}}}
    final = {name: metrics for name, metrics in state.final.items() if name != "site-2"}
    state = replace(state, history=(*state.history[:-1], last), final=final)
    notes = build_results(plan_of(federation), state, env="inprocess", data={}, seconds={})["notes"]
    assert any(note.startswith("Fewer than 5 validation cases chose what site-1, site-3 use (") for note in notes)


def test_what_one_run_adds_to_its_machine_is_not_the_next_ones():
    federation = Federation.of(config())
    state = run_in_process(plan_of(federation), sites_of(federation), federation.model, workers=1)
    made = [build_results(plan_of(federation), state, env="inprocess", data={}, seconds={}) for _ in range(2)]
    made[0]["environment"]["job"] = "a job of the first"
    assert "job" not in made[1]["environment"]


def test_without_validation_cases_a_site_uses_its_own():
    state, sites = run(config("fedbn", use="blend", data_args={"validation": 0}, **TRAINED))
    assert {m["verdict"]["used"]["selected"]["weight"] for m in state.final.values()} == {0.0}
    site = sites["site-1"]
    assert all(torch.equal(t, site.store.get(USED, 4)[k]) for k, t in site.store.get(ALONE, 4).items())


def test_a_choice_needs_two():
    with pytest.raises(UserError, match="--alone no there is only one"):
        config("fedbn", use="blend", alone="no")
    with pytest.raises(UserError, match="shares nothing there is only one"):
        config("local", use="best", alone="yes")


def test_a_hospital_keeps_its_verdict_and_the_model_that_it_trained_alone(tmp_path):
    federation = Federation.of(config("fedblend", settings=FEW_STEPS, **TRAINED))
    policy = HOSPITAL.model_copy(
        update={"least_patients": 0, "measures": "full", "named_pretrained": False, "approved_weights": False}
    )
    sites = {n: federation.site(n, DiskStore(tmp_path / n, durable=False)) for n in federation.config.site_names}
    sent = []

    class Heard:
        def __init__(self, party):
            self.party, self.name, self.data = party, party.name, party.data

        def handle(self, message, model):
            sent.append(self.party.handle(message, model))
            return sent[-1]

    guarded = {name: Heard(federation.guarded(site, policy=policy)) for name, site in sites.items()}
    state = run_in_process(plan_of(federation), guarded, federation.model, workers=1)

    assert not state.failures
    assert all("verdict" not in metrics for metrics in state.final.values())
    shared = set(federation.initial_shared)
    assert all(set(update.tensors) <= shared for update in sent)
    for name in sites:
        card = json.loads((tmp_path / name / "selected" / "card.json").read_text())
        assert card["verdict"]["gain"].keys() >= {"accuracy", "balanced_accuracy", "auroc"}
        alone = torch.cat([t.flatten() for t in sites[name].store.get(ALONE, 4).values() if t.is_floating_point()])
        own = [torch.cat([t.flatten() for t in u.tensors.values()]) for u in sent if u.site == name and u.tensors]
        assert not any(len(alone) == len(other) and torch.equal(alone, other) for other in own)


def test_a_new_run_forgets_the_model_trained_alone_in_the_one_before():
    _, sites = run(config("fedbn", **TRAINED))
    site = sites["site-1"]
    assert site.store.get(ALONE, 4) is not None
    federation = Federation.of(site.config)
    message = Message("prepare", 0, {}, {"split": federation.split.description()})
    site.handle(message, federation.model())
    assert site.store.get(ALONE, 4) is None
    assert site.rival.best() is None


def test_a_round_that_is_asked_for_again_trains_alone_from_the_one_before():
    federation = Federation.of(config("fedbn", **TRAINED))
    sites = sites_of(federation)
    run_in_process(plan_of(federation), sites, federation.model, workers=1)
    site = sites["site-1"]
    before = site.store.get(ALONE, 4)
    site.rival.train(federation.model(), 4)
    assert all(torch.equal(tensor, before[key]) for key, tensor in site.store.get(ALONE, 4).items())


@pytest.mark.parametrize(("losses", "best"), [([0.0, 0.0, 0.0], 3), ([0.5, 0.4, 0.6], 2), ([0.5, 0.5, 0.6], 2)])
def test_of_cases_that_tell_nothing_the_last_round_alone_counts(losses, best, monkeypatch):
    """Masks without any structure have a loss of 0 whatever the model: the first round is not the best for that."""
    federation, said = Federation.of(config("fedbn", **TRAINED)), iter(losses)
    rival, model = sites_of(federation)["site-1"].rival, federation.model()
    monkeypatch.setattr(type(rival.config.learned), "mean_loss", lambda *_: next(said))
    for round_ in (1, 2, 3):
        rival.train(model, round_)
    assert rival.round == best


def test_training_alone_may_have_what_the_method_adds_at_the_end():
    """Else more steps on the site's own data would count as a gain by the others."""
    settings = {"finetune_epochs": 20}
    fields = {"rounds": 1, "alone": "yes", "settings": settings}
    state, sites = run(config("fedavg", sites=2, mixing="samples", **fields))
    for name, site in sites.items():
        finished = site.store.get(ALONE_FINISHED, 1)
        assert finished is not None
        best = site.store.get(ALONE_BEST, 1)
        own = between(best, finished, share_of_further(partial(_losses_between, site, best, finished)))
        assert close(state.final[name]["verdict"]["alone"], measured_of(site, own))


def _losses_between(site, before, after, share):
    return site.config.learned.losses(_predicted(site, between(before, after, share)))


def _predicted(site, state):
    return site.config.learned.predict(restored(Federation.of(site.config).model(), state), site.data, "validation")


def test_where_the_best_rounds_file_is_damaged_the_last_round_stands_in(tmp_path):
    federation = Federation.of(config("fedbn", **TRAINED))
    sites = {n: federation.site(n, DiskStore(tmp_path / n, durable=False)) for n in federation.config.site_names}
    run_in_process(plan_of(federation), sites, federation.model, workers=1)
    rival = sites["site-1"].rival
    for file in (tmp_path / "site-1").glob("alone_best-*"):
        file.write_bytes(file.read_bytes()[:-9])
    assert rival.round == 4
    assert all(torch.equal(t, rival.store.get(ALONE, 4)[k]) for k, t in rival.best().items())


def test_further_measures_are_at_the_thresholds_of_the_validation_data():
    state, sites = run(config("fedavg"))
    unlike = []
    for name, site in sites.items():
        metrics, learned = state.final[name], site.config.learned
        kept = final_state(site.store, metrics["tested"]["selected"])
        model = restored(Federation.of(site.config).model(), kept)
        test, validation = (learned.predict(model, site.data, part) for part in ("test", "validation"))
        expected, of_test = (learned.further(test, cases, None).numbers() for cases in (validation, test))
        assert metrics["test"]["selected"].items() >= expected.items()
        unlike.append(expected["sensitivity"] != of_test["sensitivity"])
    assert any(unlike)
