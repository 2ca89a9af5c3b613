"""Joining as a FLARE job: the controller with sites in this process in FLARE's place, the site's executor, the job."""

import json
import logging
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from nvflare.apis.dxo import from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from PIL import Image
from safetensors.torch import save_file
from tiny import Net, config, sites_of

from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.core.lock import claimed
from medpfl.core.messages import Message
from medpfl.core.statefile import read_state
from medpfl.data.sites import open_source
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.engine.newcomers import JOINED
from medpfl.flare.job.export import portable
from medpfl.flare.job.recipes import for_sites
from medpfl.flare.transport.filter import AllowListFilter
from medpfl.flare.transport.join_controller import JoinController
from medpfl.flare.transport.join_executor import JoinExecutor
from medpfl.flare.transport.payload import INFO, REASON, message_to_model
from medpfl.flare.transport.trust import REHEARSAL
from medpfl.runs.join import Joining, checkpoint_of, join
from medpfl.runs.join_job import JoinRecipe, join_in_production
from medpfl.server.checkpoint import checkpoint_config
from medpfl.server.newcomer import Welcome
from medpfl.server.rounds import ServerState
from medpfl.site.answer import answer

SAID = {"data": "tiny:site_data", "sites": 2, "local_epochs": 2}


@pytest.fixture(autouse=True)
def _rehearsal(monkeypatch):
    monkeypatch.setenv(REHEARSAL, "1")


def finished(folder, run_config, *, rounds=None):
    """Leaves a run's checkpoint as its folder has it, after all rounds or only some."""
    federation = Federation.of(run_config)
    (folder / "state" / "server").mkdir(parents=True)

    def stop(state):
        if state.round == rounds:
            raise KeyboardInterrupt

    try:
        run_in_process(
            federation.plan(),
            sites_of(federation),
            federation.model,
            workers=1,
            checkpoint=folder / "state" / "server",
            after_step=stop,
        )
    except KeyboardInterrupt:
        assert rounds


def with_f(folder, algorithm, **fields):
    settings = {}
    if algorithm in ("fedap", "d-fedap"):
        settings["pretrain"] = str(folder / "f.safetensors")
        if not (folder / "f.safetensors").exists():
            save_file(Net().state_dict(), folder / "f.safetensors")
    return config(algorithm, settings=settings, rounds=2, **fields)


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


@pytest.mark.parametrize("algorithm", ["local", "fedbn", "fedap", "d-fedap", "f-fedap"])
def test_the_controller_gives_the_figures_of_one_process_and_leaves_the_checkpoint(tmp_path, algorithm):
    finished(tmp_path, with_f(tmp_path, algorithm))
    checkpoint = checkpoint_of(tmp_path)
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


def test_another_f_than_the_runs_is_refused(tmp_path):
    finished(tmp_path, with_f(tmp_path, "fedap"))
    save_file({key: tensor + 1 for key, tensor in Net().state_dict().items()}, tmp_path / "f.safetensors")
    controller = Here(tmp_path, Joining.of("fedap", tmp_path, checkpoint_config(checkpoint_of(tmp_path)), SAID))
    controller.run()
    assert "f.safetensors is not the model under which the run's sites took their statistics" in controller.said[-1]
    with pytest.raises(UserError, match="restore the file"):
        join("fedap", tmp_path, SAID, tmp_path / "out")


def test_a_run_does_not_go_on_with_another_f(tmp_path):
    run_config = with_f(tmp_path, "fedap")
    finished(tmp_path, run_config, rounds=1)
    save_file({key: tensor + 1 for key, tensor in Net().state_dict().items()}, tmp_path / "f.safetensors")
    federation = Federation.of(run_config)
    with pytest.raises(UserError, match="restore the file"):
        run_in_process(
            federation.plan(),
            sites_of(federation),
            federation.model,
            workers=1,
            checkpoint=tmp_path / "state" / "server",
            resume=True,
        )


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


def test_the_job_goes_to_the_newcomers_alone_and_lets_no_model_leave(tmp_path):
    run_config = with_f(tmp_path, "fedap")
    joining = Joining.of("fedap", tmp_path, run_config, SAID | {"names": ("east", "west")})
    JoinRecipe(joining, experiment="first").export(str(tmp_path / "jobs"))
    job = tmp_path / "jobs" / "join-fedap"
    meta = json.loads((job / "meta.json").read_text())
    assert meta["deploy_map"] == {"app_server": ["server"], "app_east": ["east"], "app_west": ["west"]}
    assert meta["min_clients"] == 2
    text = (job / "app_east" / "config" / "config_fed_client.json").read_text()
    assert "f.safetensors" not in text
    [gate] = json.loads(text)["task_result_filters"]
    assert gate["filters"][0]["args"]["allowed"] == {"statistics/norm/mean": [6], "statistics/norm/variance": [6]}
    assert set(gate["tasks"]) == {"statistics", "join"}


@pytest.mark.parametrize(("algorithm", "task"), [("fedap", "statistics"), ("fedbn", "join")])
def test_a_newcomers_answers_pass_its_filter(tmp_path, at_site, algorithm, task):
    run_config = with_f(tmp_path, algorithm)
    federation = Federation.of(run_config)
    joining = Joining.of(algorithm, tmp_path, run_config, SAID | {"names": ("north-1", "south-2")})
    executor = JoinExecutor(for_sites(joining.trained), for_sites(joining.newcomers), "first")
    info = {"split": federation.split.description(), "input_format": {}, "epochs": 1}
    info |= {"asked": ["statistics"]} if task == "statistics" else {}
    tensors = Net().state_dict() if task == "statistics" else federation.initial_shared
    context = at_site(tmp_path, "north-1")
    reply = executor.execute(task, sent(Message(task, 2, tensors, info)), context, Signal())
    gate = AllowListFilter(federation.leaving(joining=True))
    left = from_shareable(gate.process(reply, context))
    model = tmp_path / "medpfl" / "first" / "north-1" / "selected" / "model.safetensors"
    if task == "statistics":
        assert set(left.data) == {"statistics/norm/mean", "statistics/norm/variance"}
    else:
        assert not left.data
        assert model.exists()
    wrong = executor.execute("train", Shareable(), at_site(tmp_path, "north-1"), Signal())
    assert "unknown task" in wrong.get_header(REASON)


PATIENTS = ("Jane-Doe-1961", "John-Roe-1958")
ASKED = [
    ("join", {"input_format": {"classes": ["x"]}}, "its classes are not the run's"),
    ("join", {"input_format": {"classes": ["no", "yes"]}}, "its classes are not the run's"),
    ("join", {"input_format": {"in_channels": 3}}, "its number of channels is not the run's, 3"),
    ("join", {"input_format": {"image_size": [0] * 400}}, "the site cannot answer"),
    ("join", {"input_format": {"image_size": [32, 32]}}, "its image size is not the run's, [32, 32]"),
    ("join", {"input_format": {"classes": 3}}, "its classes are not the run's"),
    ("join", {"input_format": None}, "in task 'join'"),
    ("join", {"split": {}}, "disagree on what is shared"),
    ("join", {"epochs": "Jane"}, "in task 'join'"),
    ("statistics", {"asked": ["statistics"]}, "mixing samples needs no 'other' tensors"),
    ("statistics", {}, "mixing samples needs no 'other' tensors"),
    ("train", {}, "unknown task"),
]
"""What a crafted job may ask of a newcomer, and how it is refused."""


@pytest.mark.parametrize(("task", "change", "words"), ASKED)
def test_no_refusal_names_a_folder_of_the_site(tmp_path, at_site, monkeypatch, caplog, task, change, words):
    """Class names are a folder's where nobody gives them."""
    monkeypatch.delenv(REHEARSAL)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pictures = own_pictures(tmp_path / "secret-place", PATIENTS)
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "medpfl.json").write_text(json.dumps({"data": {"fundus": str(pictures)}}))
    arguments = {"channels": "grey", "size": 28}
    told = {**arguments, "classes": ["no", "yes"]}
    run_config = make_config(algorithm="fedbn", data="fundus", data_args=told, partition="natural", sites=2)
    newcomers = run_config.model_copy(update={"data_args": arguments, "names": ("north-hospital",), "sites": 1})
    federation = Federation.of(run_config)
    executor = JoinExecutor(for_sites(run_config), for_sites(newcomers), "first")
    info = {"split": federation.split.description(), "input_format": {}, "epochs": 1} | change
    with caplog.at_level(logging.DEBUG):
        reply = executor.execute(
            task, sent(Message(task, 2, federation.initial_shared, info)), at_site(tmp_path), Signal()
        )
    assert words in reply.get_header(REASON)
    assert len(reply.get_header(REASON)) <= 500
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    left = " ".join([str(reply), *(record.getMessage() for record in errors)])
    assert not [name for name in (*PATIENTS, "secret", str(tmp_path), "28") if name in left]
    assert not any(record.exc_info for record in errors)
    if "classes" in words:  # the site's own log has them
        assert PATIENTS[0] in caplog.text


def test_a_participant_of_the_run_keeps_its_model_whatever_the_job_says(tmp_path, at_site):
    run_config = with_f(tmp_path, "fedbn")
    federation = Federation.of(run_config)
    joining = Joining.of("fedbn", tmp_path, run_config, SAID | {"sites": 1, "names": ("north-1",)})
    info = {"split": federation.split.description(), "input_format": {}, "epochs": 1}
    folder = tmp_path / "medpfl" / "first" / "north-1"

    def reply():
        executor = JoinExecutor(for_sites(joining.trained), for_sites(joining.newcomers), "first")
        message = sent(Message("join", 2, federation.initial_shared, info))
        return executor.execute("join", message, at_site(tmp_path, "north-1"), Signal()).get_header(REASON)

    for left in ("personal-000002.safetensors", "model-000002.safetensors", "data-000000.safetensors", "last"):
        folder.mkdir(parents=True)
        (folder / left).mkdir()
        said = reply()
        assert "took part in that run" in said
        assert str(tmp_path) not in said
        assert [file.name for file in folder.iterdir()] == [left]
        shutil.rmtree(folder)
    assert reply() is None
    assert reply() is None  # who joined may join again


def sent(message):
    from nvflare.app_common.utils.fl_model_utils import FLModelUtils

    return FLModelUtils.to_shareable(message_to_model(message, 2))


def test_what_a_real_federation_needs_is_said(tmp_path):
    run_config = with_f(tmp_path, "fedbn")
    with pytest.raises(UserError, match=r"no run at a real federation is in it .*job.json is missing"):
        join_in_production("fedbn", tmp_path, {}, tmp_path, kit=tmp_path)
    note = {"job": "id", "experiment": "first-a1b2c3", "config": run_config.model_dump(mode="json")}
    (tmp_path / "job.json").write_text(json.dumps(note))
    with pytest.raises(UserError, match="give the new sites' names with --sites"):
        join_in_production("fedbn", tmp_path, {}, tmp_path, kit=tmp_path)
    with pytest.raises(UserError, match="that run divided one data set; give the new site's data with --data"):
        join_in_production("fedbn", tmp_path, {"sites": 1, "names": ("new",)}, tmp_path, kit=tmp_path)
    with pytest.raises(UserError, match="it is a run at a real federation; give --env prod and --kit"):
        join("fedbn", tmp_path, {}, tmp_path)


def own_npz(file):
    rng = np.random.default_rng(0)
    arrays = {f"{part}_images": rng.integers(0, 255, (20, 28, 28), dtype=np.uint8) for part in ("train", "val", "test")}
    np.savez(file, **arrays, **{f"{part}_labels": np.arange(20) % 11 for part in ("train", "val", "test")})
    return file


def own_pictures(folder, classes=("no", "yes")):
    for number in range(24):
        place = folder / classes[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.full((28, 28), 10 * number, dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")
    return folder


NATURAL = {
    "organamnist": (own_npz, {}),
    "fundus": (own_pictures, {"classes": ["no", "yes"], "channels": "grey", "size": 28}),
}


@pytest.mark.parametrize("name", NATURAL)
def test_a_hospitals_own_data_are_those_of_its_manifest(tmp_path, at_site, monkeypatch, name):
    monkeypatch.delenv(REHEARSAL)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write, arguments = NATURAL[name]
    (tmp_path / "local").mkdir()
    manifest = {"data": {name: str(write(tmp_path / f"secret-{name}.npz"))}}
    (tmp_path / "local" / "medpfl.json").write_text(json.dumps(manifest))
    run_config = make_config(
        algorithm="fedbn", data=name, data_args=arguments, partition="natural", sites=2, device="cpu"
    )
    joining = Joining.of("fedbn", tmp_path, run_config, {"names": ("north-hospital",), "sites": 1}, real=True)
    newcomers = portable(joining.newcomers)
    assert (newcomers.data, newcomers.data_args) == (name, arguments)
    federation = Federation.of(run_config)
    executor = JoinExecutor(for_sites(joining.trained), for_sites(newcomers), "first")
    info = {"split": federation.split.description(), "input_format": federation.input_format(), "epochs": 1}
    reply = executor.execute(
        "join", sent(Message("join", 2, federation.initial_shared, info)), at_site(tmp_path), Signal()
    )
    assert reply.get_header(REASON) is None
    assert from_shareable(reply).meta[INFO]["metrics"]["samples"]["train"] > 0
    card = tmp_path / "medpfl" / "first" / "north-hospital" / "selected" / "card.json"
    assert "secret" not in card.read_text()
