"""What taking part is worth to every site of a run: a part of the page, and lines on the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from medpfl.core.gain import CONTAINS_0, MISSES, MISSES_MORE, NOTHING, in_use
from medpfl.core.measure import NONE, Measure
from medpfl.report.charts import interval_plot
from medpfl.report.headline import judged_by, taking_part
from medpfl.report.measures import capital, head, measures_of, some_of
from medpfl.report.page_parts import Part, Table
from medpfl.report.page_tables import tested_head
from medpfl.report.reading import Results, selected
from medpfl.report.words import site_name

_WHAT = "what the model that a site uses gains over the one that it trained alone, on the same test cases"
_NOTE = (
    f"{CONTAINS_0} A difference below {NOTHING:g} ({100 * NOTHING:g} points) counts as none. Uses: what share each "
    "model has in the prediction; as published is the method's own; partly fine-tuned has weights between those before "
    "and after fine-tuning."
)


def gains_part(run: Results) -> Iterator[Part]:
    """Every site's gains with their intervals and what it uses; nothing without a verdict."""
    if not run.get("verdict"):
        return
    measure, told = judged_by(run), _by_gain(run)
    rows = [
        (site_name(run, name), gain["difference"], gain["low"], gain["high"])
        for name, said in told
        if (gain := _gain(said, measure))
    ]
    over = "over" if measure.share and measure.better == "higher" else "better than"
    title = f"{measure.title}, {f'{measure.gained_in} {over}'.strip()} training alone"
    yield Part(
        "What taking part is worth",
        table=gains_table(run),
        figure=interval_plot(title, rows, measure) if rows else None,
        note=f"{_units(_judged(run))} {_NOTE}",
    )


def _units(measures: list[Measure]) -> str:
    """What gains are in."""
    if all(m.share and m.better == "higher" for m in measures):
        return f"In percentage points: {_WHAT}. {MISSES}"
    units = [f"{m.title} in {m.gained_in_full}" for m in measures if m.gained_in]
    return f"{capital(_WHAT)}: above 0 is better. {capital(', '.join(units))}. {MISSES} {MISSES_MORE}"


def _judged(run: Results) -> list[Measure]:
    """The measures that sites tell gains of."""
    told = next((said["gain"] for said in run["verdict"]["sites"].values() if said["gain"]), None)
    judged = {run["verdict"]["measure"]} if told is None else told.keys()
    return [m for m in measures_of(run) if m.name in judged]


def gains_table(run: Results) -> Table:
    """A row for every site that tells."""
    tested = (selected(run) or {"sites": {}})["sites"]
    told = _by_gain(run)
    measures = _judged(run)
    heads = ["Site", tested_head(run, tested), "Found", *(f"{head(m)} [95 % CI]" for m in measures)]
    rows = []
    for name, said in told:
        n = tested.get(name, {}).get("n")
        cells = [site_name(run, name), NONE if n is None else str(n), _found(said)]
        gains = [_gained(_gain(said, m), m) for m in measures]
        cells += [cell[0] + cell[1:].replace("-", "−") for cell in gains]  # the page does it with the first
        rows.append([*cells, in_use(said["used"])])
    numbers = (1, *range(3, 3 + len(measures)))
    return Table("What every site gains over training alone", [*heads, "Uses"], rows, numbers=numbers)


def gain_lines(run: Results) -> list[str]:
    """What taking part is worth in a sentence, and which sites it harms; nothing without a verdict."""
    if not (said := taking_part(run)):
        return []
    measure = judged_by(run)
    lost = [
        f"{site_name(run, name)} {_gained(_gain(site, measure), measure)}"
        for name, site in reversed(_by_gain(run))
        if site["verdict"] == "loses"
    ]
    unit = f" ({measure.gained_in})" if measure.gained_in else ""
    return [said, *([f"Harmed{unit}: {some_of(lost)}"] if lost else [])]


def _by_gain(run: Results) -> list[tuple[str, dict[str, Any]]]:
    """Those that gain most first, those that cannot tell last."""
    measure = judged_by(run)

    def order(told: tuple[str, dict[str, Any]]) -> float:
        gain = _gain(told[1], measure)
        return -gain["difference"] if gain else math.inf

    return sorted(run["verdict"]["sites"].items(), key=order)


def _gain(said: dict[str, Any], measure: Measure) -> dict[str, float] | None:
    gain = (said["gain"] or {}).get(measure.name)
    # The interval of a model against itself is an estimate's, too wide for what is known.
    return dict.fromkeys(gain, 0.0) if gain and said["used"]["weight"] == 0 else gain


def _gained(gain: dict[str, float] | None, measure: Measure) -> str:
    return NONE if gain is None else f"{measure.signed(gain['difference'])} {measure.ends(gain)}"


def _found(said: dict[str, Any]) -> str:
    return "the same model" if said["used"]["weight"] == 0 else said["verdict"] or NONE
