"""What a check of data has to say."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from medpfl.core.errors import UserError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finding:
    """One thing that is right, worth knowing, odd or wrong; data with an ``error`` cannot be used."""

    level: Literal["ok", "note", "warning", "error"]
    message: str


def heed(findings: Iterable[Finding], where: str = "") -> None:
    """Logs warnings; UserError for the first error, its message after ``where``."""
    for finding in findings:
        if finding.level == "error":
            raise UserError(where + finding.message)
        log.warning("%s", finding.message)
