"""Images with masks in one npz file.

Keys: ``train_images``, (n, H, W) or (n, H, W, 3) uint8, and ``train_masks``, (n, H, W) whole numbers (or
``train_labels`` of that shape). As far as known: ``train_patients`` and ``train_sites``, (n,) text or numbers;
``train_spacing``, (n, 3) mm from slice to slice, row to row, column to column, or ``spacing``, (3,), for all; and
``classes``, their names. The same keys may be there for ``val`` and ``test``. A patient's images lie in the order of
its slices.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from medpfl.core.errors import UserError
from medpfl.core.numbers_in_words import by
from medpfl.core.plain import plain_problem
from medpfl.core.site_data import PARTS
from medpfl.data.kinds.masks.pair import Layout, Pair
from medpfl.data.kinds.npz.npz_file import header, names_of_parts

_KEYS = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class Arrays:
    """All parts' arrays, one after the other.

    Attributes:
        images: (n, C, H, W) uint8.
        masks: (n, H, W), whole numbers.
        spacing: (n, 3) mm; None where it is not known.
    """

    images: np.ndarray
    masks: np.ndarray
    spacing: np.ndarray | None


def is_masked_npz(path: Path) -> bool:
    """Whether an npz file has masks, by its keys and the shape of its labels."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            if "train_masks.npy" in names:
                return True
            return {"train_images.npy", "train_labels.npy"} <= names and len(_shape(path, archive, "train_labels")) > 2
    except (OSError, zipfile.BadZipFile, ValueError, UserError):
        return False


def read_index(path: Path, official: bool) -> Layout:
    """Whose the images are, and which part they are in where ``official``.

    Raises:
        UserError: the file is damaged, or its arrays do not fit each other.
    """
    with _opened(path) as file:
        sizes = {part: _shape(path, file.zip, f"{part}_images")[0] for part in _mask_keys(path, file)}
        sites, patients = (names_of_parts(path, what, sizes, file, file.__getitem__) for what in ("sites", "patients"))
        parts = [part for key, part in zip(_KEYS, PARTS, strict=True) for _ in range(sizes.get(key, 0))]
        centres: dict[str, list[Pair]] = {}
        for row, part in enumerate(parts):
            name = f"{row:07d}"
            centre = str(sites[row]) if sites is not None else path.stem
            patient = str(patients[row]) if patients is not None else name
            split, said = part if official else None, patients is not None
            pair = Pair(centre, patient, patient, name, path, path, split, said=said)
            centres.setdefault(centre, []).append(pair)
        classes = tuple(map(str, file["classes"])) if "classes" in file else ()
    if problem := plain_problem(classes, "classes"):
        raise UserError(f"{path}: {problem}")
    if not parts:
        raise UserError(f"{path}: train_images is empty")
    return Layout(path, path.stem, "arrays", {name: tuple(centres[name]) for name in sorted(centres)}, classes)


def read_arrays(path: Path) -> Arrays:
    """The images and masks of a file.

    Raises:
        UserError: the file is damaged, or holds something else; it says what.
    """
    with _opened(path) as file:
        keys = _mask_keys(path, file)
        images = [_images(path, file, key) for key in keys]
        masks = [_whole(path, file, name) for name in keys.values()]
        spacings = [_spacing(path, file, key, len(x)) for key, x in zip(keys, images, strict=True)]
    for key, name, x, y in zip(keys, keys.values(), images, masks, strict=True):
        if y.shape != (len(x), *x.shape[2:]):
            raise UserError(f"{path}: {name} is {by(y.shape)}; for {key}_images {by((len(x), *x.shape[2:]))} is needed")
        if x.shape[1:] != images[0].shape[1:]:
            raise UserError(f"{path}: {key}_images are {by(x.shape[1:])}, train_images {by(images[0].shape[1:])}")
    known = None if any(spacing is None for spacing in spacings) else np.concatenate(spacings)
    return Arrays(np.concatenate(images), np.concatenate(masks), known)


def image_shape(path: Path) -> tuple[int, int, int]:
    """Channels, height and width of the images; only the array's head is read."""
    try:
        with zipfile.ZipFile(path) as archive:
            shape = _shape(path, archive, "train_images")
    except (OSError, zipfile.BadZipFile, ValueError, KeyError) as error:
        raise UserError(f"{path}: damaged, cut short or not an npz file ({error}): get it again") from None
    if len(shape) not in (3, 4) or 0 in shape[1:]:
        raise UserError(f"{path}: train_images is {by(shape)}; (n, H, W) or (n, H, W, 3) is needed")
    return (shape[3] if len(shape) == 4 else 1), shape[1], shape[2]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """An npz file whose errors name it."""
    try:
        file = np.load(path, allow_pickle=False)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: damaged, cut short or not an npz file ({error}): get it again") from None
    with file:
        try:
            yield file
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{path}: damaged, or not plain arrays ({error}): get it again") from None


def _shape(path: Path, archive: zipfile.ZipFile, key: str) -> tuple[int, ...]:
    with archive.open(f"{key}.npy") as stream:
        return header(path, stream, key)[0]


def _mask_keys(path: Path, file: Any) -> dict[str, str]:
    """By part that is there, the key of its masks."""
    found = {}
    for part in _KEYS:
        if f"{part}_images" not in file:
            if part == "train":
                raise UserError(f"{path}: has no train_images (it has {', '.join(sorted(file)[:8])})")
            continue
        name = next((key for key in (f"{part}_masks", f"{part}_labels") if key in file), None)
        if name is None:
            raise UserError(f"{path}: has {part}_images and no {part}_masks")
        found[part] = name
    return found


def _images(path: Path, file: Any, part: str) -> np.ndarray:
    images = file[f"{part}_images"]
    pixels = images.ndim in (3, 4) and images.shape[3:] in ((), (1,), (3,)) and 0 not in images.shape[1:]
    if images.dtype != np.uint8 or not pixels:
        raise UserError(
            f"{path}: {part}_images is {images.dtype} {by(images.shape)}; uint8, (n, H, W) or (n, H, W, 3), is needed"
        )
    return images[:, None] if images.ndim == 3 else np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def _whole(path: Path, file: Any, name: str) -> np.ndarray:
    masks = file[name]
    if masks.dtype.kind not in "iub":
        raise UserError(f"{path}: {name} is {masks.dtype}; whole numbers, the classes, are needed")
    return masks.astype(np.uint8) if masks.dtype.kind == "b" else masks


def _spacing(path: Path, file: Any, part: str, number: int) -> np.ndarray | None:
    key = f"{part}_spacing" if f"{part}_spacing" in file else "spacing"
    if key not in file:
        return None
    found = file[key].astype(np.float64)
    if found.shape not in ((3,), (number, 3)) or not (np.isfinite(found).all() and (found > 0).all()):
        raise UserError(f"{path}: {key} is {by(found.shape)}; (3,) or ({number}, 3) lengths in mm, above 0, are needed")
    return np.broadcast_to(found, (number, 3))
