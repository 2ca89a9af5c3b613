"""The built wheel, in an environment of its own and without the checkout, runs the demo's command."""

import json
import os
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
