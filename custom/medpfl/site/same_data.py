"""Whether a site's data are those that the run began with."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from medpfl.core.errors import TornFile
from medpfl.core.parameters import StateError
from medpfl.site.store import DATA, SiteStore

logger = logging.getLogger(__name__)


def require_same_data(name: str, store: SiteStore, digest: Tensor | None) -> None:
    """Other data mean another split: former training samples might be tested on.

    Args:
        name: the site's.
        store: has the digest of when the run began.
        digest: of the data as they are, uint8; None where nobody knows it.

    Raises:
        StateError: they have changed, or the record is damaged.
    """
    try:
        before = store.get(DATA, 0)
    except TornFile as error:
        logger.warning("%s: %s", name, error)
        raise StateError(
            f"{name}: the record of its data is damaged, so nobody can say whether they have changed since "
            "the run began; begin a new experiment"
        ) from None
    if before is not None and digest is not None and not torch.equal(before["digest"], digest):
        raise StateError(
            f"{name}: its data have changed since the run began, so training and test samples would mix; "
            "restore them or begin a new experiment"
        )
