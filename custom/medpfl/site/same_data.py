"""Whether a site's data are those that the run began with."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from medpfl.core.errors import TornFile
from medpfl.core.parameters import StateError
from medpfl.site import words
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
        raise StateError(words.DATA_UNKNOWN(name)) from None
    if before is not None and digest is not None and not torch.equal(before["digest"], digest):
        raise StateError(words.DATA_CHANGED(name))
