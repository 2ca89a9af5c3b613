"""Whether server and sites of FLARE's simulator grow from round to round: resident memory and threads of every process.

    python benchmarks/memory.py [ROUNDS] [SITES] [LOCAL_EPOCHS]

A small model on the embedded sample, all sites at once, so that processes live as long as the run. Memory is read as
each round ends; the first rounds fill caches and pools, so growth counts from the end of the fifth. More local epochs
make rounds longer: what FLARE keeps of a message it keeps for a minute or so, so short rounds show more of it.
"""

import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psutil

from medpfl.config.run import make_config
from medpfl.engine.progress import Progress
from medpfl.flare.launch.simulator import simulate

MIB = 1 << 20
WARM = 5


def role(command: list[str]) -> str:
    """What a process of the simulator is."""
    if "--client" in command:
        return command[command.index("--client") + 1]
    return "supervisor" if "medpfl.flare.launch.supervisor" in command else "simulator"


def main(rounds: int, sites: int, local_epochs: int) -> None:
    """Runs and prints a line for each process that works."""
    seen: dict[tuple[str, int], dict[int, tuple[int, int]]] = defaultdict(dict)
    times: dict[int, float] = {}

    def watch(progress: Progress) -> None:
        times[progress.round] = time.perf_counter()
        for process in psutil.Process().children(recursive=True):
            try:
                key = role(process.cmdline()), process.pid
                seen[key][progress.round] = process.memory_info().rss, process.num_threads()
            except psutil.NoSuchProcess:
                continue

    config = make_config(algorithm="fedap", sites=sites, rounds=rounds, local_epochs=local_epochs)
    with tempfile.TemporaryDirectory() as folder:
        simulate(config, Path(folder), threads=sites, watch=watch, track="tensorboard")
    seconds = (times[rounds] - times[WARM]) / (rounds - WARM)
    print(f"{rounds} rounds of {seconds:.1f} s, {sites} sites, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for (name, pid), by_round in sorted(seen.items()):
        settled = [r for r in sorted(by_round) if r >= WARM]
        if not settled or max(rss for rss, _ in by_round.values()) < 100 * MIB:
            continue
        points = [settled[round(share * (len(settled) - 1))] for share in (0, 0.25, 0.5, 0.75, 1)]
        told = (f"{by_round[r][0] / MIB:.0f} MiB and {by_round[r][1]} threads after round {r}" for r in points)
        print(f"{name} ({pid}): {'; '.join(told)}")


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    main(*(given + [50, 4, 1][len(given) :]))
