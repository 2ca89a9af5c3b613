"""The controller's loop with sites in this process in FLARE's place."""

import json
import shutil
from types import SimpleNamespace
from unittest.mock import ANY

import pytest
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal
from nvflare.app_common.app_event_type import AppEventType
from tiny import same, sites_of

from medpfl.algorithms.fedimpres import synthesis as impression
from medpfl.config.run import make_config
from medpfl.core.messages import Update
from medpfl.engine.federation import Federation
from medpfl.flare.transport import controller as controller_module
from medpfl.flare.transport.controller import PersonalizedController
from medpfl.flare.transport.endings import BEGUN
from medpfl.flare.transport.trust import REHEARSAL
from medpfl.server.checkpoint import CHECKPOINT, load_checkpoint

CONFIG = make_config(
    algorithm="fedimpres",
    model="lenet5",
    sites=2,
    rounds=3,
    local_epochs=1,
    train_fraction=0.05,
    device="cpu",
    settings={"warmup": 1, "images": 6, "admm_iterations": 2, "inner_steps": 2},
)


class Here(PersonalizedController):
    """Answers come from sites in this process; FLARE's engine, events and logs are left out."""

    def __init__(self, folder, sites):
        super().__init__(CONFIG.model_dump(mode="json"), "experiment", str(folder))
        self.sites, self.folder, self.said = sites, folder, []
        self.federation, self.abort_signal = Federation.of(CONFIG), Signal()
        self.fl_ctx, self.run_folder = FLContext(), folder

    def _step(self, plan, state):
        self.current_state = state
        return super()._step(plan, state)

    def _exchange(self, plan, outgoing):
        return [self.sites[name].handle(message, self.federation.model()) for name, message in outgoing.items()]

    def get_run_dir(self):
        return str(self.run_folder)

    def event(self, event_type):
        pass

    def _track(self, before, after):
        pass

    def info(self, message):
        self.said.append(message)

    def panic(self, reason):
        raise AssertionError(reason)


@pytest.fixture(autouse=True)
def _rehearsal(monkeypatch):
    monkeypatch.setenv(REHEARSAL, "1")


@pytest.fixture
def sites():
    return sites_of(Federation.of(CONFIG))


def job(folder, name, sites):
    """With a run folder of that name beside the state of the experiment."""
    controller = Here(folder, sites)
    controller.run_folder = folder / name
    controller.run_folder.mkdir()
    return controller


def results_in(folder):
    return json.loads((folder / "results.json").read_text())


def final(folder):
    return load_checkpoint(folder / "experiment" / "server" / CHECKPOINT, CONFIG)


@pytest.mark.slow
def test_an_abort_ends_the_synthesis_within_a_step(tmp_path, monkeypatch, sites):
    controller, steps = Here(tmp_path / "aborted", sites), []
    objective = impression._objective

    def abort_in_the_second_impression(*arguments):
        steps.append(controller.current_state.round)
        if len(steps) == 6:  # 2 x 2 make the first one
            controller.abort_signal.trigger("aborted")
        return objective(*arguments)

    (tmp_path / "aborted").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(impression, "_objective", abort_in_the_second_impression)
        controller.run()
    assert steps == [0] * 4 + [1] * 2
    assert controller.said[-1] == "medpfl: aborted; the checkpoint holds the last finished step"
    kept = final(tmp_path / "aborted")
    assert (kept.phase, kept.round, len(kept.history)) == ("train", 1, 1)
    assert kept.common["impression"]
    assert not kept.failures

    Here(tmp_path / "aborted", sites).run()
    (tmp_path / "whole").mkdir()
    Here(tmp_path / "whole", sites_of(Federation.of(CONFIG))).run()
    resumed, whole = final(tmp_path / "aborted"), final(tmp_path / "whole")
    assert resumed.phase == whole.phase == "done"
    assert all(same(resumed.shared[site], whole.shared[site]) for site in whole.shared)
    assert resumed.final == whole.final


def test_sites_that_take_a_task_are_noted(tmp_path, sites):
    controller, context = Here(tmp_path, sites), FLContext()
    workspace = SimpleNamespace(get_run_dir=lambda job: str(tmp_path))
    context.set_prop(ReservedKey.ENGINE, SimpleNamespace(get_workspace=lambda: workspace), private=True)
    context.set_prop(ReservedKey.RUN_NUM, "7")
    for name in ("north", "south", "north"):
        peer = FLContext()
        peer.set_prop(ReservedKey.IDENTITY_NAME, name)
        context.set_peer_context(peer)
        controller.handle_event(AppEventType.BEFORE_TRAIN_TASK, context)
    assert sorted(file.name for file in (tmp_path / BEGUN).iterdir()) == ["north", "south"]


def test_an_abort_while_sites_work_uses_none_of_their_answers(tmp_path, monkeypatch, sites):
    (tmp_path / "aborted").mkdir()
    controller = Here(tmp_path / "aborted", sites)
    controller.engine = SimpleNamespace(get_clients=lambda: [SimpleNamespace(name=name) for name in sites])
    monkeypatch.setattr(controller, "get_num_standing_tasks", lambda: 1)
    monkeypatch.setattr(controller, "send_model", lambda **_: controller.abort_signal.trigger("aborted"))
    monkeypatch.setattr(Here, "_exchange", PersonalizedController._exchange)
    controller.run()
    assert controller.said == ["medpfl: aborted; the checkpoint holds the last finished step"]
    assert not (tmp_path / "aborted" / "experiment" / "server" / CHECKPOINT).exists()


@pytest.mark.parametrize(
    ("quorum", "said"),
    [(1, "the quorum has answered; up to 2 s more for"), (2, "the quorum lacks 1 answer; up to 3600 s more for")],
)
def test_who_is_waited_for_is_named_and_whether_the_quorum_has_answered(tmp_path, monkeypatch, sites, quorum, said):
    """As where a site's machine has lost its power: every round waits for it anew."""
    controller = Here(tmp_path, sites)
    first, late = sites
    monkeypatch.setattr(controller_module, "_NAMED_AFTER", 0.1)
    monkeypatch.setattr(controller_module, "message_to_model", lambda *_: None)
    controller.engine = SimpleNamespace(get_clients=lambda: [SimpleNamespace(name=name) for name in sites])
    waiting, notes = [True], []

    def send(targets, **_):
        if targets == [first]:
            controller._replies[first] = Update(first, 1, {}, {})

    def standing():
        notes.append(controller._progress.note)
        if notes[-1] and quorum == 2:
            waiting.clear()  # nobody waits an hour for the timeout here
        return len(waiting)

    monkeypatch.setattr(controller, "send_model", send)
    monkeypatch.setattr(controller, "get_num_standing_tasks", standing)
    monkeypatch.setattr(controller, "cancel_all_tasks", waiting.clear)
    plan = SimpleNamespace(config=CONFIG.model_copy(update={"min_sites": quorum, "grace": 2.0}))
    message = SimpleNamespace(task="train", round=1)
    PersonalizedController._exchange(controller, plan, dict.fromkeys(sites, message))
    assert not waiting
    assert notes[0] == "" and notes[-1] == f"{said} {late}"


@pytest.mark.parametrize(("answered", "begins"), [("ab", True), ("abdef", True), ("adef", True), ("def", False)])
def test_grace_begins_when_one_of_those_who_were_drawn_has_answered(tmp_path, monkeypatch, sites, answered, begins):
    """How long training takes is known then; too few in time, and others are drawn. Who follows says nothing of it."""
    controller, config = (
        Here(tmp_path, sites),
        CONFIG.model_copy(update={"sites": 6, "participation": 0.5, "grace": 0.0}),
    )
    assert (config.turnout.quorum_of_round, config.turnout.quorum) == (2, 3)
    monkeypatch.setattr(controller_module, "message_to_model", lambda *_: None)
    controller.engine = SimpleNamespace(get_clients=lambda: [SimpleNamespace(name=name) for name in "abcdef"])
    ended, polls = [], iter(range(10))

    def send(targets, **_):
        if targets[0] in answered:
            controller._replies[targets[0]] = Update(targets[0], 1, {}, {})

    monkeypatch.setattr(controller, "send_model", send)
    monkeypatch.setattr(controller, "get_num_standing_tasks", lambda: not ended and next(polls, None) is not None)
    monkeypatch.setattr(controller, "cancel_all_tasks", lambda: ended.append(True))
    asked = {site: SimpleNamespace(task="train" if site in "abc" else "follow", round=1) for site in "abcdef"}
    PersonalizedController._exchange(controller, SimpleNamespace(config=config), asked)
    assert bool(ended) == begins


@pytest.mark.parametrize("killed", [controller_module.save_checkpoint, controller_module.write_results])
def test_a_server_that_is_killed_in_the_last_step_makes_it_again(tmp_path, monkeypatch, sites, killed):
    """Whatever of the two it was about to write."""

    def kill_at_the_end(*arguments, **named):
        if any(
            getattr(a, "phase", None) == "done" or (isinstance(a, dict) and a["status"] == "finished")
            for a in arguments
        ):
            raise KeyboardInterrupt
        return killed(*arguments, **named)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(controller_module, killed.__name__, kill_at_the_end)
        job(tmp_path, "first", sites).run()
    again = job(tmp_path, "second", sites)
    again.run()
    assert len(again.said) == 1 and again.said[0].startswith("medpfl: done, 3 of 3 rounds")


def test_results_that_flare_had_no_time_to_store_are_given_again(tmp_path, sites):
    """FLARE's server was killed: it takes a job's folder away only once it has stored it."""
    job(tmp_path, "first", sites).run()
    told = results_in(tmp_path / "first")
    again = job(tmp_path, "second", sites)
    again.run()
    assert again.said == []
    assert results_in(tmp_path / "second") == told | {"seconds": ANY}
    shutil.rmtree(tmp_path / "first")  # of no matter any more
    job(tmp_path, "third", sites).run()
    assert results_in(tmp_path / "third") == told | {"seconds": ANY}


def test_an_experiment_that_has_ended_begins_anew(tmp_path, sites):
    job(tmp_path, "first", sites).run()
    shutil.rmtree(tmp_path / "first")  # by FLARE, as stored
    again = job(tmp_path, "second", sites_of(Federation.of(CONFIG)))
    again.run()
    assert len(again.said) == 6
