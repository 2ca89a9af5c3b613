"""Images of a file or a folder that no site of a run has, as its models take them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from medpfl.core.errors import UserError
from medpfl.core.gathered import gathered
from medpfl.core.site_data import scale
from medpfl.data.cifar import BINARY, ENDING, CifarImages, is_pickled
from medpfl.data.files import PICTURES, files_below, unread_pictures
from medpfl.data.kinds.folders.picture_file import upright
from medpfl.data.kinds.npz.catalog import open_dataset

_PICTURES = (*PICTURES, ".dcm")


def public_images(path: Path, count: int, shape: tuple[int, int, int], rng: np.random.Generator) -> Tensor:
    """Images of a file or a folder, drawn at random, as models of that input take them.

    Grey images become colour and the reverse; other sizes are resized (antialiased), whatever their proportions.

    Args:
        path: an npz file as :func:`medpfl.data.kinds.npz.npz_file.load` reads it; a file in CIFAR's binary format
            (:mod:`medpfl.data.cifar`); or a folder of such files, or of pictures and DICOM X-ray images
            (:func:`medpfl.data.kinds.folders.picture_file.upright`), in any sub-folder.
        count: how many; all if there are fewer.
        shape: (C, H, W).
        rng: draws them.

    Returns:
        (n, C, H, W) float32 in [-1, 1].

    Raises:
        UserError: there are no such images, or of two kinds; one of those drawn is broken: its file is named; or see
            :func:`gathered`.
    """
    pictures, binary = _files(path)
    if pictures:
        drawn = [pictures[i] for i in _drawn(rng, len(pictures), count)]
        return gathered(len(drawn), shape, lambda rows: torch.cat([fitted(_read(file), shape) for file in drawn[rows]]))
    if binary:
        cifar = CifarImages(binary)
        chosen = _drawn(rng, len(cifar), count)
        return gathered(len(chosen), shape, lambda rows: fitted(scale(cifar.read(chosen[rows])), shape))
    dataset = open_dataset(path)
    chosen = _drawn(rng, len(dataset), count)
    return gathered(len(chosen), shape, lambda rows: fitted(scale(dataset.images_chw(chosen[rows])), shape))


def _drawn(rng: np.random.Generator, there: int, count: int) -> np.ndarray:
    return np.sort(rng.permutation(there)[:count])


def _files(path: Path) -> tuple[list[Path], list[Path]]:
    """The pictures of a path, and its files in CIFAR's binary format; neither of an npz file.

    UserError for a folder without either or with both, and for what nobody should read or that has to be unpacked.
    """
    if is_pickled(path):
        raise UserError(f"{path}: {BINARY}")
    if path.name.lower().endswith((".tar", ".tar.gz", ".tgz")):
        raise UserError(f"{path}: an archive: unpack it and give the folder")
    if not path.is_dir():
        if path.suffix.lower() in PICTURES:
            raise UserError(f"{path}: one picture: give the folder that it lies in")
        return [], [path] if path.suffix.lower() == ENDING else []
    files = sorted(files_below(path))
    pictures = [file for file in files if file.suffix.lower() in _PICTURES]
    binary = [file for file in files if file.suffix.lower() == ENDING]
    if not pictures and not binary:
        known = f"{', '.join(_PICTURES)}, or {ENDING} in CIFAR's binary format; an npz file is given itself"
        raise UserError(f"{path}: the folder holds no image: {unread_pictures(files) or known}")
    if pictures and binary:
        raise UserError(f"{path}: pictures ({pictures[0].name}) and {binary[0].name}: give a folder of one of the two")
    return pictures, binary


def fitted(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """(n, C, H, W) images with the channels and the size of ``shape``."""
    channels, *size = shape
    if images.shape[1] != channels:
        images = images.mean(1, keepdim=True).expand(-1, channels, -1, -1)
    if tuple(images.shape[2:]) != tuple(size):
        images = interpolate(images, size=tuple(size), mode="bilinear", antialias=True)
    return images.contiguous()


def _read(file: Path) -> Tensor:
    pixels = np.array(upright(file, "RGB"))
    return scale(torch.from_numpy(pixels).permute(2, 0, 1)[None])
