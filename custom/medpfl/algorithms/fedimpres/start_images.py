"""The images that a federated impression starts from: noise, a set that no site has, or public images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from medpfl.core.errors import UserError
from medpfl.core.seeding import derive_seed
from medpfl.core.settings import Value
from medpfl.core.site_data import scale
from medpfl.data.files import PICTURES
from medpfl.data.gathered import gathered, room
from medpfl.data.kinds.npz.catalog import open_dataset

if TYPE_CHECKING:
    from medpfl.data.source import DataSource


def start_images(settings: Mapping[str, Value], source: DataSource, seed: int) -> Tensor:
    """What ``start`` and ``images`` say, (n, C, H, W) float32, as models of the source's images take them.

    Raises:
        UserError: ``start`` is a path that is not there, nothing is set aside, or the images need a temporary file and
            there is no space.
    """
    if not (arguments := source.model_arguments()):
        raise UserError("a federated impression needs the size of the images, which one's own loaders do not tell")
    count, size = int(settings["images"]), arguments["image_size"]
    shape = (arguments["in_channels"], size, size)
    if settings["start"] == "noise":
        return noise(count, shape, seed)
    if settings["start"] == "holdout":
        try:
            return source.set_aside(count, np.random.default_rng(derive_seed(seed, "impression", "start")))
        except UserError as error:
            raise UserError(f"start=holdout: {error}; use noise or a path of public images") from None
    path = Path(str(settings["start"])).expanduser()
    if not path.exists():
        raise UserError(f"start={settings['start']}: use noise, holdout, or the path of an npz file or an image folder")
    return public_images(path, count, shape, seed)


def noise(count: int, shape: tuple[int, int, int], seed: int) -> Tensor:
    """(count, *shape) float32, standard normal."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "impression", "noise"))
    return room(count, shape).normal_(generator=generator)


def public_images(path: Path, count: int, shape: tuple[int, int, int], seed: int) -> Tensor:
    """Images of an npz file or an image folder, drawn with the seed, as models of that input take them.

    Grey images become colour and the reverse; other sizes are resized (antialiased).

    Args:
        path: an npz file as :func:`medpfl.data.kinds.npz.npz_file.load` reads it, or a folder, with images in any
        sub-folder.
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
