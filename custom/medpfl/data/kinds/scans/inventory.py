"""Everything that a folder holds, whatever its state: DICOM series, volumes, pictures, and files that are neither."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from pydicom.uid import RTStructureSetStorage

from medpfl.core.errors import first_line
from medpfl.core.numbers_in_words import count
from medpfl.data.files import PICTURES, UNREAD_PICTURES, composed, files_below, is_nifti, nifti_stem
from medpfl.data.kinds.folders.xray import MODALITIES, is_dicom, read_head
from medpfl.data.kinds.masks.pairs import pair
from medpfl.data.kinds.scans.dicomdir import incomplete
from medpfl.data.kinds.scans.found import Found, Inventory
from medpfl.data.kinds.scans.label_table import other_volume
from medpfl.data.kinds.scans.nifti import Volume, read_volume
from medpfl.data.kinds.scans.no_slice import NoSlice
from medpfl.data.kinds.scans.series import Progress, Series, read_files
from medpfl.data.people import numbered

_NAMED = 5
"""Patients of whom nothing can be used that are named; the rest is counted."""


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
    found = [one for series in folder.series.values() for one in _of_series(series, root)]
    found += _named(_each(volumes, lambda f: _volume(read_volume(f), root), told))
    found += _each(unread, lambda f: _file(f, root, other_volume(f) or ""), told)
    found += _each(pictures, lambda f: _picture(f, root), told)
    found += _each(unread_too, lambda f: _file(f, root, f"{f.suffix} is not read: save it as JPEG or PNG"), told)
    found += [_stray(file.path, root, file.reason) for file in folder.strays]
    without = _imageless(folder.rest, {one.patient for one in found}, root)
    without += [_file(index, root, words) for index, words in incomplete(folder.rest, files)]
    found = _with_masks(sorted([*found, *without], key=lambda one: (one.place, one.name)))
    drawn = sum(s.modality == "SEG" for s in folder.series.values())
    drawn += sum(f.sop_class == RTStructureSetStorage for f in folder.rest)
    return Inventory(root, found, sum(f.what == "other" for f in folder.rest) - len(without), drawn=drawn)


def in_words(inventory: Inventory) -> list[str]:
    """How much of what there is."""
    found = inventory.found
    usable, pictures = [one for one in found if one.volume], [one for one in found if one.picture]
    forms = Counter(one.form for one in found)
    nifti = sum(one.form == "NIfTI" and one.hu is None for one in usable)
    no_ct = sum(one.hu is False for one in usable)
    lines = [
        f"{count(len(usable), 'CT volume')} that can be used, of {_people(usable)}"
        + (f"; {nifti:,} of them NIfTI, which does not say that it is CT" if nifti else "")
        + (f"; {no_ct:,} of them no CT by their values" if no_ct else ""),
        ", ".join(f"{n:,} {words.format(s='s' * (n != 1))}" for form, words in _FORMS.items() if (n := forms[form]))
        + (f"; {count(inventory.others, 'other file')}" if inventory.others else ""),
    ]
    if mr := [one for one in found if one.mr]:
        lines.append(
            f"{count(len(mr), 'MR volume')} (DICOM) that can be used with --data-arg normalise, of {_people(mr)}"
        )
    if xrays := [one for one in pictures if one.form == "X-ray"]:
        lines.append(f"{count(len(xrays), 'X-ray image')} that can be read as pictures, of {_people(xrays)}")
    if masked := sum(one.masked for one in found):
        lines.append(
            f"{count(masked, 'image')} with a mask beside, by their names: read for segmentation, unless a table of "
            "labels lies in the folder"
        )
    if inventory.drawn:
        lines.append(
            f"{count(inventory.drawn, 'DICOM object')} with structures (RT structure set, segmentation): `medpfl data "
            "masks` makes masks of them"
        )
    lines += _without(found) + _numbered(found)
    if inventory.copies:
        first = inventory.copies[0]
        lines.append(
            f"{sum(map(len, inventory.copies)):,} have the same content as another, {first[0]} and {first[1]} first"
        )
    reasons = Counter(words for one in found for level, words in one.reasons() if level == "error")
    return lines + [f"{count:,} cannot be used: {reason}" for reason, count in reasons.most_common(8)]


def _people(found: Iterable[Found]) -> str:
    return count(len({one.patient or one.place for one in found}), "patient")


def _without(found: Sequence[Found]) -> list[str]:
    """The patients of whom nothing can be used, in words."""
    some = {one.patient for one in found if one.volume or one.mr or one.picture}
    lacking = {one.patient: one for one in reversed(found) if one.patient and one.patient not in some}
    named = [
        f"{patient} ({next((words for level, words in one.reasons() if level == 'error'), one.form)})"
        for patient, one in sorted(lacking.items())
    ]
    if not named:
        return []
    more = f"; and {len(named) - _NAMED:,} more" if named[_NAMED:] else ""
    said = f"of {count(len(named), 'patient')} nothing can be used: {'; '.join(named[:_NAMED])}{more}"
    return [said]


def _numbered(found: Sequence[Found]) -> list[str]:
    """Patients by files' names that differ in a number at the end alone, unless all are called so."""
    names = {one.patient for one in found if one.form in ("NIfTI", "picture") and not one.mask_of}
    several = numbered(names)
    if not several:
        return []
    return [
        f"{sum(map(len, several)):,} patients are called as another but for a number at the end, {several[0][0]} and "
        f"{several[0][1]} first: where they are scans of one patient, give them one name in the draft's column patient"
    ]


def _imageless(rest: Iterable[NoSlice], there: set[str], root: Path) -> list[Found]:
    """One DICOM object of each patient of whom there are reports or the like alone."""
    first: dict[str, NoSlice] = {}
    for file in rest:
        if file.patient and file.patient not in there:
            first.setdefault(file.patient, file)
    return [
        replace(_file(file.path, root, f"{file.reason}, nor is there one of this patient elsewhere"), patient=patient)
        for patient, file in first.items()
    ]


_FORMS = {
    "DICOM": "DICOM series",
    "NIfTI": "NIfTI file{s}",
    "X-ray": "X-ray image{s}",
    "picture": "picture{s}",
    "file": "file{s} that cannot be read",
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


def _of_series(series: Series, root: Path) -> list[Found]:
    """A series; of X-ray images each, and each file that is lost, since they make no volume."""
    if series.modality not in MODALITIES:
        return [_series(series, root)]
    lost = [_stray(path, root, reason) for path, reason in series.broken.items() if path not in series.files]
    return [*(_xray(file, root, series.broken.get(file, "")) for file in series.files), *lost]


def _stray(path: Path, root: Path, reason: str) -> Found:
    """A file of no series; an X-ray image is one by itself."""
    head = read_head(path)
    there = head is not None and head.modality in MODALITIES and head.rows > 0
    return _xray(path, root) if there else _file(path, root, reason)


def _xray(file: Path, root: Path, broken: str = "") -> Found:
    place, head = _relative(file, root), read_head(file)
    reason = broken or (head.refused if head else "cannot be read as DICOM")
    if not reason and not is_dicom(file):
        reason = f"an X-ray image, which is not read while its name ends in {file.suffix}: call it .dcm"
    return Found(
        form="X-ray",
        where=file,
        place=place,
        name=place,
        patient=head.patient if head else "",
        files=(file,),
        date=head.date if head else "",
        description=head.description if head else "",
        modality=head.modality if head else "",
        slices=1,
        matrix=f"{head.rows}×{head.columns}" if head else "",
        problems=(("error", f"{file}: {reason}"),) if reason else (),
    )


def _with_masks(found: Sequence[Found]) -> list[Found]:
    """Pictures and NIfTI files that are masks of others, by their names, and those that have one."""
    images = {Path(one.place): one for one in found if one.form in ("NIfTI", "picture")}
    of = {pair.mask: pair.image for pair in pair(list(images)).found}
    masked = set(of.values())
    made = []
    for one in found:
        path = Path(one.place)
        if one.form in ("NIfTI", "picture") and path in of:
            one = _mask(one, images[of[path]])
        made.append(replace(one, masked=True) if one.form in ("NIfTI", "picture") and path in masked else one)
    return made


def _mask(one: Found, image: Found) -> Found:
    own, its = (each.matrix.split("×")[:3] for each in (one, image))  # a volume may have channels after its sides
    fits = own == its or not (one.matrix and image.matrix)
    words = f"{one.where}: the mask is {one.matrix}, its image {image.matrix}"
    problems = one.problems if fits else (*one.problems, ("error", words))
    return replace(one, mask_of=image.place, patient=image.patient, problems=problems)


def _series(series: Series, root: Path) -> Found:
    place = _relative(series.folder, root)
    return Found(
        form="DICOM",
        where=series.folder,
        place=place,
        name=series.uid,
        patient=composed(series.patient) or (Path(place).parts or (root.resolve().name,))[0],
        by_folder=not series.patient,
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
        patient=composed(nifti_stem(volume.path.name)),
        files=(volume.path,),
        slices=volume.shape[2] if len(volume.shape) > 2 else 0,
        spacing=volume.spacing,
        matrix="×".join(map(str, volume.shape)),
        coverage=volume.coverage,
        problems=tuple((p.level, p.message) for p in volume.problems),
    )


def _named(volumes: Sequence[Found]) -> list[Found]:
    """Volumes of which those with the same file name have their folder's for a patient, or its path if that is shared.

    Two hospitals' p00 are two people; and nobody is lost if one patient's two visits count as two.
    """
    stems = Counter(one.patient for one in volumes)
    alike = {one.where: one.files[0].parent for one in volumes if stems[one.patient] > 1}
    folders = Counter(folder.name for folder in set(alike.values()))
    return [
        replace(one, patient=composed(_folder(one, several=folders[alike[one.where].name] > 1)))
        if one.where in alike
        else one
        for one in volumes
    ]


def _folder(one: Found, *, several: bool) -> str:
    """The name of the folder that a file is in, or its path."""
    return Path(one.place).parent.as_posix() if several else one.files[0].parent.name


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
