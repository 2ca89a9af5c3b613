"""Reads MedMNIST's npz files, and anyone's npz file with the same keys.

Keys: ``train_images``, ``train_labels`` and the same for ``val`` and ``test``. Images are (n, H, W) or (n, H, W, 3)
uint8, or volumes (n, D, H, H); labels (n,) or (n, 1) integers counted from 0, or (n, L) of L labels each: 1 there, 0
not there, -1 not known. A file of one's own may add, (n,) text or integers, ``train_sites`` and so on: the hospital of
each image, which the partition ``natural`` uses; and ``train_patients`` and so on: whose it is there.
"""

from __future__ import annotations

import hashlib
import math
import zipfile
import zlib
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from medpfl.core.errors import UserError
from medpfl.core.numbers_in_words import by, count
from medpfl.data.dataset import ImageDataset
from medpfl.data.files import composed
from medpfl.data.kinds.npz.medmnist import known_set
from medpfl.data.kinds.scans.label_columns import NO_LABEL

_PARTS = ("train", "val", "test")
_OTHERS = {
    ".csv": "a table: give its folder",
    ".nii": "one volume: give the folder of its table or its masks",
    ".gz": "compressed, as a NIfTI volume may be: give the folder of its table or its masks",
    ".dcm": "one DICOM file: give the folder of its table",
    ".xlsx": "a spreadsheet: save it as CSV, labels.csv, and give its folder",
}
_CHANNELS = {
    1: "if these are grey pictures with their channel first, (n, H, H) is right: images[:, 0]",
    3: "if these are colour pictures with their channels first, (n, H, H, 3) is right: images.transpose(0, 2, 3, 1)",
}
"""What volumes of so few slices may be meant for."""
_CHUNK = 1 << 20
_MOST_EDGE = 1024
"""Pixels, as of pictures in folders."""


def load(path: str | Path) -> ImageDataset:
    """Reads a file; besides the images themselves it needs a few megabytes of memory.

    Raises:
        UserError: the file is missing, damaged, or holds something else than labelled images.
    """
    path = Path(path)
    with _opened(path) as archive:
        return _read(path, archive)


def number_of_images(path: Path) -> int:
    """How many images a file has in all parts; the arrays' heads alone are read. UserError as in :func:`load`."""
    with _opened(path) as archive:
        _require_keys(path, archive)
        return sum(_image_shape(path, archive, part)[0] for part in _PARTS)


def channels_first(dataset: ImageDataset) -> str:
    """What volumes of one or three slices may be meant for, in words; empty of others and of pictures."""
    depth = dataset.images.shape[1]
    if not dataset.volumes or depth not in _CHANNELS:
        return ""
    return f"volumes of {count(depth, 'slice')}: {_CHANNELS[depth]}"


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """A file whose errors name it."""
    if not path.is_file():
        raise UserError(f"{path}: there is no such file" if not path.exists() else f"{path}: not a file but a folder")
    if kind := _OTHERS.get(path.suffix.lower()):
        raise UserError(f"{path}: {kind} ({path.parent})")
    try:
        with zipfile.ZipFile(path) as archive:
            if path.suffix.lower() == ".zip" and not any(name.endswith(".npy") for name in archive.namelist()):
                raise UserError(f"{path}: a zip: unpack it and give the folder")
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path}: damaged, cut short or not an npz file ({error}): get it again") from None
    except (OSError, RuntimeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    except MemoryError:
        raise UserError(f"{path}: its images do not fit into this machine's memory") from None


def several_labels(path: Path) -> bool:
    """Whether a file has several labels an image; its head alone is read, and what is wrong with it is said later."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open("train_labels.npy") as stream:
            shape, _, _ = header(path, stream, "train_labels")
    except (OSError, KeyError, zipfile.BadZipFile, zlib.error, EOFError, UserError):
        return False
    return len(shape) == 2 and shape[1] > 1


def file_md5(path: Path) -> str:
    """MD5 of a file's content, as hexadecimal digits."""
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _require_keys(path: Path, archive: zipfile.ZipFile) -> set[str]:
    """The arrays that are there; UserError if images or labels of a part are not."""
    present = {name.removesuffix(".npy") for name in archive.namelist()}
    if missing := [key for p in _PARTS for key in (f"{p}_images", f"{p}_labels") if key not in present]:
        raise UserError(
            f"{path}: has no {', '.join(missing)}: MedMNIST's keys are needed, of val and test with empty arrays if "
            f"there are no such parts (it has {_some(present)})"
        )
    return present


def _read(path: Path, archive: zipfile.ZipFile) -> ImageDataset:
    present = _require_keys(path, archive)
    known = known_set(path.stem)
    labels = [_labels(path, archive, part) for part in _PARTS]
    shapes = [_image_shape(path, archive, part) for part in _PARTS]
    for part, label, shape in zip(_PARTS, labels, shapes, strict=True):
        if len(label) != shape[0]:
            raise UserError(f"{path}: {part} has {shape[0]} images and {len(label)} labels; it must be one label each")
        if shape[1:] != shapes[0][1:]:
            raise UserError(f"{path}: {part}_images are {by(shape[1:])}, train_images {by(shapes[0][1:])}")
    if not len(labels[0]):
        raise UserError(f"{path}: train_images is empty")
    several = labels[0].ndim == 2
    if odd := next((part for part, label in zip(_PARTS, labels, strict=True) if (label.ndim == 2) != several), None):
        raise UserError(f"{path}: {odd}_labels and train_labels must both have one label an image, or several")
    classes = known.classes if known else _own_classes(path, labels)
    if several and (wrong := {label.shape[1] for label in labels} - {len(classes)}):
        raise UserError(f"{path}: has {min(wrong)} labels an image in one part and {len(classes)} are right")
    for part, label in zip(_PARTS, labels, strict=True):
        if not several and len(label) and not 0 <= label.min() <= label.max() < len(classes):
            wrong = label.min() if label.min() < 0 else label.max()
            raise UserError(f"{path}: {part}_labels has the label {wrong}; right are 0 to {len(classes) - 1}")
    sizes = {part: len(label) for part, label in zip(_PARTS, labels, strict=True)}

    def names(what: str) -> np.ndarray | None:
        return names_of_parts(path, what, sizes, present, lambda key: _small_array(path, archive, key))

    return ImageDataset(
        name=path.stem,
        images=_images(path, archive, shapes),
        labels=np.concatenate(labels),
        split=np.repeat(np.arange(3, dtype=np.int8), list(sizes.values())),
        classes=classes,
        source=str(path),
        md5=file_md5(path),
        site_ids=names("sites"),
        patients=names("patients"),
    )


def _own_classes(path: Path, labels: list[np.ndarray]) -> list[str]:
    if labels[0].ndim == 2:
        return [str(label) for label in range(labels[0].shape[1])]
    highest = max(int(label.max()) for label in labels if len(label))
    # The number of classes is taken from the labels, so one stray value must not make a billion of them.
    if highest >= max(2, sum(map(len, labels))):
        raise UserError(f"{path}: has the label {highest}, but fewer images; labels are the classes 0, 1, 2, ...")
    if highest < 1:
        raise UserError(f"{path}: all images have the label {highest}; at least the two classes 0 and 1 are needed")
    return [str(label) for label in range(highest + 1)]


def _labels(path: Path, archive: zipfile.ZipFile, part: str) -> np.ndarray:
    array = _small_array(path, archive, f"{part}_labels")
    if array.ndim == 2 and array.shape[1] > 1 and array.dtype.kind in "iub":
        labels = array.astype(np.int64)
        if array.size and not np.isin(labels, (-1, 0, 1)).all():
            wrong = labels[~np.isin(labels, (-1, 0, 1))][0]
            raise UserError(
                f"{path}: {part}_labels has {array.shape[1]} labels an image and the value {wrong}; right are "
                "1 (there), 0 (not there) and -1 (not known)"
            )
        return labels
    if array.ndim not in (1, 2) or array.dtype.kind not in "iu":
        raise UserError(
            f"{path}: {part}_labels is {_kind(array)} {by(array.shape)}; (n,) or (n, 1) integers are needed"
        )
    return array.reshape(-1).astype(np.int64)


def names_of_parts(
    path: Path, what: str, sizes: Mapping[str, int], present: Container[str], read: Callable[[str], np.ndarray]
) -> np.ndarray | None:
    """Names that a file has for its images, such as ``train_patients`` and so on, of all parts one after the other.

    Args:
        path: the file.
        what: ``patients`` or ``sites``.
        sizes: how many images each part has; one without any needs no names.
        present: the file's keys.
        read: the array of a key.

    Returns:
        (n,) text; None where no part has names.

    Raises:
        UserError: a part has names and another one has none, or they are not one for each image.
    """
    keys = {f"{part}_{what}": number for part, number in sizes.items() if f"{part}_{what}" in present or number}
    there = [key for key in keys if key in present]
    if not there:
        return None
    if missing := [key for key in keys if key not in present]:
        raise UserError(f"{path}: has {there[0]}, but no {', '.join(missing)}")
    names = np.concatenate([require_names(path, key, read(key), number) for key, number in keys.items()])
    if what == "patients":
        require_somebody(path, names, "images")
    return names


def require_somebody(path: Path, patients: np.ndarray, noun: str) -> None:
    """UserError where a patient's name says that nobody is known: all such samples would be one person's.

    Args:
        path: the file.
        patients: (n,) text.
        noun: what they are of, for the message.
    """
    if nobody := [name for name in patients.tolist() if name.lower() in NO_LABEL]:
        raise UserError(
            f"{path}: {len(nobody):,} {noun} are of the patient {nobody[0]!r}, who is nobody: give each whose patient "
            "is not known a name of its own"
        )


def _kind(array: np.ndarray) -> str:
    return "text" if array.dtype.kind == "U" else str(array.dtype)


def _small_array(path: Path, archive: zipfile.ZipFile, key: str) -> np.ndarray:
    with archive.open(f"{key}.npy") as stream:
        try:
            return np.lib.format.read_array(stream, allow_pickle=False)
        except ValueError as error:
            raise UserError(f"{path}: {key} is not a plain array ({error})") from None


def header(path: Path, stream: IO[bytes], key: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type of an array, of which its head alone is read; UserError where it is none."""
    try:
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        return read[np.lib.format.read_magic(stream)](stream)
    except (ValueError, KeyError) as error:
        raise UserError(f"{path}: {key} is not a plain array ({error})") from None


def _image_shape(path: Path, archive: zipfile.ZipFile, part: str) -> tuple[int, ...]:
    key = f"{part}_images"
    with archive.open(f"{key}.npy") as stream:
        shape, _, dtype = header(path, stream, key)
        announced, there = math.prod(shape), archive.getinfo(f"{key}.npy").file_size - stream.tell()
    if dtype != np.uint8:
        raise UserError(f"{path}: {key} is {dtype}; uint8 grey or colour values from 0 to 255 are needed")
    if len(shape) == 5:
        raise UserError(f"{path}: {key} is {by(shape)}; volumes are (n, D, H, H), of one channel")
    volumes = len(shape) == 4 and shape[3] > 4 and shape[2] == shape[3] and shape[1] > 0
    square = len(shape) in (3, 4) and shape[1] == shape[2] > 0 and shape[3:] in ((), (1,), (3,))
    if not (volumes or square):
        raise UserError(
            f"{path}: {key} is {by(shape)}; (n, H, H) or (n, H, H, 3), square images, or (n, D, H, H), volumes, are "
            "needed"
        )
    if announced != there:
        raise UserError(f"{path}: {key} announces {announced} bytes and has {there}: damaged, get it again")
    return shape[:3] if shape[-1] == 1 and len(shape) == 4 else shape


def _images(path: Path, archive: zipfile.ZipFile, shapes: list[tuple[int, ...]]) -> np.ndarray:
    """All parts in one array, decompressed in place: ``numpy.load`` and a concatenation would hold them twice."""
    images = np.empty((sum(shape[0] for shape in shapes), *shapes[0][1:]), dtype=np.uint8)
    start = 0
    for part, shape in zip(_PARTS, shapes, strict=True):
        target = images[start : start + shape[0]]
        start += shape[0]
        with archive.open(f"{part}_images.npy") as stream:
            stored_shape, fortran, _ = header(path, stream, f"{part}_images")
            if fortran:
                content = np.frombuffer(stream.read(), dtype=np.uint8)
                target[...] = content.reshape(stored_shape, order="F").reshape(shape)
            elif target.size:
                _fill(memoryview(target.reshape(-1)), stream)
    return images


def _fill(target: memoryview, stream: IO[bytes]) -> None:
    filled = 0
    while filled < len(target):
        chunk = stream.read(min(_CHUNK, len(target) - filled))
        if not chunk:
            raise EOFError("images end early")
        target[filled : filled + len(chunk)] = chunk
        filled += len(chunk)


def padded_edge(data_args: Mapping[str, Any], size: int) -> int:
    """The edge length of square images with ``pad`` pixels, or as they are; UserError for one that is none."""
    edge = data_args.get("pad", size)
    if type(edge) is not int or not size <= edge <= _MOST_EDGE:
        raise UserError(
            f"--data-arg pad={edge}: images of {size} pixels can be padded to {size} or more, {_MOST_EDGE:,} at most"
        )
    return edge


def require_names(path: Path, key: str, found: np.ndarray, number: int) -> np.ndarray:
    """Names, from text or whole numbers, one for each of so many; UserError for anything else."""
    if not number and not found.size:  # numpy's empty arrays are of floats
        return np.empty(0, dtype=str)
    if found.shape != (number,) or found.dtype.kind not in "iuU":
        raise UserError(f"{path}: {key} is {_kind(found)} {by(found.shape)}; text or integers, ({number},), are needed")
    names, rows = np.unique(found.astype(str), return_inverse=True)
    return np.array([composed(name.strip()) for name in names.tolist()], dtype=str)[rows]


def _some(keys: set[str], most: int = 8) -> str:
    names = sorted(keys)
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "") if names else "nothing"
