"""The best single row of every regime beside FedBlend, and whether seeds bear it out.

    python benchmarks/regimes_best.py [--own "FedBlend, momentum=0"]
    python benchmarks/regimes_best.py --fresh

A single row is a method as published, with the label prior, fine-tuned, or both: nothing is blended with the model
trained alone. Of those with all of a regime's seeds the table has the one that gains most over *alone*. It is chosen by
the same test cases, so its lead is at its best; ``p`` is Student's one-sided test that a row is ahead of FedBlend, over
seeds, times the number of rows (Bonferroni), the least of any row.

``--fresh`` holds the row so chosen against FedBlend with seeds that had no part in the choice (``regimes_fresh.csv``),
so that its lead there is not at its best; ``p`` is two-sided, of one row. A second table has what FedBlend gains with
these seeds over its own rival, and what the choice at its end does to that.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from regimes_records import FRESH, Record, read
from regimes_table import FEDBLEND, PARTS, PLAIN, TITLES, by_own_rival, print_compact
from scipy.stats import ttest_rel

SINGLE = {row for title in TITLES.values() if "server momentum" not in title for row in (title, f"{title}, fine-tuned")}
Rows = dict[str, list[Record]]


def by_regime(lines: Sequence[Record]) -> dict[str, Rows]:
    """The lines by regime and row."""
    found: dict[str, Rows] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        found[line.regime][line.row].append(line)
    return found


def leads(row: Sequence[Record], own: Sequence[Record]) -> np.ndarray:
    """By how many points a row is ahead with each seed that both have, (seeds, 2): the row's gains and the other's."""
    gains = [{line.seed: line.gain for line in lines} for lines in (row, own)]
    return np.array([[of[seed] for of in gains] for seed in sorted(gains[0].keys() & gains[1].keys())])


def p_value(pairs: np.ndarray, alternative: str) -> float:
    """Student's paired test over seeds."""
    return float(ttest_rel(*pairs.T, alternative=alternative).pvalue) if len(pairs) > 1 else 1.0


def complete(of: Rows, own: str) -> dict[str, np.ndarray]:
    """By single row with all of a regime's seeds its gains and FedBlend's."""
    return {row: leads(of[row], of[own]) for row in of if row in SINGLE and len(of[row]) == len(of[own])}


def best_of(rows: dict[str, np.ndarray]) -> str:
    """The row with the highest mean gain."""
    return max(rows, key=lambda row: rows[row][:, 0].mean())


def print_best(own: str) -> None:
    """A regime a line."""
    print(f"| regime | {own} | rows | the best of them | to alone | ahead by | with the seeds | rows ahead | p |")
    print("|---|---:|---:|---|---:|---:|---|---:|---:|")
    for regime, of in by_regime(read()).items():
        rows = complete(of, own)
        best = best_of(rows)
        reached, mine = rows[best].mean(axis=0)
        by = {row: pairs[:, 0] - pairs[:, 1] for row, pairs in rows.items()}
        p = min(1.0, len(rows) * min(p_value(pairs, "greater") for pairs in rows.values()))
        seeds = ", ".join(f"{lead:+.1f}" for lead in by[best])
        lead = f"{by[best].mean():+.1f} | {seeds} | {sum(lead.mean() > 0 for lead in by.values())} | {p:.2f}"
        print(f"| {regime} | {mine:+.1f} | {len(rows)} | {best} | {reached:+.1f} | {lead} |")


def print_fresh(own: str) -> None:
    """A regime a line, of those that have further seeds of FedBlend and of the row that the first chose."""
    print("| regime | the row that was best | ahead by, then | seeds since | to alone | ours | ahead by | sd | p |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    chosen = {regime: complete(of, own) for regime, of in by_regime(read()).items()}
    for regime, of in by_regime(read(FRESH)).items():
        best = best_of(rows := chosen[regime])
        if len(pairs := leads(of[best], of[own])):
            then = (rows[best][:, 0] - rows[best][:, 1]).mean()
            by = pairs[:, 0] - pairs[:, 1]
            seeds_of_both = {line.seed for line in of[best]} & {line.seed for line in of[own]}
            theirs, mine = (
                f"{mean:+.1f} ({sum(line.worse_off for line in of[row] if line.seed in seeds_of_both)})"
                for row, mean in zip((best, own), pairs.mean(axis=0), strict=True)
            )
            seeds = f"{len(pairs)} × {of[own][0].sites} sites"
            lead = f"{by.mean():+.1f} | {by.std(ddof=1):.1f} | {p_value(pairs, 'two-sided'):.2f}"
            print(f"| {regime} | {best} | {then:+.1f} | {seeds} | {theirs} | {mine} | {lead} |")
    print()
    fresh = {(line.regime, line.seed) for line in read(FRESH)}
    print_compact(
        by_regime([line for line in by_own_rival(FRESH) if (line.regime, line.seed) in fresh]),
        (*PARTS.values(), FEDBLEND),
        "own rival",
    )


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--own", default=FEDBLEND, help="the row that all are held against")
    parser.add_argument("--fresh", action="store_true", help="with seeds that had no part in the choice of the row")
    asked = parser.parse_args()
    own = PLAIN if asked.own.strip("*") == PLAIN.strip("*") else asked.own
    (print_fresh if asked.fresh else print_best)(own)


if __name__ == "__main__":
    main()
