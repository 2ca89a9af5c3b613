"""PAMAP2's recordings (Reiss and Stricker, ISWC 2012) as windows: UCI's ``.dat`` files, one a subject.

A file has 54 columns with blanks between: time in s, activity, heart rate, and 17 of each inertial measurement unit
(hand, chest, ankle): temperature, acceleration (±16 g), acceleration (±6 g), angular rate, magnetic field, orientation.
Taken are three axes each of the first acceleration (m/s²), angular rate (rad/s) and magnetic field (µT): 27 channels,
100 times a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from medpfl.core.errors import UserError

ACTIVITIES = {
    1: "lying",
    2: "sitting",
    3: "standing",
    4: "walking",
    6: "cycling",
    7: "nordic walking",
    12: "ascending stairs",
    13: "descending stairs",
    16: "vacuum cleaning",
    17: "ironing",
}
"""The ten activities with the most samples of the twelve of the protocol, by their numbers in the files.

Lu et al. (IEEE Trans. Big Data, 2022) take "10 classes with the most samples"; their public code takes running (5) and
rope jumping (24) out of the protocol's twelve, which are the two with the fewest.
"""
RATE = 100
"""Samples a second."""
COLUMNS = 54
CHANNELS = tuple(3 + 17 * unit + first + axis for unit in range(3) for first in (1, 7, 10) for axis in range(3))
"""Columns, from 0: for each unit acceleration (±16 g), angular rate and magnetic field."""
UNITS = (9.81, 9.81, 9.81, 1.0, 1.0, 1.0, 50.0, 50.0, 50.0) * 3
"""What the channels are divided by: to g, rad/s, and about the strength of the earth's field (50 µT)."""
_FILE = re.compile(r"subject(\d+)\.dat", re.IGNORECASE)
_LONGEST_ROW = 1 << 16
"""Bytes that hold the last row of a file."""
_MOST_LOST = 10
"""How many times longer than its rows a recording may be; else its times are in no seconds."""


def recordings(folder: Path) -> list[Path]:
    """The files of the protocol's recordings in a folder, or in ``Protocol`` in it, as the archive has them."""
    for place in (folder, folder / "Protocol", folder / "PAMAP2_Dataset" / "Protocol"):
        found = sorted(file for file in place.glob("*.dat") if _FILE.fullmatch(file.name)) if place.is_dir() else []
        if found:
            return found
    return []


def subject(file: Path) -> str:
    """Whose recording a file is: ``subject101``."""
    return file.stem.lower()


def samples(file: Path) -> int:
    """How long a recording's grid is, by the times of its first and its last row; no other row is read.

    Raises:
        UserError: these are no numbers.
    """
    try:
        with open(file, "rb") as rows:
            first = rows.readline()
            rows.seek(max(0, file.stat().st_size - _LONGEST_ROW))
            last = rows.read().rstrip().splitlines()[-1]
        begin, end = (float(row.split()[0]) for row in (first, last))
        return round((end - begin) * RATE) + 1
    except (OSError, ValueError, IndexError, OverflowError) as error:
        raise UserError(f"{file}: cannot be read as one of PAMAP2's files: {error}") from None


def read_recording(file: Path, gap: int) -> tuple[np.ndarray, np.ndarray]:
    """A recording on its grid of 100 samples a second, gaps filled.

    Args:
        file: a ``.dat`` file.
        gap: the longest run of missing samples of a channel, or of rows that are not there, which is interpolated
            (linearly) between its ends.

    Returns:
        (T, 27) float32, NaN where a gap is longer or has no end; (T,) int64, the activity, 0 for none.

    Raises:
        UserError: the file is not of that form; it names the file and the row.
    """
    table = _table(file)
    place = np.rint((table[:, 0] - table[0, 0]) * RATE).astype(np.int64)
    if (np.diff(place) < 1).any():
        row = int(np.flatnonzero(np.diff(place) < 1)[0]) + 2
        raise UserError(f"{file}: row {row}: its time, the first column, is not after that of the row before")
    if place[-1] > _MOST_LOST * len(place):
        raise UserError(f"{file}: {len(place):,} rows over {place[-1] / RATE:,.0f} s; 100 a second are needed")
    values = np.full((place[-1] + 1, len(CHANNELS)), np.nan, dtype=np.float32)
    values[place] = table[:, 2:]
    activity = np.zeros(len(values), dtype=np.int64)
    activity[place] = table[:, 1].astype(np.int64)
    steps = np.diff(place)
    for before, behind in zip(place[:-1][steps > 1], place[1:][steps > 1], strict=True):
        if behind - before <= gap + 1 and activity[before] == activity[behind]:
            activity[before + 1 : behind] = activity[before]
    for channel in values.T:
        _fill(channel, gap)
    return values, activity


def cut(
    values: np.ndarray, activity: np.ndarray, length: int, step: int, stretch: int
) -> Iterator[tuple[int, int, np.ndarray]]:
    """Windows of one of the ten activities each, with no gap in them.

    Args:
        values: (T, C), NaN where there is nothing.
        activity: (T,).
        length: samples of a window.
        step: from the start of a window to the next one's.
        stretch: activities are cut into stretches of so many samples before, so that windows of two share none; 0 takes
            an activity's run as one.

    Yields:
        The activity, the number of the stretch, from 0, and the window, (C, length).
    """
    good = np.isfinite(values).all(1) & np.isin(activity, list(ACTIVITIES))
    runs = np.cumsum(np.diff(np.where(good, activity, -1), prepend=-2) != 0)
    number = 0
    for start, end in _runs(runs):
        if not good[start]:
            continue
        for begin in range(start, end, stretch or end - start):
            stop = min(end, begin + (stretch or end - start))
            for first in range(begin, stop - length + 1, step):
                yield int(activity[start]), number, values[first : first + length].T
            number += 1


def _runs(numbers: np.ndarray) -> Iterator[tuple[int, int]]:
    """Where equal numbers begin and end."""
    edges = np.flatnonzero(np.diff(numbers)) + 1
    yield from zip([0, *edges.tolist()], [*edges.tolist(), len(numbers)], strict=True)


def _fill(channel: np.ndarray, gap: int) -> None:
    """Interpolates, in place, runs of NaN of at most ``gap`` values that have a value on both sides."""
    missing = np.isnan(channel)
    if not missing.any() or missing.all():
        return
    known = np.flatnonzero(~missing)
    for start, end in _runs(np.cumsum(np.diff(missing, prepend=missing[0]))):
        if missing[start] and end - start <= gap and start > known[0] and end <= known[-1]:
            channel[start:end] = np.interp(np.arange(start, end), (start - 1, end), (channel[start - 1], channel[end]))


def _table(file: Path) -> np.ndarray:
    """(rows, 29) float64: time, activity, the 27 channels."""
    try:
        with open(file, encoding="ascii") as lines:
            columns = len(lines.readline().split())
            if columns != COLUMNS:
                raise UserError(f"{file}: has {columns} columns; PAMAP2's files have {COLUMNS}, with blanks between")
            lines.seek(0)
            table = np.loadtxt(lines, usecols=(0, 1, *CHANNELS), ndmin=2)
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read as one of PAMAP2's files: {error}") from None
    for column, what in ((0, "time"), (1, "activity")):
        if len(bad := np.flatnonzero(~np.isfinite(table[:, column]))):
            raise UserError(f"{file}: row {bad[0] + 1}: has no {what}")
    return table
