"""What an inventory has twice by its content: a scan as DICOM and NIfTI, or anonymised anew; a picture's copy.

Only what has as many voxels along its axes is compared, by a slice from its middle; pictures by their files. So little
is decoded where shapes differ, and a slice of each series where all are alike.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import replace

from medpfl.core.errors import UserError
from medpfl.data.kinds.folders.repeats import same_content
from medpfl.data.kinds.scans.found import Found, Inventory
from medpfl.data.kinds.scans.series import Progress
from medpfl.data.kinds.scans.thumbnail import dicom_slice, nifti_slice
from medpfl.data.kinds.scans.values import fingerprint

SAME = "has the same content as"
"""How what is said of a copy begins."""


def with_copies(inventory: Inventory, progress: Progress | None = None) -> Inventory:
    """The inventory with a warning at everything whose content is there once more.

    Args:
        inventory: of a folder.
        progress: called with the number of scans that are compared and of all that must be.
    """
    alike: dict[Hashable, list[Found]] = {}
    for one in inventory.found:
        if one.form == "DICOM" or (one.form == "NIfTI" and one.usable):
            alike.setdefault(_shape(one), []).append(one)
    pairs = [one for same in alike.values() if len(same) > 1 for one in same]
    marked: dict[Hashable, list[Found]] = {}
    for number, one in enumerate(pairs, start=1):
        if (mark := _mark(one)) is not None:
            marked.setdefault((_shape(one), mark), []).append(one)
        if progress:
            progress(number, len(pairs))
    groups: list[Sequence[Found]] = [same for same in marked.values() if len(same) > 1]
    pictures = [one for one in inventory.found if one.picture]
    groups += same_content(pictures, lambda one: one.files[0])
    twice = {id(one): _words(one, same) for same in groups for one in same}
    found = [
        replace(one, problems=(*one.problems, ("warning", twice[id(one)]))) if id(one) in twice else one
        for one in inventory.found
    ]
    return replace(inventory, found=found, copies=tuple(tuple(one.place for one in same) for same in groups))


def _shape(one: Found) -> Hashable:
    sides = [int(side) for side in re.findall(r"\d+", one.matrix)]
    return tuple(sorted([*sides, one.slices] if one.form == "DICOM" else sides))


def _mark(one: Found) -> str | None:
    """The same for the same content; None where it cannot be decoded, or shows nothing."""
    try:
        values = (nifti_slice if one.form == "NIfTI" else dicom_slice)(one.files[len(one.files) // 2])
    except UserError:  # thumbnails and the check say why
        return None
    return None if values.min() == values.max() else fingerprint(values, "MR" if one.modality == "MR" else "CT")


def _words(one: Found, same: Sequence[Found]) -> str:
    others = [other.place for other in same if other is not one]
    more = f" and {len(others) - 1:,} more" if others[1:] else ""
    return f"{SAME} {others[0]}{more}: take one of them"
