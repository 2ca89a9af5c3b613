"""Says in words whether images with masks can be used, before any training."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from medpfl.algorithms import LOCAL
from medpfl.config.run import RunConfig, make_config
from medpfl.core.errors import UserError
from medpfl.core.numbers_in_words import count
from medpfl.data.finding import Finding, counted_once
from medpfl.data.kinds.folders.layout import Picture
from medpfl.data.kinds.folders.patient_pattern import all_of_one, keeping_together, level_of_one
from medpfl.data.kinds.folders.repeats import repeated
from medpfl.data.kinds.masks.classes_of import require_one_structure
from medpfl.data.kinds.masks.look import Seen, look, look_at_row
from medpfl.data.kinds.masks.masked_npz import Arrays, read_arrays
from medpfl.data.kinds.masks.masked_source import Masked
from medpfl.data.kinds.masks.pair import Layout, Pair, with_patients
from medpfl.data.kinds.masks.pairs import stem, telling
from medpfl.data.kinds.masks.reading import class_names
from medpfl.data.patients import count_people, in_numbers, named_alike, no_validation, split_patients
from medpfl.data.people import numbered, people

_FRACTIONS = RunConfig.model_fields["fractions"].default
_MOST = 20
"""Pairs that cannot be used that are listed for a site; the rest is counted."""
_CLASSES = (
    "nobody names the classes, so there are two: what is 0 in a mask and what is not; --data-arg "
    "classes=background,A,B names more"
)
_PATIENTS = "each image counts as its own patient, so images of one patient can be in training and in test"
_WHOSE = "an array `train_patients` in the file says whose they are"
_NOUNS = {"pictures": "pictures", "volumes": "volumes", "slices": "volumes", "arrays": "images"}


def check_masks(data: str, data_args: Mapping[str, Any]) -> list[Finding]:
    """Reads every image and mask and lists what was found; never raises for wrong data.

    Args:
        data: the folder, datalist or npz file, or a name of one.
        data_args: the job's: ``classes`` and those of :class:`~medpfl.data.kinds.masks.reading.Reading`.

    Raises:
        UserError: an argument that such data do not have, or a wrong value of one.
    """
    class_names(data_args)  # names a wrong argument
    config = make_config(algorithm=LOCAL.name, data=data, data_args=dict(data_args), partition="natural", sites=1)
    source = Masked(config)
    try:
        layout, classes = source.layout, source.classes
    except UserError as error:
        return [Finding("error", str(error))]
    _ = source.reading  # likewise
    report = list(_head(source, data_args))
    try:
        arrays = read_arrays(layout.root) if source.form == "arrays" else None
        seen = {centre: _look(source, arrays, pairs) for centre, pairs in layout.centres.items()}
    except UserError as error:
        return [*report, Finding("error", str(error))]
    for centre, found in seen.items():
        report += [Finding(level, f"{centre}: {words}") for level, words in _centre(source, centre, found)]
    good = {pair: one for found in seen.values() for pair, one in found.items() if isinstance(one, Seen)}
    report += _between(source, good)
    absent = [name for label, name in enumerate(classes) if not any(one.counts[label] for one in good.values())]
    if good and absent:
        report.append(Finding("warning", f"no mask at all has the class {', '.join(absent)}"))
    report += people({centre: with_patients(pairs) for centre, pairs in layout.centres.items()})
    if layout.form != "arrays":
        report += repeated({centre: _files(pairs) for centre, pairs in layout.centres.items()}, classes)
    return report


def _head(source: Masked, data_args: Mapping[str, Any]) -> Iterator[Finding]:
    layout = source.layout
    pairs = [pair for pairs in layout.centres.values() for pair in pairs]
    sites = len(layout.centres)
    listed = ", ".join(f"{label} {name}" for label, name in enumerate(source.classes))
    what = f"{len(pairs):,} {_NOUNS[source.form]} with masks" + (", read as slices" if source.form == "slices" else "")
    yield Finding("ok", f"{layout.name}: {what}, {count(sites, 'site')}, classes: {listed}")
    if not (class_names(data_args) or layout.classes):
        yield Finding("note", _CLASSES)
    if layout.unlabelled:
        are = "image is" if layout.unlabelled == 1 else "images are"
        yield Finding("note", f"{layout.unlabelled:,} {are} of a test without masks, and not used")
    if layout.unread:
        yield Finding("warning", layout.unread)
    if own := [pair for pair in pairs if not pair.said]:
        first = f"number {own[0].id} of {own[0].image}" if source.form == "arrays" else own[0].image
        of_some = f"of {len(own):,} of {len(pairs):,} images nobody says whose they are, {first} first: "
        yield Finding("warning", f"{of_some if len(own) < len(pairs) else ''}{_PATIENTS}; {_keeping(layout, own)}")
    if source.form != "arrays" and not source.reading.patient:
        yield from _numbered(layout)


def _keeping(layout: Layout, own: Sequence[Pair]) -> str:
    """What keeps a patient's images together, in words; ``own`` are those of which nobody says whose they are."""
    if layout.form == "arrays":
        return _WHOSE
    files: dict[str, list[Path]] = {}
    for pair in own:
        files.setdefault(pair.centre, []).append(telling(pair.image))
    entry = "an entry's `patient` says whose it is, or " if layout.root.is_file() else ""
    return f"{entry}{keeping_together(files.values())} (in a job, the job says it)"


def _numbered(layout: Layout) -> Iterator[Finding]:
    """Patients by names of folders or files that may be visits of one."""
    folder = layout.root.is_dir()
    for centre, pairs in layout.centres.items():
        named = {pair.patient if pair.said else stem(telling(pair.image)) for pair in pairs if folder or not pair.said}
        if several := numbered(named):
            remedy = "--data-arg patient, or a folder for both" if folder else "one `patient` in both entries"
            yield Finding(
                "note",
                f"{centre}: {sum(map(len, several)):,} patients are called as another but for a number at the end, "
                f"{several[0][0]} and {several[0][1]} first: if they are one person, {remedy} keeps them together",
            )


def _look(source: Masked, arrays: Arrays | None, pairs: Sequence[Pair]) -> dict[Pair, Seen | str]:
    count, reading = len(source.classes), source.reading
    if arrays is not None:
        return {pair: look_at_row(pair, arrays, reading, count) for pair in pairs}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda pair: look(pair, source.form, reading, count), pairs)
        return dict(zip(pairs, found, strict=True))


def _centre(source: Masked, centre: str, seen: Mapping[Pair, Seen | str]) -> Iterator[tuple[str, str]]:
    layout, noun = source.layout, _NOUNS[source.form]
    patients = count_people(seen)
    cases = len({(pair.patient, pair.case) for pair in named_alike(list(seen))})
    good = [one for one in seen.values() if isinstance(one, Seen)]
    whose = f"{count(cases, 'case')} of {count(patients, 'patient')}"
    yield "ok", f"{len(seen):,} {noun}, {whose}"
    if source.reading.patient and patients == 1 < len(seen):
        yield level_of_one(layout.centres.values()), all_of_one(len(seen), noun, centre, source.reading.patient)
    if good:
        yield "ok", ", ".join(filter(None, (_sizes(good), _spacings(good), _looks(good))))
        yield (
            "ok",
            f"{'voxels' if len(good[0].size) == 3 else 'pixels'} of the classes: {_shares(source.classes, good)}",
        )
        yield from _odd(source, noun, seen)
    yield from _split(layout, centre)
    broken = [one for one in seen.values() if isinstance(one, str)]
    yield from (("error", words) for words in broken[:_MOST])
    if len(broken) > _MOST:
        yield "error", f"and {len(broken) - _MOST:,} more like these"
    try:
        present = {pair.mask: one.values for pair, one in seen.items() if isinstance(one, Seen)}
        if source.form != "arrays":
            require_one_structure(present, len(source.classes), source.reading.values)
    except UserError as error:
        yield "error", str(error)


def _first_of(pairs: Sequence[Pair]) -> str:
    """Which mask it is, in words, of several the first."""
    only, first = len(pairs) == 1, pairs[0]
    row = f"number {first.id} of " if first.image == first.mask else ""
    return f"{'it is' if only else 'the first is'} {row}{first.mask}"


def _odd(source: Masked, noun: str, seen: Mapping[Pair, Seen | str]) -> Iterator[tuple[str, str]]:
    of_pairs = {pair: one for pair, one in seen.items() if isinstance(one, Seen)}
    good = list(of_pairs.values())
    notes = counted_once((pair.image, Finding("warning", note)) for pair, one in of_pairs.items() for note in one.notes)
    yield from (("warning", note.message) for note in notes[:_MOST])
    if len(notes) > _MOST:
        yield "warning", f"and {len(notes) - _MOST:,} more like these"
    if blank := [one.blank for one in good if one.blank]:
        yield "warning", f"{noun} of one colour: {len(blank):,} of {len(good):,}, the first is {blank[0]}"
    if empty := [pair for pair, one in of_pairs.items() if not one.counts[1:].any()]:
        alone = f"background alone: {len(empty):,} of {len(good):,} masks"
        if len(empty) == len(good):
            yield "warning", f"{alone}; nothing can be learned here, and no Dice told"
        else:
            yield "note", f"{alone}, {_first_of(empty)}"
    if full := [pair for pair, one in of_pairs.items() if not one.counts[0]]:
        yield "warning", f"without any background: {len(full):,} of {len(good):,} masks, {_first_of(full)}"
    looks = Counter(one.look for one in good)
    if len(looks) > 1 and source.form in ("volumes", "slices") and source.reading.normalise == "auto":
        yield (
            "error",
            "some volumes look like CT and some do not: say --data-arg normalise=window, zscore or percentile",
        )
    if source.form != "volumes":
        return
    asked = source.reading.spacing
    small = 0
    for one in good:
        sides = [n * old / (new or old) for n, old, new in zip(one.size, one.spacing or (), asked, strict=True)]
        small += any(round(side) < patch for side, patch in zip(sides, source.reading.patch, strict=True))
    if small:
        patch = "×".join(map(str, source.reading.patch))
        yield (
            "note",
            f"smaller than the patch, {patch}, and padded with its least value: {small:,} of {len(good):,} {noun}",
        )


def _split(layout: Layout, centre: str) -> Iterator[tuple[str, str]]:
    try:
        parts = split_patients(layout.centres[centre], _FRACTIONS, 1.0, 0, centre)
    except UserError as error:
        yield "error", str(error)
        return
    shares = "/".join(f"{share:g}" for share in _FRACTIONS)
    how = (
        "by the datalist" if any(pair.split for pair in layout.centres[centre]) else f"by the default split ({shares})"
    )
    yield "ok", f"{how}: {in_numbers(parts)}"
    yield from (("warning", words) for words in no_validation(layout.centres[centre], parts, centre, how[3:]))
    if count_people(layout.centres[centre]) == 1:
        yield "warning", f"only one patient: nothing is left to test on; --held-out {centre}, or leave the site out"


def _between(source: Masked, good: Mapping[Pair, Seen]) -> Iterator[Finding]:
    """What differs from site to site."""
    looks: dict[str, list[str]] = {}
    for pair, one in good.items():
        if pair.centre not in looks.setdefault(one.look, []):
            looks[one.look].append(pair.centre)
    if len(looks) > 1 and source.form == "pictures":
        listed = "; ".join(f"{name} at {', '.join(centres)}" for name, centres in looks.items())
        made = "grey" if source.model_arguments()["in_channels"] == 1 else "rgb"
        yield Finding("note", f"pictures are {listed}: all are read as {made}, and --data-arg channels says which")
    elif len(looks) > 1 and source.form in ("volumes", "slices") and source.reading.normalise == "auto":
        listed = "; ".join(f"{name} at {', '.join(centres)}" for name, centres in looks.items())
        yield Finding(
            "warning",
            f"volumes look like {listed}: CT is windowed and others are z-scored; --data-arg normalise=window, zscore "
            "or percentile does the same everywhere",
        )
    elif set(looks) == {"grey"} and source.form == "pictures" and source.reading.channels is None:
        yield Finding("note", "all pictures are grey, and are read as rgb: --data-arg channels=grey saves two channels")
    by_site: dict[str, set[int]] = {}
    for pair, one in good.items():
        by_site.setdefault(pair.centre, set()).update(value for value in one.values if value)
    values = set().union(*by_site.values())
    alike = all(len(of_one) <= 1 for of_one in by_site.values())  # else it is an error of the site
    if len(values) > 1 and alike and source.reading.values is None and len(source.classes) == 2:
        yield Finding(
            "note", f"masks mark their structure by {', '.join(map(str, sorted(values)))}: taken for the same"
        )


def _files(pairs: Sequence[Pair]) -> list[Picture]:
    return [
        Picture(pair.centre, pair.patient, pair.label, pair.id, pair.image) for pair in pairs if pair.image.is_file()
    ]


def _sizes(good: Sequence[Seen]) -> str:
    low, high = (tuple(map(limit, zip(*(one.size for one in good), strict=True))) for limit in (min, max))
    unit = "slices × rows × columns" if len(low) == 3 else "rows × columns"
    least = "×".join(map(str, low))
    return f"{least} ({unit})" if low == high else f"{least} to {'×'.join(map(str, high))} ({unit})"


def _spacings(good: Sequence[Seen]) -> str:
    known = [one.spacing for one in good if one.spacing]
    if not known:
        return ""
    low, high = (tuple(round(limit(mm), 2) for mm in zip(*known, strict=True)) for limit in (min, max))
    least = "×".join(f"{mm:g}" for mm in low) + " mm"
    return least if low == high else f"{least} to {'×'.join(f'{mm:g}' for mm in high)} mm"


def _looks(good: Sequence[Seen]) -> str:
    counts = Counter(one.look for one in good)
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{n:,} {name}" for name, n in counts.items())


def _shares(classes: Sequence[str], good: Sequence[Seen]) -> str:
    total = np.sum([one.counts for one in good], axis=0)
    shares = 100 * total / total.sum()
    return ", ".join(f"{name} {share:.3g} %" for name, share in zip(classes, shares, strict=True))
