"""What taking part is worth to every site of a run: a part of the page, and lines on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from medpfl.core.gain import CONTAINS_0, in_use, interval, signed, title
from medpfl.report.charts import interval_plot
from medpfl.report.page_parts import Part, Table
from medpfl.report.reading import Results, selected
from medpfl.report.words import NONE, site_name, taking_part

_NOTE = (
    "In percentage points: what the model that a site uses gains over the one that it trained alone, on the same test "
    f"cases. {CONTAINS_0} About one interval in 20 misses the true difference by chance. Uses: what share each model "
    "has in the prediction; as published is the method's own."
)
_NAMED = 5
"""Sites that lose and are named on the terminal."""


def gains_part(run: Results) -> Iterator[Part]:
    """Every site's gains with their intervals and what it uses; nothing without a verdict."""
    if not run.get("verdict"):
        return
    measure, told = run["verdict"]["measure"], _by_gain(run)
    rows = [
        (site_name(run, name), gain["difference"], gain["low"], gain["high"])
        for name, said in told
        if (gain := _gain(said, measure))
    ]
    yield Part(
        "What taking part is worth",
        table=gains_table(run),
        figure=interval_plot(f"{title(measure)}, points over training alone", rows) if rows else None,
        note=_NOTE,
    )


def gains_table(run: Results) -> Table:
    """A row for every site that tells."""
    tested = (selected(run) or {"sites": {}})["sites"]
    told = _by_gain(run)
    measures = list(next((said["gain"] for _, said in told if said["gain"]), None) or [run["verdict"]["measure"]])
    heads = ["Site", "Test", "Found", *(f"{title(m).capitalize().replace('Auc', 'AUC')} [95 % CI]" for m in measures)]
    rows = []
    for name, said in told:
        n = tested.get(name, {}).get("n")
        cells = [site_name(run, name), NONE if n is None else str(n), _found(said)]
        gains = [_gained(_gain(said, m)) for m in measures]
        cells += [cell[0] + cell[1:].replace("-", "−") for cell in gains]  # the page does it with the first
        rows.append([*cells, in_use(said["used"])])
    numbers = (1, *range(3, 3 + len(measures)))
    return Table("What every site gains over training alone", [*heads, "Uses"], rows, numbers=numbers)


def gain_lines(run: Results) -> list[str]:
    """What taking part is worth in a sentence, and which sites it harms; nothing without a verdict."""
    if not (said := taking_part(run)):
        return []
    measure = run["verdict"]["measure"]
    lost = [
        f"{site_name(run, name)} {_gained(_gain(site, measure))}"
        for name, site in reversed(_by_gain(run))
        if site["verdict"] == "loses"
    ]
    more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
    return [said, *([f"Harmed (points): {', '.join(lost[:_NAMED])}{more}"] if lost else [])]


def _by_gain(run: Results) -> list[tuple[str, dict[str, Any]]]:
    """Those that gain most first, those that cannot tell last."""
    measure = run["verdict"]["measure"]

    def order(told: tuple[str, dict[str, Any]]) -> float:
        gain = _gain(told[1], measure)
        return -gain["difference"] if gain else 2.0

    return sorted(run["verdict"]["sites"].items(), key=order)


def _gain(said: dict[str, Any], measure: str) -> dict[str, float] | None:
    gain = (said["gain"] or {}).get(measure)
    # The interval of a model against itself is an estimate's, too wide for what is known.
    return dict.fromkeys(gain, 0.0) if gain and said["used"]["weight"] == 0 else gain


def _gained(gain: dict[str, float] | None) -> str:
    return NONE if gain is None else f"{signed(gain['difference'])} {interval(gain)}"


def _found(said: dict[str, Any]) -> str:
    return "the same model" if said["used"]["weight"] == 0 else said["verdict"] or NONE
