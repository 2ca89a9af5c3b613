"""Which sites, patients and cases data with masks have; no image is opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from medpfl.core.errors import UserError
from medpfl.data.files import composed, files_below, is_nifti, unread_pictures
from medpfl.data.kinds.folders.patient_pattern import patient_in
from medpfl.data.kinds.folders.table import tables
from medpfl.data.kinds.masks.datalist import NAMES, is_datalist, read_datalist
from medpfl.data.kinds.masks.masked_npz import is_masked_npz, read_index
from medpfl.data.kinds.masks.pair import Layout, Pair
from medpfl.data.kinds.masks.pairs import Found, holds_masks, is_image, pair
from medpfl.data.kinds.masks.reading import Reading
from medpfl.data.kinds.npz.catalog import find
from medpfl.data.kinds.scans.manifest import holds_scans
from medpfl.data.places import is_path, looked_in, places


def find_masked(data: str) -> Path | None:
    """The folder, datalist or npz file with masks that a ``--data`` value names; None if there is none here."""
    for place in places(data):
        labelled = holds_scans(place) or (place.is_dir() and tables(place))
        if _datalist(place) or (place.is_dir() and not labelled and holds_masks(place)):
            return place
    try:
        file = find(data)
    except UserError:
        return None
    return file if file.suffix.lower() in (".npz", ".zip") and is_masked_npz(file) else None


def open_layout(data: str, reading: Reading, official: bool = False) -> Layout:
    """What the data hold.

    Args:
        data: a ``--data`` value.
        reading: how it is read.
        official: an npz file's own parts are kept.

    Raises:
        UserError: there is nothing, or no pairs can be made of it; the message names the file or folder.
    """
    path = find_masked(data)
    if path is None:
        looked = "" if is_path(data) else f": none of that name in {looked_in()}"
        raise UserError(f"images with masks {data!r} are not on this machine{looked}")
    if listed := _datalist(path):
        return read_datalist(listed, reading)
    if path.is_dir():
        return read_folder(path, reading)
    layout = read_index(path, official)
    return layout if is_path(data) or Path(data).suffix else replace(layout, name=data)


def _datalist(place: Path) -> Path | None:
    """The datalist that a place is or has in it."""
    found = (place / name for name in NAMES) if place.is_dir() else (place,) if place.suffix == ".json" else ()
    return next((file for file in found if file.is_file() and is_datalist(file)), None)


def read_folder(root: Path, reading: Reading) -> Layout:
    """The pairs of a folder, by site and patient.

    The outermost folder is the site; the next one, if there is one, is the patient. Where images and masks lie in
    sibling folders, sites are what these lie in. The folder itself is one site if its files, or these sibling folders,
    lie directly in it; or if its sub-folders are patients: they hold numbered pictures, or such as are called like them
    (``folders`` says otherwise).

    Raises:
        UserError: an image without a mask, a mask without an image, volumes and pictures in one folder, or files
            beside the sites' folders; the first is named.
    """
    every = files_below(root)
    paths = [file.relative_to(root) for file in every if is_image(file)]
    made, unread = pair(paths), unread_pictures(every)
    for lacking, what in ((made.without_mask, "image has no mask"), (made.without_image, "mask has no image")):
        if lacking:
            dicom = any(file.suffix.lower() == ".dcm" for file in every)
            made_of = "convert them to NIfTI, or what is drawn on them too (`medpfl data masks`)"
            hint = f"; DICOM series are not read with masks: {made_of}" if dicom else ""
            hint += f"; {unread}" if unread else ""
            more = f" (and {len(lacking) - 1:,} more)" if len(lacking) > 1 else ""
            raise UserError(
                f"{root / lacking[0]}: the {what} of its own{more}: every image needs one mask; add it, or take "
                f"the file out of the folder{hint}"
            )
    if not made.found:
        raise UserError(f"{root}: no image with a mask is in it")
    volume = next((found.image for found in made.found if is_nifti(found.image)), None)
    picture = next((found.image for found in made.found if not is_nifti(found.image)), None)
    if volume and picture:
        raise UserError(
            f"{root}: {volume} is a volume and {picture} is a picture: give a folder with one of both kinds"
        )
    own = _is_one_site(root, made.found, reading, volume is not None)
    centres: dict[str, list[Pair]] = {}
    for found in made.found:
        found_pair = _pair(root, found, reading, own)
        centres.setdefault(found_pair.centre, []).append(found_pair)
    return Layout(
        root=root,
        name=root.resolve().name,
        form="volumes" if volume else "pictures",
        centres={name: tuple(centres[name]) for name in sorted(centres)},
        unlabelled=len(made.unlabelled),
        unread=unread,
    )


def _is_one_site(root: Path, found: Sequence[Found], reading: Reading, volumes: bool) -> bool:
    if reading.folders == "patients":
        return True
    outside = next((one for one in found if not _folders(one)), None)
    inside = next((one for one in found if _folders(one)), None)
    if outside and inside:
        raise UserError(
            f"{root}: {outside.image} lies beside the folder {inside.image.parts[0]}: move it into one of the sites' "
            "folders, or give the folder of one site"
        )
    if outside or reading.folders == "sites":
        return outside is not None
    return not volumes and all(
        len(_folders(one)) == 1 and not one.siblings and _is_numbered(one.name, one.above[0]) for one in found
    )


def _folders(found: Found) -> tuple[str, ...]:
    """Folders whose first may be a site: of siblings those above, else all but a case's own."""
    return found.above if found.siblings or found.name else found.above[:-1]


def _is_numbered(name: str, folder: str) -> bool:
    return name.isdecimal() or name.lower().startswith(folder.lower())


def _pair(root: Path, found: Found, reading: Reading, own: bool) -> Pair:
    known = _folders(found)
    centre = root.resolve().name if own else known[0]
    inner = (*(known if own else known[1:]), *found.below)
    called = found.name or (found.above[-1] if found.above else "image")
    ident = found.image.as_posix() if own else found.image.relative_to(known[0]).as_posix()
    if reading.patient:
        # A case's own folder is called after the patient, and its files are all called alike.
        patient = patient_in(root / found.image if found.name else Path(called), reading.patient)
    elif inner:
        patient = inner[0]
    else:
        patient = called if not found.name else ident
    patient = composed(patient)
    case = "/".join(inner) if inner else patient if reading.patient else ident
    if is_nifti(found.image):
        case = ident
    said = bool(reading.patient or inner or not found.name)
    return Pair(centre, patient, case, ident, root / found.image, root / found.mask, said=said)
