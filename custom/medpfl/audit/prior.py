"""Images that an attacker makes without any data: smooth random fields with random ellipses.

Natural and medical images have power spectra near 1/f^2 (Field, JOSA A 4, 1987), and organs have edges.
"""

from __future__ import annotations

import torch
from torch import Tensor

_EACH = 6
"""Ellipses in an image."""


def prior_images(count: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Random images (count, C, H, W) in [-1, 1]; or bags of them, as the shape says."""
    *bag, channels, height, width = shape
    images = count * (bag[0] if bag else 1)
    fields = _fields(images * channels, height, width, generator) + _ellipses(
        images * channels, height, width, generator
    )
    contrast = 0.2 + 0.6 * torch.rand(len(fields), 1, 1, generator=generator)
    brightness = 1.2 * torch.rand(len(fields), 1, 1, generator=generator) - 0.6
    deviation = fields.std((1, 2), keepdim=True).clamp_min(1e-6)
    pixels = (fields - fields.mean((1, 2), keepdim=True)) / deviation * contrast + brightness
    return pixels.clamp(-1, 1).reshape(count, *shape)


def _fields(count: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    rows, columns = torch.fft.fftfreq(height), torch.fft.rfftfreq(width)
    frequency = (rows[:, None].square() + columns.square()).sqrt()
    frequency[0, 0] = 1.0
    power = 1 + torch.rand(count, 1, 1, generator=generator)
    noise = torch.fft.rfft2(torch.randn(count, height, width, generator=generator))
    field = torch.fft.irfft2(noise / frequency**power, s=(height, width))
    return (field - field.mean((1, 2), keepdim=True)) / field.std((1, 2), keepdim=True).clamp_min(1e-6)


def _ellipses(count: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    y, x = torch.linspace(-1, 1, height)[:, None], torch.linspace(-1, 1, width)
    picture = torch.zeros(count, height, width)
    for _ in range(_EACH):
        cy, cx, a, b, angle, grey = (torch.rand(count, 1, 1, generator=generator) for _ in range(6))
        dy, dx = y - (2 * cy - 1), x - (2 * cx - 1)
        angle = angle * torch.pi
        u, v = dx * angle.cos() + dy * angle.sin(), dy * angle.cos() - dx * angle.sin()
        inside = (u / (0.15 + 0.7 * a)).square() + (v / (0.15 + 0.7 * b)).square() < 1
        picture = picture + inside * (3 * grey - 1.5)
    return picture
