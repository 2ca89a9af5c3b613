"""A method and a network of an installed package of somebody else's, in every command and both engines."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_package"
OWN = "--model group-norm-cnn --model-arg width=4"
FEW = "--sites 2 --rounds 2 --train-fraction 0.1 --no-new-test"
SMALL = f"{FEW} --alone no"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Environment variables with which the example is an installed package."""
    source, target = (tmp_path_factory.mktemp(name) for name in ("source", "target"))
    shutil.copytree(EXAMPLE, source / "package")  # building writes beside the source
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    command = [*pip, "--no-build-isolation", "--target", str(target), str(source / "package")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(target), os.environ.get("PYTHONPATH")]))}


@pytest.fixture(scope="module")
def commands(installed):
    """Runs commands one after the other in one process, which saves the imports; returns what all of them print."""

    def call(*lines: str) -> str:
        code = "import json, sys\nfrom medpfl.cli.main import app\n"
        code += "for line in json.loads(sys.argv[1]):\n    app(line, standalone_mode=False)\n"
        command = [sys.executable, "-c", code, json.dumps([shlex.split(line) for line in lines])]
        done = subprocess.run(command, capture_output=True, text=True, env=installed | {"COLUMNS": "200"}, timeout=400)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return call


@pytest.mark.slow
def test_every_command_has_both(commands, tmp_path):
    said = commands(
        "algorithms",
        "algorithms l2-sp",
        "models",
        f"run l2-sp {OWN} {SMALL} --env inprocess --out {tmp_path}/run",
        f"run fedbn --set anchor=0.5 {SMALL} --env inprocess --out {tmp_path}/added",
        f"compare fedavg l2-sp:anchor=1,model=group-norm-cnn {FEW} --seeds 1 --out {tmp_path}/compare",
        f"export l2-sp {OWN} --sites 2 --job {tmp_path}/job",
        f"export class-means --sites 2 --job {tmp_path}/means",
    )
    assert "each sends 18 tensors and its class-means" in " ".join(said.split())
    assert "Li et al., ICML 2018" in said
    assert ["anchor", "0.1"] in [line.split()[:2] for line in said.splitlines()]
    assert "weight of the penalty on moving away from the first model" in said
    assert "own_package.group_norm_cnn:GroupNormCNN" in said
    assert "L2-SP: 0." in said
    run, added = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("run", "added"))
    assert run["choices"]["objective"] == "cross-entropy + 0.1/2 |psi - psi_first|^2"
    assert run["config"]["model"] == "group-norm-cnn"
    assert added["choices"]["objective"] == "cross-entropy + 0.5/2 |psi - psi_first|^2"
    assert "L2-SP" in (tmp_path / "compare" / "comparison.md").read_text()
    assert "own_package" not in "".join(str(file) for file in (tmp_path / "job").rglob("*"))  # it brings no code


def test_it_is_the_installed_package_that_brings_them(medpfl):
    assert "l2-sp" not in medpfl("algorithms").stdout


@pytest.mark.slow
def test_a_real_site_must_allow_its_modules(installed):
    done = subprocess.run([sys.executable, "-c", AT_A_SITE], capture_output=True, text=True, env=installed)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "the job names the model 'own_package.group_norm_cnn:GroupNormCNN', code that it does not bring" in lines[0]
    assert """it with "code": ["own_package.group_norm_cnn"] in local/medpfl.json""" in lines[0]
    assert "the job names the method 'own_package.l2_sp:l2-sp', code that it does not bring" in lines[1]
    assert "the job names the method 'own_package.l2_sp:StartingPoint'" in lines[2]
    assert lines[3:] == ["may", "may", "may", "may in a simulation"]


AT_A_SITE = """
import json, tempfile
from pathlib import Path
from types import SimpleNamespace
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.flare.transport.trust import check_job

root = Path(tempfile.mkdtemp())
workspace = SimpleNamespace(get_app_custom_dir=lambda job: str(root / "custom"), get_site_config_dir=lambda: str(root))
context = FLContext()
context.get_engine = lambda: SimpleNamespace(get_workspace=lambda: workspace)
jobs = [("fedavg", "group-norm-cnn", {}), ("l2-sp", "lenet5", {}), ("fedavg", "lenet5", {"anchor": 1})]
configs = [make_config(algorithm=a, model=m, settings=s, sites=2) for a, m, s in jobs]

def ask(config, may):
    try:
        check_job(config, None, context)
        print(may)
    except UserError as error:
        print(error)

for config in configs:
    ask(config, "may")
allowed = {"data": {}, "code": ["own_package.group_norm_cnn", "own_package.l2_sp"]}
(root / "medpfl.json").write_text(json.dumps(allowed))
for config in configs:
    ask(config, "may")
(root / "medpfl.json").write_text(json.dumps({"data": {}}))
context.set_prop(FLContextKey.SIMULATE_MODE, True, private=True, sticky=True)
ask(configs[1], "may in a simulation")
"""


@pytest.mark.slow
def test_its_own_tests_pass(installed):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, env=installed, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 passed" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("method", [f"l2-sp {OWN}", "class-means", "fedamp"], ids=["l2-sp", "class-means", "fedamp"])
def test_flares_simulator_gives_the_same(commands, tmp_path, method):
    commands(*(f"run {method} {SMALL} --env {env} --out {tmp_path}/{env} --track none" for env in ENGINES))
    here, there = (json.loads((tmp_path / env / "results.json").read_text()) for env in ENGINES)
    assert there["environment"]["env"] == "sim"
    assert not there["failures"]
    assert here["final"] == there["final"]
    here, there = (load_file(tmp_path / env / "models" / "site-2.safetensors") for env in ENGINES)
    assert here.keys() == there.keys()
    assert all(here[name].equal(there[name]) for name in here)


@pytest.mark.slow
def test_functions_of_a_program_go_into_flares_simulator(tmp_path):
    (tmp_path / "ward.py").write_text(WARD)
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["sim finished []", "Linear(in_features=16, out_features=2, bias=True)"]


ENGINES = ("inprocess", "sim")
WARD = """
import torch
from medpfl import ImageTensors

def ward(site, seed):
    parts = ("train", "validation", "test")
    images, labels = torch.rand(8, 1, 4, 4), torch.arange(8) % 2
    return ImageTensors(images=dict.fromkeys(parts, images), labels=dict.fromkeys(parts, labels))

class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(16, 2))
"""
PROGRAM = """
import medpfl
from ward import Net, ward

run = medpfl.run("fedavg", data=ward, model=Net, sites=2, rounds=1, env="sim")
print(run.results["environment"]["env"], run.results["status"], run.results["failures"])
print(run.models["site-1"][1])
"""
