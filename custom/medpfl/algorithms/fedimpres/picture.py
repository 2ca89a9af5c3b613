"""A picture of an impression, for results and reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from medpfl.core.picture import png_grid

SHOWN = 32
"""Images of an impression that a picture shows."""


def picture(impression: Mapping[str, Tensor]) -> dict[str, Any] | None:
    """Its first images and their labels; None where there is none, or where images are neither grey nor in colour."""
    if not impression or impression["images"].shape[1] not in (1, 3):
        return None
    images, labels = impression["images"], impression["labels"]
    return {"images": len(images), "labels": labels[:SHOWN].tolist(), "picture": png_grid(images[:SHOWN])}
