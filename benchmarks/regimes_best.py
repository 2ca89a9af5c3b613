"""The best single row of every regime beside FedBlend, and whether seeds bear it out.

    python benchmarks/regimes_best.py [--own "FedBlend, momentum=0"]

A single row is a method as published, with the label prior, fine-tuned, or both: nothing is blended with the model
trained alone. Of those with all of a regime's seeds the table has the one that gains most over *alone*. It is chosen by
the same test cases, so its lead is at its best; ``p`` is Student's one-sided test that a row is ahead of FedBlend, over
seeds, times the number of rows (Bonferroni), the least of any row.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from regimes_records import Record, read
from regimes_table import FEDBLEND, PLAIN, TITLES
from scipy.stats import ttest_rel

SINGLE = {row for title in TITLES.values() if "server momentum" not in title for row in (title, f"{title}, fine-tuned")}


def leads(row: Sequence[Record], own: Sequence[Record]) -> tuple[np.ndarray, float]:
    """By how many points a row is ahead with each seed, and the p-value that it is."""
    by_seed = [{line.seed: line.gain for line in lines} for lines in (row, own)]
    pairs = np.array([[of[seed] for of in by_seed] for seed in sorted(by_seed[1])])
    p = ttest_rel(*pairs.T, alternative="greater").pvalue if len(pairs) > 1 else 1.0
    return pairs[:, 0] - pairs[:, 1], float(p)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--own", default=FEDBLEND, help="the row that all are held against")
    asked = parser.parse_args()
    own = PLAIN if asked.own.strip("*") == PLAIN.strip("*") else asked.own
    found: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for line in read():
        found[line.regime][line.row].append(line)
    print(f"| regime | {own} | rows | the best of them | to alone | ahead by | with the seeds | rows ahead | p |")
    print("|---|---:|---:|---|---:|---:|---|---:|---:|")
    for regime, of in found.items():
        mine = of[own]
        rows = {row: lines for row, lines in of.items() if row in SINGLE and len(lines) == len(mine)}
        ahead = {row: leads(lines, mine) for row, lines in rows.items()}
        best = max(ahead, key=lambda row: ahead[row][0].mean())
        by = ahead[best][0]
        told = (np.mean([line.gain for line in lines]) for lines in (mine, rows[best]))
        mean, reached = (f"{gain:+.1f}" for gain in told)
        p = min(1.0, len(rows) * min(p for _, p in ahead.values()))
        seeds = ", ".join(f"{lead:+.1f}" for lead in by)
        better = sum(lead.mean() > 0 for lead, _ in ahead.values())
        lead = f"{by.mean():+.1f} | {seeds} | {better} | {p:.2f}"
        print(f"| {regime} | {mean} | {len(rows)} | {best} | {reached} | {lead} |")


if __name__ == "__main__":
    main()
