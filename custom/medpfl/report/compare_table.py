"""A comparison as a table, for the terminal, a page and Markdown."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from medpfl.core.gain import Verdict
from medpfl.core.measure import Measure
from medpfl.core.numbers_in_words import count, size
from medpfl.core.whole_file import write_text
from medpfl.report import judged
from medpfl.report.best_variant import advice
from medpfl.report.every_pair import TITLE, pair_note, pair_rows
from medpfl.report.measures import (
    NONE,
    capital,
    change,
    change_head,
    chief,
    listed,
    measures_of,
    printed,
    short_head,
    spread,
)
from medpfl.report.one_class import one_class_words
from medpfl.report.pairing import shown
from medpfl.report.side_by_side import Comparison, alone
from medpfl.report.trained_alone import OWN_RIVAL, REFERENCE, trained_otherwise
from medpfl.report.unequal import lacking_words, more_each_round, states_of_code, unequal_ends
from medpfl.report.unfinished import unfinished_words
from medpfl.report.words import percent

BETTER_THAN_LOCAL = "Better than local"
_VERDICTS = tuple(map(capital, get_args(Verdict)))


def comparison_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """The comparison as text: column heads, and a row of cells for each group."""
    measures, groups = measures_of(comparison), comparison["groups"]
    begun, rest = measures[0], measures[1:]
    heads = [
        "Algorithm",
        short_head(begun),
        "Worst site",
        change_head("To local", begun),
        BETTER_THAN_LOCAL,
        worst_to_local(begun),
        below_local(begun),
    ]
    with_own = any(group.get("to_own_rival") for group in groups)
    heads += [change_head("To own rival", begun), *_VERDICTS] if with_own else []
    with_fedavg = any(group["to_fedavg"] for group in groups)
    if with_fedavg:
        heads += [change_head("To FedAvg", begun), "Better than FedAvg"]
    together = _together(comparison)
    heads += [*map(short_head, rest), *(together_head(where, m) for where, m in together)]
    with_forgetting = any(group["forgetting"]["mean"] is not None for group in groups)
    heads += [change_head("Forgetting", begun)] if with_forgetting else []
    heads += ["Round", "Seconds", "Sent / received per site and round"]
    rows = []
    for group in groups:
        of = group["measures"]
        row = [group["label"], spread(begun, **of[begun.name]), printed(begun, group["worst"]["mean"])]
        row += [*_paired(begun, group["to_local"]), *_worst(begun, group["to_local"])]
        row += _of_own(begun, group.get("to_own_rival")) if with_own else []
        row += _paired(begun, group["to_fedavg"]) if with_fedavg else []
        chosen, seconds = group["selected_round"]["mean"], group["seconds"]["mean"]
        sent, received = (group[f"{way}_bytes_per_site_round"]["mean"] for way in ("sent", "received"))
        row += [
            *(spread(m, **of[m.name]) for m in rest),
            *(spread(m, **group[where][m.name]) for where, m in together),
            *([change(begun, *group["forgetting"].values())] if with_forgetting else []),
            NONE if chosen is None else f"{chosen:g}" if chosen == int(chosen) else f"{chosen:.1f}",
            NONE if seconds is None else f"{seconds:.1f}",
            NONE if sent is None and received is None else f"{size(sent)} / {size(received)}",
        ]
        rows.append(row)
    return heads, rows


def worst_to_local(measure: Measure) -> str:
    """The head over what the worst site gains over local training."""
    return change_head("Worst site's difference to local", measure)


def below_local(measure: Measure) -> str:
    """The head over the share of sites for which local training is better."""
    if not measure.share:
        return "Sites worse than local"
    return f"Sites more than a point {'below' if measure.better == 'higher' else 'worse than'} local"


def together_head(where: str, measure: Measure) -> str:
    """The head over a measure of the sites' models together."""
    return f"{'New' if where == 'new' else 'Held-out'} {measure.titled}"


def _together(comparison: Comparison) -> list[tuple[str, Measure]]:
    """The sites' models together, where that was tested: on all test data, and at centres that did not train."""
    short = chief(measures_of(comparison))
    asked = [*(("new", m) for m in short), ("held_out", short[-1])]
    return [
        (where, m)
        for where, m in asked
        if any(group[where][m.name]["mean"] is not None for group in comparison["groups"])
    ]


def _paired(measure: Measure, other: Mapping[str, Any] | None) -> list[str]:
    if not other:
        return [NONE, NONE]
    return [change(measure, other["mean"], other["sd"]), f"{other['better']} of {other['pairs']}"]


def _of_own(measure: Measure, rival: Mapping[str, Any] | None) -> list[str]:
    if not rival:
        return [NONE] * (1 + len(_VERDICTS))
    return [change(measure, rival["mean"], rival["sd"]), *map(str, rival["verdicts"].values())]


def _worst(measure: Measure, local: Mapping[str, Any] | None) -> list[str]:
    if not local:
        return [NONE, NONE]
    return [change(measure, *local["worst"].values()), percent(local["below"])]


def _effort(comparison: Comparison) -> str:
    """Rounds and local epochs where all have the same: a method's own count for all that it is compared with."""
    said = {(group["rounds"], group["local_epochs"]) for group in comparison["groups"]}
    rounds, epochs = said.pop()
    return "" if said or not rounds or not epochs else f"{count(rounds, 'round')} of {count(epochs, 'local epoch')}, "


def comparison_note(comparison: Comparison, whole: bool = True) -> str:
    """What the columns mean, in plain sentences, to stand under the table.

    Args:
        comparison: of all runs.
        whole: whether the table has all columns, also those to FedAvg, of pairs and verdicts that are counted, of all
            sites' models together and of forgetting.
    """
    data, seeds, measures = comparison["data"], comparison["seeds"], measures_of(comparison)
    begun, counted = measures[0], "'better' counts those pairs, " * whole
    sentences = [
        f"{data['name']}, partition {data['partition']}, model {' and '.join(map(str, data['models']))}, "
        f"{count(len(data['sites']), 'site')}, {_effort(comparison)}"
        + (f"seeds {shown(seeds)}." if len(seeds) > 1 else f"one seed ({shown(seeds)})."),
        "Test data, at the round chosen on validation data (the last where there are none); "
        f"{listed([m.title for m in measures])} are means over sites"
        + (", ± standard deviation over seeds." if len(seeds) > 1 else "."),
        f"Differences are paired by site and seed; {counted}the worst site's is a seed's lowest"
        + (", averaged over seeds." if len(seeds) > 1 else "."),
        _local(comparison, begun),
        _fedavg(comparison) * whole,
        *(_together_words(comparison) if whole else ()),
    ]
    if any(group.get("to_own_rival") for group in comparison["groups"]):
        verdicts = (
            f"; {', '.join(get_args(Verdict))}: of how many sites and seeds the 95 % interval of the paired difference "
            "says so"
        )
        sentences.append(f"{OWN_RIVAL}{verdicts * whole}.")
    if whole and any(group["forgetting"]["mean"] is not None for group in comparison["groups"]):
        sentences.append(
            f"Forgetting: how one more local training changes a site's {begun.title} on the other sites' test data."
        )
    for key, what in (("rounds", "Rounds"), ("local_epochs", "Local epochs")):
        if len({group[key] for group in comparison["groups"]}) > 1:
            each = ", ".join(f"{group['label']} {group[key]}" for group in comparison["groups"])
            sentences.append(f"{what} differ: {each}.")
    groups = comparison["groups"]
    sentences += [more_each_round(groups), trained_otherwise(groups), unequal_ends(groups), *states_of_code(comparison)]
    sentences.append(lacking_words(comparison.get("lacking") or {}))
    sentences.append(one_class_words(comparison.get("one_class"), begun.title))
    if len(seeds) == 1:
        sentences.append("One seed shows no spread: small differences may be chance.")
    return " ".join(filter(None, [*sentences, unfinished_words(comparison["unfinished"])]))


def _together_words(comparison: Comparison) -> Iterator[str]:
    """What is meant by columns of the sites' models together."""
    short, together = [m.title for m in chief(measures_of(comparison))], {where for where, _ in _together(comparison)}
    if "new" in together:
        held_out = f"; held-out {short[-1]}: the same at centres that took no part in training"
        yield (
            f"New {listed(short)}: the average prediction of all sites' models on all sites' test data"
            f"{held_out if 'held_out' in together else ''}."
        )


def _local(comparison: Comparison, measure: Measure) -> str:
    """What differences to local are to, which in a comparison without a run of it is no local training."""
    by = _baselines(comparison, "to_local")
    if not by:
        return ""
    what, runs = [], len(by) - (REFERENCE in by)
    if runs:
        network = " of the same network" * (len(comparison["data"]["models"]) > 1)
        what.append(f"{'a run' if runs == 1 else 'runs'}{network} in which each site trains alone")
    if beside := by.get(REFERENCE):
        what.append(f"the model that each site trained alone beside the run ({_reached_beside(beside, measure)})")
    return f"To local: {_to_which(by)}{' here' * (not runs)}, {' or '.join(what)}."


def _reached_beside(groups: list[dict[str, Any]], measure: Measure) -> str:
    """What their own rivals reach: in one figure where it is the same beside all."""
    told = [f"{spread(measure, **alone(g['to_local'], measure.name))} {measure.unit}".strip() for g in groups]
    if len({*told}) == 1:
        return told[0]
    return ", ".join(f"{of} beside {group['label']}" for of, group in zip(told, groups, strict=True))


def _fedavg(comparison: Comparison) -> str:
    """To which run of it, where there are several: each row's is the one that is set most like it."""
    by = _baselines(comparison, "to_fedavg")
    several = sum(group["algorithm"] == "fedavg" for group in comparison["groups"]) > 1
    return f"To FedAvg: {_to_which(by)}, the run of it that is set most alike." if by and several else ""


def _baselines(comparison: Comparison, key: str) -> dict[str, list[dict[str, Any]]]:
    """By what it is paired with, the groups."""
    found: dict[str, list[dict[str, Any]]] = {}
    for group in comparison["groups"]:
        if group[key]:
            found.setdefault(group[key]["baseline"], []).append(group)
    return found


def _to_which(by: Mapping[str, list[dict[str, Any]]]) -> str:
    """``to A``, or ``B and C to A, D to E``."""
    if len(by) == 1:
        return f"to {next(iter(by))}"
    return ", ".join(f"{' and '.join(g['label'] for g in groups)} to {baseline}" for baseline, groups in by.items())


def notes_of(comparison: Comparison) -> list[str]:
    """The runs' notes, a line each that begins with the methods that have it."""
    having: dict[tuple[str, str], list[str]] = {}
    for group in comparison["groups"]:
        for note in group["notes"]:
            where = "" if note["seed"] is None else f", in seed {note['seed']}"
            where += f" and alike in {shown(note['alike'])}" if note["alike"] else ""
            having.setdefault((where, note["text"]), []).append(group["label"])
    return [f"{', '.join(labels)}{where}: {text}" for (where, text), labels in having.items()]


def comparison_markdown(comparison: Comparison) -> str:
    """GitHub tables, groups in the comparison's order, with what the columns mean and the runs' notes."""
    note = comparison_note(comparison)
    whole = markdown_table(*comparison_rows(comparison), " ".join(advice(comparison)), note, *notes_of(comparison))
    for title, (heads, rows), below in (
        (judged.TITLE, judged.judged_rows(comparison), judged.judged_note(comparison)),
        (TITLE, pair_rows(comparison), pair_note(comparison)),
    ):
        whole += f"\n**{title}**\n\n{markdown_table(heads, rows, below)}" if rows else ""
    return whole


def markdown_table(heads: list[str], rows: list[list[str]], *below: str) -> str:
    """A GitHub table, numbers on the right, with sentences below it."""
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    table = "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)
    return "\n\n".join([table, *(_cell(text) for text in below if text)]) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def write_comparison(comparison: Comparison, directory: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write comparison.json and comparison.md into a folder, which is made if need be; returns their paths."""
    folder = Path(directory)
    return (
        write_text(folder / "comparison.json", json.dumps(comparison, indent=1, allow_nan=False) + "\n"),
        write_text(folder / "comparison.md", comparison_markdown(comparison)),
    )
