"""What FLARE's simulator adds to a round: 20 sites, all at once, on the small embedded sample.

    python benchmarks/flare_overhead.py

The overhead is the median round's time, from sending to having all answers, less the median round of the same run in
one process. The first round pays for imports and is left out.
"""

import os
import statistics
import sys
import tempfile
from pathlib import Path

from medpfl.config.run import make_config
from medpfl.runs.experiment import run_experiment

if __name__ == "__main__":
    sites = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    config = make_config(algorithm="fedavg", sites=sites, rounds=10, partition="iid")
    median = {}
    for env in ("sim", "inprocess"):
        with tempfile.TemporaryDirectory() as folder:
            results = run_experiment(config, Path(folder), env=env)
        seconds = [r["seconds"] for r in results["rounds"][1:]]
        median[env] = statistics.median(seconds)
        spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
        print(f"{env}: start {results['seconds']['start']:.1f} s, a round {median[env]:.2f} s ({spread})")
    print(f"{sites} sites, {os.cpu_count()} cores: {median['sim'] - median['inprocess']:.2f} s a round for FLARE")
