"""A comparison as a table, for the terminal, a page and Markdown."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medpfl.report.best_variant import advice
from medpfl.report.pairing import shown
from medpfl.report.reading import write_text
from medpfl.report.side_by_side import REFERENCE, Comparison
from medpfl.report.words import NONE, percent, points, score, size, spread

WORST_TO_LOCAL = "Worst site's difference to local (points)"
BELOW_LOCAL = "Sites more than a point below local"


def comparison_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """The comparison as text: column heads, and a row of cells for each group."""
    heads = [
        "Algorithm",
        "Accuracy",
        "Worst site",
        "To local (points)",
        "Better than local",
        WORST_TO_LOCAL,
        BELOW_LOCAL,
    ]
    with_fedavg = any(group["to_fedavg"] for group in comparison["groups"])
    if with_fedavg:
        heads += ["To FedAvg (points)", "Better than FedAvg"]
    # The sites' models together, where that was tested: on all test data, and at centres that did not train.
    together = [
        (key, head)
        for key, head in (
            ("new_accuracy", "New accuracy"),
            ("new_auroc", "New AUC"),
            ("held_out_auroc", "Held-out AUC"),
        )
        if any(group[key]["mean"] is not None for group in comparison["groups"])
    ]
    heads += ["Balanced acc.", "AUC", *(head for _, head in together)]
    with_forgetting = any(group["forgetting"]["mean"] is not None for group in comparison["groups"])
    heads += ["Forgetting (points)"] if with_forgetting else []
    heads += ["Round", "Seconds", "Sent / received per site and round"]
    rows = []
    for group in comparison["groups"]:
        row = [group["label"], spread(**group["accuracy"]), score(group["worst"]["mean"])]
        row += [*_paired(group["to_local"]), *_worst(group["to_local"])]
        row += _paired(group["to_fedavg"]) if with_fedavg else []
        chosen, seconds = group["selected_round"]["mean"], group["seconds"]["mean"]
        sent, received = (group[f"{way}_bytes_per_site_round"]["mean"] for way in ("sent", "received"))
        row += [
            spread(**group["balanced_accuracy"]),
            spread(**group["auroc"]),
            *(spread(**group[key]) for key, _ in together),
            *([points(*group["forgetting"].values())] if with_forgetting else []),
            NONE if chosen is None else f"{chosen:g}" if chosen == int(chosen) else f"{chosen:.1f}",
            NONE if seconds is None else f"{seconds:.1f}",
            NONE if sent is None and received is None else f"{size(sent)} / {size(received)}",
        ]
        rows.append(row)
    return heads, rows


def _paired(other: Mapping[str, Any] | None) -> list[str]:
    if not other:
        return [NONE, NONE]
    return [points(other["mean"], other["sd"]), f"{other['better']} of {other['pairs']}"]


def _worst(local: Mapping[str, Any] | None) -> list[str]:
    if not local:
        return [NONE, NONE]
    return [points(*local["worst"].values()), percent(local["below"])]


def comparison_note(comparison: Comparison) -> str:
    """What the columns mean, in plain sentences, to stand under the table."""
    data, seeds = comparison["data"], comparison["seeds"]
    # A reference that differs from run to run of a seed would be a defect; the first group's stands for all.
    baselines = {
        group["to_local"]["baseline"]: group["to_local"]["baseline_accuracy"]
        for group in comparison["groups"]
        if group["to_local"]
    }
    sentences = [
        f"{data['name']}, partition {data['partition']}, model {' and '.join(map(str, data['models']))}, "
        f"{len(data['sites'])} sites, "
        + (f"seeds {shown(seeds)}." if len(seeds) > 1 else f"one seed ({shown(seeds)})."),
        "Test data, at the round chosen on validation data (the last where there are none); "
        "accuracy, balanced accuracy and AUC are means over sites"
        + (", ± standard deviation over seeds." if len(seeds) > 1 else "."),
        "Differences are paired by site and seed; 'better' counts those pairs, the worst site's is a seed's lowest"
        + (", averaged over seeds." if len(seeds) > 1 else "."),
    ]
    if any(group["new_auroc"]["mean"] is not None for group in comparison["groups"]):
        sentences.append(
            "New accuracy and AUC: the average prediction of all sites' models on all sites' test data; held-out AUC: "
            "the same at centres that took no part in training."
        )
    if any(group["forgetting"]["mean"] is not None for group in comparison["groups"]):
        sentences.append(
            "Forgetting: how one more local training changes a site's accuracy on the other sites' test data."
        )
    # Unequal effort is allowed, but never silent.
    for key, what in (("rounds", "Rounds"), ("local_epochs", "Local epochs")):
        if len({group[key] for group in comparison["groups"]}) > 1:
            each = ", ".join(f"{group['label']} {group[key]}" for group in comparison["groups"])
            sentences.append(f"{what} differ: {each}.")
    sentences += [
        f"Local training ({label}): {spread(**accuracy)}."
        for label, accuracy in baselines.items()
        if label == REFERENCE
    ]
    if len(seeds) == 1:
        sentences.append("One seed shows no spread: small differences may be chance.")
    return " ".join(sentences)


def comparison_markdown(comparison: Comparison) -> str:
    """A GitHub table, groups in the comparison's order, with a note on what the columns mean."""
    heads, rows = comparison_rows(comparison)
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    table = "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)
    below = (" ".join(advice(comparison)), comparison_note(comparison))
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
