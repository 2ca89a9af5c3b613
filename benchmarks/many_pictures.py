"""What a blend's rule gains where a site has many pictures of few patients, and counts patients or pictures.

    MEDPFL_BENCHMARK_DATA=FOLDER python benchmarks/many_pictures.py RESULTS [--seeds 0 1]

FOLDER has brain-mri/ and sarcoma-mr/: is there a tumour in a slice? Trains what RESULTS lacks (npz of every site's
predictions, a minute a seed), then says what each rule makes of the same networks. To *alone*: the model trained alone
and further, by pictures.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from regimes import config_of, permit, trained, trained_further

from medpfl.core.seeding import Chance, generator
from medpfl.engine.federation import Federation
from medpfl.site.candidates import Candidate, between
from medpfl.site.choice import chosen, share_of_further
from medpfl.site.ending import final_state
from medpfl.site.rival import Rival
from medpfl.site.store import MemoryStore
from medpfl.tasks import TASKS
from medpfl.tasks.intervals import patient_means

TASK = TASKS["classification"]
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
RUNS = {
    "brain MR, 4 hospitals": ("brain", 3, ("CS", "DU", "FG", "HT")),
    "sarcoma MR, 3 vendors": ("sarcoma", 1, ("ge", "philips", "siemens")),
}
METHODS = ("fedbn", "fedavg")


class Kept(dict):
    """By ``SITE/MODEL/SHARE/PART`` probabilities of the networks between a model and it after further training."""

    def add(self, site: str, name: str, ends: list[Candidate], config, data, model: torch.nn.Module) -> None:
        """All of one model's."""
        for share in SHARES:
            model.load_state_dict(between(ends[0].state, ends[1].state, share))
            for part in ("train", "validation", "test"):
                probabilities, labels = config.learned.predict(model, data, part)
                self[f"{site}/{name}/{share}/{part}"] = probabilities.astype(np.float32)
                self[f"{site}/{part}"], self[f"{site}/{part}/whose"] = labels, data.persons[part].numpy()


def trained_models(folder: str, channels: int, names: tuple[str, ...], seed: int) -> Kept:
    """Training alone, and the methods."""
    fields = {
        "data": f"regimes_data:{folder}_slices",
        "names": names,
        "sites": len(names),
        "rounds": 20,
        "model_args": {"in_channels": channels, "num_classes": 2, "size": 32},
    }
    kept, config = Kept(), config_of(METHODS[0], seed, fields)
    federation = Federation.of(config)
    model = federation.model()
    for site in names:
        data = federation.source.site(site, federation.device)
        rival = Rival(site, config, data, MemoryStore(), federation.first, Chance(config.seed))
        for round_ in range(1, config.rounds + 1):
            rival.train(model, round_)
        model.load_state_dict(rival.best())
        ends = trained_further(config, model, data, generator(seed, site, "end", "longer"))
        kept.add(site, "alone", ends, config, data, model)
    for method in METHODS:
        config = config_of(method, seed, fields)
        model, ended = trained(config)
        for name, site, round_ in ended:
            model.load_state_dict(final_state(site.store, round_))
            order = generator(seed, name, "end", f"fine-tuning of round {round_}")
            kept.add(name, method, trained_further(config, model, site.data, order), config, site.data, model)
    return kept


def used(kept: Kept, site: str, method: str, by_patient: bool) -> tuple[tuple, float]:
    """Predictions on test data of what the site uses, and the method's weight in it."""
    whose = {part: kept[f"{site}/{part}/whose"] for part in ("train", "validation")}
    told = patient_means(whose["validation"] if by_patient else None)

    def at(name: str, share: float, part: str) -> tuple:
        return kept[f"{site}/{name}/{share}/{part}"].astype(float), kept[f"{site}/{part}"]

    def share_of(name: str) -> float:
        losses = lambda share, part: TASK.losses(at(name, nearest(share), part))  # noqa: E731
        found = share_of_further(lambda share: told(losses(share, "validation")), lambda share: losses(share, "train"))
        return nearest(found)

    pair = [(name, share_of(name)) for name in ("alone", method)]
    mine, theirs = (at(*of, "validation") for of in pair)
    train = len(np.unique(whose["train"])) if by_patient else len(kept[f"{site}/train"])
    blended = lambda w: told(TASK.mixed_losses(mine, theirs, w))  # noqa: E731
    weight = chosen("blend", blended, train)
    return TASK.mixed(*(at(*of, "test") for of in pair), weight), weight


def nearest(share: float) -> float:
    """Of the shares whose predictions are kept."""
    return min(SHARES, key=lambda known: abs(known - share))


def main() -> None:
    """Trains what is not there yet, and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3, 4, 5])
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    permit("regimes_data")
    print(
        "| | alone | method | counted | gain (points) | sites worse off | worst | loss | w |\n" + "|---|" + "---:|" * 8
    )
    for title, (folder, channels, names) in RUNS.items():
        runs = []
        for seed in asked.seeds:
            file = asked.out / f"{folder}-{seed}.npz"
            if not file.exists():
                np.savez(part := file.with_suffix(".part.npz"), **trained_models(folder, channels, names, seed))
                part.rename(file)
            runs.append(Kept(np.load(file)))
        for method in METHODS:
            for by_patient in (False, True):
                row(title, method, by_patient, [(kept, site) for kept in runs for site in names])


def row(title: str, method: str, by_patient: bool, sites: list[tuple[Kept, str]]) -> None:
    """One of the table."""
    gains, losses, weights, alone = [], [], [], []
    for kept, site in sites:
        reference = used(kept, site, "alone", False)[0]
        predicted, weight = used(kept, site, method, by_patient)
        right, own = ((p.argmax(1) == labels).mean() for p, labels in (predicted, reference))
        gains.append(100 * (right - own))
        losses.append(TASK.losses(predicted).mean() - TASK.losses(reference).mean())
        weights.append(weight)
        alone.append(own)
    worse = f"{sum(gain < -1 for gain in gains)} of {len(gains)}"
    figures = f"{np.mean(gains):+.1f} | {worse} | {min(gains):+.1f} | {np.mean(losses):+.3f} | {np.mean(weights):.2f}"
    print(f"| {title} | {np.mean(alone):.3f} | {method} | {'patients' if by_patient else 'slices'} | {figures} |")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
