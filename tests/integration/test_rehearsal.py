"""The rehearsal that the documentation tells hospitals to run: provisioned kits, TLS, processes, data of their own."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "rehearsal.py"
HOSPITALS = ["north-hospital", "south-clinic", "east-institute"]


@pytest.mark.slow
def test_short_rehearsal(tmp_path):
    folder = tmp_path / "rehearsal"
    done = subprocess.run([sys.executable, SCRIPT, folder, "--short"], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "server: 0 models of hospitals" in done.stdout
    assert " 1 models" not in done.stdout
    for experiment, algorithm in (("scans", "vit-heads"), ("slices", "fedap")):
        results = json.loads((folder / experiment / "results.json").read_text())
        assert (results["algorithm"], results["status"], results["failures"]) == (algorithm, "finished", [])
        assert results["environment"]["env"] == "prod"
        assert [r["participants"] for r in results["rounds"]] == [HOSPITALS] * 2
        [kits] = (folder / "federation").glob("*/prod_00")
        kept = json.loads((folder / experiment / "job.json").read_text())["experiment"]
        assert kept.startswith(f"{experiment}-")
        owners = {file.relative_to(kits).parts[0] for file in kits.glob(f"*/medpfl/{kept}/*/model-*.safetensors")}
        assert owners == set(HOSPITALS)  # each has its models, and the server none
    assert {p.name: [f.name for f in p.glob("phantom-ct/centre-*")] for p in (folder / "hospitals").iterdir()} == {
        name: [f"centre-{i + 1}"] for i, name in enumerate(HOSPITALS)
    }
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(p.info["cmdline"] or [])]
