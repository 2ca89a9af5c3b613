"""What an inventory found, each with a small picture, and what decoding that tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from medpfl.core.errors import UserError
from medpfl.data.kinds.scans.found import Found, Inventory
from medpfl.data.kinds.scans.series import Progress
from medpfl.data.kinds.scans.values import looks_like_hu, odd_values


def with_thumbnails(inventory: Inventory, progress: Progress | None = None) -> list[tuple[Found, str]]:
    """Everything found with a small picture (a ``data:`` URI) of its middle slice, and what decoding it tells.

    Args:
        inventory: of a folder.
        progress: called with the number of those that are done and of all.
    """
    drawn = []
    for number, one in enumerate(inventory.found, start=1):
        drawn.append(_drawn(one))
        if progress:
            progress(number, len(inventory.found))
    return drawn


def _drawn(one: Found) -> tuple[Found, str]:
    from medpfl.core.picture import png
    from medpfl.data.kinds.scans.thumbnail import dicom_slice, grey, nifti_slice

    if one.form == "file" or (one.form in ("NIfTI", "picture") and not one.usable):
        return one, ""
    try:
        if one.picture or one.form == "picture":
            return one, png(_small(one.files[0]))
        values = (nifti_slice if one.form == "NIfTI" else dicom_slice)(one.files[len(one.files) // 2])
    except UserError as error:  # of one whose header is wrong, that is why
        return replace(one, problems=(*one.problems, *([("error", str(error))] if one.usable else []))), ""
    if not one.volume:
        return one, png(grey(values, ct=False))
    told, hu = _values(one, values), looks_like_hu(values)
    return replace(one, problems=(*one.problems, *told), hu=hu), png(grey(values, ct=hu and not told))


def _values(one: Found, values: np.ndarray) -> list[tuple[str, str]]:
    """What is odd about a volume's values; those of an image with a mask need be no HU."""
    told = [(finding.level, finding.message) for finding in odd_values(values)]
    if one.masked:
        return [("warning", f"as a CT scan: {words}") for _, words in told]
    if told and one.form == "NIfTI" and not looks_like_hu(values):
        told.append(("warning", "no CT by its values: MR is read with --data-arg normalise, or with a mask beside it"))
    return told


def _small(file: Path) -> np.ndarray:
    from medpfl.data.kinds.folders.picture_file import Reading, read_picture
    from medpfl.data.kinds.scans.thumbnail import EDGE

    return np.ascontiguousarray(read_picture(file, Reading(size=EDGE, fit="pad", channels="grey"))[0])
