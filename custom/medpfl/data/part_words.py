"""What tables, files and folders call the three parts."""

from __future__ import annotations

from collections.abc import Mapping

from medpfl.core.site_data import Part

PART_WORDS: Mapping[str, Part] = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}
"""In lower case."""
