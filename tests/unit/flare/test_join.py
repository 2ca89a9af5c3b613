"""Joining as a FLARE job: the controller, with sites in this process in FLARE's place."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from joins import SAID, finished, with_f
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal
from safetensors.torch import save_file
from tiny import Net, config, sites_of

from medpfl.core.errors import UserError
from medpfl.core.lock import claimed
from medpfl.core.server_state import ServerState
from medpfl.core.statefile import read_state
from medpfl.data.sites import open_source
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.engine.newcomers import JOINED
from medpfl.flare.transport.join_controller import JoinController
from medpfl.flare.transport.trust import REHEARSAL
from medpfl.runs.join import Joining, checkpoint_to_join, join
from medpfl.server.checkpoint import CHECKPOINT, checkpoint_config, last_state
from medpfl.server.newcomer import Welcome
from medpfl.site.answer import answer


@pytest.fixture(autouse=True)
def _rehearsal(monkeypatch):
    monkeypatch.setenv(REHEARSAL, "1")


class Here(JoinController):
    """Answers come from newcomers in this process; FLARE's engine, events and logs are left out."""

    def __init__(self, run, joining, experiment="state", change=lambda sites: None):
        names = joining.newcomers.site_names
        super().__init__(joining.config.model_dump(mode="json"), names, joining.epochs, experiment, str(run))
        self.run_folder, self.said, self.fl_ctx, self.abort_signal = run / "job", [], FLContext(), Signal()
        self.run_folder.mkdir(exist_ok=True)
        self.engine = SimpleNamespace(get_workspace=lambda: SimpleNamespace(get_root_dir=lambda: str(run)))
        federation, source = Federation.of(joining.trained), open_source(joining.newcomers)
        self.model = federation.model()
        self.sites = {
            name: federation.newcomer(name, source, source.site(name, federation.device), self.run_folder / name)
            for name in names
        }
        change(self.sites)

    def _exchange(self, plan, outgoing):
        return [answer(self.sites[name], message, self.model) for name, message in outgoing.items()]

    def get_run_dir(self):
        return str(self.run_folder)

    def info(self, message):
        self.said.append(message)

    error = panic = info


def joined(folder, algorithm, **said):
    """What the controller makes of newcomers, and the controller."""
    run_config = Federation.of(with_f(folder, algorithm)).config
    joining = Joining.of(algorithm, folder, run_config, SAID | said)
    controller = Here(folder, joining)
    controller.run()
    return joining, controller


@pytest.mark.parametrize(
    "algorithm", ["fedbn", "f-fedap", *(pytest.param(m, marks=pytest.mark.slow) for m in ("local", "fedap", "d-fedap"))]
)
def test_the_controller_gives_the_figures_of_one_process_and_leaves_the_checkpoint(tmp_path, algorithm):
    finished(tmp_path, with_f(tmp_path, algorithm))
    checkpoint = checkpoint_to_join(tmp_path)
    before = {file: file.read_bytes() for file in checkpoint.parent.glob("*.safetensors")}
    joining, controller = joined(tmp_path, algorithm)
    results = joining.write(json.loads((controller.run_folder / JOINED).read_text()), tmp_path / "job")
    assert results == json.loads(json.dumps(join(algorithm, tmp_path, SAID, tmp_path / "here")))
    assert {file: file.read_bytes() for file in checkpoint.parent.glob("*.safetensors")} == before
    for name in ("new-1", "new-2"):
        ours, theirs = (
            read_state(folder / "selected" / "model.safetensors")[0]
            for folder in (controller.run_folder / name, tmp_path / "here" / "joined" / name)
        )
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_what_the_server_refuses_is_said(tmp_path):
    (tmp_path / "short").mkdir()
    finished(tmp_path / "short", with_f(tmp_path / "short", "fedbn"), rounds=1)
    (tmp_path / "whole").mkdir()
    finished(tmp_path / "whole", with_f(tmp_path / "whole", "fedbn"))
    for folder, algorithm, experiment, words in (
        ("short", "fedbn", "state", "experiment 'state': the run has not ended, 1 of 2 rounds are done"),
        ("whole", "fedbn", "other", "this server has no experiment 'other', so no site can join it"),
        ("whole", "fedavg", "state", "is a run with algorithm = 'fedbn', not 'fedavg'"),
    ):
        run = tmp_path / folder
        controller = Here(run, Joining.of(algorithm, run, with_f(run, algorithm), SAID), experiment)
        controller.run()
        assert words in controller.said[-1]
        assert words in json.loads((controller.run_folder / "error.json").read_text())["error"]
        assert not (controller.run_folder / JOINED).exists()


def test_a_checkpoint_before_the_last_says_that_the_run_has_not_ended(tmp_path):
    run_config = with_f(tmp_path, "fedbn")
    finished(tmp_path, run_config)
    joining = Joining.of("fedbn", tmp_path, run_config, SAID)
    for damage in (lambda file: file.write_bytes(b"damaged"), lambda file: file.unlink()):
        damage(tmp_path / "state" / "server" / "server.safetensors")
        controller = Here(tmp_path, joining)
        controller.run()
        assert "the run has not ended, 2 of 2 rounds are done; go on with --resume first" in controller.said[-1]
        with pytest.raises(UserError, match="the run has not ended, 2 of 2 rounds are done"):
            join("fedbn", tmp_path, SAID, tmp_path / "out")


def test_a_newcomer_that_fails_is_named_with_the_reason(tmp_path):
    finished(tmp_path, with_f(tmp_path, "fedbn"))
    _, controller = joined(tmp_path, "fedbn", settings={"lr": 1e30})
    assert "new-1: the training loss became nan: lower the learning rate" in controller.said[-1]
    assert "new-2: the training loss became nan" in controller.said[-1]
    _, controller = joined(tmp_path, "fedbn", data_args={"test": 0})
    assert controller.said[-1] == "new-1: it has no test sample\nnew-2: it has no test sample"


def test_other_start_weights_than_the_runs_are_refused_as_such(tmp_path):
    """The folder is the right one; and the note of a real federation's run has no fingerprint to compare with."""
    state = Net().state_dict()
    for name, more in (("first", 0), ("other", 1)):
        save_file({key: tensor + more for key, tensor in state.items()}, tmp_path / f"{name}.safetensors")
    run_config = with_f(tmp_path, "fedbn", init=str(tmp_path / "first.safetensors"))
    finished(tmp_path, run_config)
    joining = Joining.of("fedbn", tmp_path, run_config, SAID)
    other = run_config.model_copy(update={"init": str(tmp_path / "other.safetensors")})
    controller = Here(tmp_path, replace(joining, config=other, trained=run_config))
    controller.run()
    assert "experiment 'state' at this server began from other start weights (sha256:" in controller.said[-1]
    assert "other.safetensors has (sha256:" in controller.said[-1]
    assert controller.said[-1].endswith("give their file with --init")


def test_another_f_than_the_runs_is_refused(tmp_path):
    finished(tmp_path, with_f(tmp_path, "fedap"))
    save_file({key: tensor + 1 for key, tensor in Net().state_dict().items()}, tmp_path / "f.safetensors")
    controller = Here(tmp_path, Joining.of("fedap", tmp_path, checkpoint_config(checkpoint_to_join(tmp_path)), SAID))
    controller.run()
    assert "f.safetensors is not the model under which the run's sites took their statistics" in controller.said[-1]
    with pytest.raises(UserError, match="restore the file"):
        join("fedap", tmp_path, SAID, tmp_path / "out")


def test_a_run_does_not_go_on_with_another_f(tmp_path):
    run_config = with_f(tmp_path, "fedap")
    finished(tmp_path, run_config, rounds=1)
    save_file({key: tensor + 1 for key, tensor in Net().state_dict().items()}, tmp_path / "f.safetensors")
    federation = Federation.of(run_config)
    earlier = last_state(tmp_path / "state" / "server" / CHECKPOINT, run_config)
    with pytest.raises(UserError, match="restore the file"):
        run_in_process(federation.plan(), sites_of(federation), federation.model, workers=1, earlier=earlier)


def test_a_join_under_way_is_not_disturbed_and_no_other_name_is_advised(tmp_path):
    finished(tmp_path, with_f(tmp_path, "fedbn"))
    with claimed(tmp_path / "state" / "server", "taken"):
        _, controller = joined(tmp_path, "fedbn")
    assert controller.said[-1] == "experiment 'state' is in use by another job: wait for it to end, or abort it"


def test_the_new_sites_are_awaited_as_long_as_is_said(tmp_path):
    finished(tmp_path, with_f(tmp_path, "fedbn"))
    joining = Joining.of("fedbn", tmp_path, with_f(tmp_path, "fedbn"), SAID | {"timeout": 77.0})
    controller, whole, patience = Here(tmp_path, joining), Here._exchange, []

    def timed(plan, outgoing):
        patience.append((plan.config.timeout, plan.config.grace))
        return whole(controller, plan, outgoing)

    controller._exchange = timed
    controller.run()
    assert patience == [(77.0, 77.0)]
    assert (controller.run_folder / JOINED).exists()


def test_a_site_of_the_run_cannot_join_it(tmp_path):
    with pytest.raises(UserError, match="Site-2: a site of that name took part in the run"):
        Joining.of("fedbn", tmp_path, config("fedbn"), SAID | {"names": ("new", "Site-2")})
    federation = Federation.of(config("fedbn"))
    with pytest.raises(UserError, match="site-2: a site of that name took part"):
        Welcome(federation.plan(), ServerState(), {}, 1).run(["site-2"], lambda _: [])


def test_answers_that_were_not_asked_for_are_not_used(tmp_path):
    finished(tmp_path, with_f(tmp_path, "fedap"))
    run_config = with_f(tmp_path, "fedap")
    joining = Joining.of("fedap", tmp_path, run_config, SAID | {"sites": 1})

    def said(change):
        controller = Here(tmp_path, joining)
        whole = controller._exchange
        controller._exchange = lambda plan, outgoing: [change(reply) for reply in whole(plan, outgoing)]
        controller.run()
        return controller.said[-1]

    def with_weights(update):
        update.tensors["fc1.weight"] = torch.ones(6, 16)
        return update

    def with_patients(update):
        return replace(update, metrics={**update.metrics, "patients": ["A"]})

    def negative(update):
        update.tensors.update({k: -v - 1 for k, v in update.tensors.items() if k.endswith("variance")})
        return update

    assert "new-1: entry 'fc1.weight' does not belong into the answer to 'statistics'" in said(with_weights)
    assert "new-1: metric 'patients'" in said(with_patients)
    assert "new-1: statistics/norm/variance has negative values" in said(negative)

    def endless(update):
        return replace(update, metrics={**update.metrics, "epoch": 9}) if update.metrics else update

    def long(update):
        return replace(update, metrics={**update.metrics, "validation": [None] * 4}) if update.metrics else update

    def alone(update):
        return replace(update, metrics={**update.metrics, "alone_epoch": None}) if update.metrics else update

    assert "new-1: metric 'epoch': epoch 9 of 2" in said(endless)
    assert "new-1: metric 'validation': 4 of 3 measures" in said(long)
    assert "new-1: metric 'alone_epoch': measures of a training that kept no epoch" in said(alone)
    controller = Here(tmp_path, joining)
    controller._exchange = lambda plan, outgoing: []
    controller.run()
    assert controller.said[-1] == "new-1: no answer in time"
