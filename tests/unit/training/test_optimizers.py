"""Optimizers by name: torch's own steps, kept states, and refusals."""

import subprocess
import sys

import pytest
import torch
from tiny import Net, config, figures, images, names_sent, plan_of, run, same, sites_of

from medpfl.core.errors import UserError
from medpfl.core.seeding import generator
from medpfl.core.server_state import ServerState
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.models import logits
from medpfl.server.checkpoint import CHECKPOINT, last_state
from medpfl.server.rounds import messages
from medpfl.site.rival import ALONE, ALONE_OPTIMIZER
from medpfl.site.store import OPTIMIZER, DiskStore
from medpfl.tasks import TASKS
from medpfl.training.loop import plain_objective, train_epochs
from medpfl.training.memory import Memory
from medpfl.training.optimizers import OPTIMIZERS, argument
from medpfl.training.trainer import Trainer

LOSS = TASKS["classification"].loss
TORCHS = {name.lower(): getattr(torch.optim, name) for name in dir(torch.optim) if name[:1].isupper()}
KEPT = {"optimizer": "adam", "lr": 0.02, "optimizer_state": "kept"}


def net():
    torch.manual_seed(0)
    return Net()


def by_hand(optimizer, rounds, data):
    """Plain training with torch, of the batches that rounds of one epoch have; the model."""
    model = net().train()
    steps = optimizer(model.parameters())
    for round_ in range(1, rounds + 1):
        for x, y in data.training_batches(4, generator(0, round_)):
            steps.zero_grad()
            LOSS(logits(model(x)), y).backward()
            steps.step()
    return model.state_dict()


def in_rounds(settings, rounds, data, memory):
    model = net()
    trainer = Trainer.of({"batch_size": 4, **settings})
    for round_ in range(1, rounds + 1):
        objective = plain_objective(model, LOSS)
        left = memory and Memory({name: tensor.clone() for name, tensor in memory.state.items()})
        train_epochs(model, data, trainer, 1, generator(0, round_), objective, memory=left)
        if memory:
            memory.state = left.state
    return model.state_dict()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_kept_over_rounds_is_one_uninterrupted_training(name):
    data, lr = images(), 0.01
    more = {"momentum": 0.9} if name in ("sgd", "rmsprop") else {}
    decay = {} if name == "rprop" else {"weight_decay": 0.0}

    whole = by_hand(lambda p: TORCHS[name](p, lr=lr, foreach=True, **more, **decay), 3, data)

    kept = in_rounds({"lr": lr, "optimizer": name, **more}, 3, data, Memory())
    fresh = in_rounds({"lr": lr, "optimizer": name, **more}, 3, data, None)
    assert same(kept, whole)
    if name != "asgd":  # whose state has no effect in its first million steps
        assert not all(torch.allclose(fresh[entry], tensor, atol=1e-4) for entry, tensor in whole.items())


def test_arguments_reach_torch():
    data = images()
    given = {"beta1": 0.5, "beta2": 0.9, "eps": 0.1, "weight_decay": 0.1}
    whole = by_hand(lambda p: torch.optim.AdamW(p, 0.01, betas=(0.5, 0.9), eps=0.1, weight_decay=0.1), 1, data)
    found = in_rounds({"lr": 0.01, "optimizer": "adamw", **given}, 1, data, None)
    assert all(torch.allclose(found[name], tensor, atol=1e-6) for name, tensor in whole.items())


def test_models_of_one_site_have_states_of_their_own():
    memory = Memory()
    for name, pixels in (("model", images()), ("ditto", images(seed=1))):
        trainer, model = Trainer.of({"batch_size": 4, "lr": 0.1, "momentum": 0.9}), net()
        objective = plain_objective(model, LOSS)
        train_epochs(model, pixels, trainer, 1, generator(0), objective, memory=memory.of(name))
    entry = "momentum_buffer/fc1.weight"
    assert not torch.equal(memory.state[f"model/{entry}"], memory.state[f"ditto/{entry}"])


@pytest.mark.parametrize(
    "method", ["fedavg", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ditto", "apfl", "fedrep"))]
)
def test_a_killed_run_with_kept_states_goes_on_with_the_same_figures(tmp_path, method):
    run_config = config(method, rounds=4, settings=KEPT, alone="yes")
    whole, of_whole = run(run_config)
    federation = Federation.of(run_config)

    def from_disk():
        names = run_config.site_names
        return {name: federation.site(name, DiskStore(tmp_path / name, durable=False)) for name in names}

    def kill(state):
        if state.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_in_process(
            plan_of(federation), from_disk(), federation.model, workers=1, checkpoint=tmp_path, after_step=kill
        )
    sites = from_disk()
    earlier = last_state(tmp_path / CHECKPOINT, run_config)
    state = run_in_process(plan_of(federation), sites, federation.model, workers=1, earlier=earlier)

    assert figures(state.history) == figures(whole.history)
    for name, site in sites.items():
        kinds = [(kind, r) for kind, r in of_whole[name].store._states if kind in (OPTIMIZER, ALONE, ALONE_OPTIMIZER)]
        assert {kind for kind, _ in kinds} == {OPTIMIZER, ALONE, ALONE_OPTIMIZER}
        assert all(same(site.store.get(kind, r), of_whole[name].store.get(kind, r)) for kind, r in kinds)


def test_kept_states_matter_and_fresh_ones_are_not_stored():
    fresh = config("fedavg", settings=KEPT | {"optimizer_state": "fresh"}, alone="yes")
    (first, _), (second, sites) = run(config("fedavg", settings=KEPT, alone="yes")), run(fresh)
    assert not any(same(first.shared[name], second.shared[name]) for name in sites)
    kinds = {kind for site in sites.values() for kind, _ in site.store._states}
    assert not kinds & {OPTIMIZER, ALONE_OPTIMIZER}


def test_no_optimizer_state_leaves_a_site():
    federation = Federation.of(config("ditto", settings=KEPT, alone="yes"))
    seen, sites = names_sent(federation)
    assert all(site.store.rounds(OPTIMIZER) for site in sites.values())
    assert seen == set(federation.leaving()) == set(federation.split.shared_names)


def test_a_new_run_forgets_what_an_earlier_one_kept():
    federation = Federation.of(config("fedavg", settings=KEPT, alone="yes"))
    sites, state = sites_of(federation), ServerState()
    for site in sites.values():
        for kind in (OPTIMIZER, ALONE_OPTIMIZER):
            site.store.put(kind, 1, {"model/exp_avg/fc1.weight": torch.full((6, 16), torch.nan)})
    for name, message in messages(plan_of(federation), state).items():
        sites[name].handle(message, federation.model())
    assert not any(site.store.rounds(kind) for site in sites.values() for kind in (OPTIMIZER, ALONE_OPTIMIZER))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"optimizer": "adamv"}, r"optimizer must be one of .*sgd \(did you mean adam\?\), got adamv"),
        ({"optimizer": 3}, "optimizer must be one of"),
        (
            {"optimizer": "adam", "momentum": 0.9},
            "setting momentum has no meaning for optimizer adam; it takes lr, beta1, beta2, eps, weight_decay",
        ),
        (
            {"beta1": 0.8},
            "setting beta1 has no meaning for optimizer sgd; it takes lr, momentum, nesterov, weight_decay",
        ),
        ({"optimizer": "rprop", "weight_decay": 0.1}, "setting weight_decay has no meaning for optimizer rprop"),
        ({"optimizer": "rmsprop", "nesterov": 1, "momentum": 0.9}, "nesterov has no meaning for optimizer rmsprop"),
        ({"optimizer_state": "kept"}, "SGD without momentum has no state to keep"),
    ],
)
def test_what_an_optimizer_does_not_take(settings, words):
    with pytest.raises(UserError, match=words):
        config("fedavg", settings=settings)


def test_a_papers_momentum_goes_with_its_optimizer():
    paper = config("vit-heads", model="vit-tiny").all_settings
    other = config("vit-heads", model="vit-tiny", settings={"optimizer": "adam"}).all_settings
    assert (paper["momentum"], paper["nesterov"], paper["weight_decay"]) == (0.9, 1, 5e-4)
    assert (other["momentum"], other["nesterov"], other["weight_decay"]) == (0, 0, 0)


@pytest.mark.parametrize("settings", [{"optimizer": "adam"}, {"grad_clip": 1}, {"precision": "fp16"}])
def test_control_variates_are_for_plain_steps(settings):
    with pytest.raises(UserError, match="control variates"):
        config("scaffold", settings=settings)


def test_control_variates_use_the_rate_in_force():
    """At half the rate the site's own control is the same mean gradient."""
    poly = {"schedule": "poly", "poly_power": 1, "lr": 1e-4}
    (_, falling), (_, constant) = (run(config("scaffold", rounds=2, settings=s)) for s in (poly, {"lr": 1e-4}))
    for name, site in falling.items():
        ours, theirs = site.store.get("control", 2), constant[name].store.get("control", 2)
        assert all(torch.allclose(ours[entry], theirs[entry], rtol=0.02, atol=1e-3) for entry in theirs)


STEPS = """
import sys, torch
from medpfl.training.memory import Memory
from medpfl.training.optimizers import OPTIMIZERS, argument
from medpfl.training.trainer import Trainer

for name in OPTIMIZERS:
    model = torch.nn.Linear(3, 2)
    names, parameters = zip(*model.named_parameters())
    memory, scaler = Memory(), torch.amp.GradScaler("cpu")
    for _ in range(2):
        optimizer = Trainer.of({"optimizer": name}).optimizer(parameters)
        memory.recall(optimizer, names, scaler)
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(1, 3)).sum()).backward()
        scaler.step(optimizer)
        memory.keep(optimizer, names, scaler)
assert "torch._dynamo" not in sys.modules, "the compiler is imported"
"""


def test_no_optimizer_imports_torchs_compiler():
    subprocess.run([sys.executable, "-c", STEPS], check=True)


def test_fp16_goes_on_with_the_scale_that_it_had():
    """Else it would find it again by leaving steps out, in each round."""
    memory, weight = Memory(), torch.zeros(1, requires_grad=True)
    before, after = torch.amp.GradScaler("cpu", 64.0), torch.amp.GradScaler("cpu", 4096.0)
    memory.keep(torch.optim.SGD([weight]), ["weight"], before)
    memory.recall(torch.optim.SGD([weight]), ["weight"], after)
    assert after.get_scale() == 64


@pytest.mark.parametrize(
    ("optimizer", "setting", "called"),
    [
        ("rmsprop", "square_decay", "alpha"), ("adadelta", "square_decay", "rho"), ("adam", "beta2", "betas"),
        ("asgd", "square_decay", None), ("adafactor", "eps", None), ("adam", "eps", "eps"), ("sgd", "eps", None),
    ],
)  # fmt: skip
def test_what_an_optimizer_calls_a_setting(optimizer, setting, called):
    """ASGD's alpha is a power of its rate's fall, and Adafactor's eps are two."""
    assert argument(optimizer, setting) == called
