"""The tables of ``regimes.py``: sites that a method leaves worse off than training alone, and what it gains.

    python benchmarks/regimes_table.py --add RESULTS             # lines of regimes.csv from predictions; may be partial
    python benchmarks/regimes_table.py --add RESULTS --fresh     # of regimes_fresh.csv, which the tables leave out
    python benchmarks/regimes_table.py [--compact | --summary] [--seeds 0] [--regimes A B]  # the tables
    python benchmarks/regimes_table.py --own-rival ...           # FedBlend against the model trained alone as it trains
    python benchmarks/regimes_table.py --vit [--compact]         # the regimes with a vision transformer
    MEDPFL_BENCHMARK_DATA=FOLDER python benchmarks/regimes_table.py --json FILE

*Alone* is the model that a site trains by itself in the same rounds, of its best round, between as it is and with as
many steps more as fine-tuning has, as its validation cases speak. A site is *worse off* if its test accuracy is more
than a point below that, and *significantly* so if an exact test of the paired predictions says it, corrected for the
sites of the row, regime and seed (Holm, 5 %).
``blend`` and ``best`` are the package's rules on the site's own validation cases; for a method's plain row it is what
the method gives. FedBlend and the model that it blends with are trained with momentum where sites train by SGD, all
else without; ``regimes_momentum.csv`` has what is, held against the model trained alone with momentum. The last command
writes what ``medpfl advise`` reads (``regimes_json.py``).
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from regimes import by_sgd, regimes
from regimes_masks import REGIMES
from regimes_masks import measured as measured_masks
from regimes_records import FILE, FRESH, MOMENTUM, VIT, Record, Together, add, read, record, together
from scipy.stats import binomtest

from medpfl.site.choice import chosen
from medpfl.tasks import TASKS

TASK = TASKS["classification"]


class Site(NamedTuple):
    """Predictions of one site: by candidate and part, (n, classes), with labels."""

    name: str
    arrays: dict

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
        train = float(alone.arrays[f"{alone.name}/evenly"])
        weight = chosen(rule, lambda w: TASK.losses(TASK.mixed(mine, theirs, w)), train, len(candidates))
        return TASK.mixed(own(alone), other.of(best, "test"), weight)

    return used


BLEND = by("blend", "partly")
ALONE, AGAIN = "alone", "alone-again"
WITH = "momentum=0.9"
"""What the methods of the second file are trained with at the sites, and FedBlend where it is by SGD."""


class Row(NamedTuple):
    """A row of the tables."""

    title: str
    results: str
    """The name of the predictions."""
    used: Used
    beside: str = ""
    """The same of the model trained alone that ``used`` gets; empty for the one that all are held against."""


ROWS = [
    Row("alone", ALONE, lambda alone, other: own(alone)),
    Row("alone, no steps more", ALONE, plain("received")),
    Row("alone, momentum 0.9", f"{ALONE}_{WITH}", lambda alone, other: own(other)),
    Row("two alone, blended", AGAIN, BLEND),
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
    "f-fedap": "f-FedAP",
    "d-fedap_pretrain_epochs=1": "d-FedAP",
    "fedavg_prior=1": "FedAvg, prior",
    "fedbn_prior=1": "FedBN, prior",
    "fedper_prior=1": "FedPer, prior",
    "fedprox_prior=1": "FedProx, prior",
    "lg-fedavg_prior=1": "LG-FedAvg, prior",
    "ditto_prior=1": "Ditto, prior",
    "fedap_pretrain_epochs=1,prior=1": "FedAP, prior",
    "d-fedap_pretrain_epochs=1,prior=1": "d-FedAP, prior",
    "f-fedap_prior=1": "f-FedAP, prior",
    "apfl_prior=1": "APFL, prior",
    "fedrep_prior=1": "FedRep, prior",
    "scaffold_prior=1": "SCAFFOLD, prior",
    "fedbabu_prior=1": "FedBABU, prior",
    "fedcurv": "FedCurv",
    "vhl": "VHL",
    "fedimpres": "FedImpres",
    "fedimpres_prior=1": "FedImpres, prior",
    "fedavgm": "FedAvgM",
    "fedadam": "FedAdam",
    "fedyogi": "FedYogi",
    "fedreg": "FedReg",
    "fedvss": "FedVSS",
    "fedcurv_prior=1": "FedCurv, prior",
    "vhl_prior=1": "VHL, prior",
    "fedavgm_prior=1": "FedAvgM, prior",
    "fedadam_prior=1": "FedAdam, prior",
    "fedyogi_prior=1": "FedYogi, prior",
    "fedreg_prior=1": "FedReg, prior",
    "fedvss_prior=1": "FedVSS, prior",
    "fedbn_server_lr=1": "FedBN, server momentum",
    "fedavg_server_lr=1": "FedAvg, server momentum",
    "vit-heads": "ViT heads",
    "vit-heads_prior=1": "ViT heads, prior",
}
FINE_TUNED = ("fedbabu", "fedbabu_prior=1")
"""Is so as published."""
for name, title in TITLES.items():
    ROWS.append(Row(title, name, plain("fine-tuned" if name in FINE_TUNED else "received")))
for name, title in TITLES.items():
    if name not in FINE_TUNED:
        ROWS.append(Row(f"{title}, fine-tuned", name, plain("fine-tuned")))
ROWS.append(Row("FedBN, fine-tuned, best", "fedbn", by("best", "fine-tuned", "received")))
BLENDED = (
    "fedavg", "fedper", "fedbn", "fedbn_prior=1", "fedbn_server_lr=1", "fedavg_server_lr=1", "vit-heads",
    "vit-heads_prior=1",
)  # fmt: skip
for name in BLENDED:
    ROWS.append(Row(f"{TITLES[name]}, fine-tuned, blend", name, BLEND))
FEDBLEND, PLAIN = "**FedBlend**", "**FedBlend, momentum=0**"
ROWS.append(Row(FEDBLEND, f"fedbn_{WITH},server_lr=1", BLEND, f"{ALONE}_{WITH}"))
PARTS = {"FedBN": "FedBlend, before its steps more", "FedBN, fine-tuned": "FedBlend, before the blend"}
"""What FedBlend's federation gives, by the rows that it is where sites do not train by SGD."""
WITH_MOMENTUM = [
    Row("alone", f"{ALONE}_{WITH}", lambda alone, other: own(alone)),
    Row("alone, no steps more", f"{ALONE}_{WITH}", plain("received")),
    Row("two alone, blended", f"{AGAIN}_{WITH}", BLEND),
    Row(PARTS["FedBN"], f"fedbn_{WITH},server_lr=1", plain("received")),
    Row(PARTS["FedBN, fine-tuned"], f"fedbn_{WITH},server_lr=1", plain("fine-tuned")),
    Row(FEDBLEND, f"fedbn_{WITH},server_lr=1", BLEND),
]
"""Of the second file, of sites that train with momentum, alone too."""
RESULTS_OF = {row.title: row.results for row in ROWS} | {PLAIN: "fedbn_server_lr=1"}
FIELDS = regimes() | REGIMES


def same_as(title: str, regime: str) -> str:
    """The blended row that one of FedBlend's is in a regime: it has no momentum where sites do not train by SGD."""
    if regime.endswith("-vit"):  # whose sites all train with momentum
        return {FEDBLEND: "FedAvg, server momentum, fine-tuned, blend"}.get(title, "")
    if by_sgd(FIELDS[regime]):
        return {PLAIN: "FedBN, server momentum, fine-tuned, blend"}.get(title, "")
    return {PLAIN: "FedBN, fine-tuned, blend", FEDBLEND: "FedBN, fine-tuned, blend"}.get(title, "")


def twice(regime: str) -> set[str]:
    """The rows of a regime that stand there under another name."""
    return {same_as(PLAIN, regime), *([] if by_sgd(FIELDS[regime]) else [PLAIN])}


def kept(folder: Path, results: str) -> dict[str, Site]:
    """The sites of a run of a regime and seed; none where it is not there."""
    if not (file := folder / f"{results}.npz").exists():
        return {}
    with np.load(file) as found:
        arrays = dict(found)
    return {name: Site(name, arrays) for name in dict.fromkeys(key.partition("/")[0] for key in arrays)}


def measured(results: Path, rows: Sequence[Row] = ROWS, reference: str = ALONE) -> Iterator[Record]:
    """The rows of every regime and seed whose predictions are there.

    Args:
        results: of ``regimes.py``.
        rows: of the tables.
        reference: the predictions of the model trained alone that all are held against.
    """
    for folder in sorted(results.glob("*/seed-*")):
        load = lru_cache(maxsize=4)(partial(kept, folder))
        for row in rows:
            right, was, p = [], [], []
            runs = load(reference), load(row.beside or reference), load(row.results)
            for name in runs[2] if all(runs) else ():
                alone, beside, other = (run[name] for run in runs)
                new, old = (model[0].argmax(1) == model[1] for model in (row.used(beside, other), own(alone)))
                better, worse = int((new & ~old).sum()), int((~new & old).sum())
                p.append(binomtest(worse, better + worse, alternative="greater").pvalue if better + worse else 1.0)
                right.append(new.mean())
                was.append(old.mean())
            if right:
                accuracy, seed = np.array(right), int(folder.name.removeprefix("seed-"))
                yield record(folder.parent.name, seed, row.title, accuracy, accuracy - was, np.array(p))


def cells(of: Together) -> str:
    """A row's numbers."""
    spread = "" if of.sd_seeds is None else f" ± {of.sd_seeds:.2f}"
    share = f"{of.worse_off} of {of.sites}"
    return f"{of.accuracy:.4f} | {of.gain:+.2f}{spread} | {share} | {of.significant} | {of.worst:+.1f}"


HEAD = (
    "| | {}mean accuracy | to {} (points) | sites worse off | significantly | worst site (points) |\n"
    "|---|{}---|---|---|---|---|"
)
COMPACT = ("FedAvg", "FedBN", "FedAvg, fine-tuned", "FedBN, fine-tuned", PLAIN, "two alone, blended")
HEADS = ("ViT heads", "ViT heads, prior")
COMPACT_VIT = tuple(f"{title}{used}" for used in ("", ", fine-tuned", ", fine-tuned, blend") for title in HEADS)
"""FedAvg and FedBlend were run in one of these regimes."""
COMPACT_OWN = (*PARTS.values(), FEDBLEND, "two alone, blended")
"""Beside the model trained alone as FedBlend's rival is."""
Regimes = dict[str, dict[str, list[Record]]]
"""By regime and row."""


def by_own_rival(file: Path = FILE) -> list[Record]:
    """FedBlend against its own rival: the lines of the second file, and a file's of sites that do not train by SGD."""
    others = [line for line in read(file) if not by_sgd(FIELDS[line.regime])]
    same = {row: row for row in ("alone", "alone, no steps more", "two alone, blended", FEDBLEND)} | PARTS
    return [*read(MOMENTUM), *(line._replace(row=same[line.row]) for line in others if line.row in same)]


def of_whole_seeds(lines: Iterable[Record], compact: Sequence[str]) -> Regimes:
    """The lines of those regimes and seeds that have all rows of the compact table: others are still being run."""
    lines, rows = list(lines), defaultdict(set)
    for line in lines:
        rows[line.regime, line.seed].add(line.row)
    found: Regimes = defaultdict(lambda: defaultdict(list))
    for line in lines:
        if rows[line.regime, line.seed] >= {"alone", *compact}:
            found[line.regime][line.row].append(line)
    return found


def print_compact(found: Regimes, rows: Sequence[str], rival: str) -> None:
    """A regime a row, in which each method's mean gain and its sites worse off."""
    print(f"| regime | seeds | {rival} | {' | '.join(rows)} |\n|---|{'---|' * (len(rows) + 2)}")
    for regime, of in found.items():
        alone = together(of["alone"])
        seeds = len(alone.seeds)
        every = (together(of[row]) for row in rows)
        gains = " | ".join(f"{row.gain:+.1f} ({row.worse_off})" for row in every)
        times = f"{seeds} × " if seeds > 1 else ""
        print(f"| {regime}, {times}{alone.sites // seeds} sites | {seeds} | {alone.accuracy:.3f} | {gains} |")


def summary(found: Regimes, rival: str) -> None:
    """The rows over all regimes in which they have every seed, each counting by its sites and seeds."""
    print(HEAD.format("regimes | ", rival, "---|"))
    for title in [*RESULTS_OF, *PARTS.values()]:
        lists = [of[title] for of in found.values() if len(of.get(title, ())) == len(of["alone"])]
        if lists and title != "alone":
            accuracy = float(np.mean([together(of).accuracy for of in lists]))
            all_ = together([r for of in lists for r in of])._replace(accuracy=accuracy, sd_seeds=None)
            print(f"| {title} | {len(lists)} | {cells(all_)} |")


def full(found: Regimes, rival: str) -> None:
    """Every regime's table; a row that has not all of its seeds says which."""
    for regime, of in found.items():
        alone = together(of["alone"])
        seeds = f"seed{'s' * (len(alone.seeds) > 1)} {', '.join(map(str, alone.seeds))}"
        print(f"\n### {regime} ({seeds}; {rival} {alone.accuracy:.4f})\n\n{HEAD.format('', rival, '')}")
        for title in [*RESULTS_OF, *PARTS.values()]:
            if title in of and title not in ("alone", *twice(regime)):
                row = together(of[title])
                some = f" (seed {', '.join(map(str, row.seeds))})" if row.seeds != alone.seeds else ""
                print(f"| {title}{some} | {cells(row)} |")


def main() -> None:
    """Adds results, or prints the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--add", type=Path, metavar="RESULTS", help="of regimes.py, to regimes.csv")
    parser.add_argument("--fresh", action="store_true", help="with --add: of seeds that choose no row")
    parser.add_argument("--summary", action="store_true", help="over all regimes instead of each")
    parser.add_argument("--vit", action="store_true", help="the regimes with a vision transformer")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what medpfl advise reads instead")
    parser.add_argument("--compact", action="store_true", help="a row for each regime")
    parser.add_argument("--seeds", type=int, nargs="*", help="of these alone, in which more methods may have been run")
    parser.add_argument("--regimes", nargs="*", help="these alone")
    parser.add_argument(
        "--own-rival", action="store_true", help="FedBlend against the model trained alone as it trains"
    )
    asked = parser.parse_args()
    if asked.own_rival and asked.json:
        parser.error("medpfl advise holds all against one local training: --json without --own-rival")
    if asked.add:
        new = [*measured(asked.add), *measured_masks(asked.add)]
        new += [r._replace(row=own) for own in (PLAIN, FEDBLEND) for r in new if r.row == same_as(own, r.regime)]
        own_ = [*measured(asked.add, WITH_MOMENTUM, f"{ALONE}_{WITH}")]
        others, of_vit = ([r for r in new if r.regime.endswith("-vit") is vit] for vit in (False, True))
        for lines, file in ((others, FRESH if asked.fresh else FILE), (own_, MOMENTUM), (of_vit, VIT)):
            print(f"{len(lines)} lines added or replaced, {len(add(lines, file))} in {file.name}")
        return
    wanted = [(asked.seeds, "seed"), (asked.regimes, "regime")]
    every, compact = (by_own_rival(), COMPACT_OWN) if asked.own_rival else (read(), COMPACT)
    if asked.vit:
        every, compact = read(VIT), COMPACT_VIT
    rival = "own rival" if asked.own_rival else "alone"
    lines = (line for line in every if all(only is None or getattr(line, name) in only for only, name in wanted))
    found = of_whole_seeds(lines, compact)
    if asked.json:
        from regimes_json import write

        write(asked.json, found, RESULTS_OF, twice)
    elif asked.compact:
        print_compact(found, compact, rival)
    elif asked.summary:
        summary(found, rival)
    else:
        full(found, rival)


if __name__ == "__main__":
    main()
