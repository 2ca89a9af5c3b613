"""The built wheel, in an environment of its own and without the checkout, runs the demo's command."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=550, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    run(*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    [wheel] = folder.glob("medpfl-*.whl")
    run(sys.executable, "-m", "venv", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    install = [python, *pip[1:], "install", "--constraint", ROOT / "constraints.txt"]
    run(*install, "torch")
    run(*install, wheel)
    return python.parent


@pytest.mark.slow
def test_wheel_runs_the_demo(installed, tmp_path):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "MEDPFL"))}
    command = [installed / "medpfl", "run", "fedap", "--sites", "2", "--rounds", "2", "--out", "demo"]
    done = run(*command, cwd=tmp_path, env=clean)
    assert "mean accuracy over 2 sites" in " ".join(done.stdout.split())
    results = json.loads((tmp_path / "demo" / "results.json").read_text())
    assert results["status"] == "finished"
    assert results["environment"]["env"] == "sim"
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10_000
    assert sorted(f.name for f in (tmp_path / "demo" / "models").iterdir()) == [
        "site-1.safetensors",
        "site-2.safetensors",
    ]


@pytest.mark.slow
def test_the_wheel_comes_with_its_bill_of_materials(tmp_path):
    copy = tmp_path / "medpfl"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "runs", "shared", "build", "dist"))
    run("make", f"PYTHON={sys.executable}", "wheel", cwd=copy)
    [wheel] = (copy / "dist").glob("medpfl-*.whl")
    version = wheel.name.split("-")[1]
    bill = json.loads((copy / "dist" / f"medpfl-{version}.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    root = bill["metadata"]["component"]
    assert (root["name"], root["version"]) == ("medpfl", version)
    assert root["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}]
    parts = {part["bom-ref"]: (part["name"], part["version"]) for part in bill["components"]}
    [direct] = [entry["dependsOn"] for entry in bill["dependencies"] if entry["ref"] == root["bom-ref"]]
    [listed] = re.findall(
        r"^dependencies = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL
    )
    assert {parts[ref][0] for ref in direct} == set(re.findall(r'"([\w-]+)', listed))
    locked = [line for name in ("hospital", "torch-cuda") for line in (ROOT / f"requirements/{name}.txt").open()]
    pinned = [tuple(line.split()[0].split("==")) for line in locked if "==" in line]
    assert sorted(parts.values()) == sorted(pinned)
