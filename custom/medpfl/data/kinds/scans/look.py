"""What decoding a scan as training does has found: lungs, values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import floor
from typing import Any

import numpy as np

from medpfl.data.finding import Finding
from medpfl.data.kinds.scans.lung import Lungs
from medpfl.data.kinds.scans.preprocessing import Modality
from medpfl.data.kinds.scans.values import fingerprint, histogram, odd_values


@dataclass(frozen=True)
class Look:
    """What was found in a scan.

    Attributes:
        crop: whether the lung crop was asked for.
        lungs: whether lungs were found, and so the crop was applied.
        kept: share of the air inside the body that the crop keeps; 1 where there is none.
        cut: share of the lungs' slices in which the image's edge cuts them.
        shape: voxels of the volume as it was read.
        values: shares of the voxels by value, see :data:`~medpfl.data.kinds.scans.values.EDGES`; none of MR.
        content: the same for the same values, whatever the file is called and however its axes are turned.
        problems: level and words, of the values.
    """

    crop: bool
    lungs: bool
    kept: float
    cut: float
    shape: tuple[int, ...]
    values: tuple[float, ...]
    content: str
    problems: tuple[tuple[str, str], ...]

    @classmethod
    def of_values(cls, volume: np.ndarray, modality: Modality) -> Look:
        """Of a volume as it was read."""
        problems = tuple((f.level, f.message) for f in odd_values(volume, modality))
        shares = tuple(histogram(volume)) if modality == "CT" else ()
        return cls(False, False, 1.0, 0.0, tuple(volume.shape), shares, fingerprint(volume, modality), problems)

    def with_lungs(self, lungs: Lungs | None, crop: bool) -> Look:
        """The same with what the crop found."""
        found = {"kept": round(lungs.kept, 4), "cut": round(lungs.cut, 4)} if lungs else {}
        return Look(**{**asdict(self), "crop": crop, "lungs": lungs is not None, **found})

    @classmethod
    def read(cls, kept: dict[str, Any]) -> Look:
        """Of what :func:`dataclasses.asdict` gave, by way of JSON."""
        problems = tuple((level, words) for level, words in kept["problems"])
        return cls(**{**kept, "shape": tuple(kept["shape"]), "values": tuple(kept["values"]), "problems": problems})

    def error(self) -> str | None:
        """Why the scan cannot be used; None if it can."""
        return next((words for level, words in self.problems if level == "error"), None)

    def findings(self, name: str) -> list[Finding]:
        """In words."""
        found: list[Finding] = [Finding(level, f"{name}: {words}") for level, words in self.problems]
        if self.error():
            return found
        if self.crop and not self.lungs:
            found.append(Finding("warning", f"{name}: no lungs were found: the scan stays whole"))
        elif self.cut:
            share = f"in {self.cut:.0%} of their slices"
            found.append(Finding("warning", f"{name}: the image's edge cuts the lungs {share}; what it shows is kept"))
        return found


def crop_in_words(looks: Sequence[Look]) -> str | None:
    """To how many scans the lung crop was applied; None where it is off or there are no scans."""
    asked = [look for look in looks if look.crop]
    if not asked:
        return None
    found = [look for look in asked if look.lungs]
    words = f"lung crop applied to {len(found):,} of {len(asked):,} scans"
    if not found:
        return f"{words}: no lungs were found, and they stay whole"
    low = min(look.kept for look in found)
    # Rounded down, so that what is lost is not rounded away.
    return f"{words}; it keeps at least {floor(1000 * low) / 10:g} % of the air inside the body" + (
        f"; no lungs were found in the other {len(asked) - len(found):,}, which stay whole"
        if len(found) < len(asked)
        else ""
    )
