"""One labelled CT scan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from medpfl.core.site_data import Part
from medpfl.data.kinds.scans.manifest import Format
from medpfl.data.labels import Target


@dataclass(frozen=True)
class Scan:
    """A labelled volume on disk.

    Attributes:
        centre: name in the manifest.
        patient: as the table or the DICOM files have it; stays at the site.
        label: index of the class; of several labels the rarest, by which scans are divided, or their number if none.
        split: the part that the table gives it to, or None.
        kind: what the files are.
        files: a DICOM series' files in the order of its slices, or one NIfTI file.
        id: SeriesInstanceUID, or the file's path relative to the centre's folder.
        labels: of several, for each class 1 if it is there, 0 if not, -1 if that is not known; None of one class.
    """

    centre: str
    patient: str
    label: int
    split: Part | None
    kind: Format
    files: tuple[Path, ...]
    id: str
    labels: tuple[int, ...] | None = None

    @property
    def target(self) -> Target:
        """What a network learns of it."""
        return self.label if self.labels is None else self.labels

    @property
    def place(self) -> Path:
        """The file, or the folder of a series' first."""
        return self.files[0] if self.kind == "nifti" else self.files[0].parent
