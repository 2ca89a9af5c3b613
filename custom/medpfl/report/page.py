"""Runs as one self-contained HTML page: no script, no font, nothing that is fetched from elsewhere.

The templates and the style lie in ``templates/``. What results hold is escaped where a template puts it (Jinja2's
autoescape), but for the drawings, which :mod:`medpfl.report.svg` has escaped.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Template

from medpfl.core.errors import UserError
from medpfl.core.numbers_in_words import count
from medpfl.core.templates import templates_of
from medpfl.core.whole_file import write_text
from medpfl.report.measures import first, is_change, printed
from medpfl.report.page_comparison import comparison_section
from medpfl.report.page_parts import Table
from medpfl.report.page_run import run_section
from medpfl.report.page_sweep import sweep_section
from medpfl.report.pairing import grouped
from medpfl.report.reading import Results, selected
from medpfl.report.side_by_side import compare
from medpfl.report.sweep import Sweeping, Swept, data_of
from medpfl.report.unfinished import Unfinished
from medpfl.report.words import data_name, method_name

logger = logging.getLogger(__name__)


def write_report(runs: list[Results], path: str | os.PathLike[str], unfinished: Sequence[Unfinished] = ()) -> Path:
    """Write one page about a run, or about several: the comparison first, then each of them.

    A run that has not ended is shown as far as it is. Runs that cannot be paired are shown one after the other, and
    the page says why there is no comparison, and a warning does.

    Args:
        runs: results of :func:`medpfl.report.reading.load_results`.
        path: the HTML file to write; its folder is made if need be.
        unfinished: of a comparison, what ended early.

    Raises:
        UserError: there are no runs.
    """
    if not runs:
        raise UserError("Nothing to report: give at least one run.")
    values = _several(runs, unfinished) if len(runs) > 1 or unfinished else _single(runs[0])
    return write_text(path, _template("page.html").render(values))


def write_sweep_report(found: Swept, path: str | os.PathLike[str]) -> Path:
    """Write one page about a swept setting (:func:`medpfl.report.sweep.swept`)."""
    title = f"{Sweeping.read(found).title} on {data_of(found)[0]['name']}"
    values = {"title": title, "problem": "", "top": sweep_section(found), "folded": []}
    return write_text(path, _template("page.html").render(values))


def table_html(table: Table) -> str:
    """A table of the page alone, for a notebook."""
    return str(_template("parts.html").module.table(table))


def _template(name: str) -> Template:
    pages = templates_of("medpfl.report")
    pages.filters["gains"] = is_change
    return pages.get_template(name)


def _single(run: Results) -> dict[str, Any]:
    title = f"{method_name(run)} on {data_name(run['data'])}"
    return {"title": title, "problem": "", "top": run_section(run, with_partition=True, alone=True), "folded": []}


def _several(runs: list[Results], unfinished: Sequence[Unfinished]) -> dict[str, Any]:
    try:
        comparison = compare(runs, unfinished)
    except UserError as error:
        problem = f"The runs are shown one by one, without a comparison. {error}"
        logger.warning("%s", problem)
        return {
            "title": f"{len(runs)} runs",
            "problem": problem,
            "top": None,
            "folded": [_folded(run, method_name(run), with_partition=True) for run in runs],
        }
    algorithms = len({group["algorithm"] for group in comparison["groups"]})
    groups = grouped(runs)
    return {
        "title": f"{count(algorithms, 'algorithm')} on {comparison['data']['name']}",
        "problem": "",
        "top": comparison_section(comparison, groups),
        # The splits are the same for all algorithms and stand above once.
        "folded": [
            _folded(run, label, with_partition=False) for label, by_seed in groups.items() for run in by_seed.values()
        ],
    }


def _folded(run: Results, label: str, with_partition: bool) -> dict[str, Any]:
    scores = selected(run)
    measure = first(run)
    reached = f", {measure.title} {printed(measure, scores['mean'].get(measure.name))}" if scores else ", not finished"
    unit = f" {measure.unit}" if scores and measure.unit else ""
    summary = f"{label} on {data_name(run['data'])}, seed {run['config'].get('seed')}{reached}{unit}"
    return {"summary": summary, "section": run_section(run, with_partition)}
