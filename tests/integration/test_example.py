"""The example with a network and loaders of one's own is short and runs as its first line says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model.py"


def test_example_is_short():
    assert len(EXAMPLE.read_text().splitlines()) < 60


@pytest.mark.slow
def test_example_runs(tmp_path):
    done = subprocess.run([sys.executable, EXAMPLE, tmp_path], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    results = json.loads(next(tmp_path.rglob("server/simulate_job/results.json")).read_text())
    assert results["status"] == "finished"
    assert not results["failures"]
    assert results["final"]["selected"]["mean"]["accuracy"] > 0.8
