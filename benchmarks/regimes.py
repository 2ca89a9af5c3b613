"""How many sites each method leaves worse off than training alone, over regimes of data; resumes where it stopped.

    MEDPFL_BENCHMARK_DATA=FOLDER python benchmarks/regimes.py RESULTS [--regimes A B] [--methods X Y] [--seeds 0 1]

FOLDER has organamnist.npz, bloodmnist.npz, chest-xray/, and phantom/, made by ``medpfl data phantom FOLDER/phantom
--patients 720 --matrix 64``. For every regime, seed and method it trains once and keeps each site's predictions on
validation and test cases (npz); ``regimes_table.py`` makes the tables of them with the package's own rules. Hours on a
laptop.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch
from regimes_data import DATA

from medpfl.algorithms.fine_tuning import FineTuning, FineTuningSettings
from medpfl.config.run import RunConfig, make_config
from medpfl.core.errors import UserError
from medpfl.core.permitted_code import permit
from medpfl.core.seeding import Chance, generator
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.runs.comparison import Variant
from medpfl.site.candidates import Candidate, partly_trained_further, training_cases
from medpfl.site.ending import final_state
from medpfl.site.rival import Rival
from medpfl.site.store import MemoryStore, copied
from medpfl.site.worker import Site
from medpfl.training.loop import train_plainly

STEPS = 200
"""Of fine-tuning, for methods that have none."""
COMMON = {"model": "lenet5", "local_epochs": 1, "settings": {"batch_size": 32}}
"""What most methods have by default, for all: some papers' methods bring their own."""
MANY = {"sites": 20, "rounds": 20}
FEW = {"sites": 20, "rounds": 100, "local_epochs": 3}
"""With 73 training images and 10 validation cases at a site."""
VIT = {
    "model": "vit-tiny",
    "model_args": {"patch_size": 7},
    "settings": {"momentum": 0.9, "nesterov": 1, "weight_decay": 5e-4},
}
"""Trained as the paper of personal heads trains it (Shen et al., IEEE JBHI 2023), alone too."""
WITH_VIT = ("organ-0.05-73", "organ-0.5-73", "blood-0.5-73")
SHARES = {"organ": (0.025, 0.0035, 0.9715), "blood": (0.0855, 0.0117, 0.9028)}
ALONE = ("alone", "alone-again", "alone:momentum=0.9", "alone-again:momentum=0.9")


def regimes() -> dict[str, dict]:
    """By name the fields of a run."""
    found: dict[str, dict] = {}
    for name in ("organ", "blood"):
        data = {"data": str(DATA / f"{name}{'amnist' if name == 'organ' else 'mnist'}.npz")}
        for split in ("0.05", "0.5", "iid"):
            partition = {"partition": split if split == "iid" else f"equal-dirichlet:{split}"}
            found[f"{name}-{split}-73"] = data | partition | FEW | {"fractions": SHARES[name]}
            found[f"{name}-{split}"] = data | partition | MANY
    found["organ-uneven"] = found["organ-0.5"] | {"partition": "dirichlet:0.5"}
    found["organ-shift"] = MANY | {
        "data": "regimes_data:shifted",
        "model_args": {"in_channels": 1, "num_classes": 11, "size": 28},
    }
    found["organ-shift-73"] = found["organ-shift"] | FEW | {"data_args": {"shares": list(SHARES["organ"])}}
    found["chest"] = {
        "data": "regimes_data:chest",
        "names": ("montgomery", "shenzhen"),
        "sites": 2,
        "rounds": 40,
        "model_args": {"in_channels": 1, "num_classes": 2, "size": 64},
    }
    found["phantom"] = {
        "data": str(DATA / "phantom"),
        "data_args": {"size": 32, "slices": 8},
        "partition": "natural",
        "names": tuple(f"centre-{n}" for n in range(1, 7)),
        "sites": 6,
        "rounds": 40,
        "local_epochs": 3,
        "settings": {"optimizer": "adam", "lr": 0.002, "batch_size": 16},
    }
    return found | {f"{name}-vit": found[name] | VIT for name in WITH_VIT}


METHODS = (
    "fedbn", "fedavg", "fedper", "fedap:pretrain_epochs=1", "ditto", "fedbn:prior=1", "fedprox", "lg-fedavg", "apfl",
    "fedrep", "scaffold", "fedbabu", "f-fedap", "d-fedap:pretrain_epochs=1", "fedavg:prior=1", "fedper:prior=1",
    "fedprox:prior=1", "lg-fedavg:prior=1", "fedbabu:prior=1", "fedap:pretrain_epochs=1,prior=1", "scaffold:prior=1",
    "fedrep:prior=1", "apfl:prior=1", "ditto:prior=1", "f-fedap:prior=1", "d-fedap:pretrain_epochs=1,prior=1",
    "fedbn:server_lr=1", "fedavgm", "fedadam", "fedyogi", "fedreg", "fedvss",
    "fedcurv", "vhl", "fedimpres", "fedimpres:prior=1", "fedavgm:prior=1", "fedadam:prior=1", "fedyogi:prior=1",
    "fedreg:prior=1", "fedvss:prior=1", "fedcurv:prior=1", "vhl:prior=1",
    "fedbn:momentum=0.9,server_lr=1",
)  # fmt: skip
OF_VIT = ("fedavg", "vit-heads", "fedavg:server_lr=1", "vit-heads:prior=1")
"""In the regimes with a ViT, where all have momentum: FedBlend's federation is FedAvg with momentum at the server."""


def by_sgd(fields: dict) -> bool:
    """Whether sites train by SGD with these fields of a run."""
    return fields.get("settings", {}).get("optimizer", "sgd") == "sgd"


def config_of(method: str, seed: int, fields: dict) -> RunConfig:
    """Of a method as ``medpfl compare`` names variants."""
    variant = Variant.parse(method)
    settings = COMMON["settings"] | fields.get("settings", {}) | variant.settings
    own = {"settings": settings, "device": "cpu", "alone": "no", **variant.choices}
    return make_config(algorithm=variant.algorithm, seed=seed, **COMMON | fields | own)


def as_method(name: str) -> str:
    """The same; what is trained alone has the settings of FedAvg, of which it trains no more than the local steps."""
    alone, colon, settings = name.partition(":")
    return f"fedavg{colon}{settings}" if alone.startswith("alone") else name


def refused(name: str, fields: dict) -> str:
    """Why a method is not made for a regime, as momentum is not for Adam; empty where it is."""
    try:
        config_of(as_method(name), 0, fields)
    except UserError as error:
        return str(error)
    return ""


def trained_further(config: RunConfig, model: torch.nn.Module, data, order: torch.Generator) -> list[Candidate]:
    """A model before and after some further steps, as the mechanism has it; it is left as it is after."""
    before = Candidate("received", 0, copied(model))
    part = FineTuning(FineTuningSettings(finetune_steps=STEPS))
    trainer = config.trainer
    train_plainly(model, data, trainer, part.epochs(data, trainer), order, trainer.loss(config.learned.loss, data))
    return [before, Candidate("fine-tuned", 0, copied(model))]


class Kept:
    """Predictions of the candidates of every site."""

    def __init__(self, config: RunConfig):
        self.config, self.arrays = config, {}

    def add(self, site: str, candidate: str, model: torch.nn.Module, data) -> None:
        """Adds a model's predictions."""
        for part in ("validation", "test"):
            if data.samples(part):
                probabilities, labels = self.config.learned.predict(model, data, part)
                self.arrays[f"{site}/{candidate}/{part}"] = probabilities.astype(np.float32)
                self.arrays[f"{site}/{part}"] = labels
                if part == "validation":
                    cases = training_cases(self.config, data, (probabilities, labels))
                    self.arrays[f"{site}/evenly"] = np.array(cases)

    def fine_tuned(self, site: str, model: torch.nn.Module, data, order: torch.Generator) -> None:
        """Adds the model after some further steps, and what a blend takes between both."""
        before, after = trained_further(self.config, model, data, order)
        self.add(site, "fine-tuned", model, data)
        if data.samples("validation"):
            found = partly_trained_further("partly", before, after, self.config, data, model)
            model.load_state_dict(found.state)
            self.add(site, "partly", model, data)

    def write(self, path: Path) -> None:
        """Writes all, or nothing."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_suffix(".part"), "wb") as file:
            np.savez_compressed(file, **self.arrays)
        path.with_suffix(".part").rename(path)


def alone(name: str, seed: int, fields: dict) -> Kept:
    """Training alone, as every site does beside a federation; ``alone-again`` from other random numbers.

    With settings of its own as ``alone:momentum=0.9``.
    """
    config = config_of(as_method(name), seed, fields)
    federation = Federation.of(config)
    if name.startswith("alone-again"):
        again = Federation.of(config.model_copy(update={"seed": seed + 1000}))
        again.source = federation.source
        federation = again
    kept, model = Kept(config), federation.model()
    for site in config.site_names:
        data = federation.source.site(site, federation.device)
        rival = Rival(site, federation.config, data, MemoryStore(), federation.first, Chance(federation.config.seed))
        for round_ in range(1, config.rounds + 1):
            rival.train(model, round_)
        model.load_state_dict(rival.best())
        kept.add(site, "received", model, data)
        kept.fine_tuned(site, model, data, generator(federation.config.seed, site, "end", "longer"))
    return kept


def trained(config: RunConfig) -> tuple[torch.nn.Module, list[tuple[str, Site, int]]]:
    """A run to its end: a network for its states, and each site with the round that was selected."""
    federation = Federation.of(config)
    plan = federation.plan()
    sites = {name: federation.site(name, MemoryStore()) for name in config.site_names}
    final = run_in_process(plan, sites, federation.model, workers=1).final
    return federation.model(), [(name, site, final[name]["tested"]["selected"]) for name, site in sites.items()]


def federated(method: str, seed: int, fields: dict) -> Kept:
    """A method as published, and with fine-tuning at the end."""
    config = config_of(method, seed, fields)
    kept, (model, ended) = Kept(config), trained(config)
    for name, site, round_ in ended:
        model.load_state_dict(final_state(site.store, round_))
        kept.add(name, "received", model, site.data)
        order = generator(config.seed, name, "end", f"fine-tuning of round {round_}")
        kept.fine_tuned(name, model, site.data, order)
    return kept


def main() -> None:
    """Trains what is not there yet."""
    known = regimes()
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--regimes", nargs="*", default=list(known))
    parser.add_argument("--methods", nargs="*", help="by default all that are in the tables")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--alone", nargs="*", help="what is trained alone beside them")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    permit("regimes_data")
    for method in (*(asked.alone or ()), *(asked.methods or ())):  # what is no method anywhere ends the command
        config_of(as_method(method), 0, known["organ-iid"])
    for seed in asked.seeds:
        for regime in asked.regimes:
            beside, methods = (ALONE[:1], OF_VIT) if regime.endswith("-vit") else (ALONE, METHODS)
            beside = beside if asked.alone is None else asked.alone
            for method in (*beside, *(methods if asked.methods is None else asked.methods)):
                path = asked.out / regime / f"seed-{seed}" / f"{method.replace(':', '_')}.npz"
                if path.exists():
                    continue
                if reason := refused(method, known[regime]):
                    print(f"{regime}, {method}: {reason}", flush=True)
                    continue
                started = time.perf_counter()
                try:
                    kept = (alone if method.startswith("alone") else federated)(method, seed, known[regime])
                except UserError as error:  # an impression needs the images' size, which a function's data do not tell
                    print(f"{regime}, {method}: {error}", flush=True)
                    continue
                kept.write(path)
                print(f"{regime}, seed {seed}, {method}: {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
