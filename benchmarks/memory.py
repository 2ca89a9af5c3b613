"""Whether server and sites of FLARE's simulator grow from round to round: resident memory of every process.

    python benchmarks/memory.py [ROUNDS] [SITES]

A small model on the embedded sample, all sites at once, so that processes live as long as the run. Memory is read as
each round ends; the first rounds fill caches and pools, so growth counts from the end of the fifth.
"""

import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import psutil

from medpfl.config import make_config
from medpfl.engine.progress import Progress
from medpfl.flare.simulator import simulate

MIB = 1 << 20
WARM = 5


def role(command: list[str]) -> str:
    """What a process of the simulator is."""
    if "--client" in command:
        return command[command.index("--client") + 1]
    return "supervisor" if "medpfl.flare.supervisor" in command else "simulator"


def main(rounds: int, sites: int) -> None:
    """Runs and prints a line for each process."""
    sizes: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)

    def watch(progress: Progress) -> None:
        for process in psutil.Process().children(recursive=True):
            try:
                key = role(process.cmdline()), process.pid
                sizes[key][progress.round] = process.memory_info().rss
            except psutil.NoSuchProcess:
                continue

    config = make_config(algorithm="fedap", sites=sites, rounds=rounds)
    with tempfile.TemporaryDirectory() as folder:
        simulate(config, Path(folder), threads=sites, watch=watch)
    print(f"{rounds} rounds, {sites} sites, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for (name, pid), by_round in sorted(sizes.items()):
        settled = [r for r in sorted(by_round) if r >= WARM]
        if not settled:
            continue
        first, middle, last = settled[0], settled[len(settled) // 2], settled[-1]
        growth, late = ((by_round[last] - by_round[r]) / MIB for r in (first, middle))
        print(
            f"{name} ({pid}): {by_round[first] / MIB:.0f} MiB after round {first}, "
            f"{by_round[last] / MIB:.0f} after {last}: {growth:+.1f} MiB, "
            f"of which {late:+.1f} after round {middle}"
        )


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    main(*(given + [50, 4][len(given) :]))
