"""What a run must be like at a site so that what leaves rests on many patients, whoever made the run."""

from __future__ import annotations

import torch

from medpfl.core.parameters import StateError
from medpfl.core.site_data import Part, SiteData, labels_of
from medpfl.site.contract import Contract
from medpfl.site.policy import DECAY, SitePolicy


def patients(data: SiteData, part: Part = "train") -> int:
    """Patients of a part of a site's data; samples where these know no patients."""
    if not data.samples(part):
        return 0
    owners = data.owners(part)
    return data.samples(part) if owners is None else len(owners.unique())


def require_many(policy: SitePolicy, contract: Contract, data: SiteData) -> None:
    """StateError where few patients are trained on, or training would weigh few of them more than all others."""
    config, least = contract.config, policy.least_patients
    if not policy.lets_say_whose(contract.patient_pattern):
        raise StateError(
            "policy: whose an image is, is not the job's to say here: its 'patient' is none of patient_patterns"
        )
    if patients(data) < least:
        raise StateError(
            f"policy: no update or statistics of fewer than {least} training patients leave (least_patients)"
        )
    if not policy.lets_decay(config.all_settings):
        raise StateError(
            f"policy: lr times weight_decay is {DECAY:g} at most here: updates would be of the last steps alone "
            "(least_patients)"
        )
    if not policy.lets_augment(config.augment):
        raise StateError(
            "policy: training images are changed by presets alone here, not by a list of the job's own "
            "(own_augmentation)"
        )
    if least > 1 and config.trainer.balances and _fewest(data) < least:
        raise StateError(
            f"policy: of one class there are fewer than {least} training patients, and updates of balanced classes "
            "would rest on these (least_patients)"
        )


def _fewest(data: SiteData) -> int:
    """Patients of the class, of those that are there, that has the fewest; samples where the data know no patients."""
    owners = data.owners("train")
    if owners is None:
        counts = data.class_counts(1)
        return int(counts[counts > 0].min())
    labels = labels_of(data, "train").to(owners.device)
    _, counts = torch.stack([labels, owners]).unique(dim=1)[0].unique(return_counts=True)
    return int(counts.min())
