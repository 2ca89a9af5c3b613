"""What it costs that a hospital trains in one order, in batches alike in size, and on how many patients updates rest.

    MEDPFL_BENCHMARK_DATA=FOLDER python benchmarks/one_order.py [--augment none light] [--seeds 0 1 2]
    MEDPFL_BENCHMARK_DATA=FOLDER python benchmarks/one_order.py --resting [--regimes organ-0.05-73] [--method fedbn]

FOLDER has organamnist.npz and bloodmnist.npz. A method as published on regimes of ``regimes.py``. The first command
says the mean test accuracy over sites with an order of its own in each round, and with one (own_seed); the second as
how many alike the training images of a site weigh in its updates (medpfl/site/resting.py): the least and the median.
"""

import argparse
import os
from statistics import median

import torch
from regimes import config_of, regimes

from medpfl.core.seeding import Chance
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.server.rounds import ServerState
from medpfl.site.resting import Resting
from medpfl.site.store import MemoryStore


def trained(method: str, fields: dict, seed: int, *, one_order: bool, least: int = 0) -> ServerState:
    """A run to its end."""
    config = config_of(method, seed, fields)
    federation = Federation.of(config)
    sites = {name: federation.site(name, MemoryStore()) for name in config.site_names}
    for site in sites.values():
        site.chance, site.least = Chance(config.seed, one_order), least
    return run_in_process(federation.plan(), sites, federation.model, workers=1)


def accuracy(state: ServerState) -> float:
    """Of the selected round, the mean over sites."""
    return sum(told["test"]["selected"]["accuracy"] for told in state.final.values()) / len(state.final)


def rested(method: str, fields: dict, seed: int) -> list[list[float]]:
    """By round, of every site."""
    found: list[float] = []

    class Watch(Resting):
        def require_many(self, least: int) -> None:
            found.append(self.patients())

    import medpfl.site.worker as worker

    worker.Resting = Watch
    state = trained(method, fields, seed, one_order=True, least=20)
    count = len(state.final)
    return [found[first : first + count] for first in range(0, len(found), count)]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--regimes", nargs="*", default=["blood-0.5-73"])
    parser.add_argument("--augment", nargs="*", default=["none", "light"])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--resting", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for regime in asked.regimes:
        fields = regimes()[regime]
        if asked.resting:
            rounds = rested(asked.method, fields, asked.seeds[0])
            for number in (1, 2, 5, 10, 20, 50, 100):
                if number <= len(rounds):
                    of_round = rounds[number - 1]
                    print(f"{regime}, {asked.method}, round {number}: {min(of_round):.1f}, {median(of_round):.1f}")
            continue
        for augment in asked.augment:
            for seed in asked.seeds:
                new, one = (
                    accuracy(trained(asked.method, fields | {"augment": augment}, seed, one_order=one_order))
                    for one_order in (False, True)
                )
                print(f"{regime}, augment {augment}, seed {seed}: {new:.4f} {one:.4f}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
