"""Whether a hospital's own data are what a job says, before the job comes."""

from __future__ import annotations

from pathlib import Path

from medpfl.config import RunConfig
from medpfl.data.check import Finding
from medpfl.data.ct.source import Scans
from medpfl.data.folders.source import Folders
from medpfl.data.kinds import Kind, kind_of, said_kind
from medpfl.data.medmnist_sets import image_shape, known_set
from medpfl.data.own_images import OwnImages
from medpfl.data.partitioned import PartitionedImages
from medpfl.data.sites import open_source
from medpfl.errors import UserError

_WORDS = {"scans": "CT scans", "folders": "pictures in folders", "set": "images in one npz file"}
_TAKES: dict[Kind, tuple[Kind, ...]] = {"scans": ("scans",), "folders": ("folders", "set"), "set": ("set",)}


def other_kind(config: RunConfig, own: Path) -> list[Finding]:
    """An error if a job does not take data of this kind, whatever they hold.

    Args:
        config: the job's.
        own: where the site has the data that the job names.
    """
    here, takes = kind_of(str(own), {}), _TAKES[said_kind(config.data_args)]
    if here in takes:
        return []
    return [Finding("error", f"{own}: {_WORDS[here]}; the job takes {' or '.join(_WORDS[kind] for kind in takes)}")]


def check_fit(config: RunConfig, own: Path) -> list[Finding]:
    """Whether classes, channels and size are the job's, by the rules of a run; no picture or scan is decoded.

    Args:
        config: the job's.
        own: where the site has the data that the job names, of a kind that the job takes.

    Returns:
        What does not fit, as an error; or what the job makes of the data.
    """
    try:
        source = open_source(config, own)
        if isinstance(source, Scans):
            classes = source.manifest.classes
        elif isinstance(source, Folders):
            classes = source.layout.classes
        elif isinstance(source, OwnImages):
            classes, _ = source.classes, source.dataset
        elif isinstance(source, PartitionedImages):
            classes = _of_published(source, config.data, own)
    except UserError as error:
        return [Finding("error", str(error))]
    listed = ", ".join(f"{label} {name}" for label, name in enumerate(classes))
    return [Finding("ok", f"as the job says; its classes: {listed}")]


def _of_published(source: PartitionedImages, name: str, own: Path) -> tuple[str, ...]:
    """The set's classes; UserError if the site's file is of another shape than the set that the job divides."""
    data, known, shape = source.dataset, known_set(name), image_shape(name)
    if known and shape:
        for what, found, expected in (
            ("classes", data.n_classes, len(known.classes)),
            ("channels", data.channels, shape[0]),
            ("pixels", data.size, shape[1]),
        ):
            if found != expected:
                raise UserError(f"{own}: images of {found} {what}; the job divides {name}, which has {expected}")
    return tuple(data.classes)
