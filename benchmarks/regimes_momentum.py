"""How much of what momentum at the server gains a site has by itself, with momentum of its own.

    python benchmarks/regimes_momentum.py RESULTS [--seed 1]

RESULTS: predictions of ``regimes.py --methods fedbn:server_lr=1 alone:momentum=0.9 fedbn:momentum=0.9,server_lr=1``; a
regime may lack the last. Nothing is trained. Points of test accuracy over training alone, and sites more than a point
below the model trained alone with momentum; FedBlend blends with the model that its own sites train alone.
"""

import argparse
from pathlib import Path

import numpy as np
from regimes_records import POINT
from regimes_table import BLEND, Site, own

ALONE, WITH, BOTH = "alone", "alone_momentum=0.9", "fedbn_momentum=0.9,server_lr=1"
HEADS = ("alone", "alone, momentum 0.9", "FedBlend", "below it", "FedBlend, momentum 0.9 at the sites too", "below it")


def kept(folder: Path, name: str) -> list[Site] | None:
    """A run's sites."""
    if not (file := folder / f"{name}.npz").exists():
        return None
    with np.load(file) as found:
        arrays = dict(found)
    return [Site(site, arrays) for site in dict.fromkeys(key.partition("/")[0] for key in arrays)]


def accuracies(models) -> np.ndarray:
    """Of each site's predictions, in points."""
    return np.array([100 * (probabilities.argmax(1) == labels).mean() for probabilities, labels in models])


def row(folder: Path) -> list[str] | None:
    """A regime's cells; None if it was not trained with momentum."""
    runs = {name: kept(folder, name) for name in (ALONE, WITH, "fedbn_server_lr=1", BOTH)}
    if not (runs[WITH] and runs[ALONE] and runs["fedbn_server_lr=1"]):
        return None
    alone, rival = (accuracies(own(site) for site in runs[name]) for name in (ALONE, WITH))

    def cells(sites: list[Site], others: list[Site]) -> list[str]:
        found = accuracies(BLEND(*pair) for pair in zip(sites, others, strict=True))
        return [f"{(found - alone).mean():+.1f}", str(int((found - rival < -100 * POINT).sum()))]

    both = cells(runs[WITH], runs[BOTH]) if runs[BOTH] else ["–", "–"]
    plain = cells(runs[ALONE], runs["fedbn_server_lr=1"])
    where = f"{folder.parent.name}, {len(alone)} sites"
    return [where, f"{alone.mean() / 100:.3f}", f"{(rival - alone).mean():+.1f}", *plain, *both]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    print(f"| regime, seed {asked.seed} | {' | '.join(HEADS)} |\n|---|{'---:|' * len(HEADS)}")
    for folder in sorted(asked.results.glob(f"*/seed-{asked.seed}")):
        if found := row(folder):
            print(f"| {' | '.join(found)} |")


if __name__ == "__main__":
    main()
