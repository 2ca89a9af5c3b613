"""Everything that a folder holds, whatever its state: DICOM series, volumes, pictures, and files that are neither."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from medpfl.core.errors import UserError, first_line
from medpfl.data.files import PICTURES, UNREAD_PICTURES, composed, files_below
from medpfl.data.kinds.scans.label_table import is_nifti, other_volume
from medpfl.data.kinds.scans.nifti import Volume, read_volume
from medpfl.data.kinds.scans.series import Progress, Series, read_files

Form = Literal["DICOM", "NIfTI", "picture", "file"]


@dataclass(frozen=True)
class Found:
    """One series, volume, picture, or file that should be one.

    Attributes:
        form: what it is; ``file`` for one that cannot be read as any of these.
        where: its folder or file.
        place: the same, relative to the folder that was asked about.
        name: what a table calls it: SeriesInstanceUID, or the path.
        patient: PatientID, or what stands for it: the file's name, or the folder's where names are alike.
        files: sorted as slices.
        coverage: mm from bottom to top; 0 where it makes no sense.
        problems: level and words.
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
        """Whether it is a CT volume that can be used, as far as headers say."""
        return self.usable and (self.form == "NIfTI" or (self.form == "DICOM" and self.modality == "CT"))


@dataclass
class Inventory:
    """What was found in a folder.

    Attributes:
        root: the folder.
        found: by place and name.
        others: number of files that are recognisably something else.
        copies: places with the same content, where that was looked for.
    """

    root: Path
    found: list[Found] = field(default_factory=list)
    others: int = 0
    copies: tuple[tuple[str, ...], ...] = ()


def take_inventory(root: Path, progress: Progress | None = None) -> Inventory:
    """Reads the headers of all files in a folder and below; no label table is needed, and nothing stops it.

    Args:
        root: the folder.
        progress: called with the number of files that are read and of all.

    Raises:
        UserError: there is no such folder, or it cannot be read.
    """
    files = files_below(root)
    volumes = [f for f in files if is_nifti(f)]
    unread = [f for f in files if not is_nifti(f) and other_volume(f)]
    pictures = [f for f in files if f.suffix.lower() in PICTURES]
    unread_too = [f for f in files if f.suffix.lower() in UNREAD_PICTURES]
    apart = {*volumes, *unread, *pictures, *unread_too}
    rest = [f for f in files if f not in apart]
    told = _counting(progress, len(files))
    folder = read_files(rest, lambda done, total: told())
    found = [_series(series, root) for series in folder.series.values()]
    found += _named(_each(volumes, lambda f: _volume(read_volume(f), root), told))
    found += _each(unread, lambda f: _file(f, root, other_volume(f) or ""), told)
    found += _each(pictures, lambda f: _picture(f, root), told)
    found += _each(unread_too, lambda f: _file(f, root, f"{f.suffix} is not read: save it as JPEG or PNG"), told)
    found += [_file(f.path, root, f.reason) for f in folder.strays]
    found.sort(key=lambda one: (one.place, one.name))
    return Inventory(root, found, sum(f.what == "other" for f in folder.rest))


def in_words(inventory: Inventory) -> list[str]:
    """How much of what there is."""
    found = inventory.found
    usable = [one for one in found if one.volume]
    forms = Counter(one.form for one in found)
    lines = [
        f"{len(usable):,} CT volumes that can be used, of {len({one.patient for one in usable}):,} patients",
        ", ".join(f"{forms[form]:,} {words}" for form, words in _FORMS.items() if forms[form])
        + (f"; {inventory.others:,} other files" if inventory.others else ""),
    ]
    if inventory.copies:
        first = inventory.copies[0]
        lines.append(
            f"{sum(map(len, inventory.copies)):,} have the same content as another, {first[0]} and {first[1]} first"
        )
    reasons = Counter(words for one in found for level, words in one.reasons() if level == "error")
    return lines + [f"{count:,} cannot be used: {reason}" for reason, count in reasons.most_common(8)]


_FORMS = {
    "DICOM": "DICOM series",
    "NIfTI": "NIfTI files",
    "picture": "pictures",
    "file": "files that cannot be read",
}


def _counting(progress: Progress | None, total: int) -> Callable[[], None]:
    done = 0

    def tell() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(done, total)

    return tell


def _each(files: Iterable[Path], read: Callable[[Path], Found], told: Callable[[], None]) -> list[Found]:
    found = []
    for file in files:
        found.append(read(file))
        told()
    return found


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _series(series: Series, root: Path) -> Found:
    place = _relative(series.folder, root)
    return Found(
        form="DICOM",
        where=series.folder,
        place=place,
        name=series.uid,
        patient=composed(series.patient) or (Path(place).parts or (root.resolve().name,))[0],
        files=series.files,
        date=series.date,
        description=series.description,
        modality=series.modality,
        slices=len(series.files),
        thickness=series.thickness,
        spacing=series.spacing,
        kernel=series.kernel,
        matrix="×".join(map(str, series.matrix)),
        coverage=series.coverage,
        problems=tuple((p.level, p.message) for p in series.problems),
    )


def _volume(volume: Volume, root: Path) -> Found:
    place = _relative(volume.path, root)
    return Found(
        form="NIfTI",
        where=volume.path,
        place=place,
        name=place,
        patient=composed(volume.path.name.lower().removesuffix(".gz").removesuffix(".nii")),
        files=(volume.path,),
        slices=volume.shape[2] if len(volume.shape) > 2 else 0,
        spacing=volume.spacing,
        matrix="×".join(map(str, volume.shape)),
        coverage=volume.coverage,
        problems=tuple((p.level, p.message) for p in volume.problems),
    )


def _named(volumes: Sequence[Found]) -> list[Found]:
    """Volumes of which those with the same file name have their folder's name for a patient."""
    stems = Counter(one.patient for one in volumes)
    return [
        replace(one, patient=composed(one.files[0].parent.name)) if stems[one.patient] > 1 else one for one in volumes
    ]


def _picture(file: Path, root: Path) -> Found:
    from medpfl.data.kinds.folders.picture_file import picture_size

    place, matrix, problems = _relative(file, root), "", ()
    try:
        matrix = "×".join(map(str, picture_size(file)[::-1]))
    except Exception as error:  # Pillow raises errors of many kinds on damaged files.
        problems = (("error", f"{file}: cannot be read: {first_line(error)}"),)
    patient = composed(file.stem)
    return Found("picture", file, place, place, patient, (file,), slices=1, matrix=matrix, problems=problems)


def _file(file: Path, root: Path, reason: str) -> Found:
    place = _relative(file, root)
    return Found("file", file, place, place, "", (file,), problems=(("error", f"{file}: {reason}"),))


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
    from medpfl.data.kinds.scans.page import png
    from medpfl.data.kinds.scans.thumbnail import dicom_slice, grey, nifti_slice
    from medpfl.data.kinds.scans.values import odd_values

    if one.form == "file" or (one.form in ("NIfTI", "picture") and not one.usable):
        return one, ""
    try:
        if one.form == "picture":
            return one, png(_small(one.files[0]))
        values = (nifti_slice if one.form == "NIfTI" else dicom_slice)(one.files[len(one.files) // 2])
    except UserError as error:
        return replace(one, problems=(*one.problems, ("error", str(error)))), ""
    odd = odd_values(values) if one.volume else []
    return replace(one, problems=(*one.problems, *((f.level, f.message) for f in odd))), png(
        grey(values, ct=one.volume and not odd)
    )


def _small(file: Path) -> np.ndarray:
    from medpfl.data.kinds.folders.picture_file import Reading, read_picture
    from medpfl.data.kinds.scans.thumbnail import EDGE

    return np.ascontiguousarray(read_picture(file, Reading(size=EDGE, fit="pad", channels="grey"))[0])
