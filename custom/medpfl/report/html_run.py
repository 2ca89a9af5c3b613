"""The sections of the HTML report about one run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from statistics import fmean
from typing import Any

from medpfl.report.figures import Curve, line_chart, mixing_caption, mixing_heat_map, partition_plot
from medpfl.report.html_table import table
from medpfl.report.results import (
    MEASURES,
    Results,
    class_names,
    differences,
    is_local,
    local_reference,
    mean_or_none,
    round_series,
    selected,
    worst_site,
)
from medpfl.report.words import (
    NONE,
    auroc_interval,
    count,
    duration,
    further,
    headline,
    points,
    score,
    site_name,
    size,
    spread,
)

COURSES = (
    ("validation accuracy", ("validation", "accuracy"), True),
    ("training loss", ("train_loss",), False),
)


def run_body(run: Results, depth: int, with_partition: bool) -> str:
    """Everything about one run, under headings of the given depth."""

    def heading(words: str) -> str:
        return f"<h{depth}>{words}</h{depth}>"

    parts = [f'<p class="facts">{escape(_facts(run))}</p>', f'<p class="lead">{escape(headline(run))}</p>']
    if depth == 2 and selected(run):
        parts.append('<p class="note">One run with one seed: a small difference may be chance.</p>')
    if failures := run.get("failures"):
        rows = [[str(f.get("round", NONE)), str(f.get("site", NONE)), str(f.get("reason", NONE))] for f in failures]
        parts += [heading("What went wrong"), table(["Round", "Site", "Reason"], rows, "Failures", numbers=(0,))]
    if notes := run.get("notes"):
        parts += [heading("Notes"), "<ul>" + "".join(f"<li>{escape(str(note))}</li>" for note in notes) + "</ul>"]
    if selected(run):
        parts += [heading("Every site"), _site_table(run)]
    if lines := further(run):
        parts.append("<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>")
    if charts := _courses(run):
        parts += [heading("Course of training"), charts]
    if impressions := _impressions(run):
        parts += [heading("Federated impression"), impressions]
    if forgotten := _forgetting(run):
        parts += [heading("Forgetting"), forgotten]
    if with_partition:
        parts += [heading("Who has which images"), partition(run)]
    if mixing := run.get("mixing"):
        matrix = mixing["matrix"]
        parts += [
            heading("Who learns from whom"),
            mixing_heat_map(mixing["sites"], matrix),
            f'<p class="note">{escape(mixing_caption(matrix))}</p>',
        ]
    parts += [heading("Traffic and time"), _cost(run), heading("How this run was made"), _made(run)]
    return "\n".join(parts)


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


def _site_table(run: Results) -> str:
    scores = selected(run)
    reference = None if is_local(run) else local_reference(run)
    change = differences(scores, reference, "accuracy")
    classes = len(class_names(run))
    heads = ["Site", "Train", "Test", "Accuracy", "Balanced acc.", "AUC [95 % CI]", "Classes in AUC"]
    heads += ["Local accuracy", "To local (points)"] if reference else []
    rows = []
    for name, entry in scores["sites"].items():
        held = entry.get("auroc_classes")
        row = [
            site_name(run, name),
            _whole(run["data"]["sites"].get(name, {}).get("train")),
            _whole(entry.get("n")),
            score(entry.get("accuracy")),
            score(entry.get("balanced_accuracy")),
            auroc_interval(entry),
            NONE if held is None else f"{held} of {classes}" if classes else str(held),
        ]
        if reference:
            row += [score(reference["sites"].get(name, {}).get("accuracy")), points(change.get(name))]
        rows.append(row)
    foot = [["Mean ± sd", "", "", *(spread(scores["mean"].get(m), scores["std"].get(m)) for m in MEASURES), ""]]
    worst = [worst_site(scores, measure) for measure in MEASURES]
    foot.append(["Worst site", "", "", *(f"{w[1]:.3f} ({w[0]})" if w else NONE for w in worst), ""])
    if reference:
        foot[0] += [score(reference["mean"].get("accuracy")), points(mean_or_none(change.values()))]
        alone = worst_site(reference, "accuracy")
        least = min(change, key=change.__getitem__) if change else None
        foot[1] += [
            f"{alone[1]:.3f} ({alone[0]})" if alone else NONE,
            f"{points(change[least])} ({least})" if least else NONE,
        ]
    last = run["final"]["last"]
    lowest = worst_site(last, "accuracy")
    chosen = run.get("selected_round")
    validated = round_series(run, "validation", "accuracy")
    when = (
        "the reported round"
        if chosen is None
        else f"round {chosen}" + (", chosen on validation data" * bool(validated))
    )
    note = (
        f"Test data at {when}. At the last round "
        f"({len(run['rounds'])}): mean accuracy {score(last['mean'].get('accuracy'))}"
        + (f", worst {lowest[1]:.3f} ({lowest[0]})." if lowest else ".")
        + " Accuracy is the share of test cases that are classified correctly; balanced accuracy gives every class the "
        "same weight; AUC is the macro one-vs-rest area under the ROC curve over the classes a site's test data hold."
        + (" Differences are in percentage points of accuracy." if reference else "")
    )
    return f'{table(heads, rows, "Test results of every site", foot)}<p class="note">{escape(note)}</p>'


def _whole(value: int | None) -> str:
    return NONE if value is None else str(value)


def _courses(run: Results) -> str:
    reference = None if is_local(run) else local_reference(run)
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
    figures = f'<div class="pair">{"".join(charts)}</div>' if charts else ""
    return figures + (f'<p class="note">{escape(" ".join(note))}</p>' if note else "")


def partition(run: Results, caption: str = "") -> str:
    """Which site holds how many images of which class."""
    sites = run["data"]["sites"]
    if not sites:
        return '<p class="note">The run did not record what the sites hold.</p>'
    classes = class_names(run)
    totals = [sum(site.get(part) or 0 for part in ("train", "validation", "test")) for site in sites.values()]
    each = f"{min(totals)}" if min(totals) == max(totals) else f"{min(totals)} to {max(totals)}"
    note = f"{caption}{sum(totals)} {_samples(run)} at {count(len(sites), 'site')}, {each} a site."
    if not classes:
        return f'<p class="note">{escape(note)} Their classes were not recorded.</p>'
    note += f" The area of a dot is proportional to the number of {_samples(run)}."
    plot = partition_plot({name: site.get("classes") or {} for name, site in sites.items()}, classes)
    # Two large plots side by side, or three small ones, stay readable.
    width = 480 if len(sites) > 8 else 300
    return f'<div style="flex:0 1 {width}px">{plot}<p class="note">{escape(note)}</p></div>'


def _impressions(run: Results) -> str:
    """What the synthesis did in each round, and the last images."""
    made = [(entry["round"], entry["impression"]) for entry in run["rounds"] if entry.get("impression")]
    if not made:
        return ""
    rows = [
        [str(round_), "-", "-", "-", str(entry["failed"])]
        if "failed" in entry
        else [
            str(round_),
            f"{entry['loss'][0]:.3f} → {entry['loss'][-1]:.3f}",
            f"{entry['constraint'][0]:.3f} → {entry['constraint'][-1]:.3f}",
            f"{entry['moved']:.4f}",
            duration(entry.get("seconds")),
        ]
        for round_, entry in made
    ]
    heads = ["After round", "Cross-entropy", "Constraint |M|", "Moved", "Time"]
    text = table(heads, rows, "What the synthesis did")
    note = (
        "Cross-entropy of the server's model on the images, before and after; norm of the constraint, likewise; root "
        "mean square distance that a pixel moved, of a range of 2."
    )
    if last := run.get("impression"):
        labels = ", ".join(map(str, last["labels"]))
        text += (
            f'<p><img alt="The last impression" src="{escape(last["picture"])}" style="image-rendering:pixelated"></p>'
        )
        note += f" The picture: {len(last['labels'])} of {last['images']} images, row by row of the classes {labels}."
    return f'{text}<p class="note">{escape(note)}</p>'


def _forgetting(run: Results) -> str:
    """A site's model on its own and on the other sites' test data, before and after one more local training."""
    if not (found := run.get("forgetting")):
        return ""

    def row(name: str, measured: Any) -> list[str]:
        cells = [name]
        for which in ("others", "own"):
            before, after = (measured.get(which, {}).get(when, {}).get("accuracy") for when in ("before", "after"))
            change = None if before is None or after is None else after - before
            cells += [score(before), score(after), points(change)]
        return cells

    heads = ["Site"]
    for which in ("Others'", "Own"):
        heads += [f"{which} before", f"{which} after", f"{which} change (points)"]
    text = table(
        heads,
        [row(site_name(run, name), measured) for name, measured in found["sites"].items()],
        "What local training makes a model forget",
        [row("Mean", found["mean"])],
    )
    note = (
        f"Accuracy of the model that a site would receive for round {found['round']}, before and after it trains on "
        "its own data once more: on the other sites' test data, pooled, and on its own."
    )
    return f'{text}<p class="note">{escape(note)}</p>'


def _samples(run: Results) -> str:
    return "patients" if run["data"].get("preprocessing") else "images"


def _cost(run: Results) -> str:
    traffic, seconds = run.get("traffic") or {}, run.get("seconds") or {}
    each = {
        key: mean_or_none(site.get(key) for entry in run["rounds"] for site in entry["sites"].values())
        for key in ("sent_bytes", "received_bytes")
    }
    rows = [
        ["Sent by the sites, in all", size(traffic.get("sent_bytes"))],
        ["Received by the sites, in all", size(traffic.get("received_bytes"))],
        ["Sent per site and round", size(each["sent_bytes"])],
        ["Received per site and round", size(each["received_bytes"])],
        ["Time, in all", duration(seconds.get("total"))],
        ["Time to start", duration(seconds.get("start"))],
        ["Time of training", duration(seconds.get("training"))],
        ["Mean time of a round", duration(mean_or_none(entry.get("seconds") for entry in run["rounds"]))],
    ]
    return table(["Measure", "Value"], rows, "Traffic and time")


def _made(run: Results) -> str:
    data = {key: value for key, value in run["data"].items() if key != "sites"}
    rows = []
    for part, tree in (
        ("choice", run.get("choices")),
        ("setting", run["config"]),
        ("data", data),
        ("environment", run.get("environment")),
    ):
        rows += [[part, key, value] for key, value in _flat(tree or {})]
    return table(["Part", "Name", "Value"], rows, "How this run was made", numbers=())


def _flat(tree: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is None or value == []:
            yield f"{prefix}{key}", NONE
        elif isinstance(value, list):
            yield f"{prefix}{key}", ", ".join(map(str, value))
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)
