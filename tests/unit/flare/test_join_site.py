"""What a site that joins is sent, answers, refuses and needs."""

import json
import logging
import shutil

import numpy as np
import pytest
from joins import SAID, with_f
from nvflare.apis.dxo import from_shareable
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from PIL import Image
from safetensors.torch import save_file
from tiny import Net

from medpfl.algorithms.start import START
from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.core.messages import Message, named
from medpfl.core.parameters import StateError
from medpfl.data.kinds.folders.picture_source import Folders
from medpfl.engine.federation import Federation
from medpfl.flare.admin.review import review
from medpfl.flare.job.export import portable
from medpfl.flare.job.recipes import for_sites
from medpfl.flare.transport.filter import AllowListFilter
from medpfl.flare.transport.join_executor import JoinExecutor
from medpfl.flare.transport.payload import INFO, REASON, message_to_model
from medpfl.flare.transport.trust import REHEARSAL
from medpfl.runs.join import Joining, join
from medpfl.runs.join_job import join_in_production, recipe_of
from medpfl.site.contract import Contract
from medpfl.site.many_patients import require_words
from medpfl.site.policy import HOSPITAL
from medpfl.site.words import MANY_VALUES


@pytest.fixture(autouse=True)
def _rehearsal(monkeypatch):
    monkeypatch.setenv(REHEARSAL, "1")


def test_the_job_goes_to_the_newcomers_alone_and_lets_no_model_leave(tmp_path):
    run_config = with_f(tmp_path, "fedap")
    joining = Joining.of("fedap", tmp_path, run_config, SAID | {"names": ("east", "west")})
    recipe_of(joining, experiment="first").export(str(tmp_path / "jobs"))
    job = tmp_path / "jobs" / "join-fedap"
    meta = json.loads((job / "meta.json").read_text())
    assert meta["deploy_map"] == {"app_server": ["server"], "app_east": ["east"], "app_west": ["west"]}
    assert meta["min_clients"] == 2
    text = (job / "app_east" / "config" / "config_fed_client.json").read_text()
    assert "f.safetensors" not in text
    [gate] = json.loads(text)["task_result_filters"]
    assert gate["filters"][0]["args"]["allowed"] == {"statistics/norm/mean": [6], "statistics/norm/variance": [6]}
    assert set(gate["tasks"]) == {"statistics", "join"}


def test_who_joins_may_train_as_a_run_may_not_since_no_update_leaves(tmp_path):
    said = SAID | {"names": ("east", "west"), "settings": {"lr": 2.0}}
    joining = Joining.of("fedbn", tmp_path, with_f(tmp_path, "fedbn"), said)
    recipe_of(joining, experiment="first").export(str(tmp_path / "jobs"))
    found = review(tmp_path / "jobs" / "join-fedbn")
    assert not [words for words in found.refusals(HOSPITAL) if "lr" in words]
    require_words(HOSPITAL, found.contract)
    with pytest.raises(StateError, match="lr is 1 at most here"):
        require_words(HOSPITAL, Contract(found.contract.config))


def test_review_names_others_code_that_gives_the_newcomers_data(tmp_path):
    """A site refuses such a job when it runs."""
    joining = Joining.of("fedbn", tmp_path, with_f(tmp_path, "fedbn"), SAID | {"names": ("east", "west")})
    recipe_of(joining, experiment="first").export(str(tmp_path / "jobs"))
    job = tmp_path / "jobs" / "join-fedbn"
    for file in job.glob("*/config/*.json"):
        content = json.loads(file.read_text())
        for executor in content.get("executors", []):
            executor["executor"]["args"]["newcomers"]["data"] = "theirs.tables:load"
        file.write_text(json.dumps(content))
    found = review(job)
    assert ("data", "theirs.tables:load") in found.named
    assert "theirs.tables" in found.unlisted


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


@pytest.mark.parametrize(("algorithm", "task"), [("fedap", "statistics"), ("fedbn", "join")])
def test_a_newcomer_begins_with_the_start_weights_that_the_job_names(tmp_path, at_site, algorithm, task):
    """They come with the first message, and no file's path with them."""
    start = Net().state_dict()
    file = tmp_path / "of-the-server" / "start.safetensors"
    file.parent.mkdir()
    save_file(start, file)
    run_config = with_f(tmp_path, algorithm, init=str(file))
    joining = Joining.of(algorithm, tmp_path, run_config, SAID | {"names": ("north-1", "south-2")}, real=True)
    recipe_of(joining, experiment="first").export(str(tmp_path / "jobs"))
    job = tmp_path / "jobs" / f"join-{algorithm}"
    said = {name: (job / f"app_{name}" / "config" / f"config_fed_{what}.json").read_text() for name, what in SIDES}
    assert ("of-the-server" in said["server"], "of-the-server" in said["north-1"]) == (True, False)
    [executor] = (part["executor"]["args"] for part in json.loads(said["north-1"])["executors"])
    federation = Federation.of(run_config)
    info = {"split": federation.split.description(), "input_format": {}, "epochs": 1}
    info |= {"asked": ["statistics"]} if task == "statistics" else {}
    tensors = dict(start) if task == "statistics" else federation.initial_shared
    other = {name: tensor + 1 for name, tensor in start.items()}
    for number, (brought, words) in enumerate([({}, NOT_KEPT), (other, UNNAMED), (start, None)]):
        message = Message(task, 2, {**tensors, **named(START, brought)}, info)
        (folder := tmp_path / str(number)).mkdir()
        reply = JoinExecutor(**executor).execute(task, sent(message), at_site(folder, "north-1"), Signal())
        assert (reply.get_header(REASON) or "").removeprefix("contract: ") == (words or "")


SIDES = (("server", "server"), ("north-1", "client"))
UNNAMED = "the start weights are not those that the contract names"
NOT_KEPT = "the start weights came with an earlier message, and this site has not kept them"
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


def test_who_joins_makes_no_more_of_its_data_than_its_policy_lets(tmp_path, at_site, monkeypatch, caplog):
    monkeypatch.delenv(REHEARSAL)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(Folders, "site", lambda *arguments: pytest.fail("the data were opened"))
    (tmp_path / "local").mkdir()
    content = {"data": {"fundus": str(own_pictures(tmp_path / "fundus"))}, "policy": {"data_values": 24 * 28 * 28 - 1}}
    (tmp_path / "local" / "medpfl.json").write_text(json.dumps(content))
    run_config = make_config(
        algorithm="fedbn", data="fundus", data_args=NATURAL["fundus"][1], partition="natural", sites=2
    )
    newcomers = run_config.model_copy(update={"names": ("north-hospital",), "sites": 1})
    info = {"split": Federation.of(run_config).split.description(), "input_format": {}, "epochs": 1}
    executor = JoinExecutor(for_sites(run_config), for_sites(newcomers), "first")
    reply = executor.execute("join", sent(Message("join", 2, {}, info)), at_site(tmp_path), Signal())
    assert reply.get_header(REASON) == MANY_VALUES(24 * 28 * 28 - 1)
    assert "they are up to 18,816 values" in caplog.text
