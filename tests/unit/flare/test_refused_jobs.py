"""Jobs that a real site refuses: by how it refuses they must not read its data."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from kits import done, site
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.fuel.utils.json_scanner import JsonScanner
from nvflare.fuel.utils.wfconf import resolve_var_refs
from PIL import Image

from medpfl.config.run import make_config
from medpfl.core.messages import Message
from medpfl.core.parameters import StateError
from medpfl.data.kinds.folders import picture_cache
from medpfl.flare.transport.executor import PersonalizedExecutor
from medpfl.flare.transport.payload import REASON, message_to_model
from medpfl.flare.transport.trust import REHEARSAL
from medpfl.site.contract import Contract
from medpfl.site.many_patients import require_words
from medpfl.site.policy import HOSPITAL
from medpfl.site.words import MANY_VALUES

ASKED = ["normal", "glaucoma"]
CANNOT = "the site cannot begin: UserError (its log says more)"
WHOSE = "policy: whose an image is, is not the job's to say here: its 'patient' is none of patient_patterns"
FLIPS = {"transforms": [{"_target_": "RandFlipd", "keys": "image", "prob": 0.5}]}
LEFT_OUT = "policy: single images of a patient are not left out here (holdout, train_counts)"


@pytest.fixture
def fundus(kit, tmp_path, monkeypatch):
    """A hospital's kit with 60 pictures of two classes; says what a job's first task is answered."""
    monkeypatch.delenv(REHEARSAL, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for number in range(60):
        folder = tmp_path / "pictures" / ASKED[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        name = "mueller-anna" if number == 7 else f"p{number:03d}"
        Image.fromarray(rng.integers(0, 255, (28, 28), dtype=np.uint8)).save(folder / f"{name}_1.png")
    done(kit, "--data", f"fundus={tmp_path / 'pictures'}", "--policy", "experiments=3")
    return kit


@pytest.fixture
def refusal(fundus, at_site):
    def ask(experiment="first", algorithm="fedavg", more=None, **data_args):
        fields = {"sites": 2, "names": ("north-hospital", "b"), "partition": "natural"} | (more or {})
        args = {"classes": ASKED, "size": 28, "channels": "grey"} | data_args
        config = make_config(algorithm=algorithm, data="fundus", rounds=2, data_args=args, **fields)
        context = at_site(fundus)
        context.set_prop(FLContextKey.JOB_META, {"submitter_name": "mallory"}, private=True)
        hello = FLModelUtils.to_shareable(message_to_model(Message("prepare", 0, {}, {"split": []}), 1))
        reply = PersonalizedExecutor(config.model_dump(mode="json"), experiment)
        return reply.execute("prepare", hello, context, Signal()).get_header(REASON)

    return ask


def entries(kit):
    return [json.loads(line) for line in site("ledger", kit, "--json").output.splitlines()]


@pytest.mark.parametrize("algorithm", ["fedavg", "local"])
@pytest.mark.parametrize("name", ["mueller-anna", "mueller-otto"])
def test_no_expression_is_tried_on_names_of_files(refusal, fundus, algorithm, name):
    """It matches all names but those that begin with one: where it does not match all, reading fails."""
    but = "|".join(f"{name[:k]}[^{name[k]}]" for k in range(len(name)))
    assert refusal(algorithm=algorithm, patient=f"^({but})") == WHOSE
    assert entries(fundus) == []


@pytest.mark.parametrize("counts", [[20, 20], [200, 20]])
def test_no_counts_are_compared_with_those_of_the_classes(refusal, fundus, counts):
    assert refusal(train_counts={"pictures": counts}).startswith(LEFT_OUT)
    assert entries(fundus) == []


@pytest.mark.parametrize(
    ("algorithm", "more", "said"),
    [
        ("fedavg", {"settings": {"lr": 2.0}}, "policy: lr is 1 at most here"),
        ("fedavg", {"augment": FLIPS}, "policy: training images are changed by presets alone here"),
        ("d-fedap", {"weight_cap": 1.0}, "policy: one other site may weigh 0.3 at most"),
    ],
)
def test_what_the_policy_forbids_by_the_jobs_words_alone_takes_no_experiment(refusal, fundus, algorithm, more, said):
    done(fundus, "--policy", "largest_weight=0.3")
    assert said in refusal(algorithm=algorithm, more=more)
    assert entries(fundus) == []


@pytest.fixture
def deployed(fundus, at_site, monkeypatch):
    """Says what a job's first task is answered, whose configuration FLARE has filled in at the site."""
    monkeypatch.setenv("PACS_PASSWORD", "s3cr3t")
    done(fundus, "--policy", "jobs=approved")
    data_args = {"classes": ASKED, "size": 28, "channels": "grey"}
    names = {"sites": 2, "names": ("north-hospital", "b"), "partition": "natural", "rounds": 2}
    config = make_config(algorithm="fedavg", data="fundus", data_args=data_args, **names)

    def ask(in_file=None, **fields):
        run = config.model_dump(mode="json") | fields
        content = {"format_version": 2, "executors": [{"tasks": ["*"], "executor": {"args": {"run_config": run}}}]}
        context = at_site(fundus)
        folder = Path(context.get_engine().get_workspace().get_app_config_dir("job"))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config_fed_client.json").write_text(json.dumps(in_file or content))
        resolve_var_refs(JsonScanner(content), dict(content))  # as FLARE's JsonConfigurator does
        hello = FLModelUtils.to_shareable(message_to_model(Message("prepare", 0, {}, {"split": []}), 1))
        executor = PersonalizedExecutor(**content["executors"][0]["executor"]["args"])
        return executor.execute("prepare", hello, context, Signal()).get_header(REASON)

    return ask


@pytest.mark.parametrize("text", ["x{$PACS_PASSWORD[0]}", "{$PACS_PASSWORD}", "x{format_version}"])
def test_what_flare_fills_in_here_is_told_by_no_hash(deployed, fundus, text):
    """Of a few characters of the site's environment the contract's first twelve digits tell which they are."""
    assert deployed(data=text) == CANNOT
    assert entries(fundus) == []


def test_two_executors_do_not_work_side_by_side(deployed, monkeypatch):
    """Each has a lock of its own, and what is drawn in one's training would depend on the other's."""
    one = {"executor": {"args": {"run_config": {}}}}
    said = []
    monkeypatch.setattr(PersonalizedExecutor, "log_warning", lambda self, ctx, text, **_: said.append(text))
    assert deployed(in_file={"executors": [one, one]}) == CANNOT
    assert "the job has 2 executors, which would work side by side" in said[0]


def test_what_flare_made_of_a_job_is_what_its_file_has(deployed):
    assert "is not approved at this site" in deployed()
    assert "is not approved at this site" in deployed(data_args={"patient": r"^(\d{4})_\p{Lu}", "classes": ASKED})
    assert deployed(in_file={"executors": [{"executor": {"args": {"run_config": {}}}}]}) == CANNOT


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_job_for_a_gpu_that_the_site_has_not_takes_no_experiment(refusal, fundus):
    assert refusal(more={"device": "cuda"}) == CANNOT
    assert entries(fundus) == []


def test_a_job_counts_from_when_the_data_are_opened_for_it(refusal, fundus):
    """A class that one picture has, say, makes a job fail that does not name it; and one that is right begins."""
    for experiment, asked in (("a", ["normal", "c"]), ("b", ["c", "glaucoma"])):
        assert refusal(experiment, classes=asked) == CANNOT
        assert refusal(experiment, classes=asked) == CANNOT  # says nothing new, and counts once
    assert "disagree on what is shared" in refusal("c")
    *opened, refused = entries(fundus)
    assert [(e["experiment"], e["task"], e["bytes"]) for e in opened] == [(name, "open", 0) for name in "abc"]
    assert (refused["experiment"], refused["task"], refused["bytes"]) == ("c", "prepare", 0)
    assert "open 0  the data are opened" in site("ledger", fundus).output
    for classes in (ASKED, ["f", "g"]):
        reached = "policy: the data have served 3 experiments, which is the limit (experiments)"
        assert refusal("d", classes=classes) == reached
    assert entries(fundus) == [*opened, refused]


def test_images_larger_than_the_policy_lets_are_refused_before_any_is_decoded(
    refusal, fundus, tmp_path, monkeypatch, caplog
):
    done(fundus, "--policy", f"data_values={60 * 28 * 28}")
    monkeypatch.setattr(picture_cache, "read_picture", lambda *arguments: pytest.fail("a picture was decoded"))
    said = refusal("large", size=29)
    assert said == MANY_VALUES(float(60 * 28 * 28))
    assert "values" in said and str(60 * 29 * 29) not in said
    assert f"they are up to {60 * 29 * 29:,} values" in caplog.text  # in the site's own log
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
    monkeypatch.undo()
    monkeypatch.delenv(REHEARSAL, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert "disagree on what is shared" in refusal("right")
    # How many there are must not be found by jobs of one size after the other: each counts.
    assert [e["experiment"] for e in entries(fundus) if e["task"] == "open"] == ["large", "right"]


def test_data_that_lie_where_the_package_looks_count_too(refusal, fundus, tmp_path, monkeypatch):
    """In the environment's folder and not in the kit's list."""
    monkeypatch.setenv("MEDPFL_DATA", str(tmp_path))
    (tmp_path / "pictures").rename(tmp_path / "fundus")
    content = json.loads((fundus / "local" / "medpfl.json").read_text())
    (fundus / "local" / "medpfl.json").write_text(json.dumps(content | {"data": {}}))
    for name in "abc":
        assert refusal(name, classes=["normal", name]) == CANNOT
    assert refusal("d").endswith("which is the limit (experiments)")


@pytest.mark.parametrize("args", [{"patient": "^m"}, {"train_counts": {"a": [1, 2]}}])
def test_a_job_to_join_is_held_to_both_of_its_halves(args):
    fields = {"algorithm": "fedavg", "data": "fundus", "partition": "natural", "sites": 2}
    plain = make_config(**fields, data_args={"classes": ASKED})
    speaks = plain.model_copy(update={"data_args": plain.data_args | args})
    for contract in (Contract(plain, speaks), Contract(speaks, plain)):
        with pytest.raises(StateError, match=r"^policy: "):
            require_words(HOSPITAL, contract)
    require_words(HOSPITAL, Contract(plain, plain))
    assert Contract(plain, plain.model_copy(update={"data": "ours"})).opens == ("ours", "fundus")
