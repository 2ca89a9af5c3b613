r"""A comparison as a LaTeX table, for a paper; it needs ``\usepackage{booktabs}``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from medpfl.core.measure import NONE
from medpfl.report.compare_table import comparison_note, worst_to_local
from medpfl.report.every_pair import RANKS, told_rank
from medpfl.report.gains import Over
from medpfl.report.measures import change, change_head, measures_of, short_head, spread

_SPECIAL = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "±": r"$\pm$",
}


def latex_table(comparison: Mapping[str, Any]) -> str:
    """Every measure, the worst site, differences to local training and mean ranks, the best of each column in bold.

    What the table of ``medpfl compare`` says of these columns stands below it, and what a mean rank is.
    """
    columns = list(_columns(comparison))
    labels = [escaped(group["label"]) for group in comparison["groups"]]
    lines = [
        ["Algorithm", *(escaped(head) for head, _ in columns)],
        *([label, *(cells[i] for _, cells in columns)] for i, label in enumerate(labels)),
    ]
    head, *rows = (" & ".join(line) + r" \\" for line in lines)
    note = f"{comparison_note(comparison, whole=False)} {RANKS}"
    lines_of_note = wrap(escaped(note), 110, break_long_words=False, break_on_hyphens=False)
    begin = rf"\begin{{tabular}}{{l{'r' * len(columns)}}}"
    table = [begin, r"\toprule", head, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}"]
    return "\n".join([*table, "", r"\smallskip", r"{\footnotesize", *lines_of_note, r"\par}", ""])


def escaped(text: str) -> str:
    """As LaTeX prints it."""
    return "".join(_SPECIAL.get(c, c) for c in text)


def _columns(comparison: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Heads, and a cell for each group."""
    measures, groups = measures_of(comparison), comparison["groups"]
    begun = measures[0]
    for m in measures:
        of = [group["measures"][m.name] for group in groups]
        yield short_head(m), _bold_best([spread(m, **o) for o in of], _worth(of, 1 if m.better == "higher" else -1))
    of = [group["worst"] for group in groups]
    worth = _worth(of, 1 if begun.better == "higher" else -1)
    yield "Worst site", _bold_best([spread(begun, **o) for o in of], worth)
    local = [group["to_local"] for group in groups]
    if any(local):
        for head, of in (
            (change_head("To local", begun), local),
            (worst_to_local(begun), [paired and paired["worst"] for paired in local]),
        ):
            yield head, _bold_best([change(begun, o["mean"], o["sd"]) if o else NONE for o in of], _worth(of, 1))
    own = [group.get("to_own_rival") for group in groups]
    if any(own):
        head = change_head("To own rival", begun)
        yield head, _bold_best([change(begun, o["mean"], o["sd"]) if o else NONE for o in own], _worth(own, 1))
    of = [group["rank"] for group in groups]
    yield "Mean rank", _bold_best([told_rank(o) for o in of], _worth(of, -1))


def _worth(of: Sequence[Over | None], sign: int) -> list[float | None]:
    return [None if not o or o["mean"] is None else sign * o["mean"] for o in of]


def _bold_best(told: Sequence[str], worth: Sequence[float | None]) -> list[str]:
    known = [w for w in worth if w is not None]
    most = max(known) if len(known) > 1 else None  # there is no best of one
    return [_number(text, bold=w is not None and w == most) for text, w in zip(told, worth, strict=True)]


def _number(text: str, bold: bool) -> str:
    if text == NONE:
        return "--"
    number = text.replace("±", r"\pm")
    return rf"$\mathbf{{{number}}}$" if bold else f"${number}$"
