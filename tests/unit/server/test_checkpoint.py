import json
import os
from dataclasses import asdict, fields, replace

import numpy as np
import pytest
from safetensors.torch import save as serialise
from tiny import config, no_space, plan_of, same, sites_of

from medpfl.algorithms import algorithms
from medpfl.config import named_code
from medpfl.config.named_code import fingerprints
from medpfl.core.errors import UserError
from medpfl.core.messages import Failure
from medpfl.core.permitted_code import permit
from medpfl.core.server_state import ServerState
from medpfl.engine.federation import Federation
from medpfl.server import checkpoint
from medpfl.server.checkpoint import (
    as_recorded,
    checkpoint_config,
    checkpoint_exists,
    difference,
    load_checkpoint,
    save_checkpoint,
)
from medpfl.server.rounds import advance, messages
from medpfl.site.answer import answer
from medpfl.training.settings import Training


def states(run_config):
    """The server's state after every step of a run."""
    federation = Federation.of(run_config)
    plan, sites, model = plan_of(federation), sites_of(federation), federation.model()
    state, every = ServerState(), [ServerState()]
    while state.phase != "done":
        replies = [answer(sites[s], m, model) for s, m in messages(plan, state).items()]
        if state.round == 1 and state.phase == "train":
            replies[-1] = Failure("site-3", 2, "gone")
        state = advance(plan, state, replies, 0.25)
        every.append(state)
    return every


def assert_equal(a: ServerState, b: ServerState) -> None:
    plain = [f.name for f in fields(ServerState) if f.name not in ("shared", "kept", "common", "moved_by", "weights")]
    assert [getattr(a, name) for name in plain] == [getattr(b, name) for name in plain]
    assert a.shared.keys() == b.shared.keys()
    assert all(same(a.shared[s], b.shared[s]) for s in a.shared)
    assert (a.weights is None) == (b.weights is None)
    if a.weights is not None:
        np.testing.assert_array_equal(a.weights, b.weights)
    assert a.kept.keys() == b.kept.keys()
    for channel, sites in a.kept.items():
        assert sites.keys() == b.kept[channel].keys()
        assert all(same(kept, b.kept[channel][site]) for site, kept in sites.items())
    assert a.common.keys() == b.common.keys()
    assert all(same(a.common[channel], b.common[channel]) for channel in a.common)
    assert a.moved_by.keys() == b.moved_by.keys()
    assert all(same(a.moved_by[part], b.moved_by[part]) for part in a.moved_by)


@pytest.mark.parametrize("algorithm", ["local", "fedavg", "fedap", "f-fedap", "scaffold", "fedadam"])
def test_round_trip_of_every_phase(tmp_path, algorithm):
    run = config(algorithm)
    every = states(run)
    assert {s.phase for s in every} == {"prepare", "train", "validate", "test", "done"}
    for state in every:
        save_checkpoint(tmp_path / "server", run, state, durable=False)
        assert_equal(load_checkpoint(tmp_path / "server", run), state)


def test_one_copy_where_all_sites_have_the_same(tmp_path):
    sizes = {}
    for algorithm in ("fedavg", "fedap"):
        run = config(algorithm)
        state = states(run)[2]
        save_checkpoint(tmp_path / algorithm, run, state, durable=False)
        sizes[algorithm] = (tmp_path / algorithm).stat().st_size
        loaded = load_checkpoint(tmp_path / algorithm, run)
        assert (loaded.shared["site-1"] is loaded.shared["site-3"]) == (algorithm == "fedavg")
    values = 4 * (6 * 16 + 6 + 6 * 3 + 3)
    assert sizes["fedap"] - sizes["fedavg"] > 1.5 * values


@pytest.fixture
def saved(tmp_path):
    save_checkpoint(tmp_path / "server", config(), states(config())[2], durable=False)
    return tmp_path / "server"


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"algorithm": "fedbn"}, "algorithm = 'fedavg', not 'fedbn'"),
        ({"seed": 1}, "seed = 0, not 1"),
        ({"rounds": 9}, "rounds = 3, not 9"),
        ({"settings": {"lr": 0.2}}, "lr = 0.1, not 0.2"),
        ({"settings": {"prior": 1}}, "prior = off, not 1"),
        ({"use": "blend", "alone": "yes"}, "not 'blend'"),
        ({"personal": "batch-norm"}, "personal = 'nothing', not 'batch-norm'"),
        ({"settings": {"finetune_steps": 2}}, "finetune_steps = off, not 2"),
        ({"data_args": {"train": 5}}, "data_args = {}, not {'train': 5}"),
    ],
)
def test_other_settings_are_named(saved, other, named):
    with pytest.raises(UserError, match="resume with the same settings") as caught:
        load_checkpoint(saved, config(**other))
    assert named in str(caught.value)


def test_a_default_that_is_given_is_no_other_setting(saved):
    default = {name: config().all_settings[name] for name in ("momentum", "optimizer")}
    assert load_checkpoint(saved, config(settings=default | {"finetune_steps": 0})).phase == "train"
    assert load_checkpoint(saved, config(**config().choices_by_default)).phase == "train"


def test_a_run_goes_on_in_the_words_in_which_it_began(saved):
    """Sites hash what was given; another run is left as it is, to be refused."""
    said = config().settings | {"momentum": 0.0, "finetune_steps": 0}
    assert as_recorded(saved, config(settings=said, **config().choices_by_default)) == config()
    other = config(settings={"lr": 0.2})
    assert as_recorded(saved, other) == other
    assert as_recorded(saved.with_name("none"), other) == other


def test_so_does_a_run_whose_start_weights_are_given_by_their_file(tmp_path):
    """What is recorded of it is what was in the file."""
    file, said = tmp_path / "server", {"momentum": 0.0}
    save_checkpoint(file, config(init=f"sha256:{64 * '0'}"), ServerState(), durable=False)
    assert as_recorded(file, config(init="start.pt", settings=said)) == config(init="start.pt")
    assert as_recorded(file, config(init="start.pt", settings={"lr": 0.2})).all_settings["lr"] == 0.2
    with pytest.raises(UserError, match="init = 'sha256:0000"):
        load_checkpoint(file, as_recorded(file, config(init="start.pt", settings=said)))


def test_a_default_that_has_changed_since_is_named(saved, monkeypatch):
    monkeypatch.setattr(Training.model_fields["momentum"], "default", 0.5)
    with pytest.raises(UserError, match=r"momentum = 0\.0, which is 0\.5 by default now: put the default back"):
        load_checkpoint(saved, config())


def test_code_of_ones_own_that_has_changed_since_is_told(tmp_path, monkeypatch, caplog):
    module = tmp_path / "networks_of_mine.py"
    source = "import tiny\n\n\nclass Net(tiny.Net):\n    pass\n"
    module.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    permit("networks_of_mine")
    own = config(model="networks_of_mine:Net")
    save_checkpoint(tmp_path / "server", own, states(own)[2], durable=False)
    load_checkpoint(tmp_path / "server", own)
    assert not caplog.messages
    module.write_text(source + "\n    scale = 2\n")
    named_code._DIGESTS.clear()
    state = load_checkpoint(tmp_path / "server", own)
    assert "networks_of_mine has changed since this run was made; --overwrite makes it anew" in caplog.text
    first, second = state.code["networks_of_mine"].split(", ")  # and results, which note it
    assert first != second == fingerprints(own)["networks_of_mine"]
    assert not any("tiny" in message for message in caplog.messages)
    caplog.clear()
    save_checkpoint(tmp_path / "server", own, state, durable=False)
    assert load_checkpoint(tmp_path / "server", own).code == state.code and not caplog.messages
    save_checkpoint(
        tmp_path / "done", own, replace(state, phase="done", code={"networks_of_mine": first}), durable=False
    )
    assert load_checkpoint(tmp_path / "done", own).code["networks_of_mine"] == first  # nothing was made since


@pytest.mark.parametrize("other", [{"device": "auto"}, {"timeout": 5.0}, {"grace": 1.0}, {"min_sites": 1}])
def test_settings_that_touch_no_figure_may_change(saved, other):
    assert load_checkpoint(saved, config(**other)).round == 1


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-3], lambda c: c[: len(c) // 2], lambda c: b"", lambda c: c[:-1] + b"\xff"]
)
def test_a_damaged_file_is_a_users_error(saved, damage):
    saved.write_bytes(damage(saved.read_bytes()))
    with pytest.raises(UserError, match=r"is damaged.*the run cannot be resumed from it"):
        load_checkpoint(saved, config())


def test_a_flipped_digit_of_the_history_is_noticed(saved):
    content = saved.read_bytes()
    assert content.count(b"0.25") == 1
    saved.write_bytes(content.replace(b"0.25", b"0.35"))
    with pytest.raises(UserError, match="is damaged"):
        load_checkpoint(saved, config())


def test_failures_are_kept(tmp_path):
    state = ServerState(phase="train", failures=(Failure("site-2", 0, "späť"),))
    save_checkpoint(tmp_path / "server", config(), state, durable=False)
    (failure,) = load_checkpoint(tmp_path / "server", config()).failures
    assert asdict(failure) == {"site": "site-2", "round": 0, "reason": "späť"}


def test_the_step_before_is_used_when_the_last_is_torn(tmp_path):
    run, path = config("fedap"), tmp_path / "server.safetensors"
    every = states(run)
    for state in every[1:4]:
        save_checkpoint(path, run, state, durable=True)
    path.write_bytes(path.read_bytes()[:-3])
    loaded = load_checkpoint(path, run)
    note = loaded.failures[-1]
    assert note == Failure(
        "server", every[2].round, "its last checkpoint was damaged; the run went on from the one before"
    )
    assert_equal(replace(loaded, failures=loaded.failures[:-1]), every[2])


def test_a_kill_between_the_two_moves(tmp_path):
    run, path = config(), tmp_path / "server.safetensors"
    every = states(run)
    for state in every[1:3]:
        save_checkpoint(path, run, state, durable=False)
    path.unlink()
    assert checkpoint_exists(path)
    assert_equal(load_checkpoint(path, run), every[1])


def test_a_kill_between_the_two_moves_after_damage(tmp_path, monkeypatch):
    """The damaged file takes the place of the one that the run went on from: the new state is all that there is."""
    run, path = config(), tmp_path / "server.safetensors"
    every = states(run)
    for state in every[1:3]:
        save_checkpoint(path, run, state, durable=False)
    path.write_bytes(path.read_bytes()[:-7])
    assert load_checkpoint(path, run).failures[-1].reason.startswith("its last checkpoint was damaged")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, "replace", killed_at(path))
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(path, run, every[2], durable=False)
    assert not path.exists() and checkpoint_exists(path)
    assert_equal(load_checkpoint(path, run), every[2])
    assert checkpoint_config(path) == run


def killed_at(place):
    """Moves as the system's are, until one to a place."""
    move = os.replace

    def moved(source, target):
        if target == place:
            raise KeyboardInterrupt
        move(source, target)

    return moved


def test_no_space_leaves_the_last_checkpoint(tmp_path):
    run, path = config(), tmp_path / "server.safetensors"
    every = states(run)
    save_checkpoint(path, run, every[1], durable=True)
    with no_space(), pytest.raises(UserError, match=r"cannot write its checkpoint \(File too large\)"):
        save_checkpoint(path, run, every[2], durable=True)
    assert_equal(load_checkpoint(path, run), every[1])
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_run_of_a_version_that_knew_fewer_fields_can_be_resumed(tmp_path, monkeypatch):
    run, path = config(), tmp_path / "server.safetensors"
    dump = type(run).model_dump
    known = lambda self, **how: {k: v for k, v in dump(self, **how).items() if not k.startswith("large")}  # noqa: E731
    with monkeypatch.context() as earlier:
        earlier.setattr(type(run), "model_dump", known)
        save_checkpoint(path, run, ServerState(phase="train"), durable=False)
    assert load_checkpoint(path, run).phase == "train"
    with pytest.raises(UserError, match="large_updates = 'clip', not 'refuse'"):
        load_checkpoint(path, config(large_updates="refuse"))


def test_what_may_differ_when_a_run_goes_on():
    run = config("fedavg")
    before = run.model_dump(mode="json")
    assert difference(before, run.model_copy(update={"timeout": 5.0, "grace": 1.0, "min_sites": 1})) is None
    assert difference(before, config("fedavg", rounds=4)) == "rounds = 3, not 4"
    earlier = {k: v for k, v in before.items() if k not in ("names", "pooling")} | {"of_another_version": 1}
    assert difference(earlier, run) is None
    assert difference(earlier, config("fedavg", names=("a", "b", "c"))) == "names = [], not ['a', 'b', 'c']"


@pytest.mark.parametrize("algorithm", [name for name, known in algorithms().items() if not known.shares_nothing])
def test_a_choice_of_ones_own_and_the_methods_are_told_apart(algorithm):
    """Also where the method's personal part is made of settings that have no meaning with another one."""
    published = config(algorithm, settings={}, rounds=20)
    other = config(algorithm, settings={}, rounds=20, personal="top:1")
    by_default = published.choices_by_default
    chosen = {"personal": by_default["personal"], "mixing": by_default["mixing"], "use": by_default["use"]}
    assert (published.resolved_personal, published.resolved_mixing, published.resolved_use) == tuple(chosen.values())
    assert other.choices_by_default == by_default
    if by_default["personal"] != "top:1":
        assert difference(published.model_dump(mode="json"), other).startswith("personal = ")


@pytest.mark.parametrize("info", [[], {}, 3, {"config": None}, {"config": [1]}])
def test_a_checkpoint_without_a_configuration_is_damaged(tmp_path, info):
    path = tmp_path / "server.safetensors"
    path.write_bytes(serialise({}, {"info": json.dumps(info), "sha256": ""}))
    with pytest.raises(UserError, match="is damaged: it has no configuration"):
        checkpoint_config(path)
    assert as_recorded(path, config()) == config()
