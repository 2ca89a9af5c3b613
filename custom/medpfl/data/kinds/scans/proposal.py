"""A label table to fill in: for each patient of an inventory one series, and why it is that."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from medpfl.data.kinds.scans.found import Found, Inventory
from medpfl.data.kinds.scans.geometry import NOT_AXIAL
from medpfl.data.kinds.scans.inventory_copies import SAME
from medpfl.data.kinds.scans.label_columns import EACH
from medpfl.data.kinds.scans.limits import WHOLE_CHEST
from medpfl.data.spreadsheet import as_text


@dataclass(frozen=True)
class Proposal:
    """A patient's series, None where none can be used, and the reason."""

    patient: str
    chosen: Found | None
    reason: str


def propose(inventory: Inventory) -> list[Proposal]:
    """For each patient the only CT volume, or the thinnest that covers the chest; by the patients' names.

    Where no PatientID tells patients apart, each folder in an uppermost one has a proposal of its own: nobody is lost
    if they are several people, and as they have one name for a patient they are in one part if they are not.
    """
    patients: dict[tuple[str, str], list[Found]] = {}
    for one in inventory.found:
        if not one.mask_of and (one.form == "NIfTI" or (one.form == "DICOM" and one.modality == "CT")):
            inner = "/".join(Path(one.place).parts[:2]) if one.by_folder else ""
            patients.setdefault((one.patient, inner), []).append(one)
    alike = Counter(patient for patient, _ in patients)
    return [_chosen(patient, found, shared=alike[patient] > 1) for (patient, _), found in sorted(patients.items())]


def draft(proposals: Iterable[Proposal], labels: Sequence[str] = ()) -> str:
    """The table as CSV; a patient without a series has a row with an empty one, so that it is not forgotten.

    Args:
        proposals: of :func:`propose`.
        labels: names of several labels, each of which gets a column; by default there is one for a class.
    """
    rows = [
        ((one.chosen.name, one.patient, one.chosen.description) if one.chosen else ("", one.patient, ""), one.reason)
        for one in proposals
    ]
    return _table("series", [(*row, reason) for row, reason in rows], labels, ("description", "reason"))


def draft_of_pictures(inventory: Inventory, labels: Sequence[str]) -> str:
    """The same of the X-ray images that can be read, one a row; a patient is left open where nothing says who it is."""
    xrays = [one for one in inventory.found if one.form == "X-ray" and one.picture]
    return _table("picture", [(x.name, x.patient, x.description) for x in xrays], labels, ("description",))


def _table(what: str, rows: Iterable[Sequence[str]], labels: Sequence[str], more: Sequence[str]) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    open_ones = [f"{EACH} {label}" for label in labels] or ["label"]
    table.writerow((what, *open_ones, "patient", *more))
    for name, *rest in rows:
        table.writerow(map(as_text, (name, *[""] * len(open_ones), *rest)))
    return text.getvalue()


def _chosen(patient: str, found: Sequence[Found], shared: bool) -> Proposal:
    made = _best(patient, found)
    reason = made.reason
    if made.chosen and made.chosen.hu is False:
        reason += "; its values are not like HU: is it CT?"
    if made.chosen:
        reason += "".join(f"; {words}" for _, words in made.chosen.problems if words.startswith(SAME))
    if any(one.by_folder for one in found):
        reason += "; no PatientID, so the folder counts as the patient"
        reason += ": give people in other rows of it other names" if shared else ""
    return replace(made, reason=reason)


def _best(patient: str, found: Sequence[Found]) -> Proposal:
    usable = [one for one in found if one.volume]
    if not usable:
        why = next(words for one in found for level, words in one.reasons() if level == "error")
        return Proposal(patient, None, (f"none of {len(found)} can be used: " if found[1:] else "") + why)
    if axial := [one for one in usable if not _is_reformatted(one)]:  # coronal and sagittal series are made of these
        usable = axial
    whole = [one for one in usable if one.coverage >= WHOLE_CHEST]
    if len(usable) == 1:
        short = "" if whole else f", of {usable[0].coverage:.0f} mm from bottom to top, not a whole chest"
        broken = sum(not one.volume for one in found)
        left = f"; {broken} cannot be used" if broken else ""
        other = "axial " if len(found) - broken > 1 else ""
        return Proposal(patient, usable[0], f"the only {other}CT volume{short}{left}")
    if not whole:
        longest = max(usable, key=lambda one: (one.coverage, one.name))
        return Proposal(patient, longest, f"the longest of {len(usable)}; none covers {WHOLE_CHEST:.0f} mm")
    # Of equally thin ones the one with more of the body, then by name, so that the choice is the same every time.
    thinnest = min(whole, key=lambda one: (_thickness(one), -one.coverage, one.name))
    others = sorted({_thickness(one) for one in whole} - {_thickness(thinnest)})
    alike = sum(_thickness(one) == _thickness(thinnest) for one in whole)
    reason = f"the thinnest of {len(whole)} that cover {WHOLE_CHEST:.0f} mm: {_thickness(thinnest):.4g} mm"
    if len(whole) == 1:
        reason = f"the only one of {len(usable)} that covers {WHOLE_CHEST:.0f} mm"
    if others:
        reason += f", others {', '.join(f'{t:.4g}' for t in others)} mm"
    if alike > 1:
        reason += f"; one of {alike} as thin: compare their kernels and dates"
    return Proposal(patient, thinnest, reason)


def _is_reformatted(one: Found) -> bool:
    return any(words.startswith(NOT_AXIAL) for _, words in one.reasons())


def _thickness(one: Found) -> float:
    """mm of a slice; of a file that does not say, its distance from the next."""
    return round(one.thickness or (one.spacing[2] if len(one.spacing) > 2 else 0.0), 4)
