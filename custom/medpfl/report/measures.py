"""The measures of a results file, and how reports print their values and differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from medpfl.core.measure import BETTER, LOSS, NONE, Measure

_FEW = 5
_CLASSIFICATION = ("accuracy", "balanced_accuracy", "auroc")


def measures_of(said: Mapping[str, Any]) -> tuple[Measure, ...]:
    """Of results, of a comparison or of joined sites: those that every table has."""
    return tuple(m for m in all_measures(said) if not m.further)


def all_measures(said: Mapping[str, Any]) -> tuple[Measure, ...]:
    """With the further ones; the one that these results must begin with is in front."""
    measures, lead = of_task(said), (said.get("selection") or {}).get("lead")
    return tuple(sorted(measures, key=lambda measure: measure.name != lead))


def of_task(said: Mapping[str, Any]) -> tuple[Measure, ...]:
    """In the task's order; classification's in files of earlier versions, which say none."""
    if told := said.get("measures"):
        return tuple(map(Measure.read, told))
    from medpfl.tasks.classification import Classification  # imports torch: who says the measures does not need it

    return Classification.measures


def first(said: Mapping[str, Any]) -> Measure:
    """The measure that reports begin with."""
    return measures_of(said)[0]


def selecting(results: Mapping[str, Any]) -> Measure:
    """The measure whose validation values select the round."""
    measures = measures_of(results)
    by = (results.get("selection") or {}).get("measure") or results["config"].get("select_by")
    return LOSS if by == LOSS.name else next((m for m in measures if m.name == by), measures[0])


def chief(measures: Sequence[Measure]) -> list[Measure]:
    """What a short table has: the first, and the one with an interval."""
    return list(dict.fromkeys((measures[0], *[m for m in measures if m.interval][:1])))


def as_earlier(measures: Sequence[Measure]) -> bool:
    """Whether they are those for which files have had columns and keys since the first version."""
    return sorted(m.name for m in measures) == sorted(_CLASSIFICATION)


def printed(measure: Measure, value: float | None) -> str:
    """A value without its unit."""
    return NONE if value is None else measure.number(value)


def spread(measure: Measure, mean: float | None, sd: float | None) -> str:
    """Mean ± standard deviation; the mean alone where there is no deviation."""
    return printed(measure, mean) if mean is None or sd is None else f"{measure.number(mean)} ± {measure.number(sd)}"


def with_interval(measure: Measure, entry: Mapping[str, Any]) -> str:
    """The value in a site's entry, with its 95 % interval where there is one."""
    value = entry.get(measure.name)
    ends = entry.get(measure.interval) if measure.interval else (entry.get("intervals") or {}).get(measure.name)
    if value is None or not ends or None in ends:
        return printed(measure, value)
    return f"{measure.number(value)} [{measure.number(ends[0])}, {measure.number(ends[1])}]"


def interval_by(measure: Measure, entries: Iterable[Mapping[str, Any]]) -> str:
    """What a measure's intervals are over, " by patient" or " by sample"; empty where sites differ or do not say."""
    if len(found := {entry.get(f"{measure.interval}_by") for entry in entries} - {None}) != 1:
        return ""
    return f" by {found.pop()}"


def by_patient(results: Mapping[str, Any], sites: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether measures count patients where the data count samples: scans, and slices with masks.

    Not where a patient is several cases, by scans of several classes or by several volumes.

    Args:
        results: as ``results.json`` has them.
        sites: by site, its measures.
    """
    data = results["data"]
    told = [(entry["n"], data["sites"].get(name, {})) for name, entry in sites.items() if entry.get("n")]
    if results["config"].get("task") == "segmentation":
        several = any(of.get("cases") != of.get("patients") for _, of in told)
        return not several and any(n != of.get("test", n) for n, of in told)
    return bool(data.get("preprocessing")) and all(n <= of.get("test", n) for n, of in told)


def change(measure: Measure, gain: float | None, sd: float | None = None) -> str:
    """A gain with its sign, without its unit."""
    if gain is None:
        return NONE
    return measure.signed(gain) if sd is None else f"{measure.signed(gain)} ± {measure.amount(sd)}"


def head(measure: Measure) -> str:
    """Of a column with values: ``HD95 (mm)``."""
    return capital(measure.titled)


def short_head(measure: Measure) -> str:
    """The same where there is little room."""
    return head(measure).replace("Balanced accuracy", "Balanced acc.")


def change_head(what: str, measure: Measure) -> str:
    """Of a column with gains: ``To local (points)``; which way is better where a reader might take the other."""
    notes = [measure.gained_in, *([] if measure.share and measure.better == "higher" else [BETTER])]
    return f"{what} ({', '.join(filter(None, notes))})"


def is_change(of_column: str) -> bool:
    """Whether a head is one of :func:`change_head`."""
    return "(points" in of_column or BETTER in of_column


def counting_classes(measures: Sequence[Measure], sites: Mapping[str, Mapping[str, Any]]) -> list[Measure]:
    """Those of which sites say over how many classes they are."""
    return [m for m in measures if any(f"{m.name}_classes" in entry for entry in sites.values())]


def classes_in(measure: Measure, entry: Mapping[str, Any], known: int) -> str:
    """Over how many classes a site's value is, of those that the data are known to have."""
    counted = entry.get(f"{measure.name}_classes")
    return NONE if counted is None else f"{counted} of {known}" if known else str(counted)


def capital(text: str) -> str:
    """With a capital letter in front."""
    return text[:1].upper() + text[1:]


def some_of(names: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return ", ".join(names[:_FEW]) + more


def listed(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
