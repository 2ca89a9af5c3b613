"""What it costs that a hospital draws its order of samples and augmentation a few times in turn (own_seed).

    MEDPFL_BENCHMARK_DATA=FOLDER python benchmarks/draws_in_turn.py [--draws 0 5] [--augment none light] [--seeds 0 1 2]

FOLDER has bloodmnist.npz. FedAvg as published on a regime of ``regimes.py``, every round with draws of its own (0) or
so many in turn: mean test accuracy over sites.
"""

import argparse
import os

import torch
from regimes import config_of, regimes

from medpfl.core.seeding import Chance
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.site.store import MemoryStore


def accuracy(regime: str, augment: str, seed: int, draws: int) -> float:
    """Of the selected round, the mean over sites."""
    config = config_of("fedavg", seed, regimes()[regime] | {"augment": augment})
    federation = Federation.of(config)
    sites = {name: federation.site(name, MemoryStore()) for name in config.site_names}
    for site in sites.values():
        site.chance = Chance(config.seed, draws)
    final = run_in_process(federation.plan(), sites, federation.model, workers=1).final
    return sum(told["test"]["selected"]["accuracy"] for told in final.values()) / len(final)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--regime", default="blood-0.5-73")
    parser.add_argument("--draws", nargs="*", type=int, default=[0, 5])
    parser.add_argument("--augment", nargs="*", default=["none", "light"])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for augment in asked.augment:
        for seed in asked.seeds:
            for draws in asked.draws:
                found = accuracy(asked.regime, augment, seed, draws)
                print(f"{asked.regime}, augment {augment}, seed {seed}, draws {draws}: {found:.4f}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
