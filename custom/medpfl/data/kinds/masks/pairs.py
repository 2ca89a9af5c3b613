"""Which image goes with which mask, from the names of a folder's files alone; none is opened.

Two ways to lay them out, below a site's folder or in the folder itself:

- ``NAME.png`` with ``NAME_mask.png`` (``_seg``, ``-label``) beside it, or ``image.nii.gz`` with ``mask.nii.gz``;
- sibling folders ``images`` and ``masks`` with the same names, or ``imagesTr`` and ``labelsTr``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from medpfl.data.files import NIFTI, PICTURES, composed, is_nifti, nifti_stem, walk

_IMAGES = ("images", "image", "imgs", "img", "cxr", "imagestr", "imagests")
_MASKS = ("masks", "mask", "segmentations", "segmentation", "labels", "label", "labelstr", "labelsts")
_MARKED = ("mask", "segmentation", "seg", "label")
_MARKS = tuple(sign + word for word in _MARKED for sign in "_-")
_CHANNEL = re.compile(r"_(\d{4})$")
"""What nnU-Net adds to an image's name for each of its channels."""


class Found(NamedTuple):
    """An image and its mask.

    Attributes:
        above: folders above the sibling folders, or above the files that lie side by side.
        below: folders below the sibling folders, none where files lie side by side.
        name: what both are called; empty where their folder is (``CASE/image.nii.gz``).
        image: path relative to the folder.
        mask: likewise.
        siblings: whether they lie in sibling folders.
    """

    above: tuple[str, ...]
    below: tuple[str, ...]
    name: str
    image: Path
    mask: Path
    siblings: bool


@dataclass
class Pairs:
    """What a folder's names say: pairs by path, images without a mask, masks without an image, images for nothing.

    Attributes:
        unlabelled: images of ``imagesTs`` where there is no ``labelsTs``: a public set keeps their masks.
    """

    found: list[Found] = field(default_factory=list)
    without_mask: list[Path] = field(default_factory=list)
    without_image: list[Path] = field(default_factory=list)
    unlabelled: list[Path] = field(default_factory=list)


def is_image(path: Path | str) -> bool:
    """Whether a file is called like a picture or NIfTI."""
    return str(path).lower().endswith(PICTURES + NIFTI)


def stem(path: Path) -> str:
    """A file's name without what tells its format, :func:`composed`: images and masks may come of two systems."""
    return composed(nifti_stem(path.name) if is_nifti(path) else path.stem)


def telling(image: Path) -> Path:
    """What of an image's path tells it from others: the file, or the folder of one that is called ``image``."""
    return image.parent if stem(image).lower() in ("image", "img") else image


def holds_masks(folder: Path) -> bool:
    """Whether a folder has an image with a mask, by the names of its files; it ends at the first."""
    here: Path | None = None
    names: set[str] = set()
    for file in walk(folder, lambda error: None):
        if not is_image(file):
            continue
        if file.parent != here:
            here, names = file.parent, set()
            if _has_sibling(file, folder):
                return True
        names.add(stem(file).lower())
        # Files come sorted: a mask after its image.
        if _image_beside(stem(file).lower(), names):
            return True
    return False


def pair(paths: Sequence[Path]) -> Pairs:
    """Pairs the files of a folder, given relative to it, pictures and NIfTI files alone."""
    made = Pairs()
    roles = _sibling_folders(paths)
    beside: dict[Path, list[Path]] = {}
    groups: dict[tuple[tuple[str, ...], str], tuple[list[Path], list[Path]]] = {}
    for path in paths:
        place = _in_siblings(path, roles)
        if place is None:
            beside.setdefault(path.parent, []).append(path)
            continue
        above, which = place
        groups.setdefault((above, _part(path.parts[len(above)])), ([], []))[which].append(path)
    for (above, part), (images, masks) in groups.items():
        if part == "ts" and not masks:
            made.unlabelled += images
        else:
            _pair_siblings(made, above, images, masks)
    for files in beside.values():
        _pair_beside(made, files)
    made.found.sort(key=lambda found: found.image.as_posix())
    return made


def masks_among(paths: Sequence[Path]) -> set[Path]:
    """Which of a folder's files, given relative to it, are masks by their names, with an image or without."""
    made = pair(paths)
    return {found.mask for found in made.found} | set(made.without_image)


def _has_sibling(file: Path, root: Path) -> bool:
    """Whether one of the folders that a file lies in, below ``root``, is of images, and one of masks beside it."""
    for folder in (file.parent, *file.parent.parents):
        if folder == root or root not in folder.parents:
            return False
        others = _MASKS if folder.name.lower() in _IMAGES else _IMAGES if folder.name.lower() in _MASKS else ()
        if others and any(b.name.lower() in others for b in folder.parent.iterdir() if b.is_dir()):
            return True
    return False


def _image_beside(name: str, names: Iterable[str]) -> str | None:
    """The name, among these, of the image that a mask of that name is of; None for what is no mask."""
    if name in _MARKED:
        return next((image for image in ("image", "img") if image in names), None)
    for mark in _MARKS:
        if name.endswith(mark) and (base := name.removesuffix(mark)) in names:
            return base
    return None


def _sibling_folders(paths: Sequence[Path]) -> set[tuple[str, ...]]:
    """Folders that have a folder of images and one of masks."""
    images, masks = set(), set()
    for path in paths:
        for depth, name in enumerate(path.parts[:-1]):
            if name.lower() in _IMAGES:
                images.add(path.parts[:depth])
            elif name.lower() in _MASKS:
                masks.add(path.parts[:depth])
    return images & masks


def _in_siblings(path: Path, roles: set[tuple[str, ...]]) -> tuple[tuple[str, ...], int] | None:
    """Above which sibling folders a file lies, and whether it is an image (0) or a mask (1)."""
    for depth, name in enumerate(path.parts[:-1]):
        if path.parts[:depth] in roles:
            if name.lower() in _IMAGES:
                return path.parts[:depth], 0
            if name.lower() in _MASKS:
                return path.parts[:depth], 1
    return None


def _part(folder: str) -> str:
    lower = folder.lower()
    return lower[-2:] if lower.endswith(("tr", "ts")) else ""


def _pair_siblings(made: Pairs, above: tuple[str, ...], images: Sequence[Path], masks: Sequence[Path]) -> None:
    depth = len(above) + 1

    def key(path: Path) -> tuple[tuple[str, ...], str]:
        return tuple(map(composed, path.parts[depth:-1])), stem(path)

    known = {key(mask): mask for mask in masks}
    for mask in masks:
        folders, name = key(mask)
        for mark in _MARKS:
            if name.lower().endswith(mark):
                known.setdefault((folders, name[: -len(mark)]), mask)
    used = set()
    for image in images:
        folders, name = key(image)
        mask = known.get((folders, name)) or known.get((folders, name := _CHANNEL.sub("", name)))
        if mask is None or mask in used:
            made.without_mask.append(image)
            continue
        used.add(mask)
        made.found.append(Found(above, folders, name, image, mask, True))
    made.without_image += [mask for mask in masks if mask not in used]


def _pair_beside(made: Pairs, files: Sequence[Path]) -> None:
    """Of the files of one folder."""
    names = {stem(file).lower() for file in files}
    masks: dict[str, Path] = {}
    for file in files:
        name = stem(file).lower()
        if name in _MARKED or name.endswith(_MARKS):
            if (image := _image_beside(name, names)) and image not in masks:
                masks[image] = file
            else:
                made.without_image.append(file)
    others = {*masks.values(), *made.without_image}
    for file in files:
        name = stem(file).lower()
        if file in others:
            continue
        if mask := masks.pop(name, None):
            own = "" if name in ("image", "img") else stem(file)
            made.found.append(Found(file.parts[:-1], (), own, file, mask, False))
        else:
            made.without_mask.append(file)
    made.without_image += masks.values()  # whose image is itself one's mask


def in_order(name: str) -> list[tuple[int, int | str]]:
    """A key by which names are sorted as people do: 2 before 10.

    >>> sorted(["10", "9", "a2", "a10"], key=in_order)
    ['9', '10', 'a2', 'a10']
    """
    pieces = filter(None, re.split(r"([0-9]+)", name))
    return [(0, int(piece)) if piece.isdecimal() else (1, piece) for piece in pieces]
