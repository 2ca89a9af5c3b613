"""How near what an attacker made comes to a site's images, and the pictures that show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from medpfl.core.whole_file import write_bytes

EXACT = 0.95
"""Correlation from which an image counts as recovered pixel by pixel."""

RECOGNISABLE = 0.7
"""Least correlation of a picture that shows whose image it is."""

_SHOWN = 24
"""Pairs in a picture, at most."""


@dataclass(frozen=True)
class Recovered:
    """An attack's images against a site's.

    Attributes:
        exact: training images with a picture of their own of correlation :data:`EXACT` or more.
        recognisable: those with a picture of their own of correlation :data:`RECOGNISABLE` or more that is nearer to
            them than any image of the test part is; below that it could be somebody else's.
        of: number of training images.
        candidates: how many pictures the attack made.
        psnr: mean peak signal-to-noise ratio of the recognisable ones after the best brightness and contrast, in dB;
            None if there are none.
        pairs: of the recognisable ones, best first: original (C, H, W) and picture (C, H, W).
    """

    exact: int
    recognisable: int
    of: int
    candidates: int
    psnr: float | None
    pairs: list[tuple[Tensor, Tensor]]

    def figures(self) -> dict[str, float | int | None]:
        """The numbers, for the report."""
        return {
            "exact": self.exact,
            "recognisable": self.recognisable,
            "of": self.of,
            "candidates": self.candidates,
            "psnr": None if self.psnr is None else round(self.psnr, 2),
        }


def correlations(a: Tensor, b: Tensor) -> Tensor:
    """Correlation of every image of ``a`` (n, C, H, W) with every one of ``b`` (m, C, H, W): (n, m).

    An image without contrast correlates with nothing.
    """
    return _standard(a) @ _standard(b).T


def recovered(made: Tensor, images: Mapping[str, Tensor]) -> Recovered:
    """Matches pictures to training images one to one, so that the sum of correlations is the greatest.

    Args:
        made: (k, C, H, W), brightness and contrast of any kind; k may be 0.
        images: a site's, by part.
    """
    train = images["train"]
    made = made[torch.isfinite(made.flatten(1)).all(1)] if len(made) else made
    if not len(made):
        return Recovered(0, 0, len(train), 0, None, [])
    table = correlations(train, made).numpy()
    others = correlations(train, images["test"]).amax(1).numpy() if "test" in images else np.zeros(len(train))
    rows, columns = linear_sum_assignment(-table)
    found = sorted(((float(table[r, c]), r, c) for r, c in zip(rows, columns, strict=True)), reverse=True)
    good = [(r, c) for value, r, c in found if value >= EXACT or value >= max(RECOGNISABLE, others[r])]
    pairs = [(train[r], _fitted(made[c], train[r])) for r, c in good]
    psnr = float(np.mean([_psnr(a, b) for a, b in pairs])) if pairs else None
    exact = sum(value >= EXACT for value, _, _ in found)
    return Recovered(exact, len(good), len(train), len(made), psnr, pairs)


def write_pairs(pairs: list[tuple[Tensor, Tensor]], file: Path) -> None:
    """Originals on the left of each pair, what the attack made of them on the right, four pairs a row; mode 0600."""
    from PIL import Image

    shown = [image for pair in pairs[:_SHOWN] for image in pair]
    if not shown:
        return
    pixels = ((torch.stack(shown).float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1)
    height, width = pixels.shape[1:3]
    rows = -(-len(shown) // 8)
    sheet = np.full((rows * (height + 2), 8 * (width + 2), 3), 255, dtype=np.uint8)
    for number, image in enumerate(pixels.numpy()):
        top, left = number // 8 * (height + 2), number % 8 * (width + 2)
        sheet[top : top + height, left : left + width] = image[..., :3] if image.shape[2] >= 3 else image[..., :1]
    zoom = max(1, 96 // max(height, width))
    picture = Image.fromarray(sheet).resize((sheet.shape[1] * zoom, sheet.shape[0] * zoom), Image.Resampling.NEAREST)
    content = BytesIO()
    picture.save(content, "PNG", optimize=True)
    write_bytes(file, content.getvalue(), mode=0o600)


def _standard(images: Tensor) -> Tensor:
    flat = images.flatten(1).double()
    flat = flat - flat.mean(1, keepdim=True)
    length = flat.norm(dim=1, keepdim=True)
    return torch.where(length > 1e-9, flat / length.clamp_min(1e-9), torch.zeros_like(flat))


def _fitted(made: Tensor, image: Tensor) -> Tensor:
    """The picture with the brightness and contrast that come nearest to the image."""
    a, b = made.double(), image.double()
    slope = ((a - a.mean()) * (b - b.mean())).mean() / a.var(correction=0).clamp_min(1e-12)
    return ((a - a.mean()) * slope + b.mean()).float()


def _psnr(image: Tensor, made: Tensor) -> float:
    """In dB; pixels range over 2, from -1 to 1."""
    error = float((image.double() - made.double()).square().mean())
    return 10 * float(np.log10(4 / max(error, 1e-12)))
