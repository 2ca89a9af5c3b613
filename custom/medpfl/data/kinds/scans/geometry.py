"""Whether the slices of a series make one volume: even steps along one line, nothing missing, nothing twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from medpfl.data.finding import Finding
from medpfl.data.kinds.scans.dicom_header import Header
from medpfl.data.kinds.scans.limits import implausible

TILT = 1.0
"""Degrees between the slices' normal and their steps above which a gantry is called tilted."""
INTERSPACED = 1.5
"""Slice distances, in slice thicknesses, from which there are gaps between the slices by design."""
NOT_AXIAL = "not axial slices"
"""How what is said of coronal and sagittal series begins."""
_ROUNDED = 0.101
"""mm that a step may be off because positions were rounded to 0.1 mm, whatever the slice distance."""


@dataclass(frozen=True)
class Stack:
    """Slices from one end to the other along their normal; ``step`` is their distance in mm, 0 if it makes no sense."""

    headers: tuple[Header, ...]
    step: float
    findings: tuple[Finding, ...]


def stack(headers: Sequence[Header]) -> Stack:
    """Orders a series' slices by their position along the normal and looks for what makes them no volume."""
    findings = _mixed(headers)
    if findings:
        return Stack(tuple(sorted(headers, key=lambda h: (h.instance or 0, h.path))), 0.0, tuple(findings))
    row, column = np.split(np.array(headers[0].orientation), 2)
    normal = np.cross(row, column)
    positions = np.array([h.position for h in headers])
    order = np.lexsort((np.arange(len(headers)), positions @ normal))
    ordered, positions = [headers[i] for i in order], positions[order]
    steps = np.diff(positions @ normal)
    apart = steps[steps > 0.01]
    step = float(np.median(apart)) if len(apart) else 0.0
    first = ordered[0]
    if step and (message := implausible((*first.pixel_spacing, step), (*first.matrix, len(ordered)))):
        return Stack(tuple(ordered), 0.0, (Finding("error", message),))
    findings = _steps(ordered, positions @ normal, steps, step)
    if not any(f.level == "error" for f in findings):
        findings += _direction(positions, normal)
        if abs(normal[2]) < 0.7:
            findings.append(Finding("warning", f"{NOT_AXIAL}; axial ones are cut from the volume they make"))
    return Stack(tuple(ordered), step, tuple(findings))


def _mixed(headers: Sequence[Header]) -> list[Finding]:
    for name, words, count in (
        ("position", "ImagePositionPatient", 3),
        ("orientation", "ImageOrientationPatient", 6),
        ("pixel_spacing", "PixelSpacing", 2),
    ):
        if without := [h for h in headers if getattr(h, name) is None]:
            lacking = f"{without[0].path.name} has no {words} of {count} numbers{_more(without)}"
            return [Finding("error", f"{lacking}: no volume without it")]
    first = headers[0]
    if min(first.pixel_spacing) <= 0:
        return [Finding("error", f"{first.path.name} has the PixelSpacing {first.pixel_spacing}")]
    row, column = np.split(np.array(first.orientation), 2)
    if abs(row @ column) > 1e-3 or abs(row @ row - 1) > 1e-2 or abs(column @ column - 1) > 1e-2:
        return [
            Finding("error", f"{first.path.name} has the ImageOrientationPatient {first.orientation}: not two axes")
        ]
    findings = []
    for name, words, tolerance in (
        ("matrix", "matrix sizes", 0.0),
        ("pixel_spacing", "pixel spacings", 1e-3),
        ("orientation", "orientations", 1e-3),
    ):
        values = np.array([getattr(h, name) for h in headers], dtype=float)
        if len(other := np.flatnonzero(np.abs(values - values[0]).max(axis=1) > tolerance)):
            pair = (
                f"{_list(values[0])} in {first.path.name}, {_list(values[other[0]])} in {headers[other[0]].path.name}"
            )
            findings.append(Finding("error", f"mixed {words} in one series: {pair}"))
    return findings


def _steps(headers: Sequence[Header], along: np.ndarray, steps: np.ndarray, step: float) -> list[Finding]:
    same = np.flatnonzero(steps <= 0.01)
    if len(same):
        pair = _between(headers, along, same[0])
        one, other = sorted(h.path.parent for h in headers[same[0] : same[0] + 2])
        why = "two phases in one series?" if one == other else f"in {one} and in {other}: is one a copy of the other?"
        files = f"{headers[same[0]].path.name} and {headers[same[0] + 1].path.name}"
        what = "1 slice position is" if len(same) == 1 else f"{len(same)} slice positions are"
        return [Finding("error", f"{what} there twice ({why}): {pair}, {files}")]
    off = np.abs(steps - step)
    allowed = max(0.1 * step, _ROUNDED)
    if change := _change(headers, along, steps, step, allowed):
        return [Finding("error", change)]
    times = np.round(steps / step)
    gaps = np.flatnonzero((times >= 2) & (np.abs(steps - times * step) <= times * allowed))
    if len(gaps):
        missing = int((np.round(steps[gaps] / step) - 1).sum())
        places = "; ".join(_between(headers, along, gap) for gap in gaps[:3]) + ("; ..." if len(gaps) > 3 else "")
        noun = "slice seems" if missing == 1 else "slices seem"
        return [Finding("error", f"{missing} {noun} to be missing: {places}")]
    worst = int(off.argmax())
    if off[worst] > allowed:
        return [Finding("error", f"uneven slice distances, {step:.4g} mm mostly: {_between(headers, along, worst)}")]
    if off[worst] > 0.01 * step:
        message = f"slice distances vary from {steps.min():.4g} to {steps.max():.4g} mm; their mean is used"
        return [Finding("warning", message)]
    thickness = np.median([h.thickness or np.inf for h in headers])
    if step > INTERSPACED * thickness:
        message = f"slices {thickness:.4g} mm thick lie {step:.4g} mm apart: what is between them has not been imaged"
        return [Finding("note", message)]
    return []


def _change(headers: Sequence[Header], along: np.ndarray, steps: np.ndarray, step: float, allowed: float) -> str | None:
    """Where the series goes on with another slice distance for three steps or more, which is no gap."""
    other = np.abs(steps - step) > allowed
    start = 0
    while start < len(steps):
        stop = start + 1
        while stop < len(steps) and other[stop] and abs(steps[stop] - steps[start]) <= allowed:
            stop += 1
        if other[start] and stop - start >= 3:
            now = steps[start]
            times = round(now / step)
            thinned = times >= 2 and abs(now - times * step) <= allowed and len({h.thickness for h in headers}) == 1
            why = "two protocols in one series" + (", or slices left out there" if thinned else "")
            said = f"the slice distance is {step:.4g} mm mostly and {now:.4g} mm for {stop - start} steps"
            return f"{said}, the first {_between(headers, along, start)}: {why}?"
        start = stop
    return None


def _direction(positions: np.ndarray, normal: np.ndarray) -> list[Finding]:
    whole = positions[-1] - positions[0]
    fractions = ((positions - positions[0]) @ normal) / (whole @ normal)
    aside = np.linalg.norm(positions - positions[0] - fractions[:, None] * whole, axis=1).max()
    if aside > 1.0:
        return [Finding("error", f"slices are shifted against each other by up to {aside:.1f} mm within their plane")]
    tilt = np.degrees(np.arccos(np.clip(abs(whole @ normal) / np.linalg.norm(whole), 0, 1)))
    if tilt > TILT:
        message = f"the gantry is tilted by {tilt:.1f} degrees: slices are moved back into line before use"
        return [Finding("warning", message)]
    return []


def _between(headers: Sequence[Header], along: np.ndarray, index: int) -> str:
    pair = headers[index : index + 2]
    names = " and ".join(h.path.name if h.instance is None else str(h.instance) for h in pair)
    kind = "files" if any(h.instance is None for h in pair) else "instance numbers"
    return f"between {along[index]:.2f} and {along[index + 1]:.2f} mm ({kind} {names})"


def _list(values: np.ndarray) -> str:
    return "×".join(f"{value:.6g}" for value in values)


def _more(headers: Sequence[Header]) -> str:
    return f" (nor have {len(headers) - 1} more)" if len(headers) > 1 else ""
