"""The course of a run as a table for other programs."""

from __future__ import annotations

import csv
import io

from medpfl.report.measures import as_earlier, chief, of_task
from medpfl.report.reading import Results

_BEFORE, _AFTER = ("round", "site", "train_loss"), ("sent_bytes", "received_bytes", "seconds")


def history_csv(results: Results) -> str:
    """One row for every round and site; what was not measured is empty.

    A site that followed, or was away and is back in the next round, has a row with its validation of what it received
    alone.

    Columns are ``validation_MEASURE`` for each of the task's measures; of classification's for the accuracy and the
    AUC, as in the first version.
    """
    measures = [m for m in of_task(results) if not m.further]
    names = [m.name for m in (chief(measures) if as_earlier(measures) else measures)]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow((*_BEFORE, *(f"validation_{name}" for name in names), *_AFTER))
    for entry in results["rounds"]:
        for name, site in entry["sites"].items():
            validation = site.get("validation") or {}
            measured = [validation.get(measure) for measure in names]
            told = [site.get(key) for key in ("train_loss", *_AFTER)]
            writer.writerow((entry["round"], name, told[0], *measured, *told[1:]))
    return stream.getvalue()
