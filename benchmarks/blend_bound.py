"""What a bound on a blend's cost protects from, and what it costs: simulated, and on predictions that regimes.py kept.

    python benchmarks/blend_bound.py                 # simulated
    MEDPFL_BENCHMARK_DATA=FOLDER python benchmarks/blend_bound.py RESULTS

A blend is not used where it costs the validation cases more nats than the bound above training alone. For each bound:
the mean gain in test accuracy over training alone in points, the sites more than a point below it, and the worst.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.special import softmax

from medpfl.site.choice import posterior_mean

BOUNDS = {"none above": 0.0, "half a nat": 0.5, "a bit": float(np.log(2)), "a nat": 1.0, "one after another": None}
"""The last is that of cases taken one after another, log((n + 1)(n + 2) / 2)."""
WEIGHTS = np.linspace(0, 1, 101)
OTHERS = {
    "worse and sure": (0.8, 8),
    "useless and sure": (0.3, 8),
    "worse": (1.2, 2),
    "as good": (1.8, 2),
    "better": (2.4, 2),
}
CLASSES, TESTED, TRIALS = 5, 2000, 300


def gains(own: tuple, other: tuple, own_test: tuple, other_test: tuple, train: float) -> dict[str, float]:
    """By bound what a site gains, of probabilities (n, classes) with labels (n,)."""
    labels = own[1]
    alone, theirs = (p[np.arange(len(labels)), labels] for p, _ in (own, other))

    def cost(weight: float) -> float:
        return float(-np.log(np.clip((1 - weight) * alone + weight * theirs, 1e-12, 1)).sum())

    total = np.array([cost(weight) for weight in WEIGHTS])
    weight = posterior_mean(total, train) if np.ptp(total) else 0.0
    right = ((1 - weight) * own_test[0] + weight * other_test[0]).argmax(1) == own_test[1]
    gain = right.mean() - (own_test[0].argmax(1) == own_test[1]).mean()
    n, above = len(labels), cost(weight) - total[0]
    of_all = np.log((n + 1) * (n + 2) / 2)
    return {name: gain * (above <= (of_all if bound is None else bound)) for name, bound in BOUNDS.items()}


def simulated(strength: float, sureness: float, train: int, n: int) -> Iterator[dict[str, float]]:
    """Of sites whose own model and another, of this strength and sureness, make partly the same mistakes."""
    rng = np.random.default_rng(n)

    def both(cases: int) -> Iterator[tuple]:
        labels, common = rng.integers(CLASSES, size=cases), rng.normal(size=(cases, CLASSES))
        for of, sure in ((1.8, 2), (strength, sureness)):
            scores = of * np.eye(CLASSES)[labels] + 0.7 * common + 0.7 * rng.normal(size=(cases, CLASSES))
            yield softmax(sure * scores, axis=1), labels

    for _ in range(TRIALS):
        yield gains(*both(n), *both(TESTED), train)


def kept(results: Path, candidate: str) -> Iterator[dict[str, float]]:
    """Of every site, method and seed of which there are predictions, and of the model trained alone."""
    from regimes_table import Site, own

    for folder in sorted(results.glob("*/seed-*")):
        with np.load(folder / "alone.npz") as file:
            alone = dict(file)
        for path in sorted(folder.glob("*.npz")):
            if path.stem.startswith("alone"):
                continue
            with np.load(path) as file:
                other = dict(file)
            for name in sorted({key.partition("/")[0] for key in alone if "/" in key}):
                one, two = Site(name, alone), Site(name, other)
                found = own(one, "validation"), two.of(candidate, "validation"), own(one), two.of(candidate, "test")
                if all(of is not None for of in found):
                    yield gains(*found, float(alone[f"{name}/evenly"]))


def line(title: str, found: list[dict[str, float]]) -> str:
    """A row of the table."""
    cells = []
    for name in BOUNDS:
        points = 100 * np.array([of[name] for of in found])
        cells.append(f"{points.mean():+.2f} ({(points < -1 - 1e-7).sum()} of {len(points)}, {points.min():+.0f})")
    return f"| {title} | {' | '.join(cells)} |"


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?")
    results = parser.parse_args().results
    print(f"| | {' | '.join(BOUNDS)} |\n|---|{'---:|' * len(BOUNDS)}")
    if results:
        for candidate, title in (("partly", "fine-tuned as the cases speak"), ("received", "as published")):
            print(line(title, list(kept(results, candidate))))
        return
    for title, (strength, sureness) in OTHERS.items():
        for train, n in ((70, 10), (70, 30), (2000, 10), (2000, 30)):
            print(line(f"{title}, N = {train:,}, n = {n}", list(simulated(strength, sureness, train, n))), flush=True)


if __name__ == "__main__":
    main()
