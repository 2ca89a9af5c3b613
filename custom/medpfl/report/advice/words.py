"""Advice in words, and its tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from medpfl.core.errors import printable
from medpfl.core.measure import NONE
from medpfl.core.numbers_in_words import count
from medpfl.report.advice.answer import SEEDS, Answer, Found
from medpfl.report.advice.known import IN_WORDS, Measure
from medpfl.report.advice.numbers import PARTS, Features, SiteNumbers
from medpfl.report.advice.regimes import UNITS, Regimes
from medpfl.report.measures import some_of
from medpfl.report.plain_table import literal, plain_table

LIMITS = (
    "These are benchmarks with a small network, on the images and for the rounds that their descriptions name: for "
    "other images, networks, schedules or sites they promise nothing. What taking part is worth at your sites, medpfl "
    "compare says in a simulation, and a run itself, in which each site trains alone too."
)
UNITS_IN_WORDS = (
    f"A distance of 1 is {UNITS['sites']:g} times the sites, {UNITS['train']:g} times the training samples, "
    f"{UNITS['validation']:g} times the validation samples, {UNITS['skew']:g} of label skew, "
    f"{UNITS['unevenness']:g} of unevenness, or images that look different and such that do not."
)
_MOST_SITES, _MOST_REGIMES, _MOST_ROWS = 12, 5, 6


def regime_in_words(f: Features) -> str:
    """What regime it is, in a sentence."""
    amount = "few" if f.train < 200 else "many" if f.train >= 1000 else "some hundred"
    parts = [f"{f.sites} sites with {amount} training samples each (median {_number(f.train)})"]
    if f.skew is not None:
        kinds = {0.15: "much the same", 0.4: "somewhat different", 0.7: "different", 2: "very different"}
        kind = next(kind for below, kind in kinds.items() if f.skew < below)
        parts.append(f"{kind} classes (label skew {f.skew:.2f})")
    even = "about equal" if f.unevenness < 0.1 else "very uneven" if f.unevenness >= 0.3 else "uneven"
    parts.append(f"{even} sizes ({100 * f.unevenness:.0f} % of the samples would have to move to make them equal)")
    if f.shift is not None:
        parts.append(
            "images that look different from site to site" if f.shift else "images that look alike at all sites"
        )
    return f"{', '.join(parts[:-1])} and {parts[-1]}."


def _number(samples: float) -> str:
    """A number of samples, or the half between two."""
    return f"{samples:.10g}"


def _points(gain: float) -> str:
    """A gain in points with its sign; none has no sign."""
    told = f"{gain:+.1f}"
    return told if float(told) else told[1:]


def left_open(f: Features, sites: Sequence[SiteNumbers], measure: Measure) -> list[str]:
    """What the numbers do not say, a sentence each."""
    lines = []
    silent = [site.name for site in sites if not site.classes or not sum(site.classes.values())]
    if f.skew is None and measure == "accuracy":
        lines.append(
            "Whether the sites have the same classes is not known, and much depends on it: below is what holds if they "
            "have, and if they have not."
        )
    elif silent and measure == "accuracy":
        lines.append(f"Not all sites tell their classes ({some_of(silent)} not): the label skew is of the others.")
    if f.shift is None:
        lines.append(
            "Whether the same class looks different from site to site (scanner, stain, protocol) no number says: if "
            "you know it, give --shift or --no-shift. Here it counts as neither."
        )
    if without := [site.name for site in sites if not site.validation]:
        lines.append(
            f"No validation samples: {some_of(without)}. There no round and no weight can be chosen, and a blend is "
            "the model trained alone" + ("." if f.validation else ": below are the methods that choose nothing.")
        )
    elif f.validation < 30:
        lines.append(
            f"Validation samples are few (median {f.validation:g}): whatever a site chooses by them is partly chance."
        )
    return lines


def answer_in_words(a: Answer) -> list[str]:
    """What did best in such regimes, whether to take part, and how sure that is; a sentence or two each."""
    lines = [_likeness(a)]
    best, safest = a.by_mean, a.by_worst
    measure = IN_WORDS[a.measure]
    lines.append(f"Best on average: {_figures(best, measure)}")
    highest = max(a.judged, key=lambda row: row.worst)
    chosen_by_mean = safest.worst < highest.worst
    if safest is not best:
        rule = " (of those within a point of the best there, the highest mean)" if chosen_by_mean else ""
        lines.append(f"Best for the worst site{rule}: {_figures(safest, measure)}")
    elif chosen_by_mean:
        lines.append(
            f"For the worst site too: it is within a point of the best there ({highest.title}), and has the highest "
            "mean of those that are."
        )
    else:
        lines.append("It is also the best for the worst site.")
    return [*lines, *_taking_part(a, best), _sureness(a, best)]


def _likeness(a: Answer) -> str:
    first = f"{a.near[0][1].name}, at a distance of {a.near[0][0]:.1f}"
    if a.nearness == "far":
        return (
            f"None of our regimes is like yours: the nearest is {first}. What follows is of other regimes than yours."
        )
    if a.nearness == "near":
        return f"None of our regimes is quite like yours; the nearest is {first}."
    names, are = ", ".join(regime.name for regime in a.regimes), "is" if len(a.regimes) == 1 else "are"
    return f"{count(len(a.regimes), 'regime')} of our benchmarks {are} like it: {names}."


def _figures(row: Found, measure: str) -> str:
    command = f" (medpfl run {row.command})" if row.command else ""
    text = f"{row.title}{command}: {_points(row.gain)} points of {measure} over training alone; "
    if not row.worse_off:
        return text + "no site was worse off by more than a point."
    sites = f"{row.sites} sites{' (of all seeds)' if row.seeds > 1 else ''}"
    were = "was" if row.worse_off == 1 else "were"
    return f"{text}{row.worse_off} of {sites} {were} worse off by more than a point, the worst by {-row.worst:.1f}."


def _taking_part(a: Answer, best: Found) -> list[str]:
    return [*_worth(a, best), *_longer(a)]


def _longer(a: Answer) -> list[str]:
    """Of a method whose gain nobody can tell from that of its epochs."""
    if not (more := a.longer):
        return []
    return [
        f"{more.title}, gained {_points(more.gain)} points and is not judged here: in each round it trains more than "
        f"a site alone did ({more.each_round}), and what a site gains with as many epochs was not measured for all of "
        "these."
    ]


def _worth(a: Answer, best: Found) -> list[str]:
    if a.take_part == "cost":
        cost = f"Taking part there cost {IN_WORDS[a.measure]}, with every method; {best.title} cost least."
        return [f"{cost} Sites did best alone."]
    if a.take_part == "no difference":
        return [
            "Taking part there made less than a point of difference on average, with the best method. By these "
            "benchmarks little speaks for it."
        ]
    if a.take_part == "less than alone":
        return [
            f"What taking part gave there a site gets without any other, and more: {a.rival.title}, gained "
            f"{_points(a.rival.gain)} points, and the best method {_points(best.gain)}. By these benchmarks sites do "
            "better by themselves."
        ]
    if a.take_part == "no more than alone":
        return [
            f"What taking part gave there a site gets without any other, but for a point: {a.rival.title}, gained "
            f"{_points(a.rival.gain)} points, and the best method {_points(best.gain)}. By these benchmarks little "
            "speaks for it."
        ]
    lines = [f"Taking part there paid on average, with {best.title}."]
    if best.worse_off:
        lines[0] += f" Not for all: {best.worse_off} of {best.sites} sites did better alone by more than a point."
    if a.rival and a.rival.gain > max(1.0, best.gain / 2):
        lines.append(f"Much of that needs no other site: {a.rival.title}, gained {_points(a.rival.gain)} points.")
    return lines


def _sureness(a: Answer, best: Found) -> str:
    regimes = len(a.regimes)
    how = {"no": "not at all", "little": "little", "somewhat": "somewhat"}[a.sure]
    text = f"How sure: {how}. It rests on {count(regimes, 'regime')} of {_seeds(a, best)}, "
    text += f"{count(best.sites, 'site')} in all"
    if best.seeds < SEEDS:
        text += ", so that differences of a point or two may be chance"
    if regimes == 1:
        return f"{text}; with one regime there is nothing to agree with."
    if a.agreeing == regimes and a.one_verdict:
        return f"{text}. They agree: {best.title} is the best, or within a point of it, in all of them."
    told = ", ".join(f"{regime.name} {_points(gain)}" for regime, gain in zip(a.regimes, best.gains, strict=True))
    differ = "what is best" if a.one_verdict else "whether it pays"
    in_some = f"{best.title} is the best, or within a point of it, in {a.agreeing} of them ({told})"
    return f"{text}. They do not agree on {differ}: {in_some}."


def _seeds(a: Answer, best: Found) -> str:
    each = [row.seeds for regime in a.regimes if (row := regime.row(best.title))]
    least, most = min(each), max(each)
    if least == most:
        return count(most, "seed") + (" each" if len(each) > 1 else "")
    return f"{least} {'and' if len(each) == 2 else 'to'} {most} seeds"


def advice_to_json(
    sites: Sequence[SiteNumbers],
    features: Features,
    found: Sequence[Answer],
    notes: Sequence[str],
    known: Regimes,
) -> dict[str, Any]:
    """The same for programs."""
    return {
        "schema": 2,
        "sites": {site.name: site.to_json() for site in sites},
        "features": features.model_dump(),
        "regime": regime_in_words(features),
        "notes": [*notes, *left_open(features, sites, found[0].measure)],
        "answers": [answer.to_json() | {"words": answer_in_words(answer)} for answer in found],
        "benchmarks": {
            "units": UNITS,
            "regimes": {
                regime.name: regime.model_dump(include={"description", "measure", "network", "features", "seeds"})
                for regime in known.of(found[0].measure)
            },
        },
        "limits": LIMITS,
    }


def print_advice(
    sites: Sequence[SiteNumbers], features: Features, found: Sequence[Answer], notes: Sequence[str], console: Console
) -> None:
    """The numbers, the regime, and for each answer its regimes, its methods and its words."""
    console.print(_numbers_table(sites))
    _say(console, f"The regime: {regime_in_words(features)}", *notes, *left_open(features, sites, found[0].measure))
    for answer in found:
        if answer.supposed:
            kind = "much the same classes" if answer is found[0] else "very different classes"
            console.print(Text(f"\nIf the sites have {kind} (label skew {answer.features.skew:g})", style="bold"))
        likeness, *words = answer_in_words(answer)
        _say(console, likeness)
        console.print(_regimes_table(answer))
        console.print(_methods_table(answer))
        _say(console, *words)
    console.print()
    _say(console, LIMITS)


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(Text(printable(line)))


def _table(title: str, *heads: str) -> Table:
    table = plain_table(title=title)
    for i, head in enumerate(heads):
        table.add_column(head, justify="right" if i else "left", overflow="fold")
    return table


def _numbers_table(sites: Sequence[SiteNumbers]) -> Table:
    table = _table("The sites' numbers", "site", *PARTS, "classes")
    if len(sites) <= _MOST_SITES:
        for site in sites:
            told = None if site.classes is None else sum(number > 0 for number in site.classes.values())
            numbers = [str(getattr(site, part)) for part in PARTS]
            table.add_row(Text(printable(site.name)), *numbers, NONE if told is None else str(told))
        return table
    for name, of in (("least", min), ("median", median), ("most", max)):
        told = [sum(number > 0 for number in site.classes.values()) for site in sites if site.classes]
        numbers = [_number(of([getattr(site, part) for site in sites])) for part in PARTS]
        table.add_row(f"{name} of {len(sites)} sites", *numbers, f"{of(told):g}" if told else NONE)
    return table


def _regimes_table(answer: Answer) -> Table:
    heads = ("regime", "distance", "sites", "train", "valid.", "skew", "uneven", "shift", "seeds")
    table = _table("The nearest regimes of our benchmarks", *heads)
    shown = max(_MOST_REGIMES, len(answer.regimes))
    for d, regime in answer.near[:shown]:
        f = regime.features
        cells = [f"{d:.2f}", str(f.sites), f"{f.train:g}", f"{f.validation:g}"]
        cells += [NONE if f.skew is None else f"{f.skew:.2f}", f"{f.unevenness:.2f}"]
        mark = "*" if regime in answer.regimes else ""
        table.add_row(f"{regime.name}{mark}", *cells, "yes" if f.shift else "no", str(len(regime.seeds)))
    used = [regime for _, regime in answer.near[:shown] if regime in answer.regimes]
    table.caption = Text(
        "\n".join(
            [UNITS_IN_WORDS, *(f"* {regime.name}: {regime.description}; network {regime.network}" for regime in used)]
        )
    )
    return table


def _methods_table(answer: Answer) -> Table:
    points = f"points of {IN_WORDS[answer.measure]} over training alone"
    table = _table(f"In those with *: {points}", "method", "mean", "worst site", "worse off")
    shown = list(answer.federated[:_MOST_ROWS])
    if answer.by_worst not in shown:
        shown.append(answer.by_worst)
    shown += [row for row in answer.rows if not row.federated]
    for row in sorted(shown, key=lambda row: -row.gain):
        title = row.title if row.federated else f"({row.title})"
        table.add_row(title, _points(row.gain), _points(row.worst), f"{row.worse_off} of {row.sites}")
    below = ["In brackets: what a site can do by itself."] if any(not row.federated for row in shown) else []
    if left := len(answer.rows) - len(shown):
        below.append(f"{left} more are not shown; --json FILE has them.")
    if answer.partial:
        # A row that begins with another's name is the same with something more.
        base = [n for n in answer.partial if not any(n.startswith(f"{other}, ") for other in answer.partial)]
        below.append(f"Not measured in all of these regimes: {'; '.join(base)}.")
    table.caption = literal("\n".join(below))
    return table
