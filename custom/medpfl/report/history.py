"""The course of a run as a table for other programs."""

from __future__ import annotations

import csv
import io

from medpfl.report.reading import Results

COLUMNS = (
    "round",
    "site",
    "train_loss",
    "validation_accuracy",
    "validation_auroc",
    "sent_bytes",
    "received_bytes",
    "seconds",
)


def history_csv(results: Results) -> str:
    """One row for every round and site that took part in it; what was not measured is empty."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for entry in results["rounds"]:
        for name, site in entry["sites"].items():
            validation = site.get("validation") or {}
            writer.writerow(
                (
                    entry["round"],
                    name,
                    site.get("train_loss"),
                    validation.get("accuracy"),
                    validation.get("auroc"),
                    site.get("sent_bytes"),
                    site.get("received_bytes"),
                    site.get("seconds"),
                )
            )
    return stream.getvalue()
