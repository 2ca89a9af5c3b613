"""How the sites' models do where the site is unknown: on all sites' test data pooled, and at centres not in training.

The probabilities of all sites' models are averaged: the "new test" of Liang et al., arXiv:2001.01523, and of Shen et
al., IEEE JBHI 2023. That needs every site's whole model in one place, which only a simulation has.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from medpfl.core.errors import UserError, first_line
from medpfl.core.own_loaders import LoaderError
from medpfl.core.site_data import SiteData
from medpfl.engine.federation import Federation
from medpfl.models.blend import restored
from medpfl.tasks.evaluation import cases, cases_of_all, joined

logger = logging.getLogger(__name__)

NO_TEST = "no test of all sites' models together: "
"""How the reason begins."""
MOST_PREDICTIONS = 100_000
"""Models times samples that are predicted without being asked to; every model sees every sample."""


def new_test(federation: Federation, models: Path, *, asked: bool) -> dict[str, Any] | str:
    """The measures of the average prediction of all sites' models.

    Args:
        federation: with the sites' data.
        models: folder with a safetensors file for each site that has a model.
        asked: whether the user asked for it; if not, more than :data:`MOST_PREDICTIONS` are not made.

    Returns:
        ``models``, their number; ``pooled``, on all sites' test data, or None where there are none; ``held_out``, by
        centre. Or, in words, why there is no such test.
    """
    try:
        return _new_test(federation, models, asked=asked)
    except LoaderError as error:  # of a site that took no part for it
        return f"{NO_TEST}{error}"


def _new_test(federation: Federation, models: Path, *, asked: bool) -> dict[str, Any] | str:
    files = [file for n in federation.config.site_names if (file := models / f"{n}.safetensors").exists()]
    sites = {name: federation.source.site(name, federation.device) for name in federation.config.site_names}
    centres = federation.source.held_out(federation.device)
    data = {}
    for name, own in (sites | centres).items():
        with _named(name):
            if own.samples("test"):
                data[name] = own
    predictions = len(files) * sum(d.samples("test") for d in data.values())
    if not predictions:
        return f"{NO_TEST}there are no models or no test samples"
    learned = federation.config.learned
    if learned.labels == "mask":
        unscored = f" So the images of the centres that were held out, {', '.join(centres)}, are not scored."
        return f"{NO_TEST}masks of several models are not averaged.{unscored if centres else ''}"
    if predictions > MOST_PREDICTIONS and not asked:
        return f"{NO_TEST}it takes {predictions:,} predictions; ask with --new-test"
    found = _averaged(federation, files, data)
    of = {name: cases(own, "test") for name, own in data.items()}
    pooled = [name for name in data if name in sites]
    whose = cases_of_all([of[name] for name in pooled], [len(found[name][1]) for name in pooled])
    return {
        "models": len(files),
        "pooled": learned.measured(joined([found[name] for name in pooled]), whose) if pooled else None,
        "held_out": {name: learned.measured(found[name], of[name]) for name in data if name in centres},
    }


@contextmanager
def _named(site: str) -> Iterator[None]:
    """What is wrong with a site's data or their function, with its name: all else of the run is done."""
    try:
        yield
    except LoaderError as error:
        raise LoaderError(f"{site}: {error}") from None
    except UserError:
        raise
    except Exception as error:  # as the site's own rounds: the log has where it was
        logger.warning("%s: the test of all sites' models: %s", site, error, exc_info=error)
        raise LoaderError(f"{site}: {type(error).__name__}: {first_line(error)}") from error


def _averaged(federation: Federation, files: list[Path], data: dict[str, SiteData]) -> dict[str, Any]:
    """By data set: the mean of all models' probabilities (n, classes), and the labels (n,)."""
    model = federation.model()
    sums: dict[str, np.ndarray] = {}
    labels: dict[str, np.ndarray] = {}
    for file in files:
        used = restored(model, load_file(file, device=str(federation.device)))
        for name, samples in data.items():
            with _named(name):
                probabilities, labels[name] = federation.config.learned.predict(used, samples, "test")
            sums[name] = sums[name] + probabilities if name in sums else probabilities
    return {name: (total / len(files), labels[name]) for name, total in sums.items()}
