"""What the page says of one run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from medpfl.core.gain import LEAST_PATIENTS
from medpfl.core.measure import LOSS, Measure
from medpfl.core.numbers_in_words import count, from_to
from medpfl.report.charts import Curve, Print, line_chart, three_digits
from medpfl.report.detail import detail_parts
from medpfl.report.grids import mixing_caption, mixing_heat_map, partition_plot
from medpfl.report.headline import headline
from medpfl.report.measures import capital, first, measures_of, printed, selecting
from medpfl.report.page_forgetting import forgetting_course
from medpfl.report.page_parts import Part, Picture, Section
from medpfl.report.page_running import running_part
from medpfl.report.page_tables import (
    classes_table,
    cost_table,
    failures_table,
    forgetting_table,
    further_measures,
    further_table,
    impressions_table,
    made_table,
    site_table,
)
from medpfl.report.reading import Results, class_titles, is_local, local_reference, round_series, selected, worst_site
from medpfl.report.verdicts import gains_part
from medpfl.report.words import counted_as, further

_ALONE = "Alone: the model that each site trained alone beside the run, its own rival."


class Course(NamedTuple):
    """What is drawn by round: its title, where a site's entry of a round has it, and the measure if it is one."""

    title: str
    keys: tuple[str, ...]
    measure: Measure | None = None

    @property
    def share(self) -> bool:
        """Values lie in [0, 1]."""
        return bool(self.measure and self.measure.share)

    @property
    def number(self) -> Print:
        """Prints a value."""
        return self.measure.number if self.measure else three_digits


def courses_of(measure: Measure) -> tuple[Course, Course]:
    """Of a measure on validation data, and of the loss."""
    if measure == LOSS:
        validated = Course(measure.title, ("validation_loss",), measure)
    else:
        validated = Course(f"validation {measure.titled}", ("validation", measure.name), measure)
    return validated, Course("training loss", ("train_loss",))


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
        if classes := classes_table(run):
            yield Part(classes.caption, table=classes)
        if more := further_table(run):
            measures = further_measures(run)
            note = _explained(measures) + _without_interval(selected(run)["sites"].values(), measures)
            yield Part("Further measures", table=more, note=note)
    yield Part(lines=further(run))
    yield from _courses(run)
    yield from detail_parts(run)
    yield from _impressions(run)
    if forgotten := run.get("forgetting"):
        note = (
            f"{capital(first(run).title)} of the model that a site would receive for round {forgotten['round']}, "
            "before and after it trains on its own data once more: on the other sites' test data, pooled, and on its "
            "own."
        )
        yield Part("Forgetting", table=forgetting_table(run, forgotten), note=note)
        yield from forgetting_course(run, forgotten)
    if with_partition:
        yield Part("Who has which images")
        yield partition(run)
    if mixing := run.get("mixing"):
        matrix = mixing["matrix"]
        heat_map = mixing_heat_map(mixing["sites"], matrix)
        yield Part("Who learns from whom", figure=heat_map, note=mixing_caption(matrix))
    if compared := run.get("running_statistics"):
        yield running_part(compared)
    yield Part("Traffic and time", table=cost_table(run))
    yield Part("How this run was made", table=made_table(run))


def _facts(run: Results) -> str:
    config, data = run["config"], run["data"]
    epochs = config.get("local_epochs")
    facts = [
        count(len(data["sites"]) or config.get("sites", 0), "site"),
        f"partition {data.get('partition')}",
        f"model {config.get('model')}",
        f"{count(len(run['rounds']), 'round')}"
        + (f" of {count(epochs, 'local epoch')}" if isinstance(epochs, int) else ""),
        *([f"participation {config['participation']:g}"] if any("following" in r for r in run["rounds"]) else []),
        f"seed {config.get('seed')}",
    ]
    return ", ".join(facts)


def _site_note(run: Results) -> str:
    last, measure = run["final"]["last"], first(run)
    lowest = worst_site(last, measure)
    chosen = run.get("selected_round")
    validated = round_series(run, *courses_of(selecting(run))[0].keys)
    own = run.get("selected_rounds")
    when = (
        ("each site's own round" + ", chosen on its validation data" * bool(validated))
        if own
        else "the reported round"
        if chosen is None
        else f"round {chosen}" + (", chosen on validation data" * bool(validated))
    )
    chooses = (run.get("choices") or {}).get("use", "received") != "received"
    others = "; each site chose among its models, the last round's and the one that it trained alone" if chooses else ""
    sites = run["data"]["sites"].values()
    if chooses and not validated and sites and all(site.get("validation") == 0 for site in sites):
        others = "; without validation cases no site could choose among its models"
    what = _explained(measures_of(run))
    return (
        f"Test data at {when}{others}. At the last round "
        f"({len(run['rounds'])}): mean {measure.title} {printed(measure, last['mean'].get(measure.name))}"
        + (f", worst {measure.number(lowest[1])} ({lowest[0]})." if lowest else ".")
        + (f" {what}" if what else "")
        + (f" {_differences_in(measure)} {_ALONE}" if _reference(run) else "")
    )


def _explained(measures: Iterable[Measure]) -> str:
    what = capital("; ".join(m.what for m in measures if m.what))
    return f"{what}." if what else ""


def _without_interval(entries: Iterable[Mapping[str, Any]], measures: Sequence[Measure]) -> str:
    """Why some site's measure stands without one; empty where all have it."""
    drawn = [entry for entry in entries if "intervals" in entry]
    if all(m.name in of["intervals"] for of in drawn for m in measures if of.get(m.name) is not None):
        return ""
    return (
        f" No interval stands where drawing patients again cannot tell it: of fewer than {LEAST_PATIENTS}, in all or "
        "of a class that the mean counts, and where every draw gives the same."
    )


def _differences_in(measure: Measure) -> str:
    unit = f"in {measure.gained_in_full} " * bool(measure.gained_in)
    sign = "" if measure.better == "higher" else ", above 0 is better"
    return f"Differences are {unit}of {measure.title}{sign}."


def _reference(run: Results) -> dict[str, Any] | None:
    return None if is_local(run) else local_reference(run)


def _courses(run: Results) -> Iterator[Part]:
    reference = _reference(run)
    measure = selecting(run)
    validated, loss = courses_of(measure)
    alone = reference["mean"].get(measure.name) if reference else None
    charts, missing = [], []
    for course in (validated, loss):
        series = round_series(run, *course.keys)
        if not series:
            missing.append(course.title)
            continue
        curve = Curve(
            "mean over sites",
            [(n, fmean(values)) for n, values in series],
            [(n, min(values), max(values)) for n, values in series],
        )
        level = ("training alone", alone) if course.measure and alone is not None else None
        chosen = run.get("selected_round")
        mark = ("selected", chosen) if chosen is not None else None
        charts.append(line_chart(course.title, [curve], level, mark, course.share, course.number))
    note = ["Line: mean over sites; band: lowest to highest site."] if charts else []
    if alone is not None and validated.title not in missing:
        note.append(f"Dashed: test {measure.title} of sites that train alone.")
    if run["rounds"]:
        note += [f"This run has no {title}." for title in missing]
    if note:
        yield Part("Course of training", charts=charts, note=" ".join(note))


def partition(run: Results, caption: str = "") -> Part:
    """Which site holds how many images, patients or windows of which class."""
    sites = run["data"]["sites"]
    if not sites:
        return Part(note="The run did not record what the sites hold.")
    classes = class_titles(run)
    samples = counted_as(run["data"])
    totals = [sum(site.get(part) or 0 for part in ("train", "validation", "test")) for site in sites.values()]
    each = from_to(str(min(totals)), str(max(totals)))
    note = f"{caption}{sum(totals)} {samples} at {count(len(sites), 'site')}, {each} a site."
    if not classes:
        return Part(note=f"{note} Their classes were not recorded.")
    return Part(
        figure=partition_plot({name: site.get("classes") or {} for name, site in sites.items()}, classes, samples),
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
