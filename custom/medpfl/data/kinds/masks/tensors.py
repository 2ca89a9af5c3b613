"""A site's decoded images and masks as training sees them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from medpfl.core.errors import UserError
from medpfl.core.masked_data import MaskedImages, MaskedVolumes, Spacing
from medpfl.core.site_data import PARTS, Part
from medpfl.data.kinds.masks.cache import Decoded
from medpfl.data.kinds.masks.classes_of import require_one_structure
from medpfl.data.kinds.masks.pair import Pair
from medpfl.data.kinds.masks.pairs import in_order
from medpfl.data.kinds.masks.reading import Reading

Parts = Mapping[Part, Sequence[Pair]]


def slices(parts: Parts, decoded: Mapping[Pair, Decoded], shape: Sequence[int], device: torch.device) -> MaskedImages:
    """Pictures or slices, a case's one after the other; ``shape`` is an image's, (C, H, W)."""
    chosen, found = _in_place(parts, decoded)
    number = {part: torch.tensor([len(one.mask) for one in found[part]], dtype=torch.long) for part in PARTS}

    def whose(name: str) -> dict[Part, Tensor]:
        keys = {part: [(pair.patient, getattr(pair, name)) for pair in chosen[part]] for part in PARTS}
        return {part: _numbers(keys[part]).repeat_interleave(number[part]).to(device) for part in PARTS}

    return MaskedImages(
        images={part: _joined([one.image for one in found[part]], shape).to(device) for part in PARTS},
        labels={part: _joined([one.mask for one in found[part]], shape[1:]).to(device) for part in PARTS},
        patients=whose("case"),
        persons=whose("patient"),
        spacings=_spacings(chosen, found),
    )


def volumes(parts: Parts, decoded: Mapping[Pair, Decoded], how: Reading, device: torch.device) -> MaskedVolumes:
    """Volumes, each a case, in patches as ``how`` says."""
    chosen, found = _in_place(parts, decoded)
    return MaskedVolumes(
        images={part: [one.image for one in found[part]] for part in PARTS},
        masks={part: [one.mask for one in found[part]] for part in PARTS},
        window=how.patch,
        patches=how.patches,
        foreground=how.foreground,
        spacings=_spacings(chosen, found),
        persons={part: _numbers([pair.patient for pair in chosen[part]]).to(device) for part in PARTS},
        device=device,
    )


def _in_place(
    parts: Parts, decoded: Mapping[Pair, Decoded]
) -> tuple[dict[Part, list[Pair]], dict[Part, list[Decoded]]]:
    chosen = {part: sorted(parts[part], key=_place) for part in PARTS}
    return chosen, {part: [decoded[pair] for pair in chosen[part]] for part in PARTS}


def require_alike(found: Mapping[Pair, Decoded], count: int, reading: Reading) -> None:
    """UserError if a site's masks mean different things by their values, or some volumes look like CT and some not."""
    require_one_structure({pair.mask: one.values for pair, one in found.items()}, count, reading.values)
    if reading.normalise == "auto":
        looks = {one.ct: pair.image for pair, one in found.items()}
        if True in looks and False in looks:
            raise UserError(
                f"{looks[True]} looks like CT (values below -200) and {looks[False]} does not: say --data-arg "
                "normalise=window, zscore or percentile"
            )


def _place(pair: Pair) -> tuple[Any, ...]:
    """Cases by patient, and a case's slices in the order that their names count."""
    return pair.patient, pair.case, in_order(pair.id)


def _numbers(names: Sequence[Hashable]) -> Tensor:
    """From 0, in the order in which they come."""
    known = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return torch.tensor([known[name] for name in names], dtype=torch.long)


def _joined(tensors: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    return torch.cat(list(tensors)) if tensors else torch.empty(0, *shape, dtype=torch.uint8)


def _spacings(
    chosen: Mapping[Part, Sequence[Pair]], found: Mapping[Part, Sequence[Decoded]]
) -> dict[Part, list[Spacing]]:
    """Of each case, that of its first image; empty unless all are known."""
    by_part: dict[Part, list[Spacing]] = {}
    for part in PARTS:
        first: dict[tuple[str, str], Spacing | None] = {}
        for pair, one in zip(chosen[part], found[part], strict=True):
            first.setdefault((pair.patient, pair.case), one.spacing)
        by_part[part] = [mm for mm in first.values() if mm is not None]
        if len(by_part[part]) < len(first):
            return {}
    return by_part
