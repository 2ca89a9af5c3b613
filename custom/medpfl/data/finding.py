"""What a check of data has to say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One thing that is right, worth knowing, odd or wrong; data with an ``error`` cannot be used."""

    level: Literal["ok", "note", "warning", "error"]
    message: str
