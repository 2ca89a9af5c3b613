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
from medpfl.data.files import PICTURES
from medpfl.data.kinds.npz.catalog import open_dataset


def public_images(path: Path, count: int, shape: tuple[int, int, int], rng: np.random.Generator) -> Tensor:
    """Images of an npz file or an image folder, drawn at random, as models of that input take them.

    Grey images become colour and the reverse; other sizes are resized (antialiased).

    Args:
        path: an npz file as :func:`medpfl.data.kinds.npz.npz_file.load` reads it, or a folder, with images in any
        sub-folder.
        count: how many; all if there are fewer.
        shape: (C, H, W).
        rng: draws them.

    Returns:
        (n, C, H, W) float32 in [-1, 1].

    Raises:
        UserError: no images are there, or one of those drawn is broken: its file is named; or see :func:`gathered`.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in PICTURES)
        if not files:
            raise UserError(f"{path}: the folder holds no image ({', '.join(PICTURES)})")
        drawn = [files[i] for i in np.sort(rng.permutation(len(files))[:count])]
        return gathered(len(drawn), shape, lambda rows: torch.cat([fitted(_read(file), shape) for file in drawn[rows]]))
    dataset = open_dataset(path)
    chosen = np.sort(rng.permutation(len(dataset))[:count])
    return gathered(len(chosen), shape, lambda rows: fitted(scale(dataset.images_chw(chosen[rows])), shape))


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
        raise UserError(f"image {file} cannot be read ({error}); repair it or take it out of the folder") from None
    return scale(torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None])
