"""Makes the partition of a run: which site trains, validates and tests on which images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from medpfl.core.errors import UserError
from medpfl.core.seeding import derive_seed
from medpfl.data.dataset import ImageDataset
from medpfl.data.partition.draw import REDRAWS, draw, draw_like, draw_printed, require_site_ids
from medpfl.data.partition.known_patients import draw_known, require_apart, set_aside_known
from medpfl.data.partition.partition_file import Partition
from medpfl.data.partition.published_counts import COUNTS
from medpfl.data.partition.spec import PartitionSpec, parse_spec
from medpfl.data.split import SiteIndices, fewest_with_training, join_official, split_sites


def make_partition(
    dataset: ImageDataset,
    spec: str,
    sites: int | None = None,
    seed: int = 0,
    fractions: Sequence[float] = (0.5, 0.1, 0.4),
    train_fraction: float = 1.0,
    pooled: bool = True,
    holdout: float = 0.0,
) -> Partition:
    """Draws or reads a partition. Where the data set says whose the images are, patients are drawn.

    Args:
        dataset: the data set.
        spec: one of :data:`medpfl.data.partition.spec.FORMS`. A printed table gives each site its number of
            official training images, and official validation and test images in the same proportions; a file is taken
            as it is.
        sites: number of sites; None where the spec fixes it (``natural``, a printed table, ``file``).
        seed: the run's seed.
        fractions: shares of each site's images for training, validation and test, where parts are pooled.
        train_fraction: share of each site's training images that is kept, for experiments with few data; of its
            training patients where the data set says whose the images are.
        pooled: draw from all images together; otherwise a site's training, validation and test images come from the
            official parts, which keeps patients apart where the official parts do.
        holdout: share of the images (of the official training part, unless pooled) that is set aside before.

    Raises:
        UserError: the request is malformed or cannot be met, or leaves a site without training images.
    """
    parsed = parse_spec(spec)
    if not 0 <= holdout < 1:
        raise UserError(f"holdout {holdout}: must be at least 0 and below 1")
    if parsed.kind == "file":
        return _from_file(dataset, parsed, sites, train_fraction, holdout)
    sites = _number_of_sites(dataset, parsed, sites)
    if parsed.kind == "printed":
        divided, aside = _printed(dataset, parsed, train_fraction, seed, holdout)
    else:
        source = np.arange(len(dataset)) if pooled else np.flatnonzero(dataset.split == 0)
        known, size = dataset.patients is not None, int(holdout * len(source) + 1e-9)
        aside = set_aside_known(dataset, source, size, seed) if known else _set_aside(source, size, seed)
        if known:
            divided = draw_known(dataset, parsed, sites, seed, fractions, train_fraction, not pooled, aside)
        elif pooled:
            remaining = np.setdiff1d(source, aside)
            ids = None if dataset.site_ids is None else dataset.site_ids[remaining]
            parts = draw(parsed, dataset.strata[remaining], sites, seed, ids, fewest_with_training(fractions))
            divided = split_sites([remaining[part] for part in parts], fractions, train_fraction, seed)
        else:
            divided = draw_official(dataset, parsed, sites, seed, train_fraction, without=aside)
    _require_training(divided, parsed)
    return Partition(str(parsed), seed, divided, dataset.name, dataset.md5, aside)


def draw_official(
    dataset: ImageDataset, spec: PartitionSpec, sites: int, seed: int, train_fraction: float, without: np.ndarray
) -> list[SiteIndices]:
    """Draws the official training part, and divides the other two in each site's share of each class.

    Args:
        dataset: the data set.
        spec: a kind that :func:`medpfl.data.partition.draw.draw` takes.
        sites: number of sites.
        seed: the run's seed.
        train_fraction: share of each site's training images that is kept.
        without: training images to leave out.
    """
    official = [np.flatnonzero(dataset.split == code) for code in range(3)]
    official[0] = np.setdiff1d(official[0], without)
    if spec.kind == "natural":
        parts = draw(spec, dataset.strata, sites, seed, dataset.site_ids)
        return join_official([[np.intersect1d(p, o) for p in parts] for o in official], train_fraction, seed)
    train = [official[0][part] for part in draw(spec, dataset.strata[official[0]], sites, seed)]
    return _follow(dataset, train, official, train_fraction, seed)


def _follow(
    dataset: ImageDataset, train: list[np.ndarray], official: list[np.ndarray], train_fraction: float, seed: int
) -> list[SiteIndices]:
    """Validation and test images in the proportions of the training images."""
    strata = dataset.strata
    counts = np.stack([np.bincount(strata[part], minlength=int(strata.max()) + 1) for part in train])
    others = [
        [pool[part] for part in draw_like(counts, strata[pool], seed, purpose)]
        for pool, purpose in zip(official[1:], ("validation", "test"), strict=True)
    ]
    return join_official([train, *others], train_fraction, seed)


def _printed(
    dataset: ImageDataset, spec: PartitionSpec, train_fraction: float, seed: int, holdout: float
) -> tuple[list[SiteIndices], np.ndarray]:
    """The sites, and the holdout: of the training images that the table leaves over, which are 10 % or half of them."""
    if dataset.patients is not None:
        raise UserError(
            f"partition {spec}: has numbers of images, and {dataset.source} says whose they are: use dirichlet:A, "
            "equal-dirichlet:A, shards:K or iid, which keep a patient's together"
        )
    official = [np.flatnonzero(dataset.split == code) for code in range(3)]
    drawn = draw_printed(spec.table, dataset.labels[official[0]], dataset.classes, seed)
    train = [official[0][part] for part in drawn]
    left_over = np.setdiff1d(official[0], np.concatenate(train))
    wanted = int(holdout * len(official[0]) + 1e-9)
    if wanted > len(left_over):
        raise UserError(f"holdout {holdout}: partition {spec} leaves {len(left_over)} training images, not {wanted}")
    return _follow(dataset, train, official, train_fraction, seed), _set_aside(left_over, wanted, seed)


def _set_aside(source: np.ndarray, size: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(derive_seed(seed, "holdout"))
    return np.sort(rng.permutation(source)[:size])


def _number_of_sites(dataset: ImageDataset, spec: PartitionSpec, sites: int | None) -> int:
    fixed = None
    if spec.kind == "printed":
        fixed = len(COUNTS[spec.table])
    elif spec.kind == "natural":
        require_site_ids(dataset.site_ids)
        fixed = len(np.unique(dataset.site_ids))
    if fixed is not None and sites not in (None, fixed):
        raise UserError(f"--sites {sites}: partition {spec} has {fixed} sites")
    if fixed is None and sites is None:
        raise UserError(f"partition {spec} needs a number of sites: use --sites N")
    return fixed if fixed is not None else sites


def _from_file(
    dataset: ImageDataset, spec: PartitionSpec, sites: int | None, train_fraction: float, holdout: float
) -> Partition:
    partition = Partition.load(spec.path, dataset)
    if sites not in (None, len(partition.sites)):
        raise UserError(f"--sites {sites}: {spec.path} has {len(partition.sites)} sites")
    if dataset.patients is not None:
        require_apart(dataset, partition, spec.path)
    if train_fraction != 1 or holdout:
        raise UserError(f"{spec.path}: a partition file is taken as it is, without --train-fraction and holdout")
    return partition


def _require_training(sites: list[SiteIndices], spec: PartitionSpec) -> None:
    empty = [site.name for site in sites if not len(site.train)]
    if not empty:
        return
    more = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
    remedy = {
        "dirichlet": f"{REDRAWS} draws more gave no better one: use fewer sites, a larger alpha, or "
        f"equal-dirichlet:{spec.alpha!r}",
        "natural": "leave the site out of the file, or raise the share of training images",
    }.get(spec.kind, "use fewer sites or a larger share of training images")
    raise UserError(f"partition {spec}: {empty[0]}{more} would have no training image: {remedy}")
