"""What taking part was worth to a site, in plain words: a page beside its model, and a section of the bundle's README.

Both are made of a card's ``verdict``: measures of the model that the site trained ``alone`` and ``alone_round``, what
is ``used``, and the ``gain`` of each measure with its 95 % interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from medpfl.core.gain import (
    ALONE,
    CONTAINS_0,
    MISSES,
    MISSES_MORE,
    NOTHING,
    OF_CLASSES,
    fewest_to_choose,
    in_use,
    verdict,
)
from medpfl.core.measure import BETTER, NONE, Measure
from medpfl.core.numbers_in_words import count
from medpfl.core.templates import templates_of

KEPT = (
    "This has not left the site unless the site's policy lets it: verdict in local/medpfl.json, which is false at a "
    "real site that says nothing else. In a simulation everything is in one hand."
)
_TESTED = (
    "The two models were tested on the same cases, which neither training nor the choice between the models has seen. "
)
_AS_LONG = (
    " Alone it had as many epochs as the federation's model was adapted for, from the run's first model: trained for "
    "longer it may reach more."
)
"""Of a site that joined, beside its result: the sites that trained had all rounds for it."""


def page(card: Mapping[str, Any], detail: Mapping[str, Any] | None = None) -> str:
    """``verdict.html``, self-contained; names in it are escaped.

    Args:
        card: the model's.
        detail: :meth:`medpfl.tasks.task.Task.detail` of its test, where it was made.
    """
    seen = detail or {}
    values = {
        "card": card,
        "which": _JOINED if card.get("joined") else _WHICH[card["which"]],
        "lead": lead(card),
        "uses": uses(card),
        "unanswered": unanswered(card),
        "rows": [[cell.replace("-", "−") for cell in row] for row in _rows(card)],  # as wide as the plus
        "cases": _cases(card),
        "gain": "Gain (points)" if _in_points(card) else "Gain",
        "means": means(card),
        "pictures": [
            (f"{p['which']} test case (number {p['case']}), Dice {p['dice']:.3f}", p["picture"])
            for p in seen.get("pictures", ())
        ],
        "reliability": [
            (str(b["n"]), f"{b['confidence']:.2f}", f"{b['accuracy']:.2f}") for b in seen.get("reliability", ())
        ],
        "kept": KEPT,
    }
    return templates_of("medpfl.bundle").get_template("verdict.html").render(values)


def section(card: Mapping[str, Any]) -> str:
    """The section of ``docs/README.md``; it holds no name but the measures'."""
    gains = "\n".join(
        f"- {name}: {used}, trained alone {alone}; gain {gain} {between}: {found}"
        for name, used, alone, gain, between, found in _rows(card)
    )
    what = f"{_cases(card)} {means(card)}" if gains else _cases(card)
    parts = ("## What taking part was worth", f"{lead(card)} {uses(card)}", gains, what, KEPT)
    return "\n\n".join(filter(None, parts)) + "\n"


def lead(card: Mapping[str, Any]) -> str:
    """The result in a sentence or two, by the first measure."""
    gains = card["verdict"]["gain"]
    if in_use(card["verdict"]["used"]) == ALONE:
        return "This site uses the model that it trained alone: taking part changes nothing here."
    if not gains:
        return "Whether taking part helps this site is not known: it has no test cases."
    measure = _measures(card)[0]
    if measure.name in OF_CLASSES and (card["test"] or {}).get("auroc_classes") == 0:
        return (
            "Whether taking part helps this site is not known: all its test cases are of one class, and "
            f"{measure.title} says there how often that class is said, not whether classes are told apart."
        )
    if (gained := gains[measure.name]) is None:
        both = card["test"], card["verdict"]["alone"]
        known = all(of and of.get(measure.name) is not None for of in both)
        why = "has no interval on these test cases, which are few or all alike" if known else "could not be computed"
        return f"Whether taking part helps this site is not known: {measure.title} {why}."
    sign = "" if measure.better == "higher" else f", {BETTER}"
    by = (
        f"{measure.title} {measure.told(gained['difference'])} against training alone{sign}, 95 % interval "
        f"{measure.ends(gained)}"
    )
    as_long = _AS_LONG if card.get("joined") else ""
    if abs(gained["difference"]) < NOTHING and not gained["low"] <= 0 <= gained["high"]:
        return f"No difference was found at this site: {by}.{as_long}"
    return {
        "gains": f"Taking part helps this site: {by}.{as_long}",
        "loses": f"Taking part harms this site: {by}.{as_long}",
        "no difference found": (
            f"No difference was found at this site: {by}. These test cases cannot tell the two models apart; that does "
            f"not say that they are equally good.{as_long}"
        ),
    }[verdict(gained)]


def means(card: Mapping[str, Any]) -> str:
    """What a gain and its interval say."""
    if _in_points(card):
        what = "the used model's measure less that of the model trained alone, in percentage points"
    else:
        units = [f"{m.title} in {m.gained_in_full}" for m in _told(card) if m.gained_in]
        told = f" ({', '.join(units)})" if units else ""
        what = (
            f"by how much the used model's measure is better than that of the model trained alone{told}: above 0 is "
            "better, also where less of a measure is"
        )
    more = "" if _in_points(card) else f"{MISSES_MORE} "  # what is no share is a mean of cases' values
    return f"{_TESTED}A gain is {what}. {MISSES} {more}{CONTAINS_0}"


def uses(card: Mapping[str, Any]) -> str:
    """Which models the site uses, with what share in the probabilities."""
    used, when = card["verdict"]["used"], "epoch" if card.get("joined") else "round"
    alone = f"the model that it trained alone ({when} {card['verdict']['alone_round']})"
    method = f"the federation's model {used['candidate']} ({when} {used['round']})"
    what = in_use(used)
    if what == ALONE:
        return f"It uses {alone}."
    if what == used["candidate"]:
        return f"It uses {method}; compared is {alone}."
    return f"It uses {what}: shares of {method} and of {alone} in each case's prediction."


def unanswered(card: Mapping[str, Any]) -> str:
    """Which classes the used model says of no test case, though some are of them; empty where there are none."""
    if not (found := card.get("never_answered")):
        return ""
    each = ", ".join(f"{name!r} ({n} of them)" for name, n in found.items())
    return f"On the {count(card['test']['n'], 'test case')} it never answered {each}."


_JOINED = "the model of a site that joined after round"
_WHICH = {"selected": "the model of the selected round", "last": "the model of the last round"}


def _rows(card: Mapping[str, Any]) -> list[list[str]]:
    said, told = card["verdict"], Measure.signed if _in_points(card) else Measure.told
    if in_use(said["used"]) == ALONE:
        alone = {m: _value(m, said["alone"]) for m in _told(card)}
        return [
            [m.title, value, value, NONE if value == NONE else told(m, 0.0), NONE, "the same model"]
            for m, value in alone.items()
        ]
    return [
        [
            m.title,
            *(_value(m, measured) for measured in (card["test"], said["alone"])),
            NONE if (gained := said["gain"][m.name]) is None else told(m, gained["difference"]),
            NONE if gained is None else m.ends(gained),
            verdict(gained) or "not known",
        ]
        for m in _told(card)
    ]


def _measures(card: Mapping[str, Any]) -> Sequence[Measure]:
    """The task's, the card's ``lead`` in front; classification's in a card of an earlier version, which says none."""
    if told := card.get("measures"):
        measures = [Measure.read(each) for each in told]
    else:
        from medpfl.tasks.classification import Classification  # imports torch: a card that says them does not need it

        measures = list(Classification.measures)
    return sorted((m for m in measures if not m.further), key=lambda m: m.name != card.get("lead"))


def _told(card: Mapping[str, Any]) -> list[Measure]:
    """The measures of which there are gains."""
    return [m for m in _measures(card) if m.name in (card["verdict"]["gain"] or ())]


def _in_points(card: Mapping[str, Any]) -> bool:
    """Whether all gains are differences in percentage points, of which more is better."""
    return all(m.share and m.better == "higher" for m in _told(card))


def _cases(card: Mapping[str, Any]) -> str:
    samples, patients = card["samples"], card.get("patients", {})
    cases = (card["test"] or {}).get("n", samples.get("test", 0))  # of scans and slices with masks fewer than samples
    tested = f"{cases}{_whose(patients.get('test'))}"
    use = card.get("choices", {}).get("use")
    if use == "received":
        came = "adapted to its data" if card.get("joined") else "it came"
        return f"Test cases: {tested}. Nothing was chosen: the federation's model is used as {came}."
    judges = (card.get("validation") or {}).get("n", samples.get("validation", 0))
    so_few = patients.get("validation", judges) < fewest_to_choose(use)
    few = " So few cannot show which model is better." if so_few else ""
    return (
        f"Test cases: {tested}. The choice of what is used rests on "
        f"{count(judges, 'validation case')}{_whose(patients.get('validation'))}.{few}"
    )


def _whose(patients: int | None) -> str:
    return "" if patients is None else f" of {count(patients, 'patient')}"


def _value(measure: Measure, measured: Mapping[str, Any] | None) -> str:
    value = (measured or {}).get(measure.name)
    return NONE if value is None else measure.said(value)
