"""A site reads its data for a job only if what the job makes of them is no more than its policy lets (``data_values``).

A job says how images are read, and so how much memory and cache they take. That is counted before any is decoded.
"""

from __future__ import annotations

import torch

from medpfl.core.errors import UserError
from medpfl.core.site_data import SiteData
from medpfl.data.source import DataSource, number_of_values
from medpfl.site import words
from medpfl.site.policy import SitePolicy


class TooManyValues(UserError):
    """What a job makes of a site's data is beyond its policy, in words for the site: they tell how much it has.

    Attributes:
        told: what may leave it in their place.
    """

    def __init__(self, text: str, told: str):
        super().__init__(text)
        self.told = told


def too_many_values(policy: SitePolicy, values: int | None) -> str:
    """Why a site does not make so many values of its data, in words; empty where it does, or they are not known."""
    limit = policy.data_values
    if values is None or not limit or values <= limit:
        return ""
    return (
        f"as the job reads this site's data, they are up to {values:,} values (samples x channels x shape; with "
        f"masks more), and data_values is {limit:,}: let it ask for smaller images or fewer (--data-arg size, depth, "
        "slices, spacing, pad or step), of masks also fewer classes, or give the policy data_values=N where memory and "
        "disk are enough for N"
    )


def read_data(policy: SitePolicy, source: DataSource, name: str, device: torch.device) -> SiteData:
    """A site's data, once they are known to be within its policy.

    Args:
        policy: the site's.
        source: where its data come from.
        name: the site's.
        device: where they go.

    Raises:
        TooManyValues: they are not; no image was decoded.
        UserError: they cannot be read.
    """
    values = number_of_values(source, name) if policy.data_values else None
    if wrong := too_many_values(policy, values):
        raise TooManyValues(wrong, words.MANY_VALUES(float(policy.data_values)))
    return source.site(name, device)
