"""What `medpfl site review` says of a job, and what it refuses."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from kits import FEDAP, FEDAVG, done, mistake, site, write

from medpfl.algorithms.fedprox import Proximal
from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.engine.federation import Federation
from medpfl.flare.admin.review import review
from medpfl.flare.job.export import export_job
from medpfl.flare.job.folder import read_job
from medpfl.site.contract import Contract
from medpfl.site.policy import HOSPITAL, SitePolicy


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


def test_review_says_of_a_policy_that_takes_it_what_else_the_site_lacks(kit, tmp_path):
    fields = {"sites": 2, "names": ("south-hospital", "east-hospital"), "rounds": 2}
    own = {"data": "chest-ct", "data_args": {"classes": "ill,well"}, "partition": "natural"}
    job = export_job(make_config(algorithm="fedavg", **fields, **own), tmp_path / "job")
    text = site("review", job, "--kit", kit).output
    assert text.endswith(
        "this site's policy takes it\nbut it is not for this site, north-hospital\n"
        "but this site has no data that it calls 'chest-ct': it has none\n"
    )
    assert len(json.loads(site("review", job, "--kit", kit, "--json").output)["notes"]) == 2
    write(kit, "medpfl.json", {"data": {"chest-ct": "/data/ct"}})
    assert "it calls 'chest-ct'" not in site("review", job, "--kit", kit).output
    assert json.loads(site("review", FEDAP, "--kit", kit, "--json").output)["notes"] == []


def test_no_name_in_a_job_begins_a_line(tmp_path):
    job = export_job(make_config(algorithm="fedavg", sites=2, rounds=2), tmp_path / "job")
    meta = json.loads((job / "meta.json").read_text())
    meta["deploy_map"] = {"app": ["server", f"north\ncontract {64 * 'a'}"]}
    (job / "meta.json").write_text(json.dumps(meta))
    lines = site("review", job).output.splitlines()
    assert [line for line in lines if line.startswith("contract ")] == [f"contract {read_job(job).contract}"]
    assert f"for: north\\ncontract {64 * 'a'}" in lines


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


def test_review_refuses_a_job_of_which_a_site_would_read_another_run(tmp_path):
    """A method has rounds of its own where nobody names them, and whoever is sent a job does not ask it."""
    job = export_job(make_config(algorithm="vit-heads", sites=2, rounds=50), tmp_path / "job")
    assert review(job).contract.config.rounds == 50
    for file in job.glob("*/config/config_fed_*.json"):
        content = json.loads(file.read_text())
        at_site = [entry["executor"] for entry in content.get("executors", [])]
        for part in at_site + content.get("workflows", []):
            del part["args"]["run_config"]["rounds"]
        file.write_text(json.dumps(content))
    for reading in (review, read_job):
        with pytest.raises(UserError, match="so that a site would read another one"):
            reading(job)


@pytest.mark.parametrize(
    "text", ["{$HOME}", "x{$HOME[0]}", "{WORKSPACE}", "{@own:a=1}", "${secret:TOKEN}", "{executors}"]
)
def test_review_refuses_what_flare_fills_in_at_each_site(tmp_path, text):
    job = export_job(make_config(algorithm="fedavg", sites=2, rounds=2), tmp_path / "job")
    file = next(job.glob("*/config/config_fed_client.json"))
    content = json.loads(file.read_text())
    content["executors"][0]["executor"]["args"]["run_config"]["data"] = text
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match="which FLARE fills in at each site: no site takes such a job"):
        review(job)


@pytest.mark.parametrize("algorithm", ["fedavg", "local"])
def test_review_refuses_weights_that_nobody_approved(algorithm, tmp_path):
    """Also of a method that sends no update: its numbers tell of what they are taken under."""
    found = review(export_job(make_config(algorithm=algorithm, sites=2, rounds=2), tmp_path / "job"))
    policy = SitePolicy(approved_weights=True)
    assert found.refusals(policy) == []
    begins = found.contract.config.model_copy(update={"init": "sha256:" + 64 * "0"})
    brought = replace(found, contract=replace(found.contract, config=begins), public=False)
    assert [line.partition(" (")[0] for line in brought.refusals(policy)] == ["it brings weights"]


def test_review_says_on_whom_an_update_would_rest(tmp_path):
    settings = {"lr": 0.5, "weight_decay": 1.9}
    config = make_config(algorithm="fedavg", sites=2, rounds=2, settings=settings, augment="light", holdout=0.1)
    found = review(export_job(config, tmp_path / "job"))
    [wrong] = found.refusals(HOSPITAL)
    assert wrong.startswith("lr times weight_decay and mu is 0.01 at most here")
    assert found.refusals(SitePolicy()) == []
    left_out = "it leaves single images of patients out (holdout, train_counts)"
    assert left_out not in found.refusals(HOSPITAL)  # of a published set
    assert left_out in replace(found, public=False).refusals(HOSPITAL)
    assert replace(found, public=False, leaving=()).refusals(HOSPITAL) == []
    assert "training images are changed by: light" in list(found.lines(HOSPITAL))


def test_review_refuses_what_may_rest_on_few_patients(tmp_path):
    own = {"transforms": [{"_target_": "RandFlipd", "keys": "image", "prob": 0.5}]}
    balanced = {"class_weights": "balanced"}
    config = make_config(algorithm="fedavg", sites=2, rounds=2, settings=balanced, augment=own)
    found = review(export_job(config, tmp_path / "job"))
    assert found.refusals(HOSPITAL) == [
        "it changes training images by a list of transforms of its own (own_augmentation)"
    ]
    assert found.refusals(HOSPITAL.model_copy(update={"own_augmentation": True})) == []
    assert replace(found, leaving=()).refusals(HOSPITAL) == []
    dropping = {"init_features": 4, "growth_rate": 2, "block_config": [1, 1], "dropout_prob": 0.9}
    config = make_config(algorithm="fedavg", sites=2, rounds=2, model="monai:DenseNet", model_args=dropping)
    [said] = review(export_job(config, tmp_path / "dropping")).refusals(HOSPITAL)
    assert said.startswith("dropout is 0.5 at most here")
    [taken] = [line for line in found.lines(HOSPITAL) if line.startswith("taken only where")]
    assert taken.startswith("taken only where 20 patients or more, of each class,")
    assert "how many this site has" not in taken  # each image of a public set counts as a patient
    [taken] = [line for line in replace(found, public=False).lines(HOSPITAL) if line.startswith("taken only where")]
    assert taken.endswith("; how many this site has could not be told")
    counted = replace(found, patients={"train": 1200, "validation": 1, "test": 1}).lines(HOSPITAL)
    assert any(line.endswith("(policy: least_patients); this site has 1,200 to train on") for line in counted)


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


def test_review_names_others_code_that_the_site_does_not_allow(tmp_path, monkeypatch):
    """A method of another package: such a job is refused when it runs."""
    monkeypatch.setattr(Proximal, "__module__", "theirs.prox")
    job, local = export_job(make_config(algorithm="fedprox", sites=2, rounds=2), tmp_path / "job"), tmp_path / "local"
    found = review(job)
    assert "code of others that it names: method theirs.prox:Proximal" in list(found.lines(HOSPITAL))
    why = 'it names code of others, which is allowed by "code": ["theirs.prox"] in local/medpfl.json'
    assert found.refusals(HOSPITAL) == [why]
    assert found.to_json(HOSPITAL)["named_code"] == ["theirs.prox:Proximal"]
    local.mkdir()
    assert review(job, local=local).refusals(HOSPITAL) == [why]
    (local / "medpfl.json").write_text('{"code": ["theirs.prox"]}')
    assert review(job, local=local).refusals(HOSPITAL) == []
    module = job / "app" / "custom" / "theirs" / "prox.py"
    module.parent.mkdir(parents=True)
    module.touch()
    assert review(job).refusals(HOSPITAL) == ["it brings code (BYOC): app/custom/theirs/prox.py"]


def test_a_method_that_is_not_installed_at_the_site_is_said(tmp_path):
    job = export_job(make_config(algorithm="fedprox", sites=2, rounds=2), tmp_path / "job")
    for file in job.glob("*/config/*.json"):
        file.write_text(file.read_text().replace('"fedprox"', '"theirs"'))
    with pytest.raises(UserError, match=r"unknown algorithm 'theirs': .*one of another package is there where that is"):
        review(job)


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


def another_run(tmp_path, sent=None, **fields):
    """A copy of a job whose sites and server have other fields of the run, and a list of other tensors if given."""

    def change(content):
        content["executors"][0]["executor"]["args"]["run_config"].update(fields)
        if sent:
            content["task_result_filters"][0]["filters"][0]["args"]["allowed"] = sent

    job = changed(tmp_path, "app/config/config_fed_client.json", change)
    file = job / "app" / "config" / "config_fed_server.json"
    content = json.loads(file.read_text())
    content["workflows"][0]["args"]["run_config"].update(fields)
    file.write_text(json.dumps(content))
    return job


def test_review_says_who_decides_what_a_patient_is_and_whose_update_may_be_alone(tmp_path):
    found, usual = review(another_run(tmp_path, min_sites=1)), review(FEDAVG)
    assert found.contract.hash != usual.contract.hash
    for one, said in ((found, True), (usual, False)):
        assert any("a site's alone may reach the others as it is" in line for line in one.lines(HOSPITAL)) == said
    config = usual.contract.config.model_copy(update={"data_args": {"patient": "(.*)"}})
    says_whose = replace(usual, contract=replace(usual.contract, config=config))
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


def test_review_builds_a_network_that_the_site_permits(kit, tmp_path, monkeypatch):
    net = "from torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self, num_classes=11):\n"
    net += "        super().__init__()\n        self.fc = nn.Linear(784, num_classes)\n\n"
    net += "    def forward(self, x):\n        return self.fc(x.flatten(1))\n"
    (tmp_path / "reviewed_nets.py").write_text(net)
    monkeypatch.syspath_prepend(tmp_path)

    job = another_run(tmp_path, {"fc.weight": [11, 784], "fc.bias": [11]}, model="reviewed_nets:Net")
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


def test_review_says_how_many_of_the_sites_are_drawn(tmp_path):
    fields = {"algorithm": "fedavg", "sites": 20, "rounds": 8}
    job = export_job(make_config(**fields, participation=0.25), tmp_path / "job")
    text = site("review", job).output
    assert "a round needs updates of 3 of the 5 that are drawn of 20 sites\n" in text
    assert "leaves 8 times at most (train): the shared part of its model" in text
    assert "leaves 8 times at most (follow): measures on validation data, numbers alone" in text
    told = json.loads(site("review", job, "--json").output)
    assert (told["participation"], told["quorum"]) == (0.25, 3)
    every = export_job(make_config(**fields), tmp_path / "every")
    text = site("review", every).output
    assert "a round needs updates of 10 of 20 sites\n" in text
    assert "leaves 8 times (train)" in text
    assert "follow" not in text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sites": 20, "participation": 0.1}, "2 of the 2 that are drawn of 20 sites, and of two each can compute the"),
        ({"sites": 2}, "2 of 2 sites, and of two each can compute the other's\n"),
        ({"sites": 2, "algorithm": "local"}, "1 of 2 sites\n"),
        ({"sites": 3}, "2 of 3 sites\n"),
    ],
)
def test_review_says_that_of_two_each_can_compute_the_others(tmp_path, fields, words):
    job = export_job(make_config(**{"algorithm": "fedavg", "rounds": 2} | fields), tmp_path / "job")
    assert f"a round needs updates of {words}" in site("review", job).output
