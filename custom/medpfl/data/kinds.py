"""What a ``--data`` value means."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from medpfl.data.catalog import folders, has_images, is_function, is_path, places
from medpfl.data.ct.manifest import find_manifest, holds_scans
from medpfl.data.files import holds_pictures
from medpfl.data.medmnist_sets import known_set
from medpfl.errors import UserError

Kind = Literal["function", "scans", "folders", "set"]

_OF_FOLDERS = {"fit", "channels", "patient"}
"""Arguments that only image folders have."""


def kind_of(data: str, data_args: Mapping[str, Any]) -> Kind:
    """What a ``--data`` value means: a function, CT scans, image folders, or a data set in one file.

    Data that are not here are scans or image folders where a job names their classes; image folders if it says more
    that only they have.

    Raises:
        UserError: an npz file is here, and classes are said, which it has no names of.
    """
    if is_function(data):
        return "function"
    if is_folders(data):
        return "folders"
    if is_ct(data):
        return "scans"
    if "classes" in data_args and Path(data).suffix.lower() == ".npz" and Path(data).expanduser().is_file():
        raise UserError(f"--data-arg classes: {data} is an npz file, whose labels are numbers; leave it out")
    return said_kind(data_args)


def said_kind(data_args: Mapping[str, Any]) -> Kind:
    """What a job that says this takes, whatever is here by the name of its data."""
    if "classes" in data_args:
        return "scans" if _OF_FOLDERS.isdisjoint(data_args) else "folders"
    return "set"


def is_ct(data: str) -> bool:
    """Whether a ``--data`` value names CT data on this machine.

    A path to a folder or JSON file is taken at its word, unless only pictures are there. Any folder may happen to be
    called like a data set, so a bare name means scans only where a manifest or a label table is; a published set whose
    images are here keeps its name.
    """
    there = places(data)
    if any(map(holds_scans, there)):
        return is_path(data) or not _is_set(data)
    if any(map(holds_pictures, filter(Path.is_dir, there))):
        return False
    if is_path(data) or not there:
        return bool(there)
    return Path(data).is_dir() and not (has_images(data) or known_set(data.lower()))


def is_folders(data: str) -> bool:
    """Whether a ``--data`` value names folders of pictures on this machine, by the rules of :func:`is_ct`."""
    there = [place for place in places(data) if place.is_dir()]
    if any(map(holds_scans, places(data))) or not any(map(holds_pictures, there)):
        return False
    return is_path(data) or not _is_set(data)


def find_folder(data: str) -> Path:
    """The folder of pictures that a ``--data`` value names; UserError if there is none."""
    if there := [place for place in places(data) if place.is_dir()]:
        return next(filter(holds_pictures, there), there[0])
    looked = "" if is_path(data) else f": no folder of that name in {' and '.join(map(str, folders()))}"
    raise UserError(f"image folder {data!r} is not on this machine{looked}")


def meant(data: str) -> Path | None:
    """The folder or manifest that a ``--data`` value names, None where it names none."""
    if is_folders(data):
        return find_folder(data)
    return find_manifest(data) if is_ct(data) else None


def _is_set(data: str) -> bool:
    """Whether it is a published set whose images are here."""
    return known_set(data.lower()) is not None and has_images(data)
