"""What training alone beside the federation and choosing cost: seconds of training and of testing, and peak memory.

    python benchmarks/cost_of_choice.py organamnist.npz [--repeats 3]

FedBN without a rival, with one, and FedBlend, one after another in processes of their own; ratios within a repeat.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

RUNS = {"fedbn --alone no": ["fedbn", "--alone", "no"], "fedbn": ["fedbn"], "fedblend": ["fedblend"]}


def measured(words: list[str], data: Path) -> dict[str, float]:
    """Of one run: seconds of its rounds, seconds in all, and the process's peak memory in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        where = ["--data", data, "--sites", 10, "--rounds", 5, "--env", "inprocess", "--threads", 1, "--no-new-test"]
        command = [sys.executable, "-m", "medpfl.cli.main", "run", *words, *map(str, where), "--out", str(out)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{' '.join(command)}: exit {process.returncode}")
        seconds = json.loads((out / "results.json").read_text())["seconds"]
    return {"rounds": seconds["training"], "total": seconds["total"], "memory": used.ru_maxrss / 1024}


def main() -> None:
    """Prints every run and the medians of the ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    found = []
    for repeat in range(asked.repeats):
        found.append({name: measured(words, asked.data) for name, words in RUNS.items()})
        for name, of in found[-1].items():
            print(f"{repeat + 1} {name}: {', '.join(f'{key} {value:.1f}' for key, value in of.items())}", flush=True)
    first = next(iter(RUNS))
    for name in RUNS:
        ratios = {key: median(of[name][key] / of[first][key] for of in found) for key in found[0][name]}
        print(f"{name}: {', '.join(f'{key} x {value:.2f}' for key, value in ratios.items())}")


if __name__ == "__main__":
    main()
