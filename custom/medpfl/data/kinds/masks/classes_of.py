"""From a mask's values to classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from medpfl.core.errors import UserError
from medpfl.data.kinds.masks.reading import first_of

_ROUNDED = 1e-4
"""How far from a whole number a mask's value may be: 255 times a slope of 1/255, as files have it, is 1.00000006."""

_MANY = 10
"""So many values that are no classes may be a mistake of naming; more rather come from between pixels."""


def values_in(mask: np.ndarray) -> tuple[int, ...]:
    """The values of a mask, sorted; ValueError if they are no whole numbers but for a header's rounded scale."""
    if mask.dtype == np.uint8:
        return tuple(np.flatnonzero(np.bincount(mask.reshape(-1), minlength=256)).tolist())
    found = np.unique(mask)
    if mask.dtype.kind == "f":
        whole = np.isfinite(found) & (np.abs(found - np.rint(found)) <= _ROUNDED)
        if not whole.all():
            raise ValueError(f"has the value {found[~whole][0]:g}; the classes of a mask are whole numbers")
        found = np.unique(np.rint(found))
    return tuple(found.astype(np.int64).tolist())


def to_classes(
    mask: np.ndarray, present: Sequence[int], count: int, values: Sequence[Sequence[int]] | None
) -> np.ndarray:
    """The classes of a mask, uint8 of its shape.

    Args:
        mask: whole numbers, but for rounding.
        present: :func:`values_in` of it.
        count: number of classes, with the background.
        values: see :class:`~medpfl.data.kinds.masks.reading.Reading`.

    Raises:
        ValueError: a value is no class; the message goes on after the mask's name.
    """
    if mask.dtype.kind == "f":
        mask = np.rint(mask)
    if values is None and count == 2 and len([value for value in present if value]) < 2:
        return (mask != 0).astype(np.uint8)
    known = {value: label for label, of_class in enumerate(values) for value in of_class} if values else {}
    known = known or {label: label for label in range(count)}
    if wrong := [value for value in present if value not in known]:
        if len(wrong) > _MANY:
            raise ValueError(
                f"has {len(present)} values, {first_of(present)}: was it resized with interpolation, which mixes "
                "classes? Then make it again by the nearest pixel; if all these values are classes, name them with "
                "--data-arg classes or values"
            )
        if values:
            right = f"--data-arg values names {first_of(sorted(known))}"
        elif count == 2:
            right = (
                "with two classes a mask has 0 and one other value: name the classes (--data-arg "
                "classes=background,A,B), or the values of each (--data-arg 'values=[0, [1, 2]]')"
            )
        else:
            right = f"there are {count} classes, 0 to {count - 1}; --data-arg values says which values mean them"
        what = first_of(present) if count == 2 and not values else first_of(wrong)
        raise ValueError(f"has the value{'s' * (',' in what)} {what}, and {right}")
    if not present:
        return mask.astype(np.uint8)
    if values is None:
        return mask.astype(np.uint8)
    keys = np.array(sorted(known))
    labels = np.array([known[key] for key in keys], dtype=np.uint8)
    return labels[np.searchsorted(keys, mask)]


def require_one_structure(present: Mapping[Path, Sequence[int]], count: int, values: object) -> None:
    """UserError if two masks of a site have other values beside 0 where all but 0 is one structure.

    Args:
        present: the values of each mask.
        count: number of classes.
        values: what the job says of values, if it does.
    """
    if values is not None or count != 2:
        return
    first: tuple[Path, int] | None = None
    for file, found in present.items():
        for value in found:
            if value == 0:
                continue
            if first and first[1] != value:
                raise UserError(
                    f"{file} has the value {value}, {first[0]} has {first[1]}: two structures? Name the classes "
                    "(--data-arg classes=background,A,B), or, of one, its values (--data-arg "
                    f"'values=[0, {sorted((first[1], value))}]')"
                )
            first = first or (file, value)
