"""What mechanisms make of the common mix at the server, such as a step of an optimizer along it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from inspect import signature

from medpfl.algorithms.failing import at_server, unchanged
from medpfl.algorithms.mechanism import Moved
from medpfl.core.channels import carried, require_tensors
from medpfl.core.errors import UserError
from medpfl.core.parameters import State, StateError
from medpfl.core.server_state import ServerState
from medpfl.server.state import Plan


def moved_states(
    plan: Plan, state: ServerState, shared: Mapping[str, State], present: int
) -> tuple[ServerState, Mapping[str, State]]:
    """The mix as the mechanisms move it, and the state with what they keep for that; both as they are without any.

    Args:
        plan: the run's.
        state: before the round.
        shared: by site, its next shared state: of all sites the same where a mechanism moves it.
        present: how many sites took part in the round.

    Raises:
        UserError: a mechanism's move fails, or gives what is no finite shared state.
    """
    for part, move in plan.moves.items():
        site, mixed = next(iter(shared.items()))
        before = state.shared.get(site, plan.initial_shared)
        kept = state.moved_by.get(part.name, {})
        given = before, mixed, kept
        with at_server(part, "its move", state.round + 1), unchanged(part, "its move", *given):
            told = {"share": present / plan.config.sites} if "share" in signature(move).parameters else {}
            made = move(*map(dict, given), **told)
        if not isinstance(made, Moved):
            raise UserError(f"{part.name}: its move at the server gave {type(made).__name__}, not a Moved")
        try:
            plan.split.check_shared(made.common)
            _check(made, mixed)
        except StateError as error:
            raise UserError(f"{part.name}: its move at the server after round {state.round + 1}: {error}") from error
        common = carried(made.common)
        shared = dict.fromkeys(shared, common)
        state = replace(state, moved_by={**state.moved_by, part.name: carried(made.kept)})
    return state, shared


def _check(made: Moved, mixed: State) -> None:
    """StateError unless tensors have the mix's types, as sites expect them, and what is kept can be stored."""
    for name, tensor in made.common.items():
        if tensor.dtype != mixed[name].dtype:
            raise StateError(f"{name} has type {tensor.dtype}, and the mix {mixed[name].dtype}")
    require_tensors(made.kept, "what it keeps")
