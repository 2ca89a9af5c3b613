"""Every site's test measures of every run of a comparison, one line each, for tables and tests of one's own."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from medpfl.report.measures import of_task
from medpfl.report.reading import local_reference, selected


def sites_csv(runs: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Columns run, seed, site, n, each measure of the selected round, and ``alone.`` those of the model trained alone.

    Args:
        runs: the folder's name and the results of each (docs/results.md).
    """
    lines = [line for name, results in runs for line in _lines(name, results)]
    heads = dict.fromkeys(key for line in lines for key in line)
    text = io.StringIO()
    table = csv.DictWriter(text, list(heads), restval="", lineterminator="\n")
    table.writeheader()
    table.writerows(lines)
    return text.getvalue()


def _lines(name: str, results: Mapping[str, Any]) -> list[dict[str, Any]]:
    measures = [measure.name for measure in of_task(results)]
    reference = (local_reference(results) or {}).get("sites", {})
    made = []
    for site, told in (selected(results) or {}).get("sites", {}).items():
        line = {"run": name, "seed": results["config"]["seed"], "site": site, "n": told["n"]}
        line |= {measure: told.get(measure) for measure in measures}
        line |= {f"alone.{measure}": reference[site].get(measure) for measure in measures if site in reference}
        made.append(line)
    return made
