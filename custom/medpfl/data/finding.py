"""What a check of data has to say."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from medpfl.core.errors import UserError

log = logging.getLogger(__name__)

_NUMBER = re.compile(r"\d[\d.,]*")


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


def counted_once(found: Iterable[tuple[Path, Finding]]) -> list[Finding]:
    """Of warnings that say the same of several files, but for numbers, the first and how many more there are.

    Errors stay one a file, since each has to be put right.

    Args:
        found: findings whose messages begin with the file, or folder, that they are of.
    """
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for path, finding in found:
        words = finding.message.removeprefix(str(path))
        key = _NUMBER.sub("", words) if finding.level == "warning" else finding.message
        alike.setdefault((finding.level, key), []).append(finding)
    return [
        replace(same[0], message=f"{same[0].message} (and {len(same) - 1:,} more like it)") if same[1:] else same[0]
        for same in alike.values()
    ]
