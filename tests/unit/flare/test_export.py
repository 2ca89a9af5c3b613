"""What a job carries of data that do not travel."""

import json
import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.spec import ExecEnv
from tiny import no_space
from typer.testing import CliRunner

from medpfl.cli.main import app
from medpfl.cli.options import Options
from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.data.kinds.scans.manifest import open_manifest
from medpfl.data.sites import open_source
from medpfl.flare.job.export import export_job
from medpfl.flare.job.recipes import PersonalizedRecipe
from medpfl.flare.launch.poc import start_kit
from medpfl.flare.transport.trust import REHEARSAL
from medpfl.runs.real_sites import run_in_production

TABLE = "series,label\na,ill\nb,well\n"
SMALL_VIT = {"hidden_size": 12, "mlp_dim": 12, "num_layers": 1, "patch_size": 8}


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("MEDPFL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def scans(folder, **manifest):
    folder.mkdir(parents=True)
    (folder / "labels.csv").write_text(TABLE)
    if manifest:
        centre = {"name": "a", "kind": "dicom", "folder": ".", "labels": "labels.csv"}
        content = {"schema": 1, "classes": ["ill", "well"], "centres": [centre], **manifest}
        (folder / "manifest.json").write_text(json.dumps(content))
    return folder


def config(data, **fields):
    defaults = {"model_args": SMALL_VIT, "partition": "natural", "sites": 3}
    return make_config(**{"algorithm": "vit-heads", "data": str(data)} | defaults | fields)


def carried(job):
    """Data and arguments as the server and the sites read them."""
    found = []
    for side in ("server", "client"):
        text = (job / "app" / "config" / f"config_fed_{side}.json").read_text()
        found += [_run(json.loads(text))]
    assert found[0] == found[1]
    return found[0]


def _run(content):
    if isinstance(content, dict):
        if "data_args" in content:
            return content["data"], content["data_args"]
        content = list(content.values())
    return next(filter(None, map(_run, content)), None) if isinstance(content, list) else None


def test_scans_that_are_found_by_name_come_with_their_classes(home):
    scans(home / "data" / "chestx", name="another")
    options = Options(data="chestx", sites=3, model_args=[f"{k}={v}" for k, v in SMALL_VIT.items()])
    job = export_job(options.config("vit-heads"), home / "job")
    assert carried(job) == ("chestx", {"classes": ["ill", "well"]})


def test_scans_of_a_path_get_their_manifests_name(home):
    folder = scans(home / "somewhere", name="chest-ct")
    for path in (folder, folder / "manifest.json"):
        assert carried(export_job(config(path), home / "job")) == ("chest-ct", {"classes": ["ill", "well"]})
    assert carried(export_job(config(scans(home / "plain")), home / "job"))[0] == "plain"


def test_scans_that_are_not_here_are_named_by_the_user(home):
    job = export_job(config("chest-ct", data_args={"classes": ["a", "b"], "size": 32}), home / "job")
    assert carried(job) == ("chest-ct", {"classes": ["a", "b"], "size": 32})


@pytest.mark.parametrize("name", [" ", "..", "a/b", "a\\b", "a:b", "ct.json"])
def test_a_name_that_no_site_can_look_for(home, name):
    folder = scans(home / "somewhere", name=name)
    assert open_manifest(folder).name == name
    with pytest.raises(UserError, match=r"sites cannot look for .* in .MEDPFL_DATA: give the manifest a"):
        export_job(config(folder), home / "job")
    assert not (home / "job").exists()


def test_a_path_to_nothing_is_no_name(home):
    with pytest.raises(UserError, match="sites cannot look for"):
        export_job(config("no/such/folder", data_args={"classes": ["a", "b"]}), home / "job")


@pytest.mark.parametrize("classes", [("well", "ill"), ("ill", "dead", "well")])
def test_a_hospitals_folder_without_a_manifest_has_the_jobs_classes_in_the_jobs_order(home, classes):
    folder = scans(home / "north")
    job = config("chest", data_args={"classes": list(classes)})
    assert open_source(job, folder).manifest.classes == classes
    assert open_source(job, folder).manifest.root == folder


def test_other_classes_than_the_scans_have(home):
    scans(home / "data" / "chestx")
    with pytest.raises(UserError, match="its classes are ill, well, the job's are a, b"):
        export_job(config("chestx", data_args={"classes": ["a", "b"]}), home / "job")


@pytest.mark.parametrize("fields", [{"held_out": 1}, {"held_out": "a"}])
def test_held_out_centres_are_for_simulations(home, fields):
    with pytest.raises(UserError, match=r"--held-out .: only a simulation can test held-out centres"):
        export_job(config(scans(home / "somewhere"), **fields), home / "job")
    images = make_config(algorithm="fedavg", sites=2, held_out=1)
    with pytest.raises(UserError, match="only a simulation"):
        export_job(images, home / "job")


class Submission(ExecEnv):
    """Keeps what FLARE's environment for a real federation would submit."""

    def deploy(self, job):
        with TemporaryDirectory() as folder:
            job.export_job(folder)
            self.meta = json.loads((Path(folder) / job.name / "meta.json").read_text())
        return "1"

    def get_job_status(self, job_id):
        raise NotImplementedError

    abort_job = get_job_result = get_job_status


@pytest.mark.parametrize(("names", "targets"), [((), ["@ALL"]), (("north", "south"), ["server", "north", "south"])])
def test_a_job_for_named_sites_goes_to_these_alone(tmp_path, names, targets):
    job = make_config(algorithm="fedavg", sites=2, names=names)
    exported = json.loads((export_job(job, tmp_path / "job") / "meta.json").read_text())
    executed = Submission()
    PersonalizedRecipe(job).execute(executed)
    for meta in (exported, executed.meta):
        assert list(meta["deploy_map"].values()) == [targets]
        assert meta["min_clients"] == 2


def test_what_a_simulations_children_may_do_those_that_come_later_may_not(tmp_path, monkeypatch):
    """A kit that the same process starts afterwards would come up as a rehearsal, without seal and ledger."""
    monkeypatch.delenv(REHEARSAL, raising=False)
    during = []

    class Simulation(SimEnv):
        def deploy(self, job):
            during.append(os.environ.get(REHEARSAL))
            if self.num_clients == 2:
                raise UserError("it could not begin")
            return "1"

    job = make_config(algorithm="fedavg", sites=3)
    PersonalizedRecipe(job).execute(Simulation(num_clients=3, workspace_root=str(tmp_path)))
    with pytest.raises(UserError, match="could not begin"):
        PersonalizedRecipe(job).execute(Simulation(num_clients=2, workspace_root=str(tmp_path)))
    assert during == ["1", "1"] and REHEARSAL not in os.environ


def test_a_kit_is_a_rehearsals_only_if_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv(REHEARSAL, "1")
    begun = []
    monkeypatch.setattr(subprocess, "Popen", lambda *_, env, **__: begun.append(env.get(REHEARSAL)))
    start_kit(tmp_path, {})
    start_kit(tmp_path, {REHEARSAL: "1"})
    assert begun == [None, "1"]


SITES_OWN = [
    {"data": "chest-ct", "data_args": {"classes": ["a", "b"]}},
    {"data": "eyes", "data_args": {"classes": ["a", "b"], "channels": "rgb"}},
    {"data": "eyes", "data_args": {"classes": ["a", "b"], "channels": "rgb"}, "official": True},
    {"data": "bloodmnist"},
    {"data": "own_model:hospital"},
]


@pytest.mark.parametrize("fields", SITES_OWN)
@pytest.mark.parametrize("algorithm", ["fedap", "d-fedap"])
def test_no_job_that_would_pretrain_on_sites_own_data(home, algorithm, fields):
    own = make_config(algorithm=algorithm, sites=2, partition="natural", **fields)
    words = (
        rf"{algorithm} needs a pretrained model f, .* --set pretrain=PATH, .* server .* needs none .*similarity-running"
    )
    with pytest.raises(UserError, match=words):
        export_job(own, home / "job")
    with pytest.raises(UserError, match=words):
        run_in_production(own, home / "run", kit=home / "kit")
    assert list(home.iterdir()) == []


def test_with_a_model_f_or_without_need_of_one_sites_own_data_do(home):
    own = {"sites": 2, "partition": "natural", **SITES_OWN[0]}
    export_job(make_config(algorithm="fedap", settings={"pretrain": "/srv/f.pt"}, **own), home / "given")
    export_job(make_config(algorithm="f-fedap", **own), home / "none")
    export_job(make_config(algorithm="fedap", mixing="uniform", **own), home / "uniform")


def test_data_that_nothing_is_known_of(home):
    with pytest.raises(
        UserError, match=r"chest-ct: there is no file or folder of that name, .*CT scans .* classes=A,B, .*channels=rgb"
    ):
        export_job(make_config(algorithm="fedbn", data="chest-ct", sites=2), home / "job")


def said(*arguments):
    done = CliRunner().invoke(app, ["export", *map(str, arguments)])
    assert done.exit_code == 0, done.output + repr(done.exception)
    return done.output.splitlines()


def test_what_export_made_is_said(home):
    job = home / "job"
    scans_there = ["--data", "chest-ct", "--data-arg", "classes=no emphysema,emphysema", "--sites", "north,south"]
    assert said("fedbn", *scans_there, "--job", job) == [
        f"Job: {job}",
        "Data: each site's own CT scans 'chest-ct', classes 0 no emphysema, 1 emphysema",
        "Sites: north, south; each sends 10 tensors",
    ]
    assert said("fedap", "--sites", 4, "--min-sites", 3, "--job", job)[2:] == [
        "Sites: all that are connected (3 needed); each sends 10 tensors and its statistics",
        "Replaced the job that was there.",
    ]
    elsewhere = said("fedap", *scans_there, "--set", "pretrain=/srv/f.pt", "--job", home / "f")
    assert "its file is not on this machine, so the job has no fingerprint of it" in elsewhere[-1]
    named = said(
        "fedap", *scans_there, "--set", "pretrain=/srv/f.pt", "--pretrained", f"sha256:{64 * 'a'}", "--job", home / "g"
    )
    assert len(named) == 3
    pictures = ["--data-arg", "classes=a,b", "--data-arg", "channels=grey", "--sites", 2]
    assert "own pictures 'eyes', classes 0 a, 1 b" in said("local", "--data", "eyes", *pictures, "--job", job)[1]
    assert (
        "own images in npz files 'bloodmnist'"
        in said("fedbn", "--data", "bloodmnist", "--partition", "natural", "--sites", 2, "--job", job)[1]
    )


def test_a_recipe_learns_what_its_data_say():
    recipe = PersonalizedRecipe(algorithm="fedbn", data="sarcoma-sample", sites=3)
    assert (recipe.config.task, recipe.config.model) == ("segmentation", "unet")


def test_a_job_carries_the_sample_that_it_names_and_no_other(tmp_path):
    config = make_config(algorithm="fedbn", data="sarcoma-sample", task="segmentation", partition="natural", sites=3)
    job = export_job(config, tmp_path / "job", byoc=True)
    assert [file.name for file in job.rglob("*.npz")] == ["sarcoma-mr-sample.npz"]


def test_a_job_for_which_there_is_no_room_is_named_and_an_earlier_one_stays(tmp_path):
    run = make_config(algorithm="fedavg", sites=2)
    before = export_job(run, tmp_path / "job")
    was = (before / "meta.json").read_bytes()
    for job in (before, tmp_path / "new"):
        with no_space(left=1000), pytest.raises(UserError, match=rf"--job {job}: cannot be written: File too large$"):
            export_job(run, job)
    assert list(tmp_path.iterdir()) == [before]
    assert (before / "meta.json").read_bytes() == was


def _of_a_session():
    """A function that no file has, as one typed into a session or a notebook."""
    session = {"__name__": "session"}
    exec("def hospital(site, seed): ...", session)
    return session["hospital"]


@pytest.mark.parametrize("code", [_of_a_session(), len])
def test_code_that_no_file_has_cannot_be_sent_and_is_named(code):
    with pytest.raises(UserError, match=rf"{code.__name__} cannot be sent to the sites: no file has it"):
        PersonalizedRecipe(algorithm="fedavg", data=code, sites=2)
