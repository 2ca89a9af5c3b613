"""What a run must be like at a site so that what leaves rests on many patients, whoever made the run.

A coordinator writes the job, and many a setting can let an update rest on few: each rule here is against an attack that
was carried out (docs/privacy.md).
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor, nn

from medpfl.config.run import RunConfig
from medpfl.core.masked_data import MaskedVolumes
from medpfl.core.parameters import StateError
from medpfl.core.site_data import ImageTensors, Part, SiteData, batch_sizes
from medpfl.site import words
from medpfl.site.contents import showing
from medpfl.site.contract import Contract
from medpfl.site.policy import SitePolicy
from medpfl.site.resting import as_alike
from medpfl.site.unlike_training import unusual

logger = logging.getLogger(__name__)


def patients(data: SiteData, part: Part = "train") -> int:
    """Patients of a part of a site's data; samples where these know no patients."""
    if not data.samples(part):
        return 0
    owners = data.owners(part)
    return data.samples(part) if owners is None else len(owners.unique())


def taught(config: RunConfig, data: SiteData) -> int:
    """As how many training patients weigh in the loss at least: of several labels it is a mean over the known ones."""
    found = patients(data)
    if not found or config.learned.labels != "labels" or not isinstance(data, ImageTensors):
        return found
    known, owners = (data.labels["train"] >= 0).reshape(data.samples("train"), -1).sum(1), data.owners("train")
    of_each = known if owners is None else torch.bincount(owners.unique(return_inverse=True)[1], weights=known.double())
    return int(of_each.sum() / of_each.max()) if bool(of_each.any()) else 0


def require_words(policy: SitePolicy, contract: Contract) -> None:
    """StateError for what the policy forbids by a job's words alone; it is asked before the data are opened.

    How reading fails where a job says who is a patient, or which are trained on, would tell of them.
    """
    if not policy.lets_divide(contract.divides_folders):
        raise StateError(words.SAYS_FOLDERS())
    for each in contract.halves:
        if not policy.lets_say_whose(each.patient_pattern):
            raise StateError(words.SAYS_WHOSE())
        if policy.least_patients > 1 and each.says_counts:
            raise StateError(words.IMAGES_LEFT_OUT())
    if not policy.lets_weigh(contract.config):
        raise StateError(words.LARGE_WEIGHT(policy.largest_weight))
    if contract.config.resolved_personal != "everything" and not contract.joining:  # else no update leaves
        _require_training(policy, contract.config)


def require_many(policy: SitePolicy, contract: Contract, data: SiteData, *, look: bool = True) -> None:
    """StateError where few patients are trained on, or training would weigh few of them more than all others.

    Args:
        policy: the site's.
        contract: of the run.
        data: the site's.
        look: whether images and labels are looked at too, which takes as long as reading them all.
    """
    config, least = contract.config, policy.least_patients
    if patients(data) < least:
        raise StateError(words.FEW_PATIENTS(least))
    _require_training(policy, config)
    if least > 1 and look:
        _require_shares(policy, config, data)


def require_usual(policy: SitePolicy, model: nn.Module) -> None:
    """StateError for a network that is :func:`unusual`, where an update must rest on many patients."""
    if policy.least_patients > 1 and (wrong := unusual(model)):
        raise StateError(words.POLICY + wrong)


def _require_training(policy: SitePolicy, config: RunConfig) -> None:
    if wrong := policy.unlike_training(config.all_settings):
        raise StateError(words.POLICY + wrong)
    if not policy.lets_augment(config.augment):
        raise StateError(words.OWN_AUGMENTATION())


def _require_shares(policy: SitePolicy, config: RunConfig, data: SiteData) -> None:
    least = policy.least_patients
    shown = showing(data)
    if shown is not None and shown < least:
        raise StateError(words.FEW_SHOW(least))
    if (share := _alike(data)) < least / 2:
        logger.warning("patients' numbers of samples differ so much that they weigh as %.1f alike would", share)
        raise StateError(words.FEW_HAVE_ALL(least))
    fewest = min(_fewest_of_a_class(data) if balances(config) else least, _fewest_of_a_label(config, data))
    if fewest < least:
        logger.warning("of one class %d training patients are known, and least_patients is %d", fewest, least)
        raise StateError(words.FEW_OF_CLASS(least))
    steps = _steps(config, data, even=policy.own_seed)
    if steps and min(steps) < min(least, max(steps) / 2):
        logger.warning("steps of %s samples in an epoch: the last is too small", ", ".join(map(str, steps)))
        raise StateError(words.SMALL_LAST_STEP())


def balances(config: RunConfig) -> bool:
    """Whether rare classes' samples weigh more than others'."""
    return config.trainer.balances or bool(config.all_settings.get("prior"))


def _alike(data: SiteData) -> float:
    """As how many patients of as many samples each the patients weigh; infinite where the data know none."""
    owners = data.owners("train")
    return float("inf") if owners is None else as_alike(owners.unique(return_counts=True)[1].double())


def _fewest_of_a_class(data: SiteData) -> int:
    """Patients of the class, of those that are there, that has the fewest; samples where the data know no patients."""
    owners = data.owners("train")
    if owners is None or not isinstance(data, ImageTensors):
        counts = data.class_counts(1)
        return int(counts[counts > 0].min())
    return min(_patients_of(data.labels["train"].flatten() == c, owners) for c in data.labels["train"].unique())


def _fewest_of_a_label(config: RunConfig, data: SiteData) -> float:
    """Of several labels: patients of whom the one is known, of those known at all, that is of the fewest."""
    if config.learned.labels != "labels" or not isinstance(data, ImageTensors):
        return float("inf")
    owners = data.owners("train")
    known = (data.labels["train"] >= 0).reshape(data.samples("train"), -1)  # (n, labels)
    counts = [_patients_of(of_one, owners) for of_one in known.unbind(1) if bool(of_one.any())]
    return min(counts, default=float("inf"))


def _patients_of(rows: Tensor, owners: Tensor | None) -> int:
    return int(rows.sum()) if owners is None else len(torch.unique(owners[rows]))


def _steps(config: RunConfig, data: SiteData, *, even: bool) -> list[int]:
    """Of how many samples each step of an epoch is; empty of loaders of one's own."""
    if not isinstance(data, ImageTensors | MaskedVolumes):
        return []
    samples = data.samples_in_epoch(repeats=config.trainer.repeats(even=even))
    sizes = batch_sizes(samples, config.trainer.batch_size, even=even)
    together = config.all_settings["accumulate"]
    return [sum(sizes[start : start + together]) for start in range(0, len(sizes), together)]
