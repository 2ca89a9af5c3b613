"""What ``medpfl advise`` would say of each of the benchmarks' regimes if that one were not among them.

    python benchmarks/advice_left_out.py

Of each: how sure it says it is, whether taking part pays, the method that it names as best on average with the gain in
points that it says and the one that is so there, and likewise the method for the worst site with that site's gain.
"""

from medpfl.report.advice.answer import answers
from medpfl.report.advice.regimes import shipped


def main() -> None:
    """The table."""
    known = shipped()
    print("| regime | how sure | taking part | best on average | said | there | for the worst site | said | there |")
    print("|---|---|---|---|---:|---:|---|---:|---:|")
    for measure in ("accuracy", "dice"):
        regimes = known.of(measure)
        for regime in regimes:
            answer = answers(regime.features, [other for other in regimes if other is not regime])[0]
            mean, worst = answer.by_mean, answer.by_worst
            there = [regime.row(row.title) for row in (mean, worst)]
            gains = [f"{mean.gain:+.1f}", f"{there[0].gain:+.1f}" if there[0] else "–"]
            lowest = [f"{worst.worst:+.1f}", f"{there[1].worst:+.1f}" if there[1] else "–"]
            cells = [regime.name, answer.sure, answer.take_part, mean.title, *gains, worst.title, *lowest]
            print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
