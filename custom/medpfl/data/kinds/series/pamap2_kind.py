"""PAMAP2, as its archive is unpacked, as a kind of data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, ValidationInfo, field_validator

from medpfl.core.errors import UserError
from medpfl.data.arguments import read_arguments
from medpfl.data.decoded_cache import kept, key_of
from medpfl.data.kinds.series.pamap2 import (
    ACTIVITIES,
    CHANNELS,
    UNITS,
    cut,
    read_recording,
    recordings,
    samples,
    subject,
)
from medpfl.data.kinds.series.reading import MOST_SAMPLES, Positive, SeriesReading
from medpfl.data.kinds.series.series_kind import SeriesKind
from medpfl.data.kinds.series.series_set import SeriesSet
from medpfl.data.places import cache_folder, places

_VERSION = 1
"""Part of every key; a change of reading that changes its output changes this number."""
CLASSES = tuple(ACTIVITIES.values())


class Pamap2Reading(SeriesReading):
    """How windows are cut from the recordings, and read.

    Attributes:
        channels, length, normalise, divide: see :class:`~medpfl.data.kinds.series.reading.SeriesReading`.
        step: from the start of a window to the next one's, samples.
        gap: the longest gap that is interpolated, samples of 0.01 s; no window lies over a longer one.
        stretch: samples of what is never divided between parts or sites; 0 divides single windows, which overlap.
    """

    channels: Literal[27] = 27
    length: Annotated[int, Field(ge=2, le=MOST_SAMPLES)] = 200
    normalise: Literal["window", "none"] = "none"
    divide: tuple[Positive, ...] = UNITS
    step: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] = 100
    gap: Annotated[int, Field(ge=0, le=MOST_SAMPLES)] = 100
    stretch: Annotated[int, Field(ge=0, le=MOST_SAMPLES)] = 2000

    @field_validator("stretch")
    @classmethod
    def _no_shorter_than_a_window(cls, stretch: int, known: ValidationInfo) -> int:
        if 0 < stretch < (length := known.data.get("length", 0)):
            raise ValueError(f"{stretch} is shorter than a window of {length} samples; 0 divides single windows")
        return stretch


class Pamap2Kind(SeriesKind):
    """A folder with ``subject101.dat`` and so on, or one with the archive's ``Protocol`` in it: a subject is a site."""

    name = "pamap2"
    form = "PAMAP2's recordings"
    also_takes = ("series",)
    usual_network = "pamap2-cnn"

    def is_said_by(self, data_args: Mapping[str, Any]) -> bool:
        """See :class:`~medpfl.data.kinds.kind.Kind`: how recordings are cut."""
        return "classes" in data_args and not {"step", "gap", "stretch"}.isdisjoint(data_args)

    def found(self, data: str) -> Path | None:
        """See :class:`~medpfl.data.kinds.series.series_kind.SeriesKind`."""
        return next((place for place in places(data) if place.is_dir() and recordings(place)), None)

    def reading(self, data_args: Mapping[str, Any]) -> Pamap2Reading:
        """See :class:`~medpfl.data.kinds.series.series_kind.SeriesKind`."""
        return read_arguments(Pamap2Reading, data_args)

    def read(self, data: str, data_args: Mapping[str, Any]) -> SeriesSet:
        """See :class:`~medpfl.data.kinds.series.series_kind.SeriesKind`; from the cache if they are in it."""
        return read_pamap2(self.path(data), self.reading(data_args))

    def number(self, data: str, data_args: Mapping[str, Any]) -> int:
        """See :class:`~medpfl.data.kinds.series.series_kind.SeriesKind`."""
        return most_windows(self.path(data), self.reading(data_args))


def most_windows(folder: Path, reading: Pamap2Reading) -> int:
    """How many windows the recordings have at most: as if each were one run of one activity.

    Raises:
        UserError: a file is not of PAMAP2's form.
    """
    # Windows of one run begin a step apart, those of two share nothing.
    apart = min(reading.step, reading.length)
    lengths = [samples(file) - reading.length for file in recordings(folder)]
    return sum(longer // apart + 1 for longer in lengths if longer >= 0)


def read_pamap2(folder: Path, reading: Pamap2Reading) -> SeriesSet:
    """All windows of the ten activities, by subject.

    What was cut is kept in ``~/.cache/medpfl/pamap2``, for its owner to read, and used as long as the files have the
    same names, sizes and times of change.

    Raises:
        UserError: a file is not of PAMAP2's form, there are no windows, or the cache cannot be written.
    """
    files = recordings(folder)
    how = [reading.length, reading.step, reading.gap, reading.stretch]
    key = key_of((file.resolve() for file in files), _VERSION, CHANNELS, how)
    windows, _ = kept(cache_folder() / "pamap2", key, lambda: (_cut(files, reading), {}))
    subjects = np.array([subject(one) for one in files])[windows["file"].numpy()]
    groups = np.char.add(np.char.add(subjects, "/"), windows["stretch"].numpy().astype(str))
    sizes = " ".join(f"{one.name} {one.stat().st_size}" for one in files)
    return SeriesSet(
        name="pamap2",
        source=folder,
        values=windows["values"].numpy(),
        labels=windows["labels"].numpy(),
        classes=CLASSES,
        named=True,
        centres=subjects,
        groups=groups if reading.stretch else None,
        persons=subjects,
        split=None,
        md5=hashlib.md5(sizes.encode(), usedforsecurity=False).hexdigest(),
    )


def _cut(files: Sequence[Path], reading: Pamap2Reading) -> dict[str, torch.Tensor]:
    label_of = {activity: label for label, activity in enumerate(ACTIVITIES)}
    windows, labels, stretches, which = [], [], [], []
    for index, file in enumerate(files):
        values, activity = read_recording(file, reading.gap)
        for doing, stretch, window in cut(values, activity, reading.length, reading.step, reading.stretch):
            windows.append(window.copy())
            labels.append(label_of[doing])
            stretches.append(stretch)
            which.append(index)
    if not windows:
        raise UserError(
            f"{files[0].parent}: no recording has {reading.length} samples in a row of {', '.join(CLASSES)}: a shorter "
            "length, or a longer gap to be filled"
        )
    return {
        "values": torch.from_numpy(np.stack(windows)),
        "labels": torch.tensor(labels),
        "stretch": torch.tensor(stretches),
        "file": torch.tensor(which),
    }
