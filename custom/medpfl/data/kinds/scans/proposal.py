"""A label table to fill in: for each patient of an inventory one series, and why it is that."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from medpfl.data.kinds.scans.inventory import Found, Inventory

HEADS = ("series", "label", "patient", "description", "reason")
"""Of the table; the labels are for the user to give."""
_WHOLE_CHEST = 150.0
"""mm that a scan covers at least if it shows both lungs of an adult."""


@dataclass(frozen=True)
class Proposal:
    """A patient's series, None where none can be used, and the reason."""

    patient: str
    chosen: Found | None
    reason: str


def propose(inventory: Inventory) -> list[Proposal]:
    """For each patient the only CT volume, or the thinnest that covers the chest; by the patients' names."""
    patients: dict[str, list[Found]] = {}
    for one in inventory.found:
        if one.form == "NIfTI" or (one.form == "DICOM" and one.modality == "CT"):
            patients.setdefault(one.patient, []).append(one)
    return [_chosen(patient, patients[patient]) for patient in sorted(patients)]


def draft(proposals: Iterable[Proposal]) -> str:
    """The table as CSV; a patient without a series has a row with an empty one, so that it is not forgotten."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(HEADS)
    for one in proposals:
        series, description = (one.chosen.name, one.chosen.description) if one.chosen else ("", "")
        table.writerow((series, "", one.patient, description, one.reason))
    return text.getvalue()


def _chosen(patient: str, found: Sequence[Found]) -> Proposal:
    usable = [one for one in found if one.volume]
    if not usable:
        why = next(words for one in found for level, words in one.reasons() if level == "error")
        return Proposal(patient, None, f"none of {len(found)} can be used: {why}")
    whole = [one for one in usable if one.coverage >= _WHOLE_CHEST]
    if len(usable) == 1:
        short = "" if whole else f", of {usable[0].coverage:.0f} mm from bottom to top, not a whole chest"
        left = f"; {len(found) - 1} cannot be used" if len(found) > 1 else ""
        return Proposal(patient, usable[0], f"the only CT volume{short}{left}")
    if not whole:
        longest = max(usable, key=lambda one: (one.coverage, one.name))
        return Proposal(patient, longest, f"the longest of {len(usable)}; none covers {_WHOLE_CHEST:.0f} mm")
    # Of equally thin ones the one with more of the body, then by name, so that the choice is the same every time.
    thinnest = min(whole, key=lambda one: (_thickness(one), -one.coverage, one.name))
    others = sorted({_thickness(one) for one in whole} - {_thickness(thinnest)})
    alike = sum(_thickness(one) == _thickness(thinnest) for one in whole)
    reason = f"the thinnest of {len(whole)} that cover {_WHOLE_CHEST:.0f} mm: {_thickness(thinnest):.4g} mm"
    if others:
        reason += f", others {', '.join(f'{t:.4g}' for t in others)} mm"
    if alike > 1:
        reason += f"; one of {alike} as thin: compare their kernels and dates"
    return Proposal(patient, thinnest, reason)


def _thickness(one: Found) -> float:
    """mm of a slice; of a file that does not say, its distance from the next."""
    return round(one.thickness or (one.spacing[2] if len(one.spacing) > 2 else 0.0), 4)
