"""Pictures of test cases with the true and the predicted structure outlined, for whoever has the data."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from medpfl.core.layers import evaluating
from medpfl.core.masked_data import Case, MaskedData
from medpfl.core.picture import png
from medpfl.tasks.segmentation.judging import most_probable, predicted

TRUE, PREDICTED = (86, 180, 233), (230, 159, 0)
"""Sky blue and orange (Okabe and Ito), which those who see colours otherwise tell apart, too."""
_EDGE = 224
"""Least length of a picture's longer side, in pixels."""


def outlined(model: nn.Module, data: MaskedData, dice: np.ndarray) -> list[dict[str, Any]]:
    """The best, the median and the worst test case, each by the slice where the true structures are largest.

    Args:
        model: on the data's device; is afterwards what it was.
        data: the site's.
        dice: of each case, (n,); NaN where it is not defined, which are not shown.

    Returns:
        For each ``which`` it is, its number as ``case``, its ``dice`` and a ``picture``, a PNG as a ``data:`` URI.
    """
    known = [int(i) for i in np.argsort(dice, kind="stable") if np.isfinite(dice[i])]
    if not known:
        return []
    words = dict(zip((known[-1], known[(len(known) - 1) // 2], known[0]), ("best", "median", "worst"), strict=True))
    with evaluating(model), torch.inference_mode():
        found = {
            i: _picture(case, predicted(model, case, data.window))
            for i, case in enumerate(data.cases("test"))
            if i in words
        }
    return [{"which": words[i], "case": i + 1, "dice": float(dice[i]), "picture": found[i]} for i in words]


def _picture(case: Case, probabilities: Tensor) -> str:
    true, guess = case.mask.cpu(), most_probable(probabilities).cpu()
    slice_ = int((true > 0).flatten(1).sum(1).argmax())
    slices = case.images if case.images.ndim == 4 else case.images[0].transpose(0, 1)
    pixels = _grey_or_rgb(slices[slice_].float().cpu())
    times = max(1, -(-_EDGE // max(pixels.shape[:2])))
    pixels = pixels.repeat(times, 0).repeat(times, 1)
    for mask, colour in ((true[slice_], TRUE), (guess[slice_], PREDICTED)):
        large = mask.numpy().repeat(times, 0).repeat(times, 1)
        pixels[_border(large)] = colour
    return png(pixels)


def _grey_or_rgb(image: Tensor) -> np.ndarray:
    """(C, H, W) of any range to (H, W, 3) from 0 to 255; of other than three channels the first."""
    shown = image if len(image) == 3 else image[:1].expand(3, -1, -1)
    low, high = shown.quantile(0.01), shown.quantile(0.995)
    unit = ((shown - low) / (high - low).clamp(min=1e-6)).clamp(0, 1)
    return (255 * unit).round().numpy().astype(np.uint8).transpose(1, 2, 0).copy()


def _border(labels: np.ndarray) -> np.ndarray:
    """(H, W): the inner edge of every structure."""
    wide = np.pad(labels, 1, mode="edge")
    centre = wide[1:-1, 1:-1]
    neighbours = (wide[:-2, 1:-1], wide[2:, 1:-1], wide[1:-1, :-2], wide[1:-1, 2:])
    return (centre > 0) & np.any([centre != other for other in neighbours], axis=0)
