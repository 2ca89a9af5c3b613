"""How far honest sites' updates differ in size, and how far their numbers of samples.

    python benchmarks/update_norms.py organamnist.npz [SEEDS]

Every round, each site's update is measured as the server does (:mod:`medpfl.server.magnitude`): its distance from what
the site was sent, over the median of the other sites' distances. The largest of these ratios is what a limit on updates
must let pass, or it would change the figures of honest runs. Nothing is clipped here. The last column is the largest
number of training samples over the median.
"""

import os
import sys
from statistics import median

import torch

from medpfl.config.run import RunConfig, make_config
from medpfl.core.messages import Message, Update
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.server import rounds
from medpfl.server.magnitude import distance
from medpfl.site.store import MemoryStore

FEW = {"partition": "equal-dirichlet:0.5", "train_fraction": 0.05, "rounds": 12}
HEADS = {"fractions": (0.025, 0.01, 0.05), "model": "vit-tiny", "model_args": {"patch_size": 7}, "rounds": 3}
HEADS |= {"local_epochs": 1}
IMPRESSION = {"sites": 8, "train_fraction": 0.05, "model": "lenet5", "rounds": 4, "local_epochs": 1}
IMPRESSION["settings"] = {"warmup": 1, "images": 16, "admm_iterations": 2, "inner_steps": 2}
PARTITIONS = ("dirichlet:0.1", "equal-dirichlet:0.05", "equal-dirichlet:0.1")
METHODS = ("fedavg", "fedbn", "fedap", "fedper")

CASES: list[tuple[str, dict]] = [
    *((method, FEW) for method in METHODS),
    ("fedimpres", {"partition": "equal-dirichlet:0.1", **IMPRESSION}),
    ("fedimpres", {"partition": "dirichlet:0.1", **IMPRESSION}),
    *((method, {"partition": partition, "rounds": 4}) for partition in PARTITIONS for method in METHODS),
    ("vit-heads", {"partition": "dirichlet:0.1", **HEADS}),
    ("vit-heads", {"partition": "equal-dirichlet:0.1", **HEADS}),
]


def measure(config: RunConfig) -> tuple[list[float], list[float], float]:
    """One run: each site's ratio in each round, the largest of each round, and the largest number of samples."""
    federation = Federation.of(config)
    plan, ratios, largest = federation.plan(), [], []

    def record(_: RunConfig, sent: dict[str, Message], updates: list[Update], *_more) -> tuple[list[Update], list]:
        distances = [distance(sent[u.site].shared, u.tensors) for u in updates]
        of_round = [d / median(distances[:i] + distances[i + 1 :]) for i, d in enumerate(distances)]
        ratios.extend(of_round)
        largest.append(max(of_round))
        return list(updates), []

    rounds.check_magnitudes = record
    sites = {name: federation.site(name, MemoryStore()) for name in config.site_names}
    state = run_in_process(plan, sites, federation.model, workers=os.cpu_count() or 1)
    numbers = list(state.samples.values())
    return ratios, largest, max(numbers) / median(numbers)


def main(data: str, seeds: int) -> None:
    """Prints a line for each case."""
    torch.set_num_threads(1)
    print("| method | partition | rounds | largest ratio | of it by seed | 99 % below | most samples / median |")
    for method, fields in CASES:
        runs = []
        for seed in range(seeds):
            given = {"sites": 20, "device": "cpu", **fields}
            runs.append(measure(make_config(algorithm=method, data=data, seed=seed, **given)))
        every = sorted(ratio for ratios, _, _ in runs for ratio in ratios)
        by_seed = ", ".join(f"{max(largest):.2f}" for _, largest, _ in runs)
        samples = ", ".join(f"{most:.1f}" for _, _, most in runs)
        shown = f"{given['partition']}" + (", few images" if fields.keys() & {"train_fraction", "fractions"} else "")
        percentile = every[int(0.99 * (len(every) - 1))]
        print(
            f"| {method} | {shown} | {given['rounds']} | {every[-1]:.2f} | {by_seed} | {percentile:.2f} | {samples} |",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1)
