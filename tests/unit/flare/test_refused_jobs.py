"""Jobs that a real site refuses: by how it refuses they must not read its data."""

import json

import numpy as np
import pytest
from kits import done, site
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from PIL import Image

from medpfl.config.run import make_config
from medpfl.core.messages import Message
from medpfl.flare.transport.executor import PersonalizedExecutor
from medpfl.flare.transport.payload import REASON, message_to_model
from medpfl.flare.transport.trust import REHEARSAL

ASKED = ["normal", "glaucoma"]
CANNOT = "the site cannot begin: UserError (its log says more)"
WHOSE = "policy: whose an image is, is not the job's to say here: its 'patient' is none of patient_patterns"
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
    def ask(experiment="first", algorithm="fedavg", **data_args):
        names = {"sites": 2, "names": ("north-hospital", "b"), "partition": "natural"}
        args = {"classes": ASKED, "size": 28, "channels": "grey"} | data_args
        config = make_config(algorithm=algorithm, data="fundus", rounds=2, data_args=args, **names)
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


def test_what_the_data_refuse_is_an_experiment(refusal, fundus):
    """A class that one picture has, say, makes a job fail that does not name it."""
    for experiment, asked in (("a", ["normal", "c"]), ("b", ["c", "glaucoma"])):
        assert refusal(experiment, classes=asked) == CANNOT
        assert refusal(experiment, classes=asked) == CANNOT  # says nothing new, and counts once
    said = [(e["experiment"], e["task"], e["refused"], e["bytes"]) for e in entries(fundus)]
    assert said == [("a", "begin", "UserError", 0), ("b", "begin", "UserError", 0)]
    assert "begin 0  refused: UserError" in site("ledger", fundus).output
    assert "disagree on what is shared" in refusal("c")
    assert refusal("d") == "policy: the data have served 3 experiments, which is the limit (experiments)"
    assert refusal("e", classes=["f", "g"]).endswith("which is the limit (experiments)")
    assert len(entries(fundus)) == 3


def test_what_a_policy_refuses_because_of_the_data_is_an_experiment(refusal, fundus):
    done(fundus, "--policy", "least_patients=50")
    assert refusal("a").startswith("policy: no update or statistics of fewer than 50 training patients leave")
    (entry,) = entries(fundus)
    assert (entry["task"], entry["refused"][:25]) == ("prepare", "policy: no update or stat")
