"""A centre's labelled scans: found, checked, divided by patient and read."""

from __future__ import annotations

import logging

from medpfl.core.errors import UserError
from medpfl.data.kinds.scans.manifest import Manifest
from medpfl.data.kinds.scans.matching import examine
from medpfl.data.kinds.scans.scan import Scan
from medpfl.data.kinds.scans.slice_cache import load_scans
from medpfl.data.patients import split_patients

__all__ = ["Scan", "load_scans", "read_centre", "split_patients"]

log = logging.getLogger(__name__)


def read_centre(manifest: Manifest, centre_name: str) -> list[Scan]:
    """A centre's scans in its table's order, from headers alone.

    With ``skip_broken`` in the manifest, volumes that cannot be used are logged by name and left out.

    Raises:
        UserError: something is wrong: the first problem, and how many more there are.
    """
    reading = examine(manifest, centre_name)
    problems = reading.errors + ([] if manifest.skip_broken else reading.broken)
    if not problems and not reading.scans:
        problems = [*reading.broken, f"centre {centre_name}: no scan is left"]
    if problems:
        more = len(problems) - 1
        hint = f" (and {more} more: `medpfl data check {manifest.root}` lists them)" if more else ""
        raise UserError(problems[0] + hint)
    for message in reading.broken:
        log.warning("centre %s: left out: %s", centre_name, message)
    return reading.scans
