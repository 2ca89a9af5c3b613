"""The check that decodes every scan as training would, and shows what training will see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor
from pathlib import Path
from typing import Any

import numpy as np

from medpfl.core.errors import UserError
from medpfl.core.picture import png_grid
from medpfl.data.arguments import read_arguments
from medpfl.data.finding import Finding
from medpfl.data.kinds.scans.check_scans import capped, check_scans
from medpfl.data.kinds.scans.look import Look, crop_in_words
from medpfl.data.kinds.scans.page import Row, write_page
from medpfl.data.kinds.scans.preprocessing import Preprocessing
from medpfl.data.kinds.scans.scan import Scan
from medpfl.data.kinds.scans.series import Progress
from medpfl.data.kinds.scans.sharing import copies
from medpfl.data.kinds.scans.slice_cache import Decoded, ScanCache
from medpfl.data.kinds.scans.values import EDGES
from medpfl.data.labels import in_words
from medpfl.data.places import cache_folder

_HEADS = ("centre", "patient", "scan", "class", "voxels", "lungs")
_SHOWN = 8
"""Slices of a scan on the page, at most."""
_OTHER, _MOST_ALIKE = 0.25, 3
"""Share of a scan's values that may lie elsewhere than its centre's, and the scans above which a centre is judged."""


def check_deep(
    path: str | Path, data_args: Mapping[str, Any], page: Path, progress: Progress | None = None
) -> list[Finding]:
    """See :meth:`medpfl.data.kinds.kind.Kind.check_deep`; the cache is filled for a run with the same arguments."""
    checked = check_scans(path, data_args, progress)
    report, rows = list(checked.findings), []
    cache = ScanCache(read_arguments(Preprocessing, data_args), cache_folder() / "ct")
    marked: list[tuple[Scan, str]] = []
    total, done = sum(len(reading.scans) for reading in checked.readings.values()), 0
    for centre, reading in checked.readings.items():
        looks: list[tuple[Scan, Look]] = []
        found: list[Finding] = []
        for scan in reading.scans:
            row, look, wrong = _one(scan, cache, checked.manifest.classes)
            rows.append(row)
            if look:
                looks.append((scan, look))
            found += [Finding("warning" if checked.manifest.skip_broken else f.level, f.message) for f in wrong]
            done += 1
            if progress:
                progress(done, total)
        marked += [(scan, look.content) for scan, look in looks]
        found += _unlike([(scan, look) for scan, look in looks if look.values and not look.error()])
        if words := crop_in_words([look for _, look in looks]):
            report.append(Finding("ok", f"{centre}: {words}"))
        report += [f for f in capped(found, centre) if f not in report]
    if checked.manifest:
        report += [f for f in copies(marked, checked.manifest.classes) if f not in report]
        lines = [(f.level, f.message) for f in report]
        write_page(page, f"What training will see of {checked.manifest.name}", lines, _HEADS, rows)
    return report


def _one(scan: Scan, cache: ScanCache, classes: Sequence[str]) -> tuple[Row, Look | None, list[Finding]]:
    cells = [scan.centre, scan.patient, str(scan.place), in_words(scan.target, classes)]
    try:
        decoded: Decoded = cache.look(scan)
    except UserError as error:
        return Row([*cells, "", ""], problems=[("error", str(error))]), None, [Finding("error", str(error))]
    look = decoded.look
    wrong = look.findings(str(scan.place))
    lungs = f"found; {floor(1000 * look.kept) / 10:g} % kept" if look.lungs else "not found" if look.crop else "no crop"
    shown = decoded.slices[np.linspace(0, len(decoded.slices) - 1, min(_SHOWN, len(decoded.slices))).round()]
    axis = f"{EDGES[0]} to {EDGES[-1]} HU; air -1000, lung -900 to -600, soft tissue 0 to 100"
    highest = max(look.values, default=0.0) or 1.0
    bars = [value / highest for value in look.values]
    row = Row(
        [*cells, "×".join(map(str, look.shape)), lungs],
        png_grid(shown, columns=_SHOWN),
        bars,
        axis,
        [(f.level, f.message) for f in wrong],
    )
    return row, look, wrong


def _unlike(looks: Sequence[tuple[Scan, Look]]) -> list[Finding]:
    """Scans whose values are distributed otherwise than those of most at their centre."""
    if len(looks) <= _MOST_ALIKE:
        return []
    shares = np.array([look.values for _, look in looks])
    far = np.abs(shares - np.median(shares, axis=0)).sum(axis=1) / 2
    return [
        Finding("warning", f"{scan.place}: {share:.0%} of its values lie elsewhere than those of its centre's scans")
        for (scan, _), share in zip(looks, far, strict=True)
        if share > 2 * np.median(far) + _OTHER
    ]
