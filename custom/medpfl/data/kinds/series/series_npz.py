"""Time series in npz files: one file, or a folder with a file for each site.

Keys: ``series``, (n, C, T) numbers, or (n, T) of one channel; ``labels``, (n,) whole numbers from 0. As far as known:
``patients`` and ``sites``, (n,) text or whole numbers; ``split``, (n,) ``train``, ``validation`` or ``test``; and
``classes``, the names of the classes. In a folder every file is a site, called like the file.
"""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from medpfl.core.errors import UserError
from medpfl.core.numbers_in_words import by
from medpfl.core.plain import plain_problem
from medpfl.core.site_data import PARTS
from medpfl.data.files import composed, is_hidden
from medpfl.data.kinds.npz.catalog import find
from medpfl.data.kinds.npz.npz_file import file_md5, header, require_names, require_somebody
from medpfl.data.kinds.series.series_set import SeriesSet
from medpfl.data.part_words import PART_WORDS
from medpfl.data.places import is_path, places

_OPTIONAL = ("patients", "sites", "split", "classes")


def find_series(data: str) -> Path | None:
    """The npz file, or the folder of such files, that a ``--data`` value names; None if there is none here."""
    for place in places(data):
        if place.is_dir() and files_of(place):
            return place
    try:
        file = find(data)
    except UserError:
        return None
    return file if file.suffix.lower() == ".npz" and holds_series(file) else None


def files_of(folder: Path) -> list[Path]:
    """The npz files of a folder, if the first of them has series."""
    files = sorted(f for f in folder.iterdir() if f.suffix.lower() == ".npz" and not is_hidden(f.name))
    return files if files and holds_series(files[0]) else []


def holds_series(path: Path) -> bool:
    """Whether an npz file has series, by its keys."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "series.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def read_series(data: str) -> SeriesSet:
    """The windows of a file, or of all files of a folder.

    Args:
        data: a ``--data`` value.

    Raises:
        UserError: there is none, a file is damaged, or its arrays do not fit each other or another site's; it names the
            file, and what would be right.
    """
    path = find_series(data)
    if path is None:
        raise UserError(f"time series {data!r} are not on this machine: give an npz file with series and labels")
    if path.is_file():
        found = _read(path)
        return found if is_path(data) or Path(data).suffix else _called(found, data)
    sets = [_read(file) for file in files_of(path)]
    for one in sets:
        _require_alike(one, sets[0])
    classes = max((one.classes for one in sets), key=len)
    names = [one.source.stem for one in sets]
    joined: dict[str, np.ndarray | None] = {
        key: None if any(getattr(one, key) is None for one in sets) else np.concatenate([getattr(o, key) for o in sets])
        for key in ("values", "labels", "groups", "persons", "split")
    }
    sums = hashlib.md5(" ".join(one.md5 for one in sets).encode(), usedforsecurity=False).hexdigest()
    centres = np.repeat(names, [len(one) for one in sets])
    return SeriesSet(
        name=path.resolve().name, source=path, classes=classes, named=sets[0].named, centres=centres, md5=sums, **joined
    )


def number_of_windows(path: Path) -> int:
    """How many windows a file has, or the files of a folder; the arrays' heads alone are read.

    Raises:
        UserError: a file is damaged; it is named.
    """
    return sum(map(_number, [path] if path.is_file() else files_of(path)))


def _number(path: Path) -> int:
    try:
        with zipfile.ZipFile(path) as archive, archive.open("series.npy") as stream:
            shape = header(path, stream, "series")[0]
    except (OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: damaged, or has no series ({error}): get it again") from None
    return shape[0] if shape else 0


def _called(found: SeriesSet, name: str) -> SeriesSet:
    centres = np.where(found.centres == found.name, name, found.centres)
    return SeriesSet(**{**vars(found), "name": name, "centres": centres})


def _require_alike(one: SeriesSet, first: SeriesSet) -> None:
    shapes = [by(found.values.shape[1:]) for found in (one, first)]
    if shapes[0] != shapes[1]:
        raise UserError(f"{one.source}: windows are {shapes[0]} (channels, samples), {first.source.name}'s {shapes[1]}")
    if len(np.unique(one.centres)) > 1:
        raise UserError(f"{one.source}: has sites of its own, and in a folder every file is a site: give it by itself")
    if one.named != first.named or (one.named and one.classes != first.classes):
        raise UserError(f"{one.source}: its classes are not {first.source.name}'s: name them alike, in the same order")
    for key in ("groups", "split"):
        if (getattr(one, key) is None) != (getattr(first, key) is None):
            what = "patients" if key == "groups" else key
            raise UserError(f"{one.source}: {what} must be in all files of the folder, or in none")


def _read(path: Path) -> SeriesSet:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in ("series", "labels", *_OPTIONAL) if key in file}
            there = sorted(file)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        if "Object arrays" in str(error):
            raise UserError(
                f"{path}: an array holds objects: windows must all have one length, and names be text "
                "(np.array(names, dtype=str))"
            ) from None
        raise UserError(f"{path}: damaged, or not plain arrays ({error}): get it again") from None
    except MemoryError:
        raise UserError(f"{path}: its series do not fit into this machine's memory") from None
    if missing := [key for key in ("series", "labels") if key not in arrays]:
        raise UserError(f"{path}: has no {missing[0]} (it has {', '.join(there[:8])})")
    values = _values(path, arrays["series"])
    labels, classes = _labels(path, arrays, len(values))
    patients, sites = (_names(path, arrays, key, len(values)) for key in ("patients", "sites"))
    split = _names(path, arrays, "split", len(values))
    if patients is not None:
        require_somebody(path, patients, "windows")
    if patients is not None and sites is not None:  # two sites may number their patients alike
        patients = np.char.add(np.char.add(sites, "/"), patients)
    return SeriesSet(
        name=path.stem,
        source=path,
        values=values,
        labels=labels,
        classes=classes or tuple(map(str, range(int(labels.max()) + 1))),
        named=bool(classes),
        centres=np.full(len(values), path.stem) if sites is None else sites,
        groups=patients,
        persons=patients,
        split=None if split is None else _parts(path, split),
        md5=file_md5(path),
    )


def _parts(path: Path, split: np.ndarray) -> np.ndarray:
    words, which = np.unique(split, return_inverse=True)
    parts = [PART_WORDS.get(word.lower()) for word in words.tolist()]
    if None in parts:
        raise UserError(f"{path}: split has {str(words[parts.index(None)])!r}; right are {', '.join(PARTS)}")
    return np.array(parts)[which]


def _values(path: Path, series: np.ndarray) -> np.ndarray:
    if series.dtype.kind not in "fiu" or series.ndim not in (2, 3) or series.shape[-1] < 2 or not series.size:
        raise UserError(
            f"{path}: series is {series.dtype} {by(series.shape)}; numbers, (n, C, T) or (n, T) of one channel, with "
            "at least two samples a window, are needed"
        )
    series = series if series.ndim == 3 else series[:, None]
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is named below
        values = np.ascontiguousarray(series, dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(values).all((1, 2)))
    if len(bad):
        channel = int(np.flatnonzero(~np.isfinite(values[bad[0]]).all(1))[0])
        raise UserError(
            f"{path}: series holds values that are no finite number in {len(bad):,} of {len(values):,} windows, first "
            f"in window {bad[0]}, channel {channel}: fill the gaps or leave the windows out"
        )
    return values


def _labels(path: Path, arrays: dict[str, Any], number: int) -> tuple[np.ndarray, tuple[str, ...]]:
    labels = arrays["labels"]
    if labels.dtype.kind not in "iu" or labels.size != number or labels.ndim not in (1, 2):
        raise UserError(
            f"{path}: labels is {labels.dtype} {by(labels.shape)}; whole numbers, ({number},), one a window, are needed"
        )
    labels = labels.reshape(-1).astype(np.int64)
    classes = tuple(composed(str(name)) for name in np.atleast_1d(arrays.get("classes", ())))
    if problem := plain_problem(classes, "classes"):
        raise UserError(f"{path}: {problem}")
    most = len(classes) or max(2, number)  # a stray value must not make a billion classes
    if labels.min() < 0 or labels.max() >= most:
        wrong = labels.min() if labels.min() < 0 else labels.max()
        right = f"0 to {len(classes) - 1}, as its classes are" if classes else "the classes 0, 1, 2, ..."
        raise UserError(f"{path}: labels has {wrong}; right are {right}")
    if not classes and labels.max() < 1:
        raise UserError(f"{path}: all windows have the label 0; name the classes in an array `classes`")
    return labels, classes


def _names(path: Path, arrays: dict[str, Any], key: str, number: int) -> np.ndarray | None:
    if key not in arrays:
        return None
    return require_names(path, key, arrays[key], number)
