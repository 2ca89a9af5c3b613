"""Whether a CT volume's values can be Hounsfield units, whatever value stands for padding; and an MR volume's not."""

from __future__ import annotations

import hashlib

import numpy as np

from medpfl.data.finding import Finding
from medpfl.data.kinds.scans.preprocessing import AIR, Modality

EDGES = np.arange(-1100, 501, 50)
"""HU between which :func:`histogram` counts."""
_AIR, _TISSUE = (-1100.0, -600.0), (-200.0, 400.0)
_LEAST_AIR, _LEAST_TISSUE = 0.005, 0.05
"""Shares of the values, without padding, that are air or lung, and soft tissue."""
_SPIKE = 0.01
"""Share of the voxels that have exactly the lowest value where that is padding, or air that has been clipped."""
_BELOW, _NEXT_TO_NONE = -50.0, 0.001
"""HU below which fat lies, and the share of a slice's values there that is none."""
_OFFSETS = (1024.0, 1000.0)
"""What stored values are above HU."""
_WRAPPED = (16384, 61440)
"""Values of 16 bits between which there are none where those above are negative ones, from -4096, without sign."""
_HIGHEST = 4095.0
"""HU above which values count alike."""
READS_MR = "a run with --data-arg normalise=percentile or zscore reads MR"
"""What to do about values that are no HU, or a series that is no CT."""


def odd_values(values: np.ndarray, modality: Modality = "CT") -> list[Finding]:
    """What is odd or wrong with a slice's or a volume's values; nothing if they look like HU, or those of MR do not.

    Args:
        values: (X, Y) or (X, Y, Z).
        modality: that they should be of.
    """
    finite = np.isfinite(values)
    findings = []
    if not finite.all():
        count = finite.size - int(finite.sum())
        middle = finite[tuple(slice(n // 4, n - n // 4) for n in values.shape[:2])]
        if not middle.all():
            inside = middle.size - int(middle.sum())
            return [Finding("error", f"{inside:,} voxels in its middle are not numbers (NaN or infinite)")]
        instead = "air" if modality == "CT" else "the least value"
        findings = [Finding("warning", f"{count:,} voxels at its edge are not numbers: taken as {instead}")]
    known = values[finite]
    low, high = float(known.min()), float(known.max())
    if low == high:
        return [Finding("error", f"every voxel has the value {low:g}")]
    if modality == "MR":
        words = "its values are those of CT: without --data-arg normalise CT is read"
        return [*findings, Finding("warning", words)] if looks_like_hu(known) else findings
    if wrong := without_offset(known):
        return [*findings, Finding("error", f"{wrong} {READS_MR}")]
    if wrong := without_sign(known) or _slices_without_offset(np.where(finite, values, AIR)):
        return [*findings, Finding("error", wrong)]
    known = _without_padding(known, low)
    if not known.size or _like_hu(known):
        return findings
    said = f"from {low:.6g} to {high:.6g}"
    if low >= 0 and high <= 256:
        return [*findings, Finding("error", f"values {said} are grey values of a picture, not HU; {READS_MR}")]
    lacking = [
        what
        for what, (first, last), least in (("air", _AIR, _LEAST_AIR), ("soft tissue", _TISSUE, _LEAST_TISSUE))
        if _share(known, first, last) < least
    ]
    words = f"values {said}, without padding no {' and no '.join(lacking)}: are these HU? {READS_MR}"
    return [*findings, Finding("warning", words)]


def without_offset(values: np.ndarray) -> str | None:
    """That values, all finite, look like HU plus 1024 or 1000, in words; None if not."""
    low = float(values.min())
    known = _without_padding(values, low)
    for offset in _OFFSETS:
        if known.size and not _like_hu(known) and _like_hu(known - offset):
            said = f"values from {low:.6g} to {values.max():.6g}"
            return f"{said} look like HU without their offset of {-offset:.0f}: has the rescaling been lost?"
    return None


def _slices_without_offset(values: np.ndarray) -> str | None:
    """That some slices of a volume (X, Y, Z), fewer than half, look like HU plus 1024 or 1000; None if not."""
    if values.ndim < 3:
        return None

    def alike(offset: float) -> np.ndarray:  # by slice
        shares = [
            ((values > low + offset) & (values < high + offset)).mean(axis=(0, 1)) for low, high in (_AIR, _TISSUE)
        ]
        return (shares[0] >= _LEAST_AIR) & (shares[1] >= _LEAST_TISSUE)

    # Of a small field of view without air, soft tissue and bone look like these; but it has fat and noise below 0.
    below = ((values > _AIR[0]) & (values < _BELOW)).mean(axis=(0, 1))
    odd = np.flatnonzero((below < _NEXT_TO_NONE) & ~alike(0) & np.any([alike(o) for o in _OFFSETS], axis=0))
    if not 0 < len(odd) < values.shape[2] / 2:
        return None
    return (
        f"{len(odd):,} of {values.shape[2]:,} slices look like HU without their offset, number {odd[0] + 1} from the "
        "end that is read first: have they been converted otherwise?"
    )


def without_sign(values: np.ndarray) -> str | None:
    """That values, all finite, look like negative ones stored in 16 bits without sign, in words; None if not."""
    high = values >= _WRAPPED[1]
    if values.min() < 0 or values.max() > 0xFFFF or high.mean() < _LEAST_AIR or (values < _WRAPPED[0]).mean() == 0:
        return None
    if ((values >= _WRAPPED[0]) & ~high).any():
        return None
    least, low, highest = (float(value) for value in (values[high].min(), values.min(), values.max()))
    return (
        f"values from {low:.6g} to {highest:.6g}, none between {_WRAPPED[0]:,} and {_WRAPPED[1]:,}: do those from "
        f"{least:.0f} stand for {least - 0x10000:.0f} and more, stored without their sign? Subtract 65,536 from these"
    )


def looks_like_hu(values: np.ndarray) -> bool:
    """Whether there is air or lung among a slice's or a volume's values, and soft tissue, as HU have them."""
    known = values[np.isfinite(values)]
    return known.size > 0 and _like_hu(_without_padding(known, float(known.min())))


def histogram(values: np.ndarray) -> list[float]:
    """Shares of the voxels between :data:`EDGES`; what is beyond counts at the ends, what is no number not at all."""
    known = values[np.isfinite(values)]
    counts, _ = np.histogram(np.clip(known, EDGES[0], EDGES[-1]), EDGES)
    return [round(float(count) / max(1, known.size), 5) for count in counts]


def fingerprint(values: np.ndarray, modality: Modality = "CT") -> str:
    """A hash of how often a slice or volume has which whole HU; the same however its axes are turned and flipped.

    Of MR it is which of as many steps from the least value to the highest.
    """
    if modality == "MR":
        known = values[np.isfinite(values)].astype(np.float64)
        low, high = (known.min(), known.max()) if known.size else (0.0, 0.0)
        values = (values - low) / max(high - low, np.finfo(np.float64).tiny) * (_HIGHEST - AIR) + AIR
    whole = np.clip(np.nan_to_num(np.rint(values), nan=AIR), AIR, _HIGHEST).astype(np.int64) - int(AIR)
    counts = np.bincount(whole.ravel(), minlength=int(_HIGHEST - AIR) + 1)
    return hashlib.blake2b(repr(sorted(values.shape)).encode() + counts.tobytes(), digest_size=16).hexdigest()


def _without_padding(known: np.ndarray, low: float) -> np.ndarray:
    """Values but those below air, and the lowest if it is as frequent as only padding or clipped air is."""
    spike = float((known == low).mean()) >= _SPIKE
    return known[(known >= _AIR[0]) & ((known > low) | (not spike))]


def _like_hu(known: np.ndarray) -> bool:
    return _share(known, *_AIR) >= _LEAST_AIR and _share(known, *_TISSUE) >= _LEAST_TISSUE


def _share(known: np.ndarray, first: float, last: float) -> float:
    """Of no values, as of a volume of one value alone, none."""
    return float(((known > first) & (known < last)).mean()) if known.size else 0.0
