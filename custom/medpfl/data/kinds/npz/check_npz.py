"""Says in words whether an npz file can be used, before any training."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from medpfl.config.run import RunConfig
from medpfl.core.errors import UserError
from medpfl.core.numbers_in_words import by, count
from medpfl.core.site_data import PARTS, Part
from medpfl.data.dataset import ImageDataset
from medpfl.data.finding import Finding
from medpfl.data.kinds.folders.patient_pattern import level_of_one
from medpfl.data.kinds.npz.catalog import find
from medpfl.data.kinds.npz.medmnist import known_set, official_md5
from medpfl.data.kinds.npz.npz_file import channels_first, load
from medpfl.data.partition.known_patients import by_hospital
from medpfl.data.patients import count_people, in_numbers, no_validation, person, split_patients
from medpfl.data.people import people, some
from medpfl.data.uneven import of_a_site

if TYPE_CHECKING:
    from medpfl.data.kinds.npz.site_file import OwnImages

_FRACTIONS = RunConfig.model_fields["fractions"].default
_PATIENTS = (
    "the file does not say whose an image is, so each counts as its own patient: where parts are pooled, images of one "
    "patient can be in training and in test; --official keeps the file's own parts"
)
_WHOSE = "arrays train_patients, val_patients and test_patients keep a patient's images together"


def check_npz(data: str, data_args: Mapping[str, Any]) -> list[Finding]:
    """Reads a data set's npz file and looks for what would spoil a result; never raises for wrong data.

    Args:
        data: the file, or a data set's name.
        data_args: as a run has them; what a job says of its data, they must be.

    Raises:
        UserError: an argument that such data do not have, or a wrong value of one.
    """
    _require_known(data_args)
    try:
        dataset = load(find(data))
    except UserError as error:
        return [Finding("error", str(error))]
    described = _described(dataset, data_args)
    try:
        if described:
            described.require_fit(dataset)
    except UserError as error:
        return [Finding("error", str(error))]
    return [
        *_contents(dataset),
        *_classes(dataset),
        *_order(dataset, described.classes if described else ()),
        *_patients(dataset),
        _checksum(dataset),
        *_constant_images(dataset),
        *_repeated_images(dataset),
    ]


def _require_known(said: Mapping[str, Any]) -> None:
    """Refuses arguments of an npz file without the classes that they describe it with."""
    if "classes" in said:
        return
    for name in said:
        if name in ("size", "channels"):
            raise UserError(f"--data-arg {name}: an npz file takes size and channels with classes: add classes=...")
        if name != "pad":
            raise UserError(f"--data-arg {name}: images have the argument pad, or classes, size and channels")


def _described(dataset: ImageDataset, said: Mapping[str, Any]) -> OwnImages | None:
    """A hospital's own file as a job describes it by its classes; None where none are said.

    Size and channels that are not said are the file's own.
    """
    if "classes" not in said:
        return None
    from medpfl.algorithms import LOCAL
    from medpfl.config.run import make_config
    from medpfl.data.kinds.npz.site_file import OwnImages

    own = {"size": dataset.size, "channels": "grey" if dataset.channels == 1 else "rgb"}
    job = make_config(algorithm=LOCAL.name, data=dataset.name, data_args=own | said, partition="natural", sites=1)
    images = OwnImages(job)
    images.model_arguments()  # names a wrong argument
    return images


def _contents(dataset: ImageDataset) -> list[Finding]:
    kind = "grey" if dataset.channels == 1 else "colour"
    sizes = np.bincount(dataset.split, minlength=3)
    shape = dataset.shape
    what = f"{kind} images, {shape}×{shape} pixels" if isinstance(shape, int) else f"volumes, {by(shape)} voxels"
    findings = [
        Finding("ok", f"{len(dataset):,} {what}"),
        Finding("ok", ", ".join(f"{part} {size:,}" for part, size in zip(PARTS, sizes, strict=True))),
    ]
    if empty := [part for part, size in zip(PARTS, sizes, strict=True) if not size]:
        are = "parts are" if empty[1:] else "part is"
        pooled = "all images are divided by --fractions; --official would leave nothing to measure on there"
        findings.append(Finding("note", f"the {' and '.join(empty)} {are} empty: {pooled}"))
    if meant := channels_first(dataset):
        findings.append(Finding("warning", meant))
    if dataset.site_ids is not None:
        names, counts = np.unique(dataset.site_ids, return_counts=True)
        findings.append(Finding("ok", f"{len(names)} sites of its own, {counts.min():,} to {counts.max():,} images"))
    return findings


def _classes(dataset: ImageDataset) -> list[Finding]:
    counts, training = dataset.counts(np.arange(len(dataset))), dataset.counts(np.flatnonzero(dataset.split == 0))
    listed = ", ".join(f"{name} {count:,}" for name, count in zip(dataset.classes, counts, strict=True))
    what = "labels, several an image" if dataset.several_labels else "classes"
    findings = [Finding("ok", f"{dataset.n_classes} {what}: {listed}")]
    if dataset.several_labels and (unknown := float((dataset.labels < 0).mean())):
        findings.append(Finding("note", f"{100 * unknown:.1f} % of the labels are not known (-1): they count nowhere"))
    if absent := [name for name, count in zip(dataset.classes, counts, strict=True) if not count]:
        findings.append(Finding("warning", f"no image at all of class {', '.join(absent)}"))
    if unseen := [dataset.classes[c] for c in np.flatnonzero((training == 0) & (counts > 0))]:
        findings.append(Finding("warning", f"no training image of class {', '.join(unseen)}"))
    if not dataset.several_labels:
        labels = {part: dataset.labels[dataset.split == code] for code, part in enumerate(PARTS)}
        findings += [Finding("warning", words) for words in of_a_site(labels, dataset.classes, "the file's parts")]
    return findings


def _order(dataset: ImageDataset, named: Sequence[str]) -> list[Finding]:
    """What the labels mean, where the file cannot say it."""
    if named:
        listed = ", ".join(f"{label} {name}" for label, name in enumerate(named))
        return [Finding("ok", f"labels are taken as the job's classes by number: {listed}")]
    if known_set(dataset.name):
        return []
    return [
        Finding(
            "note",
            "the file does not name its classes, and label 0 is the first class of the job: ask for their order; "
            "`medpfl data check PATH --data-arg classes=...`, with size and channels if the job says them, tests "
            "the file against it",
        )
    ]


def _patients(dataset: ImageDataset) -> list[Finding]:
    """Whose the images are, and how each site's are divided by patient."""
    if dataset.patients is None:
        return [Finding("note", _PATIENTS if known_set(dataset.name) else f"{_PATIENTS}; {_WHOSE}")]
    sites = by_hospital(dataset, official=False)
    findings = people(sites)
    alone = level_of_one(sites.values())
    if meeting := _in_two_parts(dataset):
        whose = some("patient", meeting)
        findings.append(
            Finding("note", f"{whose} in more than one of the file's parts: --official, which keeps them, is refused")
        )
    for name, images in sorted(sites.items()):
        if count_people(images) == 1 < len(images):
            findings.append(Finding(alone, f"{name}: all images are of one patient: none is left to test on"))
        number, parts = count_people(images), split_patients(images, _FRACTIONS, 1.0, 0, name)
        whose, by = count(number, "patient"), "the default split"
        findings.append(Finding("ok", f"{name}: {len(images):,} images of {whose}; by {by} {in_numbers(parts)}"))
        findings += [Finding("warning", f"{name}: {words}") for words in no_validation(images, parts, name, by)]
    return findings


def _in_two_parts(dataset: ImageDataset) -> list[str]:
    """Patients who are in more than one of the file's own parts, at one site or at two, by name."""
    parts: dict[str, set[Part | None]] = {}
    for images in by_hospital(dataset, official=True).values():
        for image in images:
            parts.setdefault(person(image.patient), set()).add(image.split)
    return [name for name, of in parts.items() if len(of) > 1]


def _checksum(dataset: ImageDataset) -> Finding:
    expected = official_md5(dataset.name)
    if expected is None:
        return Finding("ok", f"MD5 {dataset.md5} (not a published file, so there is none to compare with)")
    if dataset.md5 == expected:
        return Finding("ok", f"MD5 {dataset.md5} is the official one")
    return Finding("warning", f"MD5 {dataset.md5} is not the official {expected}: not the file MedMNIST published")


def _constant_images(dataset: ImageDataset) -> list[Finding]:
    pixels = dataset.images.reshape(len(dataset), -1)
    constant = np.flatnonzero(pixels.min(axis=1) == pixels.max(axis=1))
    if not len(constant):
        return []
    message = f"images with one value in all pixels: {len(constant):,}, the first is number {constant[0]}"
    return [Finding("warning", message)]


def _repeated_images(dataset: ImageDataset) -> list[Finding]:
    digests = b"".join(hashlib.blake2b(image, digest_size=8).digest() for image in dataset.images)
    _, image = np.unique(np.frombuffer(digests, dtype=np.uint64), return_inverse=True)
    in_training = np.zeros(image.max() + 1, dtype=bool)
    in_training[image[dataset.split == 0]] = True
    findings = []
    for code, part in enumerate(PARTS[1:], start=1):
        if repeated := int(in_training[image[dataset.split == code]].sum()):
            message = (
                f"{part} images that are training images too: {repeated:,}; results will look better than they are"
            )
            findings.append(Finding("warning", message))
    pairs = np.unique(np.column_stack([image, dataset.labels]), axis=0)
    if contradictions := len(pairs) - len(in_training):
        findings.append(Finding("warning", f"identical images with different labels: {contradictions:,}"))
    return findings
