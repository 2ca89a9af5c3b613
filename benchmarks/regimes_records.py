"""What is kept of the regimes' results: a line for each row of the tables, regime and seed.

``regimes.csv`` is of sites that train as the papers do, ``regimes_momentum.csv`` of sites that train with momentum.
``regimes_fresh.csv`` has seeds that were trained after its rows had been chosen by the others (``regimes_best.py``),
``regimes_vit.csv`` the regimes with a vision transformer.

Predictions fill gigabytes and stay where they were made; lines are added as seeds and methods are run, on any machine,
and the tables and ``medpfl advise``'s file are made of the lines.
"""

import csv
from collections.abc import Iterable, Sequence
from math import sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np

FILE = Path(__file__).with_name("regimes.csv")
MOMENTUM = Path(__file__).with_name("regimes_momentum.csv")
FRESH = Path(__file__).with_name("regimes_fresh.csv")
VIT = Path(__file__).with_name("regimes_vit.csv")
POINT = 0.01 + 1e-9


class Record(NamedTuple):
    """A row of the tables in a regime, with a seed; gains are test accuracy over training alone, in points."""

    regime: str
    seed: int
    row: str
    sites: int
    accuracy: float
    """Mean over sites, in [0, 1]."""
    gain: float
    sd: float
    """Of the gains, over sites."""
    worse_off: int
    """Sites more than a point below training alone."""
    significant: int
    """Sites below it by an exact test of the paired predictions, corrected for their number (Holm, 5 %)."""
    worst: float


KEY = ("regime", "seed", "row")


def record(regime: str, seed: int, row: str, accuracy: np.ndarray, gain: np.ndarray, p: np.ndarray) -> Record:
    """Of the sites' accuracies, differences to training alone, and p-values of being below it."""
    points = 100 * gain
    sd = float(points.std(ddof=1)) if len(points) > 1 else 0.0
    of_gain = (round(float(points.mean()), 3), round(sd, 3), int((gain < -POINT).sum()))
    mean = round(float(accuracy.mean()), 4)
    return Record(regime, seed, row, len(gain), mean, *of_gain, significant(p), round(float(points.min()), 3))


def significant(p: np.ndarray, level: float = 0.05) -> int:
    """How many are, by Holm's procedure."""
    steps = np.sort(p) <= level / np.arange(len(p), 0, -1)
    return len(p) if steps.all() else int(steps.argmin())


def read(file: Path = FILE) -> list[Record]:
    """The lines of a file, none if it is not there."""
    if not file.exists():
        return []
    with open(file, newline="", encoding="utf-8") as lines:
        types = Record.__annotations__
        return [Record(**{name: types[name](text) for name, text in row.items()}) for row in csv.DictReader(lines)]


def add(new: Iterable[Record], file: Path = FILE) -> list[Record]:
    """Writes the file with these lines in it, in place of lines of the same regime, seed and row; returns them all."""
    found = {(r.regime, r.seed, r.row): r for r in (*read(file), *new)}
    records = [found[key] for key in sorted(found)]
    part = file.with_suffix(".part")
    with open(part, "w", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(Record._fields)
        writer.writerows(records)
    part.rename(file)
    return records


class Together(NamedTuple):
    """Records of one row taken together."""

    seeds: tuple[int, ...]
    sites: int
    accuracy: float
    gain: float
    sd_seeds: float | None
    """Of the seeds' mean gains; None with one seed."""
    sd_sites: float
    worse_off: int
    significant: int
    worst: float


def together(records: Sequence[Record]) -> Together:
    """Of any records; a mean over seeds counts each site once."""
    sites = np.array([r.sites for r in records])
    gains, n = np.array([r.gain for r in records]), sites.sum()
    gain = float((sites * gains).sum() / n)
    squares = sum((r.sites - 1) * r.sd**2 + r.sites * (r.gain - gain) ** 2 for r in records)
    seeds = tuple(sorted({r.seed for r in records}))
    by_seed = [np.average(gains[own], weights=sites[own]) for s in seeds if any(own := [r.seed == s for r in records])]
    return Together(
        seeds=seeds,
        sites=int(n),
        accuracy=float((sites * [r.accuracy for r in records]).sum() / n),
        gain=gain,
        sd_seeds=float(np.std(by_seed, ddof=1)) if len(seeds) > 1 else None,
        sd_sites=sqrt(squares / (n - 1)) if n > 1 else 0.0,
        worse_off=sum(r.worse_off for r in records),
        significant=sum(r.significant for r in records),
        worst=min(r.worst for r in records),
    )
