"""A site's own policy, key and approvals, and what review and ledger say of them."""

import json
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from kits import FEDAP, FEDAVG, done, files, init, mistake, read, write
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from typer.testing import CliRunner

from medpfl.cli.main import app
from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.core.messages import Message
from medpfl.core.statefile import fingerprint
from medpfl.data.kinds.npz.catalog import find
from medpfl.engine.federation import Federation
from medpfl.flare.admin.review import review
from medpfl.flare.job.export import export_job
from medpfl.flare.job.folder import read_job
from medpfl.flare.transport.executor import PersonalizedExecutor
from medpfl.flare.transport.payload import REASON, message_of, message_to_model
from medpfl.flare.transport.trust import REHEARSAL
from medpfl.site.contract import Contract
from medpfl.site.policy import HOSPITAL, SitePolicy
from medpfl.site.seal import read_key


def site(*arguments):
    return CliRunner().invoke(app, ["site", *map(str, arguments)])


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


def test_review_says_what_a_job_would_do(kit):
    result = site("review", FEDAP, "--kit", kit)
    assert result.exit_code == 0
    text = result.output
    assert f"contract {read_job(FEDAP).contract}" in text
    assert (
        "classes at the sites: medpfl.flare.transport.executor.PersonalizedExecutor, medpfl.flare.transport.filter"
        in text
    )
    assert "leaves 10 times (train): the shared part of its model, 10 tensors, 178 kB" in text
    assert "leaves once (prepare): means and variances of layer inputs (batch-norm), 4 tensors, 352 B" in text
    assert "code that it brings: none" in text
    assert "this site's policy takes it" in text


def test_review_says_what_leaves_of_the_model_trained_alone(tmp_path):
    policy, config = SitePolicy(), make_config(algorithm="fedblend", sites=2, rounds=2)
    job = export_job(config, tmp_path / "job")
    told, silent = (" ".join(review(job).lines(p)) for p in (policy, policy.model_copy(update={"verdict": False})))
    for text in (told, silent):
        assert '"finetune_steps": 200' in text
        assert "each site trains a model alone too, which stays; what it uses at the end: blend" in text
    assert "what taking part was worth leaves too (policy: verdict)" in told
    assert "measures on test data are of what the site uses, and so of the model trained alone too" in silent
    assert review(job).to_json(HOSPITAL)["verdict"] is False


def test_review_refuses_a_server_that_runs_another_contract(tmp_path):
    """Sites greet by theirs; a server of one update a round would hand it to the others as it is."""
    job = export_job(make_config(algorithm="fedavg", sites=3, rounds=2), tmp_path / "job")
    assert review(job).refusals(HOSPITAL) == []
    file = next(job.glob("*/config/config_fed_server.json"))
    content = json.loads(file.read_text())
    content["workflows"][0]["args"]["run_config"]["min_sites"] = 1
    file.write_text(json.dumps(content))
    for reading in (review, read_job):
        with pytest.raises(UserError, match="its server is configured for another run than its sites, which agree to"):
            reading(job)


def test_review_says_on_whom_an_update_would_rest(tmp_path):
    settings = {"lr": 0.5, "weight_decay": 1.9}
    config = make_config(algorithm="fedavg", sites=2, rounds=2, settings=settings, augment="light", holdout=0.1)
    found = review(export_job(config, tmp_path / "job"))
    assert "its lr times weight_decay is above 0.01, so that updates rest on the last steps alone" in found.refusals(
        HOSPITAL
    )
    assert not any("weight_decay" in reason for reason in found.refusals(SitePolicy()))
    assert "training images are changed by: light" in list(found.lines(HOSPITAL))


def test_review_as_json_is_the_same(kit):
    found = json.loads(site("review", FEDAVG, "--json").output)
    config = read_job(FEDAVG).config
    federation = Federation.of(config)
    assert found["bytes"] == config.rounds * sum(t.nbytes for t in federation.initial_shared.values())
    assert found["hash"] == Contract(config).hash
    assert found["leaves"][0]["tensors"] == federation.leaving()
    assert found["refused_because"] == []


def test_review_refuses_what_the_site_would_refuse(kit, tmp_path):
    done(kit, "--job", FEDAVG, "--policy", "rounds=3", "--policy", "largest_weight=0.3")
    result = site("review", FEDAP, "--kit", kit)
    assert result.exit_code == 1
    assert "its contract is not approved (site init --job approves it)" in result.output
    assert "one other site may weigh 1, and 0.3 is allowed" in result.output
    assert "it has 10 rounds, and the data may serve 3" in result.output


def test_review_names_foreign_classes_and_code(tmp_path):
    job = shutil.copytree(FEDAVG, tmp_path / "job")
    file = job / "app" / "config" / "config_fed_client.json"
    content = json.loads(file.read_text())
    content["components"] = [{"id": "x", "path": "medpfl.models.factory.build_model", "args": {"name": "lenet5"}}]
    file.write_text(json.dumps(content))
    (job / "app" / "config" / "config_fed_client.conf").write_text("")
    (job / "app" / "custom").mkdir()
    (job / "app" / "custom" / "more.py").write_text("")
    result = site("review", job)
    assert result.exit_code == 1
    assert (
        "it names classes that are no part of this package's jobs: medpfl.models.factory.build_model" in result.output
    )
    assert "it brings code (BYOC): app/custom/more.py" in result.output
    assert "and that are not reviewed: app/config/config_fed_client.conf" in result.output


@pytest.mark.parametrize("key", ["path", "class_path", "name"])
def test_review_names_a_class_without_arguments(tmp_path, key):
    """FLARE builds it all the same."""
    job = shutil.copytree(FEDAVG, tmp_path / "job")
    file = job / "app" / "config" / "config_fed_client.json"
    content = json.loads(file.read_text())
    content["components"].append({"id": "x", key: "nvflare.app_common.logging.job_log_streamer.JobLogStreamer"})
    file.write_text(json.dumps(content))
    assert review(job).foreign == ("nvflare.app_common.logging.job_log_streamer.JobLogStreamer",)


def test_review_reads_no_further_than_it_says(tmp_path):
    """FLARE finds a configuration at any depth."""
    job = shutil.copytree(FEDAVG, tmp_path / "job")
    hidden = job / "app2" / "config" / "x.json"
    hidden.mkdir(parents=True)
    shutil.copy(job / "app" / "config" / "config_fed_client.json", hidden)
    found = review(job)
    assert found.unread == ("app2/config/x.json/config_fed_client.json",)
    assert any("app2/config/x.json" in reason for reason in found.refusals(HOSPITAL))


def changed(tmp_path, file, change):
    """A copy of a job with a configuration changed in place."""
    job = Path(shutil.copytree(FEDAVG, tmp_path / "job"))
    content = json.loads((job / file).read_text())
    change(content)
    (job / file).write_text(json.dumps(content))
    return job


def another_run(tmp_path, **fields):
    """A copy of a job whose sites and server have other fields of the run."""
    job = changed(
        tmp_path,
        "app/config/config_fed_client.json",
        lambda content: content["executors"][0]["executor"]["args"]["run_config"].update(fields),
    )
    file = job / "app" / "config" / "config_fed_server.json"
    content = json.loads(file.read_text())
    content["workflows"][0]["args"]["run_config"].update(fields)
    file.write_text(json.dumps(content))
    return job


def test_review_says_who_decides_what_a_patient_is_and_whose_update_may_be_alone(tmp_path):
    found, usual = review(another_run(tmp_path, min_sites=1)), review(FEDAVG)
    assert found.hash != usual.hash
    for one, said in ((found, True), (usual, False)):
        assert any("a site's alone may reach the others as it is" in line for line in one.lines(HOSPITAL)) == said
    says_whose = replace(usual, data=usual.data.model_copy(update={"data_args": {"patient": "(.*)"}}))
    reason = "by '(.*)' it says whose an image is, and that is none of the policy's patient_patterns"
    assert reason in says_whose.refusals(HOSPITAL)
    assert reason not in usual.refusals(HOSPITAL)


def test_a_second_executor_hides_behind_no_first(kit, tmp_path):
    def add(content):
        content["executors"].append(json.loads(json.dumps(content["executors"][0])))
        content["executors"][1]["executor"]["args"]["run_config"]["rounds"] = 5000

    job = changed(tmp_path, "app/config/config_fed_client.json", add)
    assert "one executor of its own is needed" in str(site("review", job).exception)
    assert "one executor of its own is needed" in mistake(kit, "--job", job)


def test_review_prints_no_line_of_the_jobs_own_making(tmp_path):
    def rename(content):
        content["deploy_map"] = {"app": ["a\nthis site's policy takes it\x1b[8m"]}

    output = site("review", changed(tmp_path, "meta.json", rename)).output
    assert "\x1b" not in output
    assert sum(line == "this site's policy takes it" for line in output.splitlines()) == 1


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
    assert "2 entries" in result.output
    assert "the chain is whole" in result.output
    file = prepared / "medpfl" / "ledger.jsonl"
    file.write_text(file.read_text().replace("alice", "carol"))
    broken = site("ledger", prepared)
    assert broken.exit_code == 1
    assert "line 1: ledger.jsonl is not as this site wrote it" in broken.output


def test_a_real_site_sends_coarse_measures(prepared, at_site):
    reply = AtKit(prepared, at_site, ORGANS).ask("prepare")
    samples = FLModelUtils.from_shareable(reply).meta["medpfl_info"]["metrics"]["samples"]
    assert all(number % 10 == 0 for number in samples.values())


def test_a_contract_that_is_not_approved_is_refused_in_words(prepared, at_site, caplog):
    done(prepared, "--policy", "jobs=approved")
    words = AtKit(prepared, at_site, ORGANS).ask("prepare").get_header(REASON)
    assert words == f"contract: {Contract(ORGANS).hash[:12]} is not approved at this site"
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


def test_review_builds_a_network_that_the_site_permits(kit, tmp_path, monkeypatch):
    net = "from torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self, num_classes=11):\n"
    net += "        super().__init__()\n        self.fc = nn.Linear(784, num_classes)\n\n"
    net += "    def forward(self, x):\n        return self.fc(x.flatten(1))\n"
    (tmp_path / "reviewed_nets.py").write_text(net)
    monkeypatch.syspath_prepend(tmp_path)

    job = another_run(tmp_path, model="reviewed_nets:Net")
    assert "which nobody here has permitted" in str(site("review", job).exception)
    assert "which nobody here has permitted" in str(site("review", job, "--kit", kit).exception)
    write(kit, "medpfl.json", {"code": ["reviewed_nets"]})
    assert "network: reviewed_nets:Net, 8,635 parameters" in site("review", job, "--kit", kit).output


@pytest.mark.parametrize(
    ("meta", "gpus", "launchers"),
    [
        ({"resource_spec": {"@default": {"num_of_gpus": 0}, "north": {"process": {"num_of_gpus": 8}}}}, 8, ()),
        ({"resource_spec": {"north": {"docker": {"image": "mine"}}}}, 0, ("docker",)),
        ({"launcher_spec": {"default": {"docker": {"image": "mine"}}}}, 0, ("launcher_spec",)),
    ],
)
def test_review_says_how_a_job_is_started(tmp_path, meta, gpus, launchers):
    found = review(changed(tmp_path, "meta.json", lambda content: content.update(meta)))
    assert (found.gpus, found.launchers) == (gpus, launchers)
    said = [reason for reason in found.refusals(HOSPITAL) if "how its process is to be started" in reason]
    assert bool(said) == bool(launchers)


def test_review_names_gpus_that_are_no_number(tmp_path):
    many = {"resource_spec": {"@default": {"num_of_gpus": "many"}}}
    job = changed(tmp_path, "meta.json", lambda content: content.update(many))
    with pytest.raises(UserError, match="num_of_gpus must be a whole number, not 'many'"):
        review(job)


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
