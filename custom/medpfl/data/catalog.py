"""What data sets there are and where they lie on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from medpfl.data.dataset import ImageDataset
from medpfl.data.medmnist import load
from medpfl.data.medmnist_sets import MEDMNIST, SIZES, split_name
from medpfl.errors import UserError

SAMPLE = "organamnist-sample"
"""The set that comes with the package."""
SAMPLE_IMAGES = 3800


@dataclass(frozen=True)
class Row:
    """A line of ``medpfl data list``; ``where`` is a path, or what to do to get the set."""

    name: str
    what: str
    images: int
    classes: int
    licence: str
    where: str


def cache_folder() -> Path:
    """Where :func:`medpfl.data.download.prepare` puts files: ``$XDG_CACHE_HOME/medpfl`` or ``~/.cache/medpfl``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "medpfl"


def folders() -> list[Path]:
    """Folders that are searched for a set's npz file, in order: ``$MEDPFL_DATA`` if it is set, then the cache."""
    own = os.environ.get("MEDPFL_DATA")
    return ([Path(own).expanduser()] if own else []) + [cache_folder()]


def private_folder(path: Path) -> Path:
    """Makes a folder of the cache, for no other user to read, and returns it; UserError if it cannot be made."""
    try:
        for folder in (*reversed(path.parents), path):
            if not folder.is_dir():
                folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: the cache cannot be made: {error.strerror}") from None
    return path


def is_function(data: str) -> bool:
    """Whether a ``--data`` value is ``module:function``."""
    return ":" in data and "/" not in data and "\\" not in data


def is_path(data: str) -> bool:
    """Whether a ``--data`` value is written as a path, not as a name."""
    return os.sep in data or Path(data).suffix.lower() == ".json"


def places(data: str) -> list[Path]:
    """Folders and JSON files that a ``--data`` value may mean: of that path, or of that name in :func:`folders`."""
    found = [Path(data).expanduser()] if data else []
    if data and not is_path(data) and not is_function(data):
        found += [folder / name for folder in folders() for name in (data, f"{data}.json")]
    return [place for place in found if place.is_dir() or (place.suffix.lower() == ".json" and place.is_file())]


def has_images(data: str) -> bool:
    """Whether a data set's file is here."""
    try:
        find(data)
    except UserError:
        return False
    return True


def find(name_or_path: str | Path) -> Path:
    """The file of a data set.

    Args:
        name_or_path: an existing path; ``organamnist-sample``; or a name such as ``bloodmnist`` or ``bloodmnist_64``,
            whose npz file is looked for in :func:`folders`.

    Raises:
        UserError: there is no such file; the message says where was looked and how to get it.
    """
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return path
    name = str(name_or_path).lower()
    if name == SAMPLE and (sample := _sample()).is_file():
        return sample
    if path.suffix or len(path.parts) > 1:
        raise UserError(f"{path}: {'a folder; an npz file is needed' if path.is_dir() else 'there is no such file'}")
    for folder in folders():
        for stem in (path.name, name):
            if (found := folder / f"{stem}.npz").is_file():
                return found
    looked = " and ".join(map(str, folders()))
    raise UserError(f"data set {name!r} is not on this machine (looked in {looked}): {_remedy(name)}")


def open_dataset(name_or_path: str | Path) -> ImageDataset:
    """Finds and reads a data set.

    Raises:
        UserError: see :func:`find` and :func:`medpfl.data.medmnist.load`.
    """
    return load(find(name_or_path))


def rows() -> list[Row]:
    """The known sets, the embedded one first."""
    organs = MEDMNIST["organamnist"]
    listing = [
        Row(SAMPLE, f"{organs.what}, a sample", SAMPLE_IMAGES, len(organs.classes), organs.licence, _where(SAMPLE))
    ]
    for name, known in MEDMNIST.items():
        where = "cannot be used: several labels per image" if known.multi_label else _where(name)
        listing.append(Row(name, known.what, known.images, len(known.classes), known.licence, where))
    return listing


def _sample() -> Path:
    return Path(str(files("medpfl.data") / "sample" / f"{SAMPLE}.npz"))


def _where(name: str) -> str:
    try:
        return str(find(name))
    except UserError:
        return f"medpfl data prepare {name}" if name in MEDMNIST else "missing: reinstall medpfl"


def _remedy(name: str) -> str:
    base, size = split_name(name)
    if name == SAMPLE:
        return "it should have come with the package; reinstall medpfl"
    if base not in MEDMNIST:
        return f"give the path of an npz file, or one of {', '.join([SAMPLE, *MEDMNIST])}"
    for folder in folders():
        for other in SIZES:
            there = base if other == 28 else f"{base}_{other}"
            if (folder / f"{there}.npz").is_file():
                return f"use {there}, which is there, or run `medpfl data prepare {base} --size {size}`"
    return f"run `medpfl data prepare {base}{'' if size == 28 else f' --size {size}'}`"
