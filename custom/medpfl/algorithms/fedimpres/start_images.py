"""The images that a federated impression starts from: noise, a set that no site has, or public images."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from medpfl.algorithms.fedimpres.settings import ImpressionSettings
from medpfl.algorithms.mechanism import PublicImages, Source
from medpfl.core.errors import UserError
from medpfl.core.gathered import room
from medpfl.core.home import at_home
from medpfl.core.seeding import derive_seed
from medpfl.core.site_data import SiteData

_AT_ONCE = 64
"""Images of a centre that are brought to float32 together."""


def start_images(settings: ImpressionSettings, source: Source, public: PublicImages, seed: int) -> Tensor:
    """What ``start`` and ``images`` say, (n, C, H, W) float32, as models of the source's images take them.

    Raises:
        UserError: the data are no square pictures, ``start`` is a path that is not there, nothing is set aside, or the
            images need a temporary file and there is no space.
    """
    if not (arguments := source.model_arguments()):
        raise UserError("a federated impression needs the size of the images, which one's own loaders do not tell")
    count, size = settings.images, arguments["image_size"]
    if not isinstance(size, int):
        what = {1: "time series", 2: "pictures that are not square", 3: "volumes"}[len(size)]
        raise UserError(f"a federated impression is made of square pictures, and these data are {what}")
    shape = (arguments["in_channels"], size, size)
    if settings.start == "noise":
        return noise(count, shape, seed)
    rng = np.random.default_rng(derive_seed(seed, "impression", "start"))
    if settings.start == "holdout":
        try:
            return source.set_aside(count, rng)
        except UserError as error:
            raise UserError(f"start=holdout: {error}; use noise or a path of public images") from None
    if settings.start == "held-out":
        return of_centres(source.held_out(torch.device("cpu")), count, shape, rng)
    path = at_home(settings.start)
    if not path.exists():
        known = "an npz file, a file in CIFAR's binary format, or a folder of such or of pictures"
        raise UserError(
            f"start={settings.start}: there is no such path; use noise, holdout, held-out, or the path of {known}"
        )
    try:
        return public(path, count, shape, rng)
    except UserError as error:
        raise UserError(f"start: {error}") from None


def of_centres(
    centres: Mapping[str, SiteData], count: int, shape: tuple[int, int, int], rng: np.random.Generator
) -> Tensor:
    """At most ``count`` images of centres that take no part in training, (n, *shape) float32, without their labels.

    Raises:
        UserError: there are no such centres here.
    """
    total = sum(data.samples("test") for data in centres.values())
    if not total:
        raise UserError(
            "start=held-out: no centre that takes no part is on this machine; use noise or a path of images"
        )
    chosen = np.zeros(total, dtype=bool)
    chosen[rng.permutation(total)[:count]] = True
    drawn, begin = room(int(chosen.sum()), shape), 0
    filled = 0
    for data in centres.values():
        for images, _ in data.batches("test", _AT_ONCE):
            some = images[torch.from_numpy(chosen[begin : begin + len(images)])]
            drawn[filled : filled + len(some)] = some
            begin, filled = begin + len(images), filled + len(some)
    return drawn


def noise(count: int, shape: tuple[int, int, int], seed: int) -> Tensor:
    """(count, *shape) float32, standard normal."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "impression", "noise"))
    return room(count, shape).normal_(generator=generator)
