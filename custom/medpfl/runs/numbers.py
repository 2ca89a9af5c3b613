"""The numbers of samples that a run's sites would have, without training."""

from __future__ import annotations

import torch

from medpfl.config.run import RunConfig
from medpfl.core.site_data import SiteData
from medpfl.data.sites import open_source
from medpfl.report.advice.numbers import PARTS, SiteNumbers, shift_of


def numbers_of(config: RunConfig) -> tuple[list[SiteNumbers], bool | None, list[str]]:
    """The sites' numbers, whether their images look different, and what a reader of the numbers must know.

    Classes are of all parts together; of a user's own loaders, which are read once for it, of the training samples.
    Images that are dealt from one data set look alike at all sites; of others it is not known (None).

    Raises:
        UserError: the data cannot be read or divided.
    """
    source = open_source(config)
    described = source.describe()
    notes = ["Numbers are of patients."] if described.get("preprocessing") else []
    if told := described["sites"]:
        shift = shift_of(described["partition"])
        one_class = config.learned.one_class
        return [SiteNumbers.of(name, entry, one_class=one_class) for name, entry in told.items()], shift, notes
    cpu = torch.device("cpu")
    return [_counted(name, source.site(name, cpu), config) for name in config.site_names], None, notes


def _counted(name: str, data: SiteData, config: RunConfig) -> SiteNumbers:
    parts = [data.samples(part) for part in PARTS]
    if not config.learned.one_class:
        return SiteNumbers(name, *parts)
    least = int(config.model_args.get("num_classes", 1))
    classes = {str(c): int(n) for c, n in enumerate(data.class_counts(least).tolist())}
    return SiteNumbers(name, *parts, classes)
