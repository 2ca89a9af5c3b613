"""What the page says of one run."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from medpfl.report.charts import Curve, line_chart
from medpfl.report.grids import mixing_caption, mixing_heat_map, partition_plot
from medpfl.report.page_parts import Part, Picture, Section
from medpfl.report.page_tables import (
    cost_table,
    failures_table,
    forgetting_table,
    impressions_table,
    made_table,
    site_table,
)
from medpfl.report.reading import Results, class_names, is_local, local_reference, round_series, selected, worst_site
from medpfl.report.verdicts import gains_part
from medpfl.report.words import count, further, headline, score

COURSES = (
    ("validation accuracy", ("validation", "accuracy"), True),
    ("training loss", ("train_loss",), False),
)


def run_section(run: Results, with_partition: bool, alone: bool = False) -> Section:
    """Everything about one run; ``alone`` if the page is about nothing else."""
    return Section(_facts(run), headline(run), list(_parts(run, with_partition, alone)))


def _parts(run: Results, with_partition: bool, alone: bool) -> Iterator[Part]:
    if alone and selected(run):
        yield Part(note="One run with one seed: a small difference may be chance.")
    if failures := run.get("failures"):
        yield Part("What went wrong", table=failures_table(failures))
    if notes := run.get("notes"):
        yield Part("Notes", lines=notes)
    yield from gains_part(run)
    if selected(run):
        yield Part("Every site", table=site_table(run), note=_site_note(run))
    yield Part(lines=further(run))
    yield from _courses(run)
    yield from _impressions(run)
    if forgotten := run.get("forgetting"):
        note = (
            f"Accuracy of the model that a site would receive for round {forgotten['round']}, before and after it "
            "trains on its own data once more: on the other sites' test data, pooled, and on its own."
        )
        yield Part("Forgetting", table=forgetting_table(run, forgotten), note=note)
    if with_partition:
        yield Part("Who has which images")
        yield partition(run)
    if mixing := run.get("mixing"):
        matrix = mixing["matrix"]
        heat_map = mixing_heat_map(mixing["sites"], matrix)
        yield Part("Who learns from whom", figure=heat_map, note=mixing_caption(matrix))
    yield Part("Traffic and time", table=cost_table(run))
    yield Part("How this run was made", table=made_table(run))


def _facts(run: Results) -> str:
    config, data = run["config"], run["data"]
    epochs = config.get("local_epochs")
    facts = [
        count(len(data["sites"]), "site"),
        f"partition {data.get('partition')}",
        f"model {config.get('model')}",
        f"{count(len(run['rounds']), 'round')}"
        + (f" of {count(epochs, 'local epoch')}" if isinstance(epochs, int) else ""),
        f"seed {config.get('seed')}",
    ]
    return ", ".join(facts)


def _site_note(run: Results) -> str:
    last = run["final"]["last"]
    lowest = worst_site(last, "accuracy")
    chosen = run.get("selected_round")
    validated = round_series(run, "validation", "accuracy")
    when = (
        "the reported round"
        if chosen is None
        else f"round {chosen}" + (", chosen on validation data" * bool(validated))
    )
    return (
        f"Test data at {when}. At the last round "
        f"({len(run['rounds'])}): mean accuracy {score(last['mean'].get('accuracy'))}"
        + (f", worst {lowest[1]:.3f} ({lowest[0]})." if lowest else ".")
        + " Accuracy is the share of test cases that are classified correctly; balanced accuracy gives every class the "
        "same weight; AUC is the macro one-vs-rest area under the ROC curve over the classes a site's test data hold."
        + (" Differences are in percentage points of accuracy." if _reference(run) else "")
    )


def _reference(run: Results) -> dict[str, Any] | None:
    return None if is_local(run) else local_reference(run)


def _courses(run: Results) -> Iterator[Part]:
    reference = _reference(run)
    alone = reference["mean"].get("accuracy") if reference else None
    charts, missing = [], []
    for title, keys, share in COURSES:
        series = round_series(run, *keys)
        if not series:
            missing.append(title)
            continue
        curve = Curve(
            "mean over sites",
            [(n, fmean(values)) for n, values in series],
            [(n, min(values), max(values)) for n, values in series],
        )
        level = ("local training", alone) if share and alone is not None else None
        chosen = run.get("selected_round")
        mark = ("selected", chosen) if chosen is not None else None
        charts.append(line_chart(title, [curve], level, mark, share))
    note = ["Line: mean over sites; band: lowest to highest site."] if charts else []
    if alone is not None and "validation accuracy" not in missing:
        note.append("Dashed: test accuracy of sites that train alone.")
    if run["rounds"]:
        note += [f"This run has no {title}." for title in missing]
    if note:
        yield Part("Course of training", charts=charts, note=" ".join(note))


def partition(run: Results, caption: str = "") -> Part:
    """Which site holds how many images of which class."""
    sites = run["data"]["sites"]
    if not sites:
        return Part(note="The run did not record what the sites hold.")
    classes = class_names(run)
    samples = "patients" if run["data"].get("preprocessing") else "images"
    totals = [sum(site.get(part) or 0 for part in ("train", "validation", "test")) for site in sites.values()]
    each = f"{min(totals)}" if min(totals) == max(totals) else f"{min(totals)} to {max(totals)}"
    note = f"{caption}{sum(totals)} {samples} at {count(len(sites), 'site')}, {each} a site."
    if not classes:
        return Part(note=f"{note} Their classes were not recorded.")
    return Part(
        figure=partition_plot({name: site.get("classes") or {} for name, site in sites.items()}, classes),
        note=f"{note} The area of a dot is proportional to the number of {samples}.",
        # Two large plots side by side, or three small ones, stay readable.
        width=480 if len(sites) > 8 else 300,
    )


def _impressions(run: Results) -> Iterator[Part]:
    """What the synthesis did in each round, and the last images."""
    made = [(entry["round"], entry["impression"]) for entry in run["rounds"] if entry.get("impression")]
    if not made:
        return
    note = (
        "Cross-entropy of the server's model on the images, before and after; norm of the constraint, likewise; root "
        "mean square distance that a pixel moved, of a range of 2."
    )
    picture = None
    if last := run.get("impression"):
        labels = ", ".join(map(str, last["labels"]))
        note += f" The picture: {len(last['labels'])} of {last['images']} images, row by row of the classes {labels}."
        picture = Picture("The last impression", last["picture"])
    yield Part("Federated impression", table=impressions_table(made), picture=picture, note=note)
