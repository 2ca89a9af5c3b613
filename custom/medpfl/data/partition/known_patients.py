"""Images in one file that says whose they are: each patient's at one site and in one part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from medpfl.core.errors import UserError
from medpfl.core.seeding import derive_seed
from medpfl.core.site_data import PARTS, Part
from medpfl.data.dataset import ImageDataset
from medpfl.data.finding import Finding
from medpfl.data.partition.by_patient import divide_patients
from medpfl.data.partition.partition_file import Partition
from medpfl.data.partition.spec import PartitionSpec
from medpfl.data.patients import split_patients
from medpfl.data.people import some
from medpfl.data.split import SiteIndices


@dataclass(frozen=True)
class Image:
    """One image, as patients are divided (:class:`medpfl.data.patients.Sample`).

    Attributes:
        centre: the site that it is from.
        patient: whose it is.
        label: index of the class; of several labels the rarest.
        id: sorts the images of a patient.
        row: its place in the data set.
        split: the part that the file gives it to, where that is kept.
    """

    centre: str
    patient: str
    label: int
    id: str
    row: int
    split: Part | None


def images_of(dataset: ImageDataset, rows: np.ndarray, official: bool) -> list[Image]:
    """Some images of a data set that says whose they are, in its own parts where ``official``."""
    return _images(dataset, rows, official, dataset.whose)


def _images(dataset: ImageDataset, rows: np.ndarray, official: bool, whose: np.ndarray) -> list[Image]:
    sites, strata = dataset.site_ids, dataset.strata
    return [
        Image(
            centre=dataset.name if sites is None else str(sites[row]),
            patient=str(whose[row]),
            label=int(strata[row]),
            id=f"{row:07d}",
            row=row,
            split=PARTS[dataset.split[row]] if official else None,
        )
        for row in rows.tolist()
    ]


def by_hospital(dataset: ImageDataset, official: bool) -> dict[str, list[Image]]:
    """The same of all images by the site that each is from, with the names that patients have there."""
    sites: dict[str, list[Image]] = {}
    for image in _images(dataset, np.arange(len(dataset)), official, dataset.patients):
        sites.setdefault(image.centre, []).append(image)
    return sites


def split_known(
    dataset: ImageDataset,
    images: Sequence[Image],
    name: str,
    fractions: Sequence[float],
    train_fraction: float,
    seed: int,
) -> SiteIndices:
    """Divides a site's images by :func:`~medpfl.data.patients.split_patients`; the site's name is in the seed.

    Raises:
        UserError: fractions that make no sense, or a patient who is in two parts of the file, which are to be kept.
    """
    try:
        parts = split_patients(images, fractions, train_fraction, seed, name)
    except UserError as error:
        raise UserError(f"{dataset.source}: {error}") from None
    return SiteIndices(name, *(np.sort(np.array([i.row for i in parts[part]], dtype=np.int64)) for part in PARTS))


def draw_known(
    dataset: ImageDataset,
    spec: PartitionSpec,
    sites: int,
    seed: int,
    fractions: Sequence[float],
    train_fraction: float,
    official: bool,
    without: np.ndarray,
) -> list[SiteIndices]:
    """Draws which patients are at which site, or takes the file's own sites, and divides each site's by patient.

    Raises:
        UserError: the file's own parts are to be kept where sites are drawn: of few patients a site would have no test.

    Args:
        dataset: one that says whose the images are.
        spec: a kind that :func:`medpfl.data.partition.draw.draw` takes.
        sites: number of sites.
        seed: the run's seed.
        fractions: shares of each site's images for training, validation and test, unless ``official``.
        train_fraction: share of each site's training patients that is kept.
        official: keep the file's own parts.
        without: images to leave out.
    """
    if official and spec.kind != "natural":
        raise UserError(
            f"--official: {dataset.source} says whose the images are, and --partition {spec} draws patients whatever "
            "their part: leave --official out, or take natural"
        )
    images = images_of(dataset, np.setdiff1d(np.arange(len(dataset)), without), official)
    names = [f"site-{number}" for number in range(1, sites + 1)]
    if spec.kind == "natural":
        own = np.unique(dataset.site_ids).tolist()
        of_site = {name: [i for i in images if i.centre == centre] for name, centre in zip(names, own, strict=True)}
    else:
        of_site = divide_patients(images, str(spec), names, seed)
    return [split_known(dataset, of_site[name], name, fractions, train_fraction, seed) for name in names]


def set_aside_known(dataset: ImageDataset, source: np.ndarray, size: int, seed: int) -> np.ndarray:
    """At most so many of some images, all that there are of patients drawn at random; whose are too many stay."""
    names, whose = np.unique(dataset.people, return_inverse=True)
    among = np.unique(whose[source])
    order = np.random.default_rng(derive_seed(seed, "holdout")).permutation(among)
    numbers, taken, room = np.bincount(whose, minlength=len(names)), [], size
    for patient in order.tolist():
        if numbers[patient] <= room:
            taken.append(patient)
            room -= numbers[patient]
    return np.flatnonzero(np.isin(whose, taken))


def require_apart(dataset: ImageDataset, partition: Partition, path: str) -> None:
    """UserError if a partition that is taken as it is has a patient in two parts, at one site or at two."""
    of_part = {part: np.concatenate([getattr(site, part) for site in partition.sites]) for part in PARTS}
    people = {part: {*dataset.people[rows]} for part, rows in {**of_part, "holdout": partition.holdout}.items()}
    for one, other in combinations(people, 2):
        if both := people[one] & people[other]:
            raise UserError(
                f"{path}: patient {min(both)} of {dataset.source} is in {one} and {other}: all that is of one patient "
                "must be in one part"
            )


def at_two_sites(dataset: ImageDataset, partition: Partition, path: str) -> list[Finding]:
    """A warning if a patient is at two sites of a partition that is taken as it is."""
    sites_of: dict[str, list[str]] = {}
    for site in partition.sites:
        for patient in {*dataset.people[np.concatenate([getattr(site, part) for part in PARTS])]}:
            sites_of.setdefault(patient, []).append(site.name)
    twice = sorted(patient for patient, sites in sites_of.items() if len(sites) > 1)
    if not twice:
        return []
    where = f"{some('patient', twice)} at two sites or more, {twice[0]} at {' and '.join(sites_of[twice[0]])}"
    return [Finding("warning", f"{path}: {where}")]
