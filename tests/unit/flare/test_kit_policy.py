"""A site's own policy, key and approvals, and what the ledger says of them."""

import json
import os
import stat
from pathlib import Path

import pytest
from kits import FEDAP, FEDAVG, done, files, init, mistake, read, site, write
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from typer.testing import CliRunner

from medpfl.cli.main import app
from medpfl.core.errors import UserError
from medpfl.core.messages import Message
from medpfl.core.statefile import fingerprint
from medpfl.data.kinds.npz.catalog import find
from medpfl.engine.federation import Federation
from medpfl.flare.job.folder import read_job
from medpfl.flare.transport.executor import PersonalizedExecutor
from medpfl.flare.transport.payload import REASON, message_of, message_to_model
from medpfl.flare.transport.trust import REHEARSAL
from medpfl.site.contract import Contract
from medpfl.site.ledger import open_ledger
from medpfl.site.seal import read_key


def test_a_kit_gets_a_key_once(kit):
    assert "medpfl.key: the key that seals state, models and ledger: none -> a new one" in done(kit)
    key = read_key(kit / "local")
    assert stat.S_IMODE((kit / "local" / "medpfl.key").stat().st_mode) == 0o600
    assert "Nothing to change." in done(kit)
    assert read_key(kit / "local") == key


def test_a_dry_run_makes_no_key(kit):
    init(kit, "--dry-run")
    assert read_key(kit / "local") is None


def test_a_field_of_the_policy_is_set_and_said(kit):
    output = done(kit, "--policy", "least_patients=30", "--policy", "measures=none")
    assert "policy, least_patients: 20 (default) -> 30" in output
    assert 'policy, measures: "coarse" (default) -> "none"' in output
    assert read(kit, "medpfl.json")["policy"] == {"least_patients": 30, "measures": "none"}
    again = done(kit, "--policy", "least_patients=30")
    assert "Nothing to change." in again
    assert "no update of fewer than 30 training patients will leave" in again
    assert "training patients" not in done(kit, "--policy", "least_patients=0")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("least_patient=30", "give NAME=VALUE with a name of: measures, verdict, least_patients"),
        ("least_patients", "give NAME=VALUE"),
        ("least_patients=-1", "policy, least_patients: Input should be greater than or equal to 0 (got -1)"),
        ("data_values=-1", "policy, data_values: Input should be greater than or equal to 0 (got -1)"),
        ("data_values=lots", "policy, data_values: Input should be a valid integer"),
        ("measures=some", "policy, measures: Input should be 'full', 'coarse' or 'none'"),
    ],
)
def test_a_wrong_policy_is_refused_in_words(kit, said, words):
    before = files(kit)
    assert words in mistake(kit, "--policy", said)
    assert files(kit) == before


def test_a_policy_that_is_none_is_refused(kit):
    write(kit, "medpfl.json", {"policy": 3})
    assert "policy must be an object" in mistake(kit)


def test_a_job_is_approved_with_its_contract_and_no_other_is_taken(kit):
    done(kit, "--job", FEDAP)
    contract = read_job(FEDAP).contract
    assert read(kit, "medpfl.json")["policy"] == {"approved": [contract], "jobs": "approved"}
    init(kit, "--job", FEDAVG)
    assert read(kit, "medpfl.json")["policy"]["approved"] == [contract, read_job(FEDAVG).contract]


@pytest.mark.parametrize("round_", ["\n7 ", 1.5, True, None, 10**400, -1])
def test_a_round_that_is_no_number_is_not_read(round_):
    model = message_to_model(Message("train", 1), 1)
    model.current_round = round_
    # What FLARE's own message refuses (a text, a fraction) does not even come to us.
    with pytest.raises((ValueError, TypeError)):
        message_of("train", FLModelUtils.to_shareable(model))


class AtKit:
    """A kit's site, asked as FLARE asks it, by a job of somebody's."""

    def __init__(self, kit, at_site, config, submitter="alice"):
        self.executor = PersonalizedExecutor(config.model_dump(mode="json"), "first")
        self.federation = Federation.of(config, find("organamnist-sample"))
        self.context = at_site(kit)
        meta = {"submitter_name": submitter, "submitter_org": "hospital"}
        self.context.set_prop(FLContextKey.JOB_META, meta, private=True)

    def ask(self, task, round_=0, **info):
        tensors = {} if task == "prepare" else self.federation.initial_shared
        info |= {"split": self.federation.split.description()} if task == "prepare" else {}
        sent = FLModelUtils.to_shareable(message_to_model(Message(task, round_, tensors, info), 1))
        return self.executor.execute(task, sent, self.context, Signal())


@pytest.fixture
def real(monkeypatch):
    monkeypatch.delenv(REHEARSAL, raising=False)


@pytest.fixture
def prepared(kit, real, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done(kit, "--data", f"organs={find('organamnist-sample')}")
    return kit


ORGANS = read_job(FEDAVG).config.model_copy(
    update={"data": "organs", "names": ("north-hospital", "b"), "sites": 2, "rounds": 2}
)


def test_a_real_site_seals_its_state_and_keeps_a_ledger(prepared, at_site):
    there = AtKit(prepared, at_site, ORGANS)
    for task, round_ in (("prepare", 0), ("train", 1)):
        reply = there.ask(task, round_)
        assert reply.get_return_code() == ReturnCode.OK, reply.get_header(REASON)
    folder = prepared / "medpfl" / "first" / "north-hospital"
    assert {stat.S_IMODE(p.stat().st_mode) for p in (folder, folder.parent, folder.parent.parent)} == {0o700}
    assert {stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()} == {0o600}
    assert "seal" in json.loads((folder / "contract.json").read_text())
    result = site("ledger", prepared)
    assert result.exit_code == 0
    assert "organs  train 1  18 tensors, 180 kB" in result.output
    assert "alice/hospital" in result.output
    assert "  experiment first" in result.output
    assert "organs  open 0  the data are opened" in result.output
    assert "3 entries" in result.output
    assert "the chain is whole" in result.output
    assert "organs: later runs train on the same patients as earlier ones (of " in result.output
    file = prepared / "medpfl" / "ledger.jsonl"
    file.write_text(file.read_text().replace("alice", "carol"))
    broken = site("ledger", prepared)
    assert broken.exit_code == 1
    assert "line 1: ledger.jsonl is not as this site wrote it" in broken.output


def test_no_name_of_a_job_is_a_line_of_the_ledgers(prepared):
    run = {"contract": "c", "experiment": "e", "run": 1, "task": "open", "round": 0, "job": "j", "submitter": "mallory"}
    line = "x\n2030-01-01  organs  train 1"
    for name in ("data", "submitter"):
        open_ledger(prepared / "medpfl", read_key(prepared / "local")).open({"data": "d"} | run | {name: line}, most=0)
    shown = site("ledger", prepared).output.splitlines()
    assert len(shown) == 3 and shown[-1].startswith("2 entries")
    assert all("x 2030-01-01 organs train 1" in line for line in shown[:2])


@pytest.mark.slow
def test_a_real_site_may_forget_whom_earlier_runs_trained_on(prepared, at_site):
    asked = AtKit(prepared, at_site, ORGANS)
    for task, round_ in (("prepare", 0), ("train", 1)):
        assert asked.ask(task, round_).get_return_code() == ReturnCode.OK
    unknown = site("ledger", prepared, "--forget", "organ")
    assert unknown.exit_code == 1
    assert "organ: no training patients of earlier runs are kept; there are sets of organs" in unknown.output
    assert "organs: later runs" in site("ledger", prepared).output
    told = site("ledger", prepared, "--forget", "organs").output
    assert "organs: forgotten on whom 1 earlier series of runs trained" in told and "later runs" not in told
    assert "later runs" not in site("ledger", prepared).output


def test_a_real_site_sends_coarse_measures(prepared, at_site):
    reply = AtKit(prepared, at_site, ORGANS).ask("prepare")
    samples = FLModelUtils.from_shareable(reply).meta["medpfl_info"]["metrics"]["samples"]
    assert all(number % 10 == 0 for number in samples.values())


def test_a_contract_that_is_not_approved_is_refused_in_words(prepared, at_site, caplog):
    done(prepared, "--policy", "jobs=approved")
    words = AtKit(prepared, at_site, ORGANS).ask("prepare").get_header(REASON)
    said = f"contract: {Contract(ORGANS).hash[:12]} is not approved at this site"
    assert words == f"{said} (there: medpfl site init KIT --job JOB)"
    done(prepared, "--policy", f'approved=["{Contract(ORGANS).hash}"]')
    assert AtKit(prepared, at_site, ORGANS).ask("prepare").get_return_code() == ReturnCode.OK


def test_anothers_job_is_refused_at_a_real_site(prepared, at_site):
    there = AtKit(prepared, at_site, ORGANS)
    there.ask("prepare")
    there.ask("train", 1)
    words = AtKit(prepared, at_site, ORGANS, "mallory").ask("prepare").get_header(REASON)
    assert words == "contract: the experiment belongs to another submitter here; choose another name"


def test_a_damaged_policy_lets_nothing_out(prepared, at_site, caplog):
    write(prepared, "medpfl.json", read(prepared, "medpfl.json") | {"policy": {"measures": "all"}})
    words = AtKit(prepared, at_site, ORGANS).ask("prepare").get_header(REASON)
    assert words == "the site cannot begin: UserError (its log says more)"
    assert "policy, measures" in caplog.text


def test_encrypted_state_cannot_be_read_without_the_key(prepared, at_site):
    done(prepared, "--policy", "encrypted=true")
    there = AtKit(prepared, at_site, ORGANS)
    there.ask("prepare")
    assert there.ask("train", 1).get_return_code() == ReturnCode.OK
    files_ = list((prepared / "medpfl" / "first" / "north-hospital").glob("*.safetensors"))
    assert files_
    assert not [file for file in files_ if b"conv1" in file.read_bytes()]


def test_an_export_names_the_pretrained_model_by_its_fingerprint(tmp_path):
    from safetensors.torch import save_file

    config = read_job(FEDAP).config
    f = Federation.of(config).model().state_dict()
    save_file(f, tmp_path / "f.safetensors")
    said = ["export", "fedap", "--sites", "2", "--job", tmp_path / "job", "--set", f"pretrain={tmp_path}/f.safetensors"]
    result = CliRunner().invoke(app, [*map(str, said)])
    assert result.exit_code == 0, result.output
    assert read_job(tmp_path / "job").config.pretrained == f"sha256:{fingerprint(f)}"


def test_a_network_beyond_the_sites_limits_is_refused_in_words(prepared, at_site):
    done(prepared, "--policy", "network_parameters=1000")
    words = AtKit(prepared, at_site, ORGANS).ask("prepare").get_header(REASON)
    assert words.startswith("policy: the network has ")
    assert words.endswith(" parameters or more, 1e+03 is the limit (network_parameters)")
    done(prepared, "--policy", "network_parameters=44700")
    assert AtKit(prepared, at_site, ORGANS).ask("prepare").get_return_code() == ReturnCode.OK


def test_review_builds_no_network_that_the_site_would_not(prepared):
    done(prepared, "--policy", "network_operations=1000")
    refused = site("review", FEDAVG, "--kit", prepared)
    assert isinstance(refused.exception, UserError)
    assert "operations or more, 1e+03 is the limit (network_operations)" in str(refused.exception)


def test_a_private_file_is_never_open(kit, monkeypatch):
    done(kit, "--policy", "rounds=6")
    (kit / "local" / "medpfl.json").chmod(0o600)
    modes, replace = [], os.replace

    def replaced(new, old):
        modes.append((Path(old).name, stat.S_IMODE(Path(new).stat().st_mode)))
        replace(new, old)

    monkeypatch.setattr(os, "replace", replaced)
    done(kit, "--policy", "rounds=7")
    assert ("medpfl.json", 0o600) in modes
