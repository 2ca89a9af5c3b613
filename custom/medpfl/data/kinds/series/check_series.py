"""Says in words whether time series can be used, before any training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from medpfl.algorithms import LOCAL
from medpfl.config.run import RunConfig, make_config
from medpfl.core.errors import UserError
from medpfl.core.numbers_in_words import count
from medpfl.core.site_data import PARTS
from medpfl.data.finding import Finding
from medpfl.data.kinds.series.series_set import SeriesSet
from medpfl.data.patients import no_validation, split_patients
from medpfl.data.people import people
from medpfl.data.uneven import of_a_site

if TYPE_CHECKING:
    from medpfl.data.kinds.series.series_source import TimeSeries

_FRACTIONS = RunConfig.model_fields["fractions"].default
_PATIENTS = (
    "the data do not say whose a window is, so each counts as its own patient, and windows of one patient can be in "
    "training and in test: an array `patients` keeps them together"
)
_UNITS = 100.0
"""How many times a channel's spread may exceed another's before it is worth a word."""


def check_series(
    source_of: Callable[[RunConfig], TimeSeries], data: str, data_args: Mapping[str, Any]
) -> list[Finding]:
    """Reads all windows and lists what was found; never raises for wrong data.

    Args:
        source_of: a run's windows.
        data: the file or folder.
        data_args: as a run has them; what a job says of its data, they must be.
    """
    job = make_config(algorithm=LOCAL.name, data=data, data_args=dict(data_args), partition="natural", sites=1)
    try:
        source = source_of(job)
        return list(_findings(source.data, source.classes, source.reading.normalise, source.reading.divide))
    except UserError as error:
        return [Finding("error", str(error))]


def _findings(
    data: SeriesSet, classes: tuple[str, ...], normalise: str, divide: tuple[float, ...]
) -> Iterator[Finding]:
    n, channels, length = data.values.shape
    yield Finding("ok", f"{n:,} windows of {count(channels, 'channel')} and {length:,} samples")
    counts = np.bincount(data.labels, minlength=len(classes))
    called = [f"{label} {name}" if name != str(label) else name for label, name in enumerate(classes)]
    listed = ", ".join(f"{name}: {count:,}" for name, count in zip(called, counts, strict=True))
    yield Finding("ok", f"{len(classes)} classes: {listed}")
    if not data.named:
        yield Finding("note", "the file does not name its classes; label 0 is the first class of a job")
    if absent := [name for label, name in enumerate(classes) if not counts[label]]:
        yield Finding("warning", f"no window at all of class {', '.join(absent)}")
    if data.persons is None and data.groups is None:
        yield Finding("warning", _PATIENTS)
    windows_of = data.windows()
    yield from people(data.by_hospital())
    for centre, windows in windows_of.items():
        try:
            parts = split_patients(windows, _FRACTIONS, 1.0, 0, centre)
        except UserError as error:
            yield Finding("error", f"{centre}: {error}")
            continue
        number = len(np.unique(data.persons[data.centres == centre])) if data.persons is not None else 0
        whose = f" of {count(number, 'patient')}" if number else ""
        sizes = ", ".join(f"{part} {len(parts[part]):,}" for part in PARTS)
        by = "the file's split" if data.split is not None else "the default split"
        yield Finding("ok", f"{centre}: {len(windows):,} windows{whose}; by {by} {sizes}")
        lacking = no_validation(windows, parts, centre, by)
        yield from (Finding("warning", f"{centre}: {words}") for words in lacking)
        labels = {part: [window.label for window in parts[part]] for part in PARTS}
        yield from (Finding("warning", f"{centre}: {words}") for words in of_a_site(labels, classes, by))
    yield from _values(data, normalise, divide)
    yield from _repeated(data)


def _values(data: SeriesSet, normalise: str, divide: tuple[float, ...]) -> Iterator[Finding]:
    spread = data.values.std((0, 2), dtype=np.float64)
    if len(flat := np.flatnonzero(spread == 0)):
        yield Finding("warning", f"channel {flat[0]} has one value everywhere ({len(flat)} such channels)")
    still = (data.values.max(2) == data.values.min(2)).all(1)
    if still.any():
        first = int(np.flatnonzero(still)[0])
        yield Finding("warning", f"windows without any change: {int(still.sum()):,}, the first is number {first}")
    seen = spread / np.asarray(divide) if divide else spread
    if normalise == "none" and len(seen := seen[seen > 0]) and seen.max() > _UNITS * seen.min():
        yield Finding(
            "warning",
            f"the largest channel's spread is {seen.max() / seen.min():,.0f} times the smallest's: one in such units "
            "rules training; --data-arg divide=... or normalise=window",
        )


def _repeated(data: SeriesSet) -> Iterator[Finding]:
    flat = data.values.reshape(len(data), -1)
    _, window, times = np.unique(flat, axis=0, return_inverse=True, return_counts=True)
    if twice := int((times > 1).sum()):
        yield Finding("warning", f"windows that are there more than once: {twice:,}")
        pairs = len(np.unique(np.column_stack([window.reshape(-1), data.labels]), axis=0))
        if pairs > len(times):
            yield Finding("warning", f"identical windows with different labels: {pairs - len(times):,}")
