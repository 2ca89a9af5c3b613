"""Steps of an optimizer at the server by hand (Hsu et al. 2019; Reddi et al. 2021, algorithm 2), and in runs."""

from math import sqrt

import pytest
import torch
from plans import joined, round_of
from tiny import FEW_STEPS, config, run, same
from torch import nn

from medpfl.algorithms.fedopt import ServerOptimizer, ServerOptimizerSettings, second_moment
from medpfl.algorithms.fedprox import Proximal
from medpfl.algorithms.mechanism import Moved, ServerParts
from medpfl.core.declarations import parse_declaration
from medpfl.core.errors import UserError
from medpfl.core.messages import Failure
from medpfl.core.parameters import ParameterSplit
from medpfl.engine.federation import Federation


def moves(steps, **settings):
    """A bias x from 1 on, whose mixes lie these steps further than what it is then; x after each, and what is kept."""
    model = nn.Linear(1, 1)
    split = ParameterSplit(model, parse_declaration("modules:weight"))
    parts = ServerParts(None, split, lambda: model, {}, {}, None, None, None, lambda: False)
    move = ServerOptimizer(ServerOptimizerSettings(**settings)).server_move(parts)
    x, kept, found = torch.tensor([1.0]), {}, []
    for step in steps:
        before = {"bias": x.clone()}
        made = move(before, {"bias": x + step}, kept)
        assert before["bias"].equal(x)
        x, kept = made.common["bias"], made.kept
        found.append(float(x))
    return found, {name: float(tensor) for name, tensor in kept.items()}


def test_momentum_at_the_server():
    """m = 2, then 0.5 * 2 + 1 = 2; x = 1 + 2, and 3 + 2."""
    found, kept = moves([2.0, 1.0], server_lr=1, server_momentum=0.5)
    assert found == pytest.approx([3.0, 5.0])
    assert kept == {"mean/bias": 2.0}


def test_a_rate_of_one_without_momentum_is_the_mix():
    assert moves([2.0, 1.0], server_lr=1, server_momentum=0)[0] == pytest.approx([3.0, 4.0])


def test_tied_weights_are_moved_under_all_their_names():
    """Else the name that is put back last would undo the move."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    model[1].weight = model[0].weight
    split = ParameterSplit(model, parse_declaration("nothing"))
    parts = ServerParts(None, split, lambda: model, {}, {}, None, None, None, lambda: False)
    move = ServerOptimizer(ServerOptimizerSettings(server_lr=2, server_momentum=0)).server_move(parts)
    names = ("0.weight", "1.weight")
    made = move({n: torch.zeros(1, 1) for n in names}, {n: torch.ones(1, 1) for n in names}, {})
    assert [float(made.common[name]) for name in names] == [2, 2]


ADAPTIVE = {"server_lr": 0.1, "server_momentum": 0.5, "server_square_decay": 0.75, "server_eps": 0.5}


@pytest.mark.parametrize(
    ("rule", "squares"),
    [
        # From tau^2 = 0.25: d = 2 then 1, d^2 = 4 then 1.
        ("adagrad", (4.25, 5.25)),
        ("adam", (0.75 * 0.25 + 0.25 * 4, 0.75 * 1.1875 + 0.25 * 1)),
        ("yogi", (0.25 + 0.25 * 4, 1.25 - 0.25 * 1)),
    ],
)
def test_adaptive_steps(rule, squares):
    """m = 1, then 0.5 * 1 + 0.5 * 1 = 1; x moves by 0.1 m / (sqrt(v) + 0.5)."""
    found, kept = moves([2.0, 1.0], server_optimizer=rule, **ADAPTIVE)
    first = 1 + 0.1 / (sqrt(squares[0]) + 0.5)
    assert found == pytest.approx([first, first + 0.1 / (sqrt(squares[1]) + 0.5)])
    assert kept == pytest.approx({"mean/bias": 1.0, "square/bias": squares[1]})


@pytest.mark.parametrize(
    ("method", "settings", "having"),
    [
        ("fedavgm", {"server_square_decay": 0.5}, "adam, yogi"),
        ("fedavg", {"server_lr": 1, "server_eps": 0.1}, "adam, yogi, adagrad"),
        ("fedadam", {"server_optimizer": "adagrad", "server_square_decay": 0.5}, "adam, yogi"),
    ],
)
def test_a_setting_that_would_change_nothing_is_refused(method, settings, having):
    with pytest.raises(
        UserError, match=rf"setting {list(settings)[-1]} has no meaning for server_optimizer=.*{having}$"
    ):
        config(method, settings=settings)
    config("fedadam", settings={"server_square_decay": 0.5, "server_eps": 0.1})


def test_yogi_never_falls_below_zero():
    square = torch.zeros(3)
    for step in torch.randn(200, 3, generator=torch.Generator().manual_seed(0)):
        square = second_moment("yogi", square, step, 0.9)
        assert (square >= 0).all()


def test_shared_statistics_are_the_mixs():
    """Of a whole network: at a rate of nearly 0 what is trained stays where it was, and running means move."""
    still, _ = run(config("fedavg", rounds=1, settings={"server_lr": 1e-12}))
    plain, _ = run(config("fedavg", rounds=1))
    began, _ = run(config("fedavg", rounds=1, settings={"lr": 1e-12}))
    for name, tensor in still.shared["site-1"].items():
        other = plain if "running" in name else began
        torch.testing.assert_close(tensor, other.shared["site-1"][name], atol=1e-6, rtol=0)


def test_plain_fedavg_is_a_rate_of_one_without_momentum():
    plain, _ = run(config("fedavg"))
    moved, _ = run(config("fedavg", settings={"server_lr": 1.0, "server_momentum": 0.0}))
    for name, tensor in plain.shared["site-1"].items():
        torch.testing.assert_close(moved.shared["site-1"][name], tensor, atol=1e-5, rtol=1e-5)
    faster, _ = run(config("fedavgm"))
    assert not same(faster.shared["site-1"], plain.shared["site-1"])


def test_with_batch_norm_at_the_sites():
    state, _ = run(config("fedbn", settings={"server_lr": 0.01, "server_optimizer": "yogi"}))
    assert not state.failures
    assert {name.partition("/")[2] for name in state.moved_by["server_optimizer"]} == set(state.shared["site-1"])


@pytest.mark.parametrize("mixing", ["uniform", "similarity-running"])
def test_there_must_be_one_common_model(mixing):
    told = f"server_lr moves one common model, and mixing '{mixing}' gives each site its own: .* or --set server_lr=0"
    with pytest.raises(UserError, match=told):
        config("fedbn", mixing=mixing, settings={"server_lr": 1.0})


def test_a_setting_of_what_is_off_says_what_turns_it_on():
    with pytest.raises(UserError, match="'server_momentum' does something only with --set server_lr="):
        config("fedbn", settings={"server_momentum": 0.5})


def test_a_move_of_one_s_own_needs_one_common_model_too(monkeypatch):
    """Else the first site's mix, moved, would be everybody's."""
    monkeypatch.setattr(Proximal, "server_move", lambda self, parts: lambda before, mixed, kept: Moved(mixed, {}))
    with pytest.raises(UserError, match="mu moves one common model, and mixing 'uniform' gives each site its own"):
        config("fedprox", mixing="uniform")


def test_a_move_may_ask_for_the_share_of_sites_that_took_part(monkeypatch):
    """A site of three does not answer in the second round."""
    told = []

    def move(before, mixed, kept, share):
        told.append(share)
        return Moved(mixed, {})

    def away(sites):
        handle = sites["site-3"].handle

        def once(message, model):
            return Failure("site-3", message.round, "away") if message.round == 2 else handle(message, model)

        sites["site-3"].handle = once

    monkeypatch.setattr(ServerOptimizer, "server_move", lambda self, parts: move)
    run(config("fedavgm"), away)
    assert told == [1, 2 / 3, 1]


def test_what_makes_no_move_is_named(monkeypatch):
    monkeypatch.setattr(ServerOptimizer, "server_move", lambda self, before, mixed, kept: Moved(mixed, {}))
    with pytest.raises(UserError, match=r"server_optimizer: what makes its step and its move.*TypeError.*missing 2"):
        run(config("fedavgm"))


@pytest.mark.parametrize(
    ("gives", "words"),
    [
        (lambda *_: None, "server_optimizer: its move at the server gave NoneType, not a Moved"),
        (lambda before, *_: Moved({}, {}), "its move at the server after round 1: shared entry .* is missing"),
        (lambda before, *_: Moved({n: t * torch.nan for n, t in before.items()}, {}), "has non-finite values"),
        (
            lambda before, *_: Moved({n: t.double() for n, t in before.items()}, {}),
            "has type torch.float64, and the mix torch.float32",
        ),
        (lambda before, *_: Moved(before, None), "after round 1: what it keeps (has 'm', float|is \\w+), not a"),
        (lambda before, *_: Moved(before, {"m": 1.0}), "after round 1: what it keeps (has 'm', float|is \\w+), not a"),
        (lambda *_: 1 / 0, r"its move at the server failed after round 1 \(test_fedopt.py, line \d+\): ZeroDivision"),
    ],
)
def test_a_move_that_is_none_never_reaches_the_sites(monkeypatch, gives, words):
    monkeypatch.setattr(ServerOptimizer, "server_move", lambda self, parts: gives)
    with pytest.raises(UserError, match=words):
        run(config("fedadam"))


def test_a_move_that_gives_what_torch_would_differentiate_can_travel(monkeypatch):
    def move(before, mixed, kept):
        wanted = {name: tensor.clone().requires_grad_() for name, tensor in mixed.items()}
        return Moved({name: tensor * 1 for name, tensor in wanted.items()}, wanted)

    with monkeypatch.context() as patch:
        patch.setattr(ServerOptimizer, "server_move", lambda self, parts: move)
        moved, _ = run(config("fedavgm"))
    plain, _ = run(config("fedavg"))
    assert same(moved.shared["site-1"], plain.shared["site-1"])
    for state in (moved.shared["site-1"], moved.moved_by["server_optimizer"]):
        assert not any(tensor.requires_grad for tensor in state.values())


@pytest.mark.parametrize(
    ("settings", "moves_"),
    [
        ({}, True),
        ({"momentum": 0.0}, True),
        ({"server_lr": 0.0}, False),
        ({"optimizer": "adam"}, False),
        ({"optimizer": "adam", "server_lr": 1.0}, True),
    ],
)
def test_fedblend_has_momentum_where_sites_train_by_sgd(settings, moves_):
    blend = config("fedblend", rounds=1, settings=FEW_STEPS | settings)
    assert blend.all_settings["momentum"] == (0.9 if settings.keys() <= {"server_lr"} else 0.0)
    state, _ = run(blend)
    assert set(state.moved_by) == ({"server_optimizer"} if moves_ else set())


def test_fedblend_shares_a_network_without_batch_norm_whole():
    asked = config("fedblend", model="tiny:Wide", settings=FEW_STEPS)
    assert asked.resolved_personal == "any-batch-norm"
    blend, _ = run(asked)
    plain, _ = run(config("fedavg", model="tiny:Wide", settings={"momentum": 0.9, "server_lr": 1.0}))
    assert all(same(blend.shared[name], plain.shared[name]) for name in ("site-1", "site-2", "site-3"))


def test_its_rival_trains_as_it_does():
    """Else a part of what it gains would be momentum's."""
    rivals = [run(config("fedblend", rounds=1, alone="yes", settings=s | FEW_STEPS))[1] for s in ({}, {"momentum": 0})]
    with_it, without = (s["site-1"].rival.best() for s in rivals)
    assert any(not torch.equal(with_it[name], without[name]) for name in with_it)


def test_each_round_moves_from_where_the_one_before_led():
    """At a rate of 2 without momentum x <- 2 mix - x: from x to 2 - x by mixes of 1, and on to 4 + x by those of 3."""
    settings = {"server_lr": 2.0, "server_momentum": 0.0}
    plan = Federation.of(config("fedavg", settings=settings, large_updates="accept")).plan()
    state = round_of(plan, round_of(plan, joined(plan), 1, 1, 1), 3, 3, 3)
    x = plan.initial_shared["fc1.weight"]
    torch.testing.assert_close(state.shared["site-1"]["fc1.weight"], 4 + x)
