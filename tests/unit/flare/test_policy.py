"""A site asks its own policy and its own manifest before it trains."""

import json

import pytest
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from medpfl.config.run import make_config
from medpfl.core.server_state import ServerState
from medpfl.data.kinds.npz.catalog import find
from medpfl.engine.federation import Federation
from medpfl.flare.job.classes import FILTER
from medpfl.flare.transport.executor import PersonalizedExecutor
from medpfl.flare.transport.filter import AllowListFilter
from medpfl.flare.transport.payload import REASON, message_to_model
from medpfl.server.rounds import messages

SHARED = ["conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias"]
SHARED += [f"fc{k}.{what}" for k in (1, 2, 3) for what in ("weight", "bias")]


def config(algorithm, **fields):
    own = {"data": "organs", "partition": "natural", "data_args": ORGANS, "names": ("north-hospital", "south")}
    return make_config(algorithm=algorithm, sites=2, train_fraction=0.1, device="cpu", **own | fields)


ORGANS = {"classes": [str(k) for k in range(11)], "size": 28, "channels": "grey"}


def policy(folder, allowed):
    scope = {"name": "own", "task_result_filters": [{"path": FILTER, "args": {"allowed": allowed}}]}
    (folder / "local").mkdir(exist_ok=True)
    (folder / "local" / "privacy.json").write_text(json.dumps({"scopes": [scope], "default_scope": "own"}))


def data(folder, path):
    (folder / "local").mkdir(exist_ok=True)
    (folder / "local" / "medpfl.json").write_text(json.dumps({"data": {"organs": str(path)}}))


def prepare(config, context):
    """The site's answer to the server's first message."""
    plan = Federation.of(config).plan(pretraining=False)
    message = messages(plan, ServerState())["north-hospital"]
    executor = PersonalizedExecutor(config.model_dump(mode="json"))
    return executor.execute("prepare", FLModelUtils.to_shareable(message_to_model(message, 1)), context, Signal())


@pytest.mark.parametrize(
    ("algorithm", "allowed", "said"),
    [
        ("fedavg", SHARED, "'bn1.weight' and 7 more to leave, which fedavg sends"),
        ("fedbn", [name for name in SHARED if name != "fc3.bias"], "'fc3.bias' to leave, which fedbn sends"),
        ("f-fedap", SHARED, "'statistics/bn1/mean' and 3 more to leave"),
        ("fedbn", dict.fromkeys(SHARED) | {"conv1.weight": [3, 1, 5, 5]}, "'conv1.weight' to leave"),
    ],
)
def test_a_job_that_the_policy_forbids_is_refused_before_anything_is_read(tmp_path, at_site, algorithm, allowed, said):
    policy(tmp_path, allowed)
    data(tmp_path, tmp_path / "not-there.npz")
    reply = prepare(config(algorithm), at_site(tmp_path))
    assert reply.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert reply.get_header(REASON).startswith(f"site policy forbids {said}")
    assert not any(file.is_dir() for file in (tmp_path / "medpfl").iterdir())  # but the ledger, nothing


@pytest.mark.parametrize("allowed", [SHARED, None])
def test_a_job_that_the_policy_allows_begins_with_the_sites_own_data(tmp_path, at_site, allowed):
    policy(tmp_path, allowed)
    data(tmp_path, find("organamnist-sample"))
    context = at_site(tmp_path)
    reply = prepare(config("fedbn"), context)
    assert reply.get_return_code() == ReturnCode.OK, reply.get_header(REASON)
    samples = FLModelUtils.from_shareable(reply).meta["medpfl_info"]["metrics"]["samples"]
    assert samples == {"train": 190, "validation": 380, "test": 1520}
    AllowListFilter(allowed).process(reply, context)


@pytest.mark.parametrize("names", [["statistics/"], ["statistics/bn1/mean", "statistics/bn1/variance"]])
def test_statistics_by_prefix_or_by_name_let_a_job_begin(names):
    assert AllowListFilter(names).refuses({"statistics/": None}) == []


def test_data_that_are_not_as_the_job_says_stay_in_the_sites_own_log(tmp_path, at_site, caplog):
    data(tmp_path, find("organamnist-sample"))
    reply = prepare(config("fedbn", data_args=ORGANS | {"classes": ["a", "b"]}), at_site(tmp_path))
    assert reply.get_header(REASON) == "the site cannot begin: UserError (its log says more)"
    assert "organamnist-sample.npz: has the label 10; the job 'organs' has 2 classes" in caplog.text


def test_a_manifest_that_is_no_manifest_stays_in_the_sites_own_log(tmp_path, at_site, caplog):
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "medpfl.json").write_text('{"data": 3}')
    reply = PersonalizedExecutor(config("fedbn").model_dump(mode="json")).execute(
        "train", Shareable(), at_site(tmp_path), Signal()
    )
    assert reply.get_header(REASON) == "the site cannot begin: UserError (its log says more)"
    assert "medpfl.json: data must say where" in caplog.text
