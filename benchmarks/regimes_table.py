"""The tables of ``regimes.py``: sites that a method leaves worse off than training alone, and what it gains.

    python benchmarks/regimes_table.py FOLDER_OF_RESULTS [--summary] > table.md
    MEDPFL_BENCHMARK_DATA=FOLDER python benchmarks/regimes_table.py FOLDER_OF_RESULTS --json FILE

*Alone* is the model that a site trains by itself in the same rounds, of its best round, between as it is and with as
many steps more as fine-tuning has, as its validation cases speak. A site is *worse off* if its test accuracy is more
than a point below that, and *significantly* so if an exact test of the paired predictions says it, corrected for all
sites of the row (Holm, 5 %).
``blend`` and ``best`` are the package's rules on the site's own validation cases; for a method's plain row it is
what the method gives. The second command writes what ``medpfl advise`` reads (``regimes_json.py``); the results may be
partial.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import binomtest

from medpfl.site.choice import chosen
from medpfl.tasks import TASKS

TASK = TASKS["classification"]
POINT = 0.01 + 1e-9


class Site(NamedTuple):
    """Predictions of one site: by candidate and part, (n, classes), with labels."""

    name: str
    arrays: dict
    seed: int

    def of(self, candidate: str, part: str):
        """Probabilities and labels; None if the site has no such cases."""
        probabilities = self.arrays.get(f"{self.name}/{candidate}/{part}")
        labels = self.arrays.get(f"{self.name}/{part}")
        return None if probabilities is None else (probabilities.astype(np.float64), labels)

    def best(self, *candidates: str) -> str:
        """The candidate of least validation loss; the first without validation cases."""
        if self.of(candidates[0], "validation") is None:
            return candidates[0]
        return min(candidates, key=lambda c: TASK.losses(self.of(c, "validation")).mean())


Used = Callable[[Site, Site], tuple]


def own(alone: Site, part: str = "test"):
    """The model trained alone, as it is or with further steps, as a site has it."""
    partly = alone.of("partly", part)
    return alone.of("fine-tuned", part) if partly is None else partly


def plain(candidate: str) -> Used:
    """What a method gives."""
    return lambda alone, other: other.of(candidate, "test")


def by(rule: str, *candidates: str) -> Used:
    """The rule's choice between the model trained alone and the candidate of least validation loss."""

    def used(alone: Site, other: Site):
        if alone.of("received", "validation") is None:
            return own(alone)
        best = other.best(*candidates)
        mine, theirs = own(alone, "validation"), other.of(best, "validation")
        train = float(alone.arrays[f"{alone.name}/cases"])
        weight = chosen(rule, lambda w: TASK.losses(TASK.mixed(mine, theirs, w)), train, len(candidates))
        return TASK.mixed(own(alone), other.of(best, "test"), weight)

    return used


BLEND = by("blend", "partly")
ROWS: list[tuple[str, str, Used]] = [
    ("alone, no steps more", "alone", plain("received")),
    ("two alone, blended", "alone-again", BLEND),
]
TITLES = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedbn": "FedBN",
    "fedper": "FedPer",
    "lg-fedavg": "LG-FedAvg",
    "ditto": "Ditto",
    "fedap_pretrain_epochs=1": "FedAP",
    "apfl": "APFL",
    "fedrep": "FedRep",
    "scaffold": "SCAFFOLD",
    "fedbabu": "FedBABU",
    "fedavg_prior=1": "FedAvg, prior",
    "fedbn_prior=1": "FedBN, prior",
    "fedper_prior=1": "FedPer, prior",
}
for name, title in TITLES.items():
    ROWS.append((title, name, plain("fine-tuned" if name == "fedbabu" else "received")))
for name, title in TITLES.items():
    if name != "fedbabu":  # which is fine-tuned as published
        ROWS.append((f"{title}, fine-tuned", name, plain("fine-tuned")))
ROWS.append(("FedBN, fine-tuned, best", "fedbn", by("best", "fine-tuned", "received")))
for name in ("fedavg", "fedper", "fedbn_prior=1"):
    ROWS.append((f"{TITLES[name]}, fine-tuned, blend", name, BLEND))
ROWS.append(("**FedBlend**", "fedbn", BLEND))
METHOD_OF = {title: name for title, name, _ in ROWS}


def pairs(folder: Path, method: str) -> Iterator[tuple[Site, Site]]:
    """The sites of a regime's seeds that have a method, with the model trained alone."""
    for seed in sorted(folder.glob("seed-*")):
        if not (file := seed / f"{method}.npz").exists() or not (seed / "alone.npz").exists():
            continue
        with np.load(seed / "alone.npz") as a, np.load(file) as b:
            alone, other = dict(a), dict(b)
        for name in dict.fromkeys(key.partition("/")[0] for key in other):
            number = int(seed.name.removeprefix("seed-"))
            yield Site(name, alone, number), Site(name, other, number)


def compared(folder: Path, method: str, used: Used) -> dict[str, np.ndarray] | None:
    """By site: accuracy, its difference to training alone, the exact p-value of being below, and the seed."""
    found = defaultdict(list)
    for alone, other in pairs(folder, method):
        old, new = own(alone), used(alone, other)
        right, was = (p[0].argmax(1) == p[1] for p in (new, old))
        better, worse = int((right & ~was).sum()), int((~right & was).sum())
        found["accuracy"].append(right.mean())
        found["gain"].append(right.mean() - was.mean())
        p = binomtest(worse, better + worse, alternative="greater").pvalue if better + worse else 1.0
        found["p"].append(p)
        found["seed"].append(alone.seed)
    return {name: np.array(values) for name, values in found.items()} if found else None


def significant(p: np.ndarray, level: float = 0.05) -> int:
    """How many are, by Holm's procedure."""
    steps = np.sort(p) <= level / np.arange(len(p), 0, -1)
    return len(p) if steps.all() else int(steps.argmin())


def line(title: str, of: dict[str, np.ndarray]) -> str:
    """A row of the table."""
    gain = of["gain"]
    below = int((gain < -POINT).sum())
    cells = [
        title,
        f"{of['accuracy'].mean():.4f}",
        f"{100 * gain.mean():+.2f}",
        f"{below} of {len(gain)}",
        str(significant(of["p"])),
        f"{100 * gain.min():+.1f}",
    ]
    return f"| {' | '.join(cells)} |"


HEAD = (
    "| | mean accuracy | to alone (points) | sites worse off | significantly | worst site (points) |\n"
    "|---|---|---|---|---|---|"
)


COMPACT = (
    "FedAvg",
    "FedBN",
    "FedAvg, fine-tuned",
    "FedBN, fine-tuned",
    "**FedBlend**",
    "two alone, blended",
)


def compact(found: dict[tuple[str, str], dict], alone: dict[str, dict]) -> None:
    """A regime a row, in which each method's mean gain and its sites worse off."""
    print(f"| regime | alone | {' | '.join(COMPACT)} |\n|---|{'---|' * (len(COMPACT) + 1)}")
    for regime, of in alone.items():
        if not all((regime, title) in found for title in COMPACT):
            continue
        gains = [found[regime, title]["gain"] for title in COMPACT]
        cells = [f"{100 * g.mean():+.1f} ({(g < -POINT).sum()})" for g in gains]
        print(f"| {regime}, {len(gains[0])} sites | {of['accuracy'].mean():.3f} | {' | '.join(cells)} |")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--summary", action="store_true", help="over all regimes instead of each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what medpfl advise reads instead")
    parser.add_argument("--compact", action="store_true", help="a row for each regime")
    asked = parser.parse_args()
    folders = sorted(f for f in asked.results.iterdir() if f.is_dir())
    found = {(f.name, t): c for f in folders for t, m, used in ROWS if (c := compared(f, m, used))}
    alone = {f.name: c for f in folders if (c := compared(f, "alone", lambda alone, other: own(alone)))}
    if asked.compact:
        compact(found, alone)
        return
    if asked.json:
        from regimes_json import write

        write(asked.json, alone, [(name, title, METHOD_OF[title], of) for (name, title), of in found.items()])
        return
    if not asked.summary:
        for folder in folders:
            seeds = len(list(folder.glob("seed-*/alone.npz")))
            mean = alone[folder.name]["accuracy"].mean()
            print(f"\n### {folder.name} ({seeds} seed{'s' * (seeds > 1)}; alone {mean:.4f})\n\n{HEAD}")
            for title, _, _ in ROWS:
                if of := found.get((folder.name, title)):
                    print(line(title, of))
        return
    print(HEAD.replace("| |", "| | regimes |", 1).replace("|---|", "|---|---|", 1))
    for title, _, _ in ROWS:
        all_ = [of for (r, t), of in found.items() if t == title and all((r, c) in found for c in COMPACT)]
        if all_:
            together = {key: np.concatenate([of[key] for of in all_]) for key in all_[0]}
            together["accuracy"] = np.array([of["accuracy"].mean() for of in all_])
            print(line(f"{title} | {len(all_)}", together))


if __name__ == "__main__":
    main()
