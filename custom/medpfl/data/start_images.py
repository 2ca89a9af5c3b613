"""The images that a federated impression starts from: noise, a set that no site has, or public images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from medpfl import scratch
from medpfl.algorithms.base import Value
from medpfl.data.catalog import open_dataset
from medpfl.data.files import PICTURES
from medpfl.errors import UserError
from medpfl.seeding import derive_seed
from medpfl.site.data import scale

_AT_ONCE = 64
"""Images that are read and fitted at once."""


def start_images(settings: Mapping[str, Value], model_arguments: Mapping[str, Any], seed: int) -> Tensor:
    """What ``start`` and ``images`` say, for models of those arguments: noise or public images.

    Raises:
        UserError: ``start`` is a path that is not there, or the images need a temporary file and there is no space.
    """
    size = model_arguments["image_size"]
    shape = (model_arguments["in_channels"], size, size)
    if settings["start"] == "noise":
        return noise(int(settings["images"]), shape, seed)
    path = Path(str(settings["start"])).expanduser()
    if not path.exists():
        raise UserError(f"start={settings['start']}: use noise, holdout, or the path of an npz file or an image folder")
    return public_images(path, int(settings["images"]), shape, seed)


def noise(count: int, shape: tuple[int, int, int], seed: int) -> Tensor:
    """(count, *shape) float32, standard normal."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "impression", "noise"))
    return _room(count, shape).normal_(generator=generator)


def public_images(path: Path, count: int, shape: tuple[int, int, int], seed: int) -> Tensor:
    """Images of an npz file or an image folder, drawn with the seed, as models of that input take them.

    Grey images become colour and the reverse; other sizes are resized (antialiased).

    Args:
        path: an npz file as :func:`medpfl.data.medmnist.load` reads it, or a folder, with images in any sub-folder.
        count: how many; all if there are fewer.
        shape: (C, H, W).
        seed: the run's seed.

    Returns:
        (n, C, H, W) float32 in [-1, 1].

    Raises:
        UserError: no images are there, or one of those drawn is broken: its file is named; or see :func:`gathered`.
    """
    rng = np.random.default_rng(derive_seed(seed, "impression", "start"))
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in PICTURES)
        if not files:
            raise UserError(f"start={path}: the folder holds no image ({', '.join(PICTURES)})")
        drawn = [files[i] for i in np.sort(rng.permutation(len(files))[:count])]
        return gathered(len(drawn), shape, lambda rows: torch.cat([fitted(_read(file), shape) for file in drawn[rows]]))
    dataset = open_dataset(path)
    chosen = np.sort(rng.permutation(len(dataset))[:count])
    return gathered(len(chosen), shape, lambda rows: fitted(scale(dataset.images_chw(chosen[rows])), shape))


def gathered(count: int, shape: tuple[int, int, int], read: Callable[[slice], Tensor]) -> Tensor:
    """All images that ``read`` gives for rows ``first:last``, read a few at a time; a large set lies in a file.

    Returns:
        (count, *shape) float32; see :func:`medpfl.scratch.allocate`.

    Raises:
        UserError: the set needs a temporary file and there is no space.
    """
    images = _room(count, shape)
    for first in range(0, count, _AT_ONCE):
        rows = slice(first, min(first + _AT_ONCE, count))
        images[rows] = read(rows)
    return images


def _room(count: int, shape: tuple[int, int, int]) -> Tensor:
    try:
        return scratch.allocate((count, *shape), torch.float32)
    except OSError as error:
        raise UserError(f"{count} start images: {error}") from None


def fitted(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """(n, C, H, W) images with the channels and the size of ``shape``."""
    channels, *size = shape
    if images.shape[1] != channels:
        images = images.mean(1, keepdim=True).expand(-1, channels, -1, -1)
    if tuple(images.shape[2:]) != tuple(size):
        images = interpolate(images, size=tuple(size), mode="bilinear", antialias=True)
    return images.contiguous()


def _read(file: Path) -> Tensor:
    from PIL import Image

    try:
        with Image.open(file) as image:
            pixels = np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(
            f"start image {file} cannot be read ({error}); repair it or take it out of the folder"
        ) from None
    return scale(torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None])
