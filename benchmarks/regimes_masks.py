"""The natural sites among the regimes, whose task is segmentation: hospitals and scanners that really differ.

    MEDPFL_BENCHMARK_DATA=FOLDER python benchmarks/regimes_masks.py RESULTS [--regimes A B] [--seeds 0 1] [--methods X]

FOLDER has brain-mri/, chest-xray/ and sarcoma-mr/. Each method is a run of the package, with training alone beside it,
200 steps of fine-tuning and ``--use blend``; of what the sites' stores hold at the end, every candidate is tested. Dice
of each test case is kept (npz), for ``regimes_table.py --add RESULTS``.
"""

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from regimes import STEPS, trained, trained_further
from regimes_data import DATA
from regimes_records import Record, record
from scipy.stats import binomtest

from medpfl.config.run import RunConfig
from medpfl.core.seeding import Chance, generator
from medpfl.engine.federation import Federation
from medpfl.models.blend import restored
from medpfl.runs.asked import as_meant, config_of
from medpfl.runs.comparison import Variant
from medpfl.site.candidates import Candidate, evidence, partly_trained_further, training_cases, used_state
from medpfl.site.choice import chosen
from medpfl.site.rival import Rival
from medpfl.site.store import FINISHED, MODEL, USED, MemoryStore

AGAIN = "alone-again"
METHODS = ("fedavg", "fedbn", "fedbn:server_lr=1")
SMALL = {"model_args": {"channels": [8, 16, 32, 64]}}
ADAM = {"optimizer": "adam", "lr": 0.002}
REGIMES = {
    "brain-mri": SMALL
    | {"data": "brain-mri", "data_args": {"size": 64}, "held_out": "EZ", "augment": "light:mr", "rounds": 20}
    | {"settings": ADAM | {"batch_size": 32}},
    "chest-lungs": SMALL
    | {"data": "chest-xray", "data_args": {"size": 64, "channels": "grey"}, "augment": "light:xray", "rounds": 15}
    | {"settings": ADAM | {"batch_size": 32}},
    "sarcoma-mr": {
        "data": "sarcoma-mr",
        "data_args": {"spacing": [6, 3, 3], "patch": [16, 48, 48]},
        "model_args": {"channels": [8, 16, 32]},
        "augment": "light:mr",
        "rounds": 40,
        "settings": ADAM | {"batch_size": 4},
    },
}
CANDIDATES = {
    "alone": (AGAIN, "alone"),
    "alone, no steps more": (AGAIN, "alone, received"),
    "two alone, blended": (AGAIN, "blend"),
    "FedAvg": ("fedavg", "received"),
    "FedBN": ("fedbn", "received"),
    "FedAvg, fine-tuned": ("fedavg", "fine-tuned"),
    "FedBN, fine-tuned": ("fedbn", "fine-tuned"),
    "FedAvg, fine-tuned, blend": ("fedavg", "blend"),
    "FedBN, fine-tuned, blend": ("fedbn", "blend"),
    "FedBN, server momentum": ("fedbn_server_lr=1", "received"),
    "FedBN, server momentum, fine-tuned": ("fedbn_server_lr=1", "fine-tuned"),
    "FedBN, server momentum, fine-tuned, blend": ("fedbn_server_lr=1", "blend"),
}
"""By row: the run, and which of its candidates."""


def configured(method: str, seed: int, fields: dict) -> RunConfig:
    """Of a method, as ``medpfl compare`` names variants, with fine-tuning and a blend at the end."""
    variant = Variant.parse(method)
    given = {name: None for name in RunConfig.model_fields if name != "algorithm"} | fields
    given |= {"data": str(DATA / fields["data"]), "device": "cpu", "seed": seed, "use": "blend"}
    given["settings"] = fields["settings"] | variant.settings | {"finetune_steps": STEPS}
    return config_of(variant.algorithm, as_meant(given))


class Tested:
    """Dice of every test case, by site and candidate."""

    def __init__(self, config: RunConfig):
        self.config, self.arrays = config, {}

    def add(self, site: str, candidate: str, state, model: torch.nn.Module, data) -> None:
        """Adds a state's."""
        judged = self.config.learned.predict(restored(model, state), data, "test")
        self.arrays[f"{site}/{candidate}"] = np.nanmean(judged.dice, axis=1)


def federated(method: str, seed: int, fields: dict) -> dict[str, np.ndarray]:
    """A method's run."""
    config = configured(method, seed, fields)
    tested, (model, ended) = Tested(config), trained(config)
    for name, site, round_ in ended:
        for candidate, kind in {"received": MODEL, "fine-tuned": FINISHED, "blend": USED}.items():
            tested.add(name, candidate, site.store.get(kind, round_), model, site.data)
    return tested.arrays


def twice_alone(seed: int, fields: dict) -> dict[str, np.ndarray]:
    """Training alone, as every site does beside a federation, and from other random numbers too; both blended."""
    federation = Federation.of(configured("fedavg", seed, fields))
    config, model = federation.config, federation.model()
    other = config.model_copy(update={"seed": seed + 1000})
    tested = Tested(config)
    for site in config.site_names:
        data, found = federation.source.site(site, federation.device), []
        for own in (config, other):
            first = Federation.of(own).first
            rival = Rival(site, own, data, MemoryStore(), first, Chance(own.seed))
            for round_ in range(1, config.rounds + 1):
                rival.train(model, round_)
            model.load_state_dict(rival.best())
            order = generator(own.seed, site, "end", f"fine-tuning of round {rival.round}")
            ends = trained_further(own, model, data, order)
            if own is config:
                tested.add(site, "alone, received", ends[0].state, model, data)
            found.append(partly_trained_further("alone", *ends, own, data, model))
        tested.add(site, "alone", found[0].state, model, data)
        tested.add(site, "blend", _blended(found, config, data, model), model, data)
    return tested.arrays


def _blended(found: list[Candidate], config: RunConfig, data, model: torch.nn.Module):
    mine, theirs = (c.predictions("validation", config, data, model) for c in found)
    losses = config.learned.mixed_losses
    told = evidence(data)
    weight = chosen("blend", lambda w: told(losses(mine, theirs, w)), training_cases(config, data, mine))
    return used_state(config, *found, weight)


def measured(results: Path) -> Iterator[Record]:
    """The rows of every regime and seed whose training alone is there."""
    for file in sorted(results.glob(f"*/seed-*/{AGAIN}.dice.npz")):
        regime, seed = file.parent.parent.name, int(file.parent.name.removeprefix("seed-"))
        files = {run: file.with_name(f"{run}.dice.npz") for run, _ in CANDIDATES.values()}
        runs = {run: dict(np.load(f)) for run, f in files.items() if f.exists()}
        sites = list(dict.fromkeys(key.partition("/")[0] for key in runs[AGAIN]))
        for row, (run, candidate) in CANDIDATES.items():
            if run not in runs:
                continue
            dice, gain, p = [], [], []
            for site in sites:
                new, old = runs[run][f"{site}/{candidate}"], runs[AGAIN][f"{site}/alone"]
                there = np.isfinite(old)
                better, worse = int((new > old)[there].sum()), int((new < old)[there].sum())
                p.append(binomtest(worse, better + worse, alternative="greater").pvalue if better + worse else 1.0)
                dice.append(new[there].mean())
                gain.append((new - old)[there].mean())
            yield record(regime, seed, row, np.array(dice), np.array(gain), np.array(p))


def main() -> None:
    """Trains what is not there yet."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--regimes", nargs="*", default=list(REGIMES))
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for seed in asked.seeds:
        for regime in asked.regimes:
            for run in (AGAIN, *asked.methods):
                path = asked.out / regime / f"seed-{seed}" / f"{run.replace(':', '_')}.dice.npz"
                if path.exists():
                    continue
                started, fields = time.perf_counter(), REGIMES[regime]
                arrays = twice_alone(seed, fields) if run == AGAIN else federated(run, seed, fields)
                path.parent.mkdir(parents=True, exist_ok=True)
                np.savez(part := path.with_suffix(".part.npz"), **arrays)
                part.rename(path)
                print(f"{regime}, seed {seed}, {run}: {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
