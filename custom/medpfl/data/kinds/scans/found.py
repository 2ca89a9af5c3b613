"""One thing in a folder of all kinds, and everything that such a folder holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Form = Literal["DICOM", "NIfTI", "X-ray", "picture", "file"]


@dataclass(frozen=True)
class Found:
    """One series, volume, picture, or file that should be one.

    Attributes:
        form: what it is; ``X-ray`` for one DICOM image, ``file`` for one that cannot be read as any of these.
        where: its folder or file.
        place: the same, relative to the folder that was asked about.
        name: what a table calls it: SeriesInstanceUID, or the path.
        patient: PatientID, or what stands for it: the file's name, or the folder's where names are alike.
        files: sorted as slices.
        coverage: mm from bottom to top; 0 where it makes no sense.
        problems: level and words.
        by_folder: no PatientID says whose it is, and ``patient`` is its uppermost folder.
        mask_of: the place of the image that it is the mask of, by their names.
        masked: whether it has a mask beside it, by their names.
        hu: whether its values look like Hounsfield units; None where that was not looked at.
    """

    form: Form
    where: Path
    place: str
    name: str
    patient: str
    files: tuple[Path, ...]
    date: str = ""
    description: str = ""
    modality: str = ""
    slices: int = 0
    thickness: float | None = None
    spacing: tuple[float, ...] = ()
    kernel: str = ""
    matrix: str = ""
    coverage: float = 0.0
    problems: tuple[tuple[str, str], ...] = ()
    by_folder: bool = False
    mask_of: str = ""
    masked: bool = False
    hu: bool | None = None

    @property
    def usable(self) -> bool:
        """Whether nothing is wrong with it that its header tells."""
        return not any(level == "error" for level, _ in self.problems)

    @property
    def state(self) -> str:
        """The same in words."""
        levels = {level for level, _ in self.problems}
        return "cannot be used" if "error" in levels else "odd" if "warning" in levels else "good"

    def reasons(self) -> list[tuple[str, str]]:
        """The problems without the place, so that alike ones count together."""
        places = [f"{place}: " for place in (self.where, *self.files)]
        return [
            (level, words.removeprefix(next(filter(words.startswith, places), ""))) for level, words in self.problems
        ]

    @property
    def volume(self) -> bool:
        """Whether it is a CT volume that can be used, as far as headers say; of NIfTI they do not say that it is CT."""
        return self.usable and not self.mask_of and (self.form == "NIfTI" or self.modality == "CT")

    @property
    def mr(self) -> bool:
        """Whether it is an MR series that makes a volume, as far as headers say."""
        return self.usable and self.form == "DICOM" and self.modality == "MR"

    @property
    def picture(self) -> bool:
        """Whether it is a picture that can be read, as far as headers say."""
        return self.usable and not self.mask_of and self.form in ("X-ray", "picture")

    @property
    def read_as(self) -> str:
        """What this package reads it as; empty for nothing."""
        if not self.usable:
            return ""
        if self.mask_of:
            return f"mask of {self.mask_of}"
        if self.picture:
            return "picture" + (", or image with its mask" if self.masked else "")
        if self.mr:
            return "MR scan"
        if self.form == "NIfTI" and self.hu is False:
            return "MR scan, or image with its mask" if self.masked else "MR scan"
        return "CT scan" + (", or image with its mask" if self.masked else "")


@dataclass
class Inventory:
    """What was found in a folder.

    Attributes:
        root: the folder.
        found: by place and name.
        others: number of files that are recognisably something else.
        copies: places with the same content, where that was looked for.
        drawn: number of DICOM objects with structures.
    """

    root: Path
    found: list[Found] = field(default_factory=list)
    others: int = 0
    copies: tuple[tuple[str, ...], ...] = ()
    drawn: int = 0
