"""An image and its mask, and what data with masks hold, by site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from medpfl.core.site_data import Part
from medpfl.data.kinds.masks.reading import Form


@dataclass(frozen=True)
class Pair:
    """An image with a mask.

    Attributes:
        centre: the site whose it is.
        patient: whose, or ``id``; stays at the site. Not compared: patients may be renamed (``split_patients``).
        case: what is judged as a whole, of one patient: the slices of a folder, a volume, a picture.
        id: of the image, different from any other of the centre; slices of a case are sorted by it.
        image: its file.
        mask: likewise; the same one for images in an npz file.
        split: the part that it is given to, or None.
        label: the same for all, since patients are divided whatever their masks show.
        said: whether it is said whose it is: by a folder, an expression, a datalist or an array. Else its own name is.
    """

    centre: str
    patient: str = field(compare=False)
    case: str
    id: str
    image: Path
    mask: Path
    split: Part | None = None
    label: int = 0
    said: bool = field(default=True, compare=False)


def with_patients(pairs: Sequence[Pair]) -> list[Pair]:
    """Those of which it is said whose they are."""
    return [pair for pair in pairs if pair.said]


@dataclass(frozen=True)
class Layout:
    """What is there.

    Attributes:
        root: the folder, datalist or npz file.
        name: of the data.
        form: of what files; ``slices`` is a matter of reading.
        centres: the pairs of each, by patient and id; centres by name.
        classes: as the data name them; empty where they do not.
        unlabelled: images that come without masks by agreement, and are not used.
        unread: what images lie in a folder that are not read, in words; None if there are none, or a list says which.
    """

    root: Path
    name: str
    form: Form
    centres: Mapping[str, tuple[Pair, ...]]
    classes: tuple[str, ...] = ()
    unlabelled: int = 0
    unread: str | None = None
