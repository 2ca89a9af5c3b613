"""Resume, joining and the gate of methods with states, channels and steps of their own."""

import pytest
import torch
from tiny import config, figures, names_sent, plan_of, run, same, sites_of

from medpfl.core.messages import Update
from medpfl.core.parameters import StateError
from medpfl.core.server_state import ServerState
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.server.checkpoint import CHECKPOINT, last_state
from medpfl.server.rounds import advance, messages

METHODS = ("ditto", "apfl", "fedrep", "scaffold", "fedbabu", "fedcurv", "fedreg", "vhl", "fedvss", "fedyogi")
TRAINED = ("fc1.weight", "fc1.bias", "norm.weight", "norm.bias", "fc2.weight", "fc2.bias")
BESIDE = {
    "scaffold": {f"control/{name}" for name in TRAINED},
    "fedcurv": {f"curvature/{name}/{which}" for name in TRAINED for which in ("information", "weighted")},
}


TOGETHER = {"pseudo": 1, "virtual": 1, "virtual_images": 5, "adversarial": 0.1, "mu": 0.01, "prior": 1}


class Killed(BaseException):
    pass


@pytest.mark.slow
def test_what_methods_do_in_local_training_adds_up():
    """On another method's personal part and beside its terms; each of them counts, and the bits repeat."""
    (state, _), (again, _) = (run(config("fedbn", settings=TOGETHER)) for _ in range(2))
    assert not state.failures
    assert all(same(state.shared[name], again.shared[name]) for name in state.shared)
    for name in ("pseudo", "virtual", "adversarial", "mu"):
        without, _ = run(config("fedbn", settings={k: v for k, v in TOGETHER.items() if not k.startswith(name)}))
        assert not any(same(state.shared[site], without.shared[site]) for site in state.shared), name


QUICK = ("scaffold", "vhl", "fedyogi")
"""A control, a step before the rounds, moments at the server; the others keep a model or data."""


@pytest.mark.parametrize("method", [m if m in QUICK else pytest.param(m, marks=pytest.mark.slow) for m in METHODS])
def test_a_run_that_was_killed_goes_on_with_the_same_figures(tmp_path, method):
    run_config = config(method, rounds=4)
    whole, of_whole = run(run_config)
    federation = Federation.of(run_config)
    sites = sites_of(federation)

    def kill(state):
        if state.round == 2:
            raise Killed

    with pytest.raises(Killed):
        run_in_process(plan_of(federation), sites, federation.model, workers=1, checkpoint=tmp_path, after_step=kill)
    earlier = last_state(tmp_path / CHECKPOINT, run_config)
    state = run_in_process(plan_of(federation), sites, federation.model, workers=1, earlier=earlier)

    assert figures(state.history) == figures(whole.history)
    assert state.final == whole.final
    for name, site in sites.items():
        kinds = [(kind, r) for kind, r in of_whole[name].store._states if kind != "data"]
        assert all(same(site.store.get(kind, r), of_whole[name].store.get(kind, r)) for kind, r in kinds)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_leaves_but_the_shared_part_and_what_the_gate_has(method):
    federation = Federation.of(config(method))
    allowed = set(federation.leaving())
    seen, _ = names_sent(federation)
    assert seen == allowed
    assert {name for name in seen if "/" in name} == BESIDE.get(method, set())


def test_a_control_that_was_not_asked_for_or_does_not_fit_is_refused():
    federation = Federation.of(config("scaffold"))
    plan, sites, state = plan_of(federation), sites_of(federation), ServerState()
    model = federation.model()
    hello = [sites[name].handle(message, model) for name, message in messages(plan, state).items()]
    state = advance(plan, state, hello, 0.0)
    honest = {name: sites[name].handle(message, model) for name, message in messages(plan, state).items()}

    def answered(change) -> str:
        replies = {name: Update(u.site, u.round, dict(u.tensors), u.metrics, u.seconds) for name, u in honest.items()}
        change(replies["site-1"].tensors)
        after = advance(plan, state, list(replies.values()), 0.0)
        return " ".join(f.reason for f in after.failures if f.site == "site-1")

    assert "are missing" in answered(lambda t: [t.pop(k) for k in list(t) if k.startswith("control/")])
    assert "is missing" in answered(lambda t: t.pop("control/fc1.bias"))
    assert "expected [6]" in answered(lambda t: t.update({"control/fc1.bias": torch.zeros(7)}))
    assert "non-finite" in answered(lambda t: t.update({"control/fc1.bias": torch.full((6,), float("nan"))}))
    assert "times as large as the others'" in answered(lambda t: t.update({"control/fc1.bias": torch.full((6,), 1e6)}))
    assert "other that were not asked for" in answered(lambda t: t.update({"other/x": torch.zeros(1)}))


def test_a_site_sends_no_number_that_the_method_does_not_report():
    federation = Federation.of(config("apfl"))
    gate = federation.gate()
    shared = dict(federation.initial_shared)
    metrics = {"train_loss": 1.0, "validation": None, "numbers": {"alpha": 0.5}}

    assert gate.passed("train", Update("site-1", 1, shared, metrics)).metrics["numbers"] == {"alpha": 0.5}
    for numbers in ({"alpha": 1.5}, {"weight": 0.5}, {"alpha": 0.5, "patient": 1.0}):
        with pytest.raises(StateError, match="may not leave"):
            gate.passed("train", Update("site-1", 1, shared, metrics | {"numbers": numbers}))
