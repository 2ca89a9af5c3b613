"""How well masks are predicted, case by case: a patient's slices together, or a volume.

Only sums over a case are kept, no voxel, so that memory does not grow with the size of the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

from medpfl.core.errors import UserError
from medpfl.core.layers import evaluating
from medpfl.core.masked_data import Case, MaskedData, Spacing
from medpfl.core.quiet import quiet
from medpfl.core.site_data import Part, most_at_once
from medpfl.core.stopping import stop_if_asked
from medpfl.models import logits

_IMAGES = 64
"""Slices in a batch, fewer where they are large."""
_WINDOWS, _OVERLAP = 4, 0.25
"""Patches of a volume in a batch, and the share by which two overlap."""


@dataclass(frozen=True)
class Judged:
    """Sums over each case, (n, structures) float64: one column for every class but the background.

    Attributes:
        overlap: of the probabilities in the true structure.
        expected: of all probabilities.
        true: voxels of the structure.
        hit: voxels rightly predicted.
        predicted: voxels predicted.
        surface: 95th percentile of the distances between the surfaces, mm; NaN where it is not known or not defined.
    """

    overlap: np.ndarray
    expected: np.ndarray
    true: np.ndarray
    hit: np.ndarray
    predicted: np.ndarray
    surface: np.ndarray

    @property
    def dice(self) -> np.ndarray:
        """(n, structures): 2 |P T| / (|P| + |T|); NaN where the case has no such structure, as MONAI's DiceMetric."""
        with np.errstate(invalid="ignore"):
            return np.where(self.true > 0, 2 * self.hit / (self.predicted + self.true), np.nan)

    @property
    def volume_error(self) -> np.ndarray:
        """(n, structures): ||P| - |T|| / (|P| + |T|); NaN where the case has no such structure.

        1 minus Taha and Hanbury's VS (BMC Medical Imaging 15, 2015).
        """
        with np.errstate(invalid="ignore"):
            volumes = self.predicted + self.true
            return np.where(self.true > 0, np.abs(self.predicted - self.true) / volumes, np.nan)

    @classmethod
    def together(cls, parts: Sequence[Judged]) -> Judged:
        """Several sites' cases."""
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)))


def judge(model: nn.Module, data: MaskedData, part: Part, *, surfaces: bool) -> Judged:
    """Predicts a part's masks, with the model in eval mode.

    A case with an output that is not finite counts as if nothing were predicted there.

    Args:
        model: its output is (B, classes, ...), logits.
        data: the site's.
        part: of it.
        surfaces: with the distances between surfaces, which take time.

    Raises:
        UserError: a mask has a class that the network does not tell.
    """
    with evaluating(model), torch.inference_mode():
        rows = [_judged(case, predicted(model, case, data.window), surfaces) for case in data.cases(part)]
    return Judged(*(np.stack(column) for column in zip(*rows, strict=True)))


def at_once(image: Sequence[int]) -> int:
    """In a batch that is predicted: slices, (C, H, W), or patches, (C, D, H, W)."""
    return _WINDOWS if len(image) == len("CDHW") else min(_IMAGES, most_at_once(prod(image)))


def predicted(model: nn.Module, case: Case, window: tuple[int, ...] | None) -> Tensor:
    """Class probabilities of a case, (classes, S, H, W) or (classes, D, H, W), float32.

    Volumes by MONAI's sliding window: patches that overlap by a quarter, their logits weighted by a Gaussian.
    """
    if window is None:
        at_a_time = case.images.split(at_once(case.images.shape[1:]))
        found = [_logits(model, x).float().softmax(1) for x in at_a_time]
        return torch.cat(found).transpose(0, 1)
    from monai.inferers import sliding_window_inference

    around = {"padding_mode": "constant", "cval": float(case.images.min())}  # as training pads a small volume
    whole = sliding_window_inference(
        case.images, window, _WINDOWS, partial(_logits, model), overlap=_OVERLAP, mode="gaussian", **around
    )
    return whole[0].float().softmax(0)


def _logits(model: nn.Module, x: Tensor) -> Tensor:
    stop_if_asked()
    return logits(model(x))


def _judged(case: Case, probabilities: Tensor, surfaces: bool) -> Iterator[np.ndarray]:
    classes = len(probabilities)
    if not torch.isfinite(probabilities).all():
        probabilities = torch.zeros_like(probabilities)
        probabilities[0] = 1
    if (highest := int(case.mask.max())) >= classes:
        raise UserError(f"a mask has the class {highest}; the network tells {classes} classes, 0 to {classes - 1}")
    label = most_probable(probabilities)
    true, hard = (torch.stack([of == number for number in range(1, classes)]) for of in (case.mask, label))
    sums = (
        (probabilities[1:] * true).flatten(1).sum(1, dtype=torch.float64),
        probabilities[1:].flatten(1).sum(1, dtype=torch.float64),
        true.flatten(1).sum(1, dtype=torch.float64),
        (hard & true).flatten(1).sum(1, dtype=torch.float64),
        hard.flatten(1).sum(1, dtype=torch.float64),
    )
    yield from (column.cpu().numpy() for column in sums)
    unknown = not surfaces or case.spacing is None
    yield np.full(classes - 1, np.nan) if unknown else surface_distances(hard, true, case.spacing)


def most_probable(probabilities: Tensor) -> Tensor:
    """The class of each voxel, the first of equals: argmax over the first dimension, which is slow on some layouts.

    Args:
        probabilities: (classes, ...).
    """
    label, highest = torch.zeros_like(probabilities[0], dtype=torch.int16), probabilities[0]
    for number, of_class in enumerate(probabilities[1:], start=1):
        label[of_class > highest] = number
        highest = torch.maximum(highest, of_class)
    return label


def surface_distances(predicted: Tensor, true: Tensor, spacing: Spacing) -> np.ndarray:
    """The 95th percentile of the distances between the surfaces, in mm, by MONAI (HD95).

    NaN where the case has no such structure; where it was missed altogether, the diagonal of the image, which no
    distance exceeds.

    Args:
        predicted: (structures, D, H, W) bool.
        true: likewise.
        spacing: between slices, rows and columns, mm.
    """
    from monai.metrics import compute_hausdorff_distance

    sides = [n for n in true.shape[1:] if n > 1]
    steps = [s for s, n in zip(spacing, true.shape[1:], strict=True) if n > 1]
    diagonal = float(np.linalg.norm([n * s for n, s in zip(sides, steps, strict=True)]))
    there, found = (x.flatten(1).any(1).cpu().numpy() for x in (true, predicted))
    distances = np.where(there, diagonal, np.nan)
    if (both := there & found).any():
        images = [x[torch.from_numpy(both)].reshape(-1, 1, *sides).float().cpu() for x in (predicted, true)]
        with quiet():  # MONAI warns of its own call of its own function
            known = compute_hausdorff_distance(*images, include_background=True, percentile=95, spacing=steps)
        distances[both] = known.numpy()[:, 0]
    return distances
