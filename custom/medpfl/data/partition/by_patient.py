"""One hospital's samples divided over simulated sites, each patient's at one of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from medpfl.core.errors import UserError
from medpfl.data.partition.draw import draw
from medpfl.data.partition.spec import parse_spec
from medpfl.data.patients import Sample, by_person, class_of

log = logging.getLogger(__name__)
S = TypeVar("S", bound=Sample)

DRAWN = ("dirichlet", "equal-dirichlet", "shards", "iid")
"""Kinds of partitions that can be drawn of patients."""


def require_drawn(partition: str, title: str) -> None:
    """UserError if a partition is none that divides one centre's patients, nor ``natural``.

    Args:
        partition: as asked for.
        title: what is divided, for the message.
    """
    if parse_spec(partition).kind not in (*DRAWN, "natural"):
        forms = "dirichlet:A, equal-dirichlet:A, shards:K or iid"
        raise UserError(
            f"--partition {partition}: {title} are their own centres': leave it out; {forms} divides those of "
            "one centre over simulated sites"
        )


def divide_patients(samples: Sequence[S], partition: str, sites: Sequence[str], seed: int) -> dict[str, tuple[S, ...]]:
    """Draws which patients are at which site; a patient's class is that of most samples.

    Args:
        samples: of one centre, as dataclasses with a field ``centre``.
        partition: one that :func:`require_drawn` lets through, as :func:`~medpfl.data.partition.draw.draw` has it.
        sites: their names.
        seed: the run's.

    Returns:
        Each site's samples in their order, with the site for a centre.

    Raises:
        UserError: fewer patients than sites, or a draw that leaves a site without any.
    """
    by_patient = by_person(samples)
    patients = sorted(by_patient)
    if len(sites) > len(patients):
        raise UserError(f"--sites {len(sites)}: there are only {len(patients)} patients to divide")
    labels = np.array([class_of(by_patient[patient]) for patient in patients])
    site_of = {
        patients[index]: site
        for site, indices in zip(sites, draw(parse_spec(partition), labels, len(sites), seed), strict=True)
        for index in indices.tolist()
    }
    if left := len(patients) - len(site_of):
        log.warning("%d of %d patients are at no site, so that all have as many", left, len(patients))
    place = {id(sample): site for patient, site in site_of.items() for sample in by_patient[patient]}
    divided: dict[str, list[S]] = {site: [] for site in sites}
    for sample in samples:
        if site := place.get(id(sample)):
            divided[site].append(replace(sample, centre=site))
    if empty := next((site for site, own in divided.items() if not own), None):
        raise UserError(
            f"--partition {partition}: {empty} would have no patient of {len(patients)}: another --seed, a larger "
            "number behind the colon, or fewer --sites"
        )
    return {site: tuple(own) for site, own in divided.items()}
