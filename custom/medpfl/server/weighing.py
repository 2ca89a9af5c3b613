"""How much each site's update weighs in each site's next shared state, and what bounds a single site's weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from medpfl.messages import STATISTICS, Failure, Update
from medpfl.parameters import State
from medpfl.server.mixing import (
    cap_others,
    counted_samples,
    mix,
    restrict,
    robust_mix,
    sample_weights,
    uniform_weights,
)
from medpfl.server.similarity import LayerStatistics, copies, similarity_weights, wasserstein_distances
from medpfl.server.state import Plan, ServerState
from medpfl.server.updates import statistics_of

_COPY = (
    "its statistics are those of {} to the last bit: the same data, or one has copied the other's; the two count as "
    "neither near nor far"
)


def mixing_matrix(plan: Plan, state: ServerState, present: Sequence[int]) -> np.ndarray:
    """W for the mix after the next round.

    Args:
        plan: the run's.
        state: after the last round.
        present: the M sites whose updates are there, as positions among the run's N names.

    Returns:
        (N, M): rows sum to 1, or are all zero where a site has nobody to mix with.
    """
    config = plan.config
    match config.resolved_mixing:
        case "identity":
            return restrict(np.eye(config.sites), present)
        case "uniform":
            weights = uniform_weights(config.sites, config.all_settings["lambda"])
        case "similarity" | "similarity-classifier" if state.weights is not None:
            weights = state.weights
        case "similarity-running" if state.weights is not None and state.round >= config.rounds // 2:
            weights = state.weights
        case _:
            samples = [state.samples.get(s, 0) for s in config.site_names]
            return restrict(sample_weights(counted_samples(samples, config.largest_weight)), present)
    # After the absent sites' weights went to the others: who is there weighs no more than the cap either.
    column = {site: i for i, site in enumerate(present)}
    return cap_others(restrict(weights, present), [column.get(i) for i in range(config.sites)], config.weight_cap)


def mixed_states(
    plan: Plan, state: ServerState, weights: np.ndarray | None, updates: Sequence[State]
) -> dict[str, State]:
    """Every site's next shared state; without weights, by a robust mixing."""
    config = plan.config
    if weights is None:
        common = robust_mix(config.resolved_mixing, updates, config.all_settings.get("trim", 0.0))
        return dict.fromkeys(config.site_names, common)
    mixed = mix(weights, updates)
    # A row without weight is a site that has nobody to mix with: it keeps what it has.
    return {
        site: mixed[i] if weights[i].any() else state.shared.get(site, plan.initial_shared)
        for i, site in enumerate(config.site_names)
    }


def large_numbers(plan: Plan, state: ServerState, samples: Mapping[str, int]) -> list[Failure]:
    """Notes of the newcomers whose numbers of samples count less than they say."""
    if not plan.config.mixes_by_samples:
        return []
    counted = dict(zip(samples, counted_samples(list(samples.values()), plan.config.largest_weight), strict=True))
    factor = plan.config.largest_weight
    return [
        Failure(
            site,
            state.round,
            f"it has {n} training samples; it counts as one of {counted[site]}, {factor:g} times the median",
        )
        for site, n in samples.items()
        if site not in state.samples and counted[site] < n
    ]


def with_statistics(plan: Plan, state: ServerState, updates: Sequence[Update]) -> ServerState:
    """The state with the statistics that came with updates, out of which they are taken, and W of all that are known.

    Sites with the same statistics to the last bit are told, and the distance between them counts as not known.
    """
    fresh = {u.site: found for u in updates if (found := pop_statistics(u))}
    if not fresh:
        return state
    known = {**state.statistics, **fresh}
    names = [s for s in plan.config.site_names if s in known]
    where = [plan.config.site_names.index(s) for s in names]
    distances = np.full((plan.config.sites, plan.config.sites), np.nan)
    distances[np.ix_(where, where)] = wasserstein_distances([known[s] for s in names])
    told = []
    for i, j in copies([known[s] for s in names]):
        if _untouched(known[names[i]]):
            continue
        # At distance 0 the two would be all of each other's mix.
        distances[where[i], where[j]] = distances[where[j], where[i]] = np.nan
        if {names[i], names[j]} & fresh.keys():
            told.append(Failure(names[j], state.round, _COPY.format(names[i])))
    weights = similarity_weights(distances, plan.config.all_settings["lambda"])
    return replace(state, statistics=known, weights=weights, failures=(*state.failures, *told))


def _untouched(statistics: LayerStatistics) -> bool:
    """Whether these are running statistics of sites whose batches of one image never moved them: 0 and 1."""
    return all((mean == 0).all() and (variance == 1).all() for mean, variance in statistics.values())


def pop_statistics(update: Update) -> LayerStatistics:
    """Takes the statistics out of an update's tensors."""
    arrays = {k.removeprefix(STATISTICS): update.tensors.pop(k).numpy() for k in statistics_of(update)}
    layers = dict.fromkeys(k.rpartition("/")[0] for k in arrays)
    return {layer: (arrays[f"{layer}/mean"], arrays[f"{layer}/variance"]) for layer in layers}
