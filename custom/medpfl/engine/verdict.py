"""What taking part was worth, in results.json, as far as sites tell: figures of training alone, and every gain."""

from __future__ import annotations

from typing import Any

from medpfl.algorithms import LOCAL
from medpfl.core.gain import verdict as in_a_word
from medpfl.core.server_state import ServerState
from medpfl.server.state import Plan
from medpfl.tasks.paired import counted
from medpfl.tasks.summary import summary


def reference(plan: Plan, state: ServerState) -> dict[str, Any] | None:
    """Every site alone on the same data, rounds and seed, as far as sites tell: what federation has to beat."""
    told = {site: said["alone"] for site, said in _told(state).items() if said["alone"] is not None}
    if not told:
        return None
    found = {"sites": told, **summary(told, plan.config.learned.measures)}
    return {"algorithm": LOCAL.name, "final": {"selected": found, "last": found}}


def verdict(plan: Plan, state: ServerState) -> dict[str, Any] | None:
    """What each site uses and gains over training alone, and how many gain."""
    if not (told := _told(state)):
        return None
    first = state.selection.get("lead") or plan.config.learned.names[0]
    sites = {
        site: {
            "alone_round": said["alone_round"],
            "used": said["used"]["selected"],
            "gain": said["gain"],
            "verdict": in_a_word(said["gain"][first]) if said["gain"] else None,
        }
        for site, said in told.items()
    }
    counts = counted({site: said["gain"] for site, said in told.items()}, first)
    return {"measure": first, "use": plan.config.resolved_use, "counts": counts, "sites": sites}


def _told(state: ServerState) -> dict[str, Any]:
    return {site: m["verdict"] for site, m in (state.final or {}).items() if m.get("verdict")}
