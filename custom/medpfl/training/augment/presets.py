"""Presets: random changes that leave a picture of its kind one that might have been taken.

All are tensor operations on a whole batch, each sample with numbers of its own: one grid and one sampling for what
moves pixels, and a curve, contrast, brightness and noise for intensities. A bag's or a volume's slices are changed
alike, in their plane: across it the distance between voxels is another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from medpfl.core.errors import UserError


@dataclass(frozen=True)
class Ranges:
    """The most that a sample is changed; every number is drawn evenly between its two limits.

    Attributes:
        rotation: degrees either way.
        zoom: the side is scaled by 1 - zoom to 1 + zoom.
        shift: share of the side, either way.
        mirrored: of the axes (rows, columns), which may be turned round, with probability 1/2.
        gamma: the intensities' exponent is from 1 - gamma to 1 / (1 - gamma), within the sample's own range.
        contrast: intensities' distances from their mean are scaled by 1 - contrast to 1 + contrast.
        brightness: share of the sample's range, either way.
        noise: standard deviation of Gaussian noise, from 0 to this share of the sample's range.
    """

    rotation: float = 0.0
    zoom: float = 0.0
    shift: float = 0.0
    mirrored: tuple[bool, bool] = (False, False)
    gamma: float = 0.0
    contrast: float = 0.0
    brightness: float = 0.0
    noise: float = 0.0

    @property
    def moves(self) -> bool:
        """Whether pixels move."""
        return bool(self.rotation or self.zoom or self.shift or any(self.mirrored))

    @property
    def recolours(self) -> bool:
        """Whether intensities change."""
        return bool(self.gamma or self.contrast or self.brightness or self.noise)

    def twice(self) -> Ranges:
        """Twice as strong; a half turn is all there is."""
        names = ("rotation", "zoom", "shift", "gamma", "contrast", "brightness", "noise")
        doubled = {name: 2 * getattr(self, name) for name in names}
        return replace(self, **doubled | {"rotation": min(180.0, 2 * self.rotation)})


LIGHT = {
    # Where the kind of picture is not said: nothing that is wrong for any of them.
    "": Ranges(rotation=10, zoom=0.1, shift=0.05, gamma=0.1, contrast=0.1, brightness=0.05, noise=0.02),
    # Hounsfield units are calibrated, so intensities hardly change. The liver is on one side: nothing is mirrored.
    "ct": Ranges(rotation=10, zoom=0.1, shift=0.05, contrast=0.02, brightness=0.02, noise=0.02),
    # Intensities have no unit and differ between scanners.
    "mr": Ranges(rotation=10, zoom=0.1, shift=0.05, gamma=0.2, contrast=0.15, brightness=0.1, noise=0.03),
    # Patients stand upright before the detector, with the heart on one side; exposure differs.
    "xray": Ranges(rotation=5, zoom=0.1, shift=0.05, gamma=0.2, contrast=0.15, brightness=0.1, noise=0.02),
    # Cells and tissue lie as they fall; stains differ.
    "microscopy": Ranges(
        rotation=180, zoom=0.1, shift=0.05, mirrored=(True, True), gamma=0.1, contrast=0.1, brightness=0.1, noise=0.02
    ),
}
"""By kind of picture."""
PRESETS = {
    f"{strength}:{kind}" if kind else strength: ranges if strength == "light" else ranges.twice()
    for kind, ranges in LIGHT.items()
    for strength in ("light", "strong")
}
"""By the names of ``--augment``."""


class Preset:
    """Changes batches within ranges."""

    def __init__(self, ranges: Ranges):
        self.ranges = ranges

    def __call__(self, x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A batch, changed.

        Args:
            x: images (B, C, H, W), volumes (B, C, D, H, W) or bags of slices (B, S, C, H, W).
            y: classes (B,), or masks (B, H, W) or (B, D, H, W) of whole numbers, which move as the images do.
            generator: on the CPU, whatever the device: every engine draws the same.
        """
        if x.ndim < 4:
            raise UserError(f"augment: presets change images, and samples here are of shape {list(x.shape[1:])}")
        ranges, draws = self.ranges, torch.rand(len(x), 9, generator=generator)
        masked = y.ndim == x.ndim - 1
        if ranges.moves:
            grid = affine_grid(
                _matrices(ranges, draws[:, :6], x.shape), [len(x), 1, *x.shape[-2:]], align_corners=False
            )
            grid = grid.to(x.device, non_blocking=True)
            planes = x.flatten(1, -3)
            x = grid_sample(planes, grid, padding_mode="border", align_corners=False).view_as(x)
            if masked:
                planes = y.view(len(y), -1, *y.shape[-2:]).float()
                y = grid_sample(planes, grid, "nearest", "border", align_corners=False).view_as(y).to(y.dtype)
        return (_recoloured(ranges, x, draws[:, 6:], generator) if ranges.recolours else x), y


def _matrices(ranges: Ranges, draws: Tensor, shape: torch.Size) -> Tensor:
    """Where each pixel comes from, (B, 2, 3), in torch's coordinates from -1 to 1 (columns first).

    Rotation and zoom are of pixels: of a picture that is no square the coordinates are scaled before and after.
    """
    even = 2 * draws - 1
    angle, zoom = torch.deg2rad(even[:, 0] * ranges.rotation), 1 + even[:, 1] * ranges.zoom
    rows, columns = (torch.where((draws[:, 2 + i] < 0.5) & torch.tensor(ranges.mirrored[i]), -1.0, 1.0) for i in (0, 1))
    height, width = shape[-2:]
    cos, sin = angle.cos() / zoom, angle.sin() / zoom
    first = torch.stack((columns * cos, -rows * sin * height / width, even[:, 4] * 2 * ranges.shift), 1)
    second = torch.stack((columns * sin * width / height, rows * cos, even[:, 5] * 2 * ranges.shift), 1)
    return torch.stack((first, second), 1)


def _recoloured(ranges: Ranges, x: Tensor, draws: Tensor, generator: torch.Generator) -> Tensor:
    """Intensities from 0 to 1 within each sample's range: curve, contrast, brightness, noise; then as they were."""
    flat = x.flatten(1)
    least, most = flat.aminmax(dim=1, keepdim=True)
    span = (most - least).clamp(min=torch.finfo(x.dtype).tiny)
    curve, contrast, brightness = (2 * draws - 1).to(x.device, non_blocking=True).split(1, dim=1)
    found = (flat - least).div_(span)
    if ranges.gamma:
        found.pow_((1 - ranges.gamma) ** curve)
    if ranges.contrast or ranges.brightness:
        factor = 1 + contrast * ranges.contrast
        mean = found.mean(1, keepdim=True)
        found.mul_(factor).add_(mean * (1 - factor) + brightness * ranges.brightness)
    if ranges.noise:
        deviation = torch.rand(len(x), 1, generator=generator).to(x.device, non_blocking=True) * ranges.noise
        found.addcmul_(_noise(found, generator), deviation)
    return found.mul_(span).add_(least).view_as(x)


def _noise(like: Tensor, generator: torch.Generator) -> Tensor:
    """Gaussian, drawn where the images are."""
    if like.device.type == "cpu":
        return torch.randn(like.shape, generator=generator)
    seed = int(torch.randint(2**62, (), generator=generator))
    return torch.randn(like.shape, device=like.device, generator=torch.Generator(like.device).manual_seed(seed))
