"""A centre's labelled scans: found, checked, divided by patient and read."""

from __future__ import annotations

import hashlib
import logging
from functools import lru_cache
from pathlib import Path

from medpfl.core.errors import UserError
from medpfl.data.files import files_below
from medpfl.data.kinds.scans.manifest import Manifest
from medpfl.data.kinds.scans.matching import examine
from medpfl.data.kinds.scans.preprocessing import Modality
from medpfl.data.kinds.scans.scan import Scan

log = logging.getLogger(__name__)

_MOST = 5
"""Odd series of a centre that a run names; the rest is counted."""


def read_centre(manifest: Manifest, centre_name: str, modality: Modality = "CT") -> list[Scan]:
    """A centre's scans in its table's order, from headers alone.

    With ``skip_broken`` in the manifest, volumes that cannot be used are logged by name and left out; what is odd about
    those that are used is logged too.

    Raises:
        UserError: something is wrong: the first problem, and how many more there are.
    """
    reading = examine(manifest, centre_name, modality)
    problems = reading.errors + ([] if manifest.skip_broken else reading.broken)
    if not problems and not reading.scans:
        problems = [*reading.broken, f"centre {centre_name}: no scan is left"]
    if problems:
        more = len(problems) - 1
        hint = f" (and {more} more: `medpfl data check {manifest.root}` lists them)" if more else ""
        raise UserError(problems[0] + hint)
    for message in reading.broken:
        log.warning("centre %s: left out: %s", centre_name, message)
    odd = [p.message for source in reading.sources for p in source.problems if p.level == "warning"]
    for message in odd[:_MOST]:
        log.warning("centre %s: %s", centre_name, message)
    if len(odd) > _MOST:
        log.warning("centre %s: and %d more: `medpfl data check` lists them", centre_name, len(odd) - _MOST)
    return reading.scans


def read_unless_known(manifest: Manifest, centre: str, modality: Modality) -> tuple[Scan, ...]:
    """:func:`read_centre`, once in a process while the files stay as they are.

    A header takes a millisecond, and a comparison of many runs would read those of every slice for each.
    """
    return _read(manifest, centre, modality, _stamp(manifest, centre))


@lru_cache(maxsize=128)
def _read(manifest: Manifest, centre: str, modality: Modality, stamp: str) -> tuple[Scan, ...]:
    return tuple(read_centre(manifest, centre, modality))


def _stamp(manifest: Manifest, name: str) -> str:
    """Changes when a file in the centre's folder or beside its table, or the table, does."""
    centre = manifest.centre(name)
    table = manifest.root / (centre.labels or centre.datalist)
    stamp = hashlib.blake2b(digest_size=16)
    for folder in filter(Path.is_dir, dict.fromkeys((manifest.root / centre.folder, table.parent))):
        for path in files_below(folder):
            # A dangling link must not end it; reading the series says what is wrong.
            state = path.stat() if path.exists() else path.lstat()
            stamp.update(f"{path}\0{state.st_size}\0{state.st_mtime_ns}\n".encode(errors="surrogateescape"))
    if table.is_file():
        stamp.update(table.read_bytes())
    return stamp.hexdigest()
