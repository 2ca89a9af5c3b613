"""Which kinds of data there are, and of which kind some data are.

A package of one's own adds a kind by an entry point of the group ``medpfl.data_kinds`` that names a subclass of
:class:`~medpfl.data.kinds.kind.Kind`. Such kinds are asked before the project's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from medpfl.core.errors import UserError
from medpfl.core.home import at_home
from medpfl.core.installed import installed
from medpfl.data.kinds.folders.folder_kind import FolderKind
from medpfl.data.kinds.function.function_kind import FunctionKind
from medpfl.data.kinds.kind import CentreKind, Kind
from medpfl.data.kinds.masks.mask_kind import MaskKind
from medpfl.data.kinds.npz.npz_kind import NpzKind
from medpfl.data.kinds.scans.scan_kind import ScanKind
from medpfl.data.kinds.series.pamap2_kind import Pamap2Kind
from medpfl.data.kinds.series.series_kind import SeriesKind

GROUP = "medpfl.data_kinds"
"""Entry points of installed packages; a job cannot add any to a site that takes no code from jobs."""

_NPZ = NpzKind()
_HOUSE: tuple[Kind, ...] = (
    FunctionKind(),
    Pamap2Kind(),
    SeriesKind(),
    MaskKind(),
    FolderKind(),
    ScanKind(),
    _NPZ,
)


def kinds() -> tuple[Kind, ...]:
    """All kinds, in the order in which they are asked; UserError if an installed one cannot be loaded."""
    return (*_installed(), *_HOUSE)


def kind_of(data: str, data_args: Mapping[str, Any]) -> Kind:
    """What a ``--data`` value means: the kind of what is here by that name, else what the arguments say.

    Data that are not here are scans or image folders where a job names their classes; image folders, or images with
    masks, if it says more that only they have.

    Raises:
        UserError: the data are here, and something is said that they cannot have.
    """
    if here := _here(data):
        if refusal := here.refusal(data, data_args):
            raise UserError(refusal)
        return here
    return said_kind(data_args)


def said_kind(data_args: Mapping[str, Any]) -> Kind:
    """What a job that says this takes, whatever is here by the name of its data."""
    return next((kind for kind in kinds() if kind.is_said_by(data_args)), _NPZ)


def taken_for(kind: Kind) -> list[Kind]:
    """The kinds that a site may have where a job takes this one, itself first."""
    return [kind, *(other for name in kind.also_takes for other in kinds() if other.name == name)]


def meant(data: str) -> Path | None:
    """The folder or manifest that a ``--data`` value names, None where it names none."""
    here = _here(data)
    return here.path(data) if isinstance(here, CentreKind) else None


def absent(data: str) -> str:
    """What is wrong with a ``--data`` value that is a path where nothing is, in words; empty for any other."""
    path = at_home(data)
    named = len(path.parts) > 1 or path.suffix.lower() == ".npz"
    if not named or path.exists() or _here(data):
        return ""
    return f"{path}: there is no such file or folder"


def _here(data: str) -> Kind | None:
    return next((kind for kind in kinds() if kind.is_here(data)), None)


@cache
def _installed() -> tuple[Kind, ...]:
    found = []
    for _, where, kind in installed(GROUP, lambda named: named()):
        if not isinstance(kind, Kind):
            raise UserError(f"{where}: it is no subclass of medpfl.data.kinds.kind.Kind")
        found.append(kind)
    return tuple(found)
