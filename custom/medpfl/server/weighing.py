"""How much each site's update weighs in each site's next shared state, and what bounds a single site's weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

import numpy as np

from medpfl.algorithms.failing import at_server, unchanged
from medpfl.algorithms.mixing_kinds import CommonMixing, MatrixMixing, MeasuredMixing, Mixing
from medpfl.core.errors import UserError
from medpfl.core.messages import Failure, Update, of_channel
from medpfl.core.mixing import cap_others, counted_samples, mix, restrict, sample_weights
from medpfl.core.parameters import State
from medpfl.core.server_state import ServerState
from medpfl.server.state import Plan


def made_of_updates(mixer: Mixing) -> bool:
    """Whether a mixing's W is made of the round's updates, and not of what was known before."""
    return isinstance(mixer, MatrixMixing) and "updates" in signature(mixer.matrix).parameters


def mixing_matrix(plan: Plan, state: ServerState, present: Sequence[int]) -> np.ndarray | None:
    """W for the mix after the next round; None for a mixing without a matrix.

    Of a mixing that makes W of a round's updates it is the last round's, None before the first.

    Args:
        plan: the run's.
        state: after the last round.
        present: the M sites whose updates are there, as positions among the run's N names.

    Returns:
        (N, M): rows sum to 1, or are all zero where a site has nobody to mix with.

    Raises:
        UserError: the mixing fails, or what it gives is no such matrix of all N sites.
    """
    config = plan.config
    if not isinstance(config.mixer, MatrixMixing):
        return None
    if made_of_updates(config.mixer):
        return None if state.weights is None else restrict(state.weights, present)
    with at_server(config.mixer, "its matrix", state.round):
        found = config.mixer.matrix(config, state)
    return _among(plan, _checked(plan, found, state.round), present)


def weights_of_updates(
    plan: Plan, state: ServerState, present: Sequence[int], updates: Sequence[Update]
) -> tuple[ServerState, np.ndarray]:
    """The same of a mixing that makes W of the round's updates, and the state with it, as it is used.

    Args:
        plan: the run's.
        state: before the round, with what came in channels in it.
        present: see :func:`mixing_matrix`.
        updates: of these sites.
    """
    config, round_ = plan.config, state.round + 1
    given = {update.site: update.tensors for update in updates}
    with at_server(config.mixer, "its matrix", round_), unchanged(config.mixer, "its matrix", *given.values()):
        found = config.mixer.matrix(config, state, updates={site: dict(tensors) for site, tensors in given.items()})
    weights = _among(plan, _checked(plan, found, round_), present)
    over_all = np.zeros((config.sites, config.sites))
    over_all[:, list(present)] = weights
    return replace(state, weights=over_all), weights


def _checked(plan: Plan, found: Any, round_: int) -> np.ndarray:
    """W as a mixing gave it, (N, N) float64; a copy."""
    mixer = plan.config.mixer
    whose = f"mixing {mixer.name} {f'after round {round_}' if round_ else 'before round 1'}"
    _require_weights(found, plan.config.sites, whose)
    if mixer.common and np.ptp(found.astype(np.float64), axis=0).max() > 1e-6:
        raise UserError(
            f"{whose}: rows of W differ, and it says common = True, that all sites get the same: leave it out"
        )
    return np.array(found, dtype=np.float64)


def _among(plan: Plan, found: np.ndarray, present: Sequence[int]) -> np.ndarray:
    """W among those who are there, (N, M)."""
    config = plan.config
    weights = restrict(found, present)
    if not config.mixer.weighs_sites:
        return weights
    # After the absent sites' weights went to the others: who is there weighs no more than the cap either.
    column = {site: i for i, site in enumerate(present)}
    return cap_others(weights, [column.get(i) for i in range(config.sites)], config.weight_cap)


def _require_weights(matrix: Any, sites: int, whose: str) -> None:
    """A mixing may be another package's: one that is wrong must not be taken for one that does nothing."""
    shape = np.shape(matrix)
    if not isinstance(matrix, np.ndarray) or shape != (sites, sites):
        raise UserError(f"{whose}: W must be an array of {sites}x{sites}, not {type(matrix).__name__} {list(shape)}")
    if matrix.dtype.kind not in "biuf":
        raise UserError(f"{whose}: W must be of real numbers, not of {matrix.dtype}")
    if not np.isfinite(matrix).all() or (matrix < 0).any():
        raise UserError(f"{whose}: W has entries that are negative, NaN or infinite")
    sums = matrix.sum(axis=1)
    if wrong := [float(found) for found in sums if found and abs(found - 1) > 1e-6]:
        raise UserError(
            f"{whose}: a row of W sums to {wrong[0]:.6g}; 1 is needed, or 0 for a site that mixes with nobody"
        )


def mixed_states(
    plan: Plan, state: ServerState, weights: np.ndarray | None, updates: Sequence[State]
) -> dict[str, State]:
    """Every site's next shared state; without weights, by a mixing that has no matrix."""
    config = plan.config
    if isinstance(config.mixer, CommonMixing):
        return dict.fromkeys(config.site_names, config.mixer.mixed(updates))
    mixed = mix(weights, updates)
    # A row without weight is a site that has nobody to mix with: it keeps what it has.
    return {
        site: mixed[i] if weights[i].any() else state.shared.get(site, plan.initial_shared)
        for i, site in enumerate(config.site_names)
    }


def mean_shared(plan: Plan, state: ServerState) -> State:
    """The sites' mean shared state, weighted as their numbers of samples count."""
    joined = [s for s in plan.config.site_names if s in state.samples]
    states = [dict(state.shared.get(s, plan.initial_shared)) for s in joined]
    if all(other is state.shared.get(joined[0]) for other in (state.shared.get(s) for s in joined)):
        return states[0]
    counted = counted_samples([state.samples[s] for s in joined], plan.config.largest_weight)
    return mix(sample_weights(counted)[:1], states)[0]


def large_numbers(plan: Plan, state: ServerState, samples: Mapping[str, int]) -> list[Failure]:
    """Notes of the newcomers whose numbers of samples count less than they say."""
    if not plan.config.mixer.by_samples:
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


def with_sent(plan: Plan, state: ServerState, updates: Sequence[Update]) -> tuple[ServerState, dict[str, State]]:
    """The state with what came in channels, which is taken out of the updates.

    Returns:
        The state, with W where the mixing makes it of what came; and by channel the mean of what the sites sent, where
        that is how it is joined.
    """
    means: dict[str, State] = {}
    for channel in (c for c in plan.channels if c.to_server):
        fresh = {u.site: found for u in updates if (found := pop_sent(channel.name, u))}
        if not fresh:
            continue
        if channel.joined == "mean":
            means[channel.name] = mix(np.full((1, len(fresh)), 1 / len(fresh)), list(fresh.values()))[0]
            continue
        state = replace(state, kept={**state.kept, channel.name: {**state.kept.get(channel.name, {}), **fresh}})
        if not isinstance(part := plan.channels[channel], MeasuredMixing):
            continue  # W is the mixing's
        weights, told = part.received(plan.config, state, list(fresh))
        notes = [Failure(site, state.round, why) for site, why in told]
        state = replace(state, weights=weights, failures=(*state.failures, *notes))
    return state, means


def pop_sent(channel: str, update: Update) -> State:
    """Takes what came in a channel out of an update's tensors."""
    found = of_channel(channel, update.tensors)
    for name in found:
        del update.tensors[f"{channel}/{name}"]
    return found
