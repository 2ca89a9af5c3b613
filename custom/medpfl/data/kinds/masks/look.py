"""One image and its mask as they lie in their files, for a check."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from medpfl.core.errors import UserError
from medpfl.core.masked_data import Spacing
from medpfl.data.kinds.folders.picture_file import faint, of_one_colour, read_picture
from medpfl.data.kinds.masks.classes_of import to_classes, values_in
from medpfl.data.kinds.masks.masked_npz import Arrays
from medpfl.data.kinds.masks.pair import Pair
from medpfl.data.kinds.masks.picture_pair import mode_of, only_the_picture_turned, picture_reading, read_mask
from medpfl.data.kinds.masks.reading import Form, Reading


class Seen(NamedTuple):
    """What an image and its mask hold.

    Attributes:
        size: (H, W) or (D, H, W).
        look: ``grey`` or ``colour``, or ``CT`` or ``no CT``.
        counts: pixels or voxels of each class.
        values: those of the mask's file.
        spacing: mm along ``size``'s axes, slices first; None where it is not known.
        notes: what is odd, in words.
        blank: the picture, where all its pixels are alike.
    """

    size: tuple[int, ...]
    look: str
    counts: np.ndarray
    values: tuple[int, ...]
    spacing: Spacing | None
    notes: tuple[str, ...]
    blank: str = ""


def look(pair: Pair, form: Form, reading: Reading, count: int) -> Seen | str:
    """Reads a pair of files as a run does; why it cannot be used in the run's words."""
    try:
        return _volume(pair, reading, count) if form in ("volumes", "slices") else _picture(pair, reading, count)
    except UserError as error:
        return str(error)


def look_at_row(pair: Pair, arrays: Arrays, reading: Reading, count: int) -> Seen | str:
    """Likewise an image of an npz file."""
    row = int(pair.id)
    mask, present = arrays.masks[row], values_in(arrays.masks[row])
    try:
        classes = to_classes(mask, present, count, reading.values)
    except ValueError as error:
        return f"{pair.mask}: mask number {row} {error}"
    spacing = None if arrays.spacing is None else tuple(arrays.spacing[row].tolist())
    kind = "grey" if arrays.images.shape[1] == 1 else "colour"
    blank = f"number {row} of {pair.image}" if of_one_colour(arrays.images[row]) else ""
    return Seen(mask.shape, kind, _counts(classes, count), present, spacing, (), blank)


def _picture(pair: Pair, reading: Reading, count: int) -> Seen:
    mask, pixels = read_mask(pair, reading, count), read_picture(pair.image, picture_reading(reading))
    blank = str(pair.image) if of_one_colour(pixels) else ""
    notes = (turned,) if (turned := only_the_picture_turned(pair)) else ()
    if words := faint(pair.image, pixels):
        notes += (f"{pair.image}: {words}",)
    return Seen(mask.classes.shape, mode_of(pair.image), _counts(mask.classes, count), mask.values, None, notes, blank)


def _volume(pair: Pair, reading: Reading, count: int) -> Seen:
    from medpfl.data.kinds.masks.transforms import LoadVolumed
    from medpfl.data.kinds.masks.volume_pair import mask_values, read_head

    head = read_head(pair, resampled=any(reading.spacing))
    classes, present = mask_values(pair, count, reading)
    load = LoadVolumed("image", reading.number_of_channels("volumes"), hounsfield=reading.windowed_hu)
    stored = load({"image": pair.image})["stored"]
    kind = "CT" if stored.ct else "no CT"
    notes = (*(note.message for note in head.notes), *(f"{pair.image}: {words}" for words in stored.odd()))
    return Seen(head.shape, kind, _counts(classes, count), present, head.spacing, notes)


def _counts(classes: np.ndarray, count: int) -> np.ndarray:
    return np.bincount(classes.reshape(-1), minlength=count)
