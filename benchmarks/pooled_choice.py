"""What a site's choice would gain by the other sites' evidence, and by a second federation to choose from.

    python benchmarks/pooled_choice.py RESULTS [--regimes A B] [--seeds 0 1 2]

RESULTS: predictions of ``regimes.py --methods fedbn:prior=1 fedavg:prior=1``; nothing is trained. *Own*: FedBlend's
rule, by a site's own validation cases. *Pooled*: the prior of the weight is what all sites' posteriors are on average,
found by EM from FedBlend's, which counts as two sites (empirical Bayes). *Two federations*: the weights of five models,
the site's own and of FedBN and FedAvg each as published and fine-tuned, on a grid of eighths; pooled likewise.
"""

import argparse
import itertools
from pathlib import Path

import numpy as np
from regimes_table import ALONE, Site, kept, own
from scipy.special import betainc

BASE, SECOND = "fedbn_prior=1", "fedavg_prior=1"
LIKE = 2.0
"""Sites that the prior counts as."""


def prior(shares: np.ndarray, train: float) -> np.ndarray:
    """FedBlend's, of what all other models weigh together: (K,), alike for those that weigh the same."""
    few, steps = 300 / (300 + train), np.unique(shares)
    edges = np.concatenate([[0], (steps[1:] + steps[:-1]) / 2, [1]])
    mass = np.diff(betainc(1 + few, 1 + (1 - few) / 2, edges))
    which = np.searchsorted(steps, shares)
    return mass[which] / np.bincount(which)[which]


def weights(likelihoods: np.ndarray, before: np.ndarray, grid: np.ndarray, *, pooled: bool) -> np.ndarray:
    """Every site's posterior mean, (sites, models), from the likelihoods at the grid's points, (sites, K)."""
    now = before
    for _ in range(50 if pooled else 0):
        posterior = now * likelihoods / (now * likelihoods).sum(1, keepdims=True)
        now = (LIKE * before + posterior.sum(0)) / (LIKE + len(posterior))
    posterior = now * likelihoods / (now * likelihoods).sum(1, keepdims=True)
    return posterior @ grid


def gains(sites: list[list], steps: int, *, pooled: bool) -> np.ndarray:
    """Points of test accuracy over the first model, (sites,); of each site the models' predictions of both parts."""
    count = len(sites[0][0])
    grid = np.array([c for c in itertools.product(range(steps + 1), repeat=count) if sum(c) == steps]) / steps
    likelihoods = []
    for validation, _, _ in sites:
        right = np.stack([p[np.arange(len(y)), y] for p, y in validation], 1)  # (n, models)
        loss = -np.log(np.clip(right @ grid.T, 1e-12, None)).sum(0)
        likelihoods.append(np.exp(loss.min() - loss))
    before = prior(1 - grid[:, 0], sites[0][2])
    found = weights(np.array(likelihoods), before, grid, pooled=pooled)
    made = []
    for (_, test, _), weight in zip(sites, found, strict=True):
        labels, mixed = test[0][1], sum(w * p for w, (p, _) in zip(weight, test, strict=True))
        made.append(100 * ((mixed.argmax(1) == labels).mean() - (test[0][0].argmax(1) == labels).mean()))
    return np.array(made)


def predictions(folder: Path, *candidates: tuple[str, str]) -> list[list]:
    """Of every site with validation cases: the models' on both parts, its own first, and its training cases."""
    by_itself, *methods = (kept(folder, results) for results in (ALONE, *(method for method, _ in candidates)))
    found = []
    for site, alone in by_itself.items():
        others: list[Site] = [run[site] for run in methods]
        if alone.of("received", "validation") is None:
            continue
        both = [
            [own(alone, part), *(o.of(name, part) for o, (_, name) in zip(others, candidates, strict=True))]
            for part in ("validation", "test")
        ]
        found.append([*both, float(alone.arrays[f"{alone.name}/evenly"])])
    return found


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--regimes", nargs="*")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    asked = parser.parse_args()
    five = [(method, name) for method in (BASE, SECOND) for name in ("received", "fine-tuned")]
    print("| regime | own | pooled | two federations, pooled |\n|---|---|---|---|")
    for regime in asked.regimes or sorted(path.name for path in asked.results.iterdir()):
        rows: list[list[np.ndarray]] = [[], [], []]
        for folder in (asked.results / regime / f"seed-{seed}" for seed in asked.seeds):
            if two := predictions(folder, (BASE, "partly")):
                for row, (sites, steps, pooled) in zip(
                    rows, [(two, 100, False), (two, 100, True), (predictions(folder, *five), 8, True)], strict=True
                ):
                    row.append(gains(sites, steps, pooled=pooled))
        if rows[0]:
            said = [np.concatenate(row) for row in rows]
            print(f"| {regime} | " + " | ".join(f"{g.mean():+.2f} ({(g < -1).sum()})" for g in said) + " |", flush=True)


if __name__ == "__main__":
    main()
