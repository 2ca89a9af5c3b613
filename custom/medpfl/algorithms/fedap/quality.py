"""How good the pretrained model f is, and how much W depends on it: only where the server has all sites' data.

W compares sites by features of f. Under an f that has learned nothing it still compares something, the sites' grey
values through random filters; the papers do not say how well theirs was trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np
from torch import nn

from medpfl.algorithms.fedap.similarity import LayerStatistics, similarity_weights, wasserstein_distances
from medpfl.algorithms.fedap.statistics import layers_of, statistics_under
from medpfl.algorithms.mechanism import Run
from medpfl.core.parameters import ParameterSplit, State
from medpfl.core.site_data import SiteData


def judge(run: Run, f: State, model: nn.Module, sites: Mapping[str, SiteData]) -> dict[str, Any]:
    """The task's first measure of f on the sites' validation data.

    Args:
        run: the run.
        f: its state.
        model: of the architecture, on the device of the data.
        sites: by name.

    Returns:
        ``measure``, its name; ``sites``, it by site, None without validation data; ``pooled``, it over all of them,
        and ``n``, how many these are; ``most_frequent``, where samples are of one class each, the share of that class.
    """
    learned = run.learned
    name = learned.names[0]
    model.load_state_dict(f)
    there = {site: learned.predict(model, d, "validation") for site, d in sites.items() if d.samples("validation")}
    each = {site: learned.measured(there[site])[name] if site in there else None for site in sites}
    pooled = learned.pooled(list(there.values())) if there else {"n": 0, name: None}
    found = {"measure": name, "sites": each, "pooled": pooled[name], "n": pooled["n"]}
    if learned.one_class and there:
        labels = np.concatenate([labels for _, labels in there.values()])
        found["most_frequent"] = float(np.bincount(labels).max() / len(labels))
    return found


def doubtful(found: Mapping[str, Any]) -> bool:
    """Whether f is right no more often than always naming the most frequent class, within two standard errors."""
    share = found.get("most_frequent")
    if share is None or found["measure"] != "accuracy" or found["pooled"] is None:
        return False
    return found["pooled"] <= share + 2 * sqrt(share * (1 - share) / found["n"])


def stability(
    kind: str,
    models: tuple[State, State],
    model: nn.Module,
    split: ParameterSplit,
    sites: Mapping[str, SiteData],
    self_weight: float,
) -> dict[str, Any]:
    """How W changes from one f to another, over its entries off the diagonal.

    Statistics are exact, also where the run's have noise.

    Args:
        kind: of statistics (:func:`medpfl.algorithms.fedap.statistics.statistics_under`).
        models: the two.
        model: of the architecture.
        split: of it.
        sites: their data.
        self_weight: lambda.

    Returns:
        ``correlation`` (None where one of the two is constant) and ``largest_change``, the largest absolute one.
    """
    off = ~np.eye(len(sites), dtype=bool)
    one, two = (
        similarity_weights(wasserstein_distances(_all(kind, f, model, split, sites)), self_weight) for f in models
    )
    varies = np.ptp(one[off]) > 0 and np.ptp(two[off]) > 0
    return {
        "correlation": float(np.corrcoef(one[off], two[off])[0, 1]) if varies else None,
        "largest_change": float(np.abs(one - two).max()),
    }


def _all(
    kind: str, f: State, model: nn.Module, split: ParameterSplit, sites: Mapping[str, SiteData]
) -> list[LayerStatistics]:
    model.load_state_dict(f)
    return [layers_of(statistics_under(kind, model, split, data, {}, None)) for data in sites.values()]
