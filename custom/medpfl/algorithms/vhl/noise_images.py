"""Virtual images: what an untrained style-based generator makes of noise that is distributed otherwise in each class.

The paper takes an untrained StyleGAN-v2 (Karras, Laine, Aittala, Hellsten, Lehtinen, Aila: Analyzing and improving the
image quality of StyleGAN. CVPR 2020), whose code and weights are under a licence that forbids commercial use. None of
either is here: this is a small network written from that paper's description, with random weights. It has the mapping
of the latent vector, the constant start, convolutions of weights modulated and demodulated by the style, doubling of
the size, and images that are summed up over the sizes; it has at most 64 channels, where the published ones have 512,
so that a CPU makes the images in seconds. Noise added to each layer is left out: in VHL's code its weight begins as 0
and, untrained, stays so.

The latent vectors of class c are normal around a mean of its own, which is normal around 0, both with a standard
deviation of 0.3 in each of 64 dimensions, as there.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, log2

import torch
from torch import Tensor
from torch.nn.functional import conv2d, interpolate, leaky_relu, linear

from medpfl.core import scratch
from medpfl.core.seeding import generator

_LATENT = 64
_SPREAD = 0.3
_MOST_CHANNELS = 64
_MOST_WIDTH = 32 * 32
"""Channels times pixels of an edge, at most: larger images do not take longer by their number of channels too."""
_TOGETHER = 64
"""Images that are made at once."""


@lru_cache(maxsize=2)
def noise_images(seed: int, classes: int, each: int, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Images and labels, the same wherever they are made from the same seed; kept in memory for the next round.

    They are of 8 bits, as the paper's, which lie in files: so what a processor rounds otherwise makes no other images.

    Args:
        seed: of the run.
        classes: how many.
        each: images of a class.
        shape: (C, H, W).

    Returns:
        (classes * each, C, H, W) uint8, on the CPU; a large set lies in a file (:func:`medpfl.core.scratch.allocate`);
        and labels (classes * each,) int64.
    """
    draw = generator(seed, "virtual", "images")
    network = _Generator(shape, draw)
    means = _SPREAD * torch.randn(classes, _LATENT, generator=draw)
    labels = torch.arange(classes).repeat_interleave(each)
    images = scratch.allocate((len(labels), *shape), torch.uint8)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        for rows in torch.arange(len(labels)).split(_TOGETHER):
            latent = means[labels[rows]] + _SPREAD * torch.randn(len(rows), _LATENT, generator=draw)
            images[rows[0] : rows[-1] + 1] = network(latent).clamp(0, 1).mul(255).round().to(torch.uint8)
    return images, labels


class _Generator:
    """From latent vectors (n, 64) to images (n, C, H, W).

    Of twelve seeds 41 to 94 % of the values lie outside of [0, 1], where images end: most pixels are black or white.
    """

    def __init__(self, shape: tuple[int, int, int], draw: torch.Generator) -> None:
        channels, *self._size = shape
        edges = [2**power for power in range(2, max(3, ceil(log2(max(self._size)))) + 1)]
        widths = [min(_MOST_CHANNELS, max(4, _MOST_WIDTH // edge)) for edge in edges]

        def weights(*size: int) -> Tensor:
            return torch.randn(*size, generator=draw) / torch.tensor(size[1:]).prod().sqrt()

        self._mapping = weights(_LATENT, _LATENT)
        self._start = torch.randn(1, widths[0], 4, 4, generator=draw)
        before = [widths[0], *widths[:-1]]
        # The first size has one convolution, each further one two.
        self._layers = [
            [(weights(n, n_in, 3, 3), weights(n_in, _LATENT)) for n_in in ((a, n) if i else (a,))]
            for i, (a, n) in enumerate(zip(before, widths, strict=True))
        ]
        self._to_image = [(weights(channels, n, 1, 1), weights(n, _LATENT)) for n in widths]

    def __call__(self, latent: Tensor) -> Tensor:
        unit = latent / latent.square().mean(1, keepdim=True).sqrt()
        style = leaky_relu(linear(unit, self._mapping), 0.2) * 2**0.5
        x, image = self._start.expand(len(latent), -1, -1, -1), None
        for layers, (to_image, to_style) in zip(self._layers, self._to_image, strict=True):
            if image is not None:
                x, image = _doubled(x), _doubled(image)
            for weight, styles in layers:
                x = leaky_relu(_modulated(x, weight, 1 + linear(style, styles), demodulate=True), 0.2) * 2**0.5
            seen = _modulated(x, to_image, 1 + linear(style, to_style), demodulate=False)
            image = seen if image is None else image + seen
        return interpolate(image, size=self._size, mode="bilinear", antialias=True)


def _modulated(x: Tensor, weight: Tensor, style: Tensor, *, demodulate: bool) -> Tensor:
    """A convolution of weights that each image scales by its style, and whose outputs have then unit variance again."""
    out = conv2d(x * style[:, :, None, None], weight, padding=weight.shape[-1] // 2)
    if not demodulate:
        return out
    norm = style.square() @ weight.square().sum((2, 3)).T
    return out * (norm + 1e-8).rsqrt()[:, :, None, None]


def _doubled(x: Tensor) -> Tensor:
    return interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
