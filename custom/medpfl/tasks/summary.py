"""Measures over sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from medpfl.core.measure import Measure


def summary(per_site: Mapping[str, Mapping[str, Any]], measures: Sequence[Measure]) -> dict[str, dict[str, Any]]:
    """Mean, worst and sample standard deviation over sites of each of some measures.

    Sites where a measure is None are left out of it; a deviation needs two sites.

    Args:
        per_site: :meth:`~medpfl.tasks.task.Task.evaluate`'s answer by site name.
        measures: which.

    Returns:
        By measure, under ``mean``, ``worst`` and ``std``: the value or None; under ``worst_site``: the name of the site
        (the first of equals) or None; under ``counted``: how many sites counted.
    """
    found: dict[str, dict[str, Any]] = {key: {} for key in ("mean", "worst", "std", "worst_site", "counted")}
    for measure in measures:
        key = measure.name
        values = {name: site[key] for name, site in per_site.items() if site.get(key) is not None}
        pick = min if measure.better == "higher" else max
        worst = pick(values, key=values.__getitem__, default=None)
        spread = list(values.values())
        found["mean"][key] = float(np.mean(spread)) if values else None
        found["worst"][key] = None if worst is None else values[worst]
        found["std"][key] = float(np.std(spread, ddof=1)) if len(values) > 1 else None
        found["worst_site"][key] = worst
        found["counted"][key] = len(values)
    return found
