"""What taking part was worth to a site, in plain words: a page beside its model, and a section of the bundle's README.

Both are made of a card's ``verdict``: measures of the model that the site trained ``alone`` and ``alone_round``, what
is ``used``, and the ``gain`` of each measure with its 95 % interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from medpfl.core.gain import ALONE, CONTAINS_0, in_use, interval, signed, title, verdict

KEPT = (
    "This has not left the site unless the site's policy lets it: verdict in local/medpfl.json, which is false at a "
    "real site that says nothing else. In a simulation everything is in one hand."
)
MEANS = (
    "The two models were tested on the same cases, which neither training nor the choice between the models has seen. "
    "A gain is the used model's measure less that of the model trained alone, in percentage points; an interval of "
    f"95 % misses the true difference in about one case of 20. {CONTAINS_0}"
)
_NONE = "–"


def page(card: Mapping[str, Any]) -> str:
    """``verdict.html``, self-contained; names in it are escaped."""
    values = {
        "card": card,
        "which": _WHICH[card["which"]],
        "lead": lead(card),
        "uses": uses(card),
        "rows": [[cell.replace("-", "−") for cell in row] for row in _rows(card)],  # as wide as the plus
        "cases": _cases(card),
        "means": MEANS,
        "kept": KEPT,
    }
    return _templates().get_template("verdict.html").render(values)


def section(card: Mapping[str, Any]) -> str:
    """The section of ``docs/README.md``; it holds no name but the measures'."""
    gains = "\n".join(
        f"- {name}: {used}, trained alone {alone}; gain {gain} {between}: {found}"
        for name, used, alone, gain, between, found in _rows(card)
    )
    return (
        f"## What taking part was worth\n\n{lead(card)} {uses(card)}\n\n{gains}\n\n{_cases(card)} {MEANS}\n\n{KEPT}\n"
    )


def lead(card: Mapping[str, Any]) -> str:
    """The result in a sentence or two, by the first measure."""
    gains = card["verdict"]["gain"]
    if not gains:
        return "Whether taking part helps this site is not known: it has no test cases."
    measure, gained = next(iter(gains.items()))
    name = title(measure)
    if gained is None:
        return f"Whether taking part helps this site is not known: {name} could not be computed."
    if in_use(card["verdict"]["used"]) == ALONE:
        return "This site uses the model that it trained alone: taking part changes nothing here."
    by = f"{name} {signed(gained['difference'])} points against training alone, 95 % interval {interval(gained)}"
    return {
        "gains": f"Taking part helps this site: {by}.",
        "loses": f"Taking part harms this site: {by}.",
        "no difference found": (
            f"No difference was found at this site: {by}. These test cases cannot tell the two models apart; that does "
            "not say that they are equally good."
        ),
    }[verdict(gained)]


def uses(card: Mapping[str, Any]) -> str:
    """Which models the site uses, with what share in the probabilities."""
    used, alone = card["verdict"]["used"], f"the model that it trained alone (round {card['verdict']['alone_round']})"
    method = f"the federation's model {used['candidate']} (round {used['round']})"
    what = in_use(used)
    if what == ALONE:
        return f"It uses {alone}."
    if what == used["candidate"]:
        return f"It uses {method}; compared is {alone}."
    return f"It uses {what}: shares of {method} and of {alone} in each case's prediction."


_WHICH = {"selected": "the model of the selected round", "last": "the model of the last round"}


def _rows(card: Mapping[str, Any]) -> list[list[str]]:
    said = card["verdict"]
    if in_use(said["used"]) == ALONE:
        return [
            [title(m), *2 * [_score((said["alone"] or {}).get(m))], "0.0", _NONE, "the same model"]
            for m in said["gain"] or ()
        ]
    return [
        [
            title(measure),
            *(_score((measured or {}).get(measure)) for measured in (card["test"], said["alone"])),
            _NONE if gained is None else signed(gained["difference"]),
            _NONE if gained is None else interval(gained),
            verdict(gained) or "not known",
        ]
        for measure, gained in (said["gain"] or {}).items()
    ]


def _cases(card: Mapping[str, Any]) -> str:
    samples = card["samples"]
    tested = (card["test"] or {}).get("n", samples.get("test", 0))  # of scans patients
    return f"Test cases: {tested}. The choice of what is used rests on {samples.get('validation', 0)} validation cases."


def _score(value: float | None) -> str:
    return _NONE if value is None else f"{value:.3f}"


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("medpfl.bundle"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
