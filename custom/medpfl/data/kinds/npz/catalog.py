"""What data sets there are and where they lie on this machine."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from medpfl.core.errors import UserError
from medpfl.core.home import at_home
from medpfl.data.dataset import ImageDataset
from medpfl.data.elsewhere import ELSEWHERE
from medpfl.data.kinds.npz.medmnist import MEDMNIST, SIZES, known_set, split_name
from medpfl.data.kinds.npz.npz_file import load
from medpfl.data.places import folders, looked_in, places

SAMPLE = "organamnist-sample"
"""The set that comes with the package."""
SAMPLE_IMAGES = 3800
MASKED_SAMPLE = "sarcoma-sample"
"""The set with masks that comes with the package."""
MASKED_IMAGES = 391
_EMBEDDED = {SAMPLE: f"{SAMPLE}.npz", MASKED_SAMPLE: "sarcoma-mr-sample.npz"}


@dataclass(frozen=True)
class Row:
    """A line of ``medpfl data list``; ``where`` is a path, or what to do to get the set."""

    name: str
    what: str
    images: int
    classes: int
    licence: str
    where: str


def has_images(data: str) -> bool:
    """Whether a data set's file is here."""
    try:
        find(data)
    except UserError:
        return False
    return True


def other_samples(data: str) -> list[str]:
    """Names of the files that come with the package and that a run on these data has no use for."""
    return [file for name, file in _EMBEDDED.items() if name != data.lower()]


def is_set(data: str) -> bool:
    """Whether it is a published set whose images are here."""
    return known_set(data.lower()) is not None and has_images(data)


def find(name_or_path: str | Path) -> Path:
    """The file of a data set.

    Args:
        name_or_path: an existing path; ``organamnist-sample`` or ``sarcoma-sample``; or a name such as ``bloodmnist``
            or ``bloodmnist_64``, whose npz file is looked for in :func:`folders`.

    Raises:
        UserError: there is no such file; the message says where was looked and how to get it.
    """
    path = at_home(name_or_path)
    if path.is_file():
        return path
    name = str(name_or_path).lower()
    if name in _EMBEDDED and (sample := _sample(name)).is_file():
        return sample
    if path.suffix or len(path.parts) > 1:
        raise UserError(f"{path}: {'a folder; an npz file is needed' if path.is_dir() else 'there is no such file'}")
    for folder in folders():
        for stem in (path.name, name):
            if (found := folder / f"{stem}.npz").is_file():
                return found
    if name not in _EMBEDDED and name not in ELSEWHERE and split_name(name)[0] not in MEDMNIST:
        if there := places(str(name_or_path)):
            raise UserError(
                f"{name_or_path}: {there[0]} has neither a label table nor images of classes or with masks: "
                f"`medpfl data check {shlex.quote(str(there[0]))}` says what it lacks"
            )
        known = ", ".join([*_EMBEDDED, *MEDMNIST])
        raise UserError(
            f"{name_or_path}: there is no file or folder of that name, and no data set (looked in {looked_in()}): give "
            f"the path of data, or one of {known}"
        )
    raise UserError(f"data set {name!r} is not on this machine (looked in {looked_in()}): {_remedy(name)}")


def open_dataset(name_or_path: str | Path) -> ImageDataset:
    """Finds and reads a data set.

    Raises:
        UserError: see :func:`find` and :func:`medpfl.data.kinds.npz.npz_file.load`.
    """
    return load(find(name_or_path))


def rows() -> list[Row]:
    """The known sets, the embedded one first."""
    organs = MEDMNIST["organamnist"]
    listing = [
        Row(SAMPLE, f"{organs.what}, a sample", SAMPLE_IMAGES, len(organs.classes), organs.licence, _where(SAMPLE)),
        Row(
            MASKED_SAMPLE,
            "sarcoma MR with tumour masks, a sample",
            MASKED_IMAGES,
            2,
            "CC BY 3.0",
            _where(MASKED_SAMPLE),
        ),
    ]
    for name, known in MEDMNIST.items():
        where = _where(name)
        listing.append(Row(name, known.what, known.images, len(known.classes), known.licence, where))
    for name, other in ELSEWHERE.items():
        listing.append(Row(name, other.what, other.samples, other.classes, other.licence, _unpacked(name)))
    return listing


def _unpacked(name: str) -> str:
    """Where a set that is not fetched lies, or is to be had."""
    there = next((place for place in places(name) if place.is_dir()), None)
    return str(there) if there else ELSEWHERE[name].address


def _sample(name: str) -> Path:
    return Path(str(files("medpfl.data") / "sample" / _EMBEDDED[name]))


def _where(name: str) -> str:
    try:
        return str(find(name))
    except UserError:
        return f"medpfl data prepare {name}" if name in MEDMNIST else "missing: reinstall medpfl"


def _remedy(name: str) -> str:
    base, size = split_name(name)
    if name in _EMBEDDED:
        return "it should have come with the package; reinstall medpfl"
    if name in ELSEWHERE:
        return ELSEWHERE[name].in_words(name)
    for folder in folders():
        for other in SIZES:
            there = base if other == 28 else f"{base}_{other}"
            if (folder / f"{there}.npz").is_file():
                return f"use {there}, which is there, or run `medpfl data prepare {base} --size {size}`"
    return f"run `medpfl data prepare {base}{'' if size == 28 else f' --size {size}'}`"
