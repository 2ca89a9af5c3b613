"""Labelled windows of time series in memory, and one of them as it is divided."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from medpfl.core.site_data import Part


@dataclass(frozen=True)
class Window:
    """One window, as patients are divided (:class:`medpfl.data.patients.Sample`).

    Attributes:
        centre: the site that it is from.
        patient: what is never divided between parts or sites: its patient, or the stretch of a recording.
        label: index of the class.
        id: sorts the windows of a patient.
        row: its place in the set.
        split: the part that the file gives it to, or None.
    """

    centre: str
    patient: str
    label: int
    id: str
    row: int
    split: Part | None = None


@dataclass(frozen=True, eq=False)
class SeriesSet:
    """All windows of a file or folder.

    Attributes:
        name: what results call it.
        source: where it was read from.
        values: (n, C, T) float32, finite.
        labels: (n,) int64 in 0..len(classes)-1.
        classes: class names; the label is the index.
        named: the data name their classes; else these are numbers.
        centres: (n,) the site each window is from, as text.
        groups: (n,) what stays together, as text; None where every window stands for itself.
        persons: (n,) whose the windows are, as text; None where that is not known.
        split: (n,) ``train``, ``validation`` or ``test``; None where the data do not say it.
        md5: checksum.
    """

    name: str
    source: Path
    values: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    named: bool
    centres: np.ndarray
    groups: np.ndarray | None
    persons: np.ndarray | None
    split: np.ndarray | None
    md5: str

    def __len__(self) -> int:
        return len(self.labels)

    def together(self) -> SeriesSet:
        """The same with all sites' windows in one centre; what is of different sites stays apart by its name."""
        if len(np.unique(self.centres)) == 1:
            return self
        apart = {
            key: np.char.add(np.char.add(self.centres, "/"), named)
            for key, named in (("groups", self.groups), ("persons", self.persons))
            if named is not None
        }
        return replace(self, centres=np.full(len(self), self.name), **apart)

    def by_hospital(self) -> dict[str, tuple[Window, ...]]:
        """The windows by centre, each with its person, by the name that the person has there; none if nobody is known.

        Where a file has sites of its own, persons' names begin with theirs.
        """
        if self.persons is None:
            return {}
        return {
            centre: tuple(
                replace(window, patient=str(self.persons[window.row]).removeprefix(f"{centre}/")) for window in windows
            )
            for centre, windows in self.windows().items()
        }

    def windows(self) -> dict[str, tuple[Window, ...]]:
        """By centre, in the order of their sorted names, the windows in theirs."""
        found: dict[str, list[Window]] = {}
        for row in range(len(self)):
            name = f"{row:08d}"
            group = name if self.groups is None else str(self.groups[row])
            split = None if self.split is None else str(self.split[row])
            window = Window(str(self.centres[row]), group, int(self.labels[row]), name, row, split)
            found.setdefault(window.centre, []).append(window)
        return {centre: tuple(found[centre]) for centre in sorted(found)}
