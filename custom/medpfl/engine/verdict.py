"""What taking part was worth, in results.json, as far as sites tell: figures of training alone, and every gain."""

from __future__ import annotations

from collections import Counter
from typing import Any

from medpfl.algorithms import LOCAL
from medpfl.config.run import RunConfig
from medpfl.core.gain import verdict as in_a_word
from medpfl.core.numbers_in_words import count
from medpfl.core.server_state import ServerState
from medpfl.server.state import Plan
from medpfl.tasks.paired import counted
from medpfl.tasks.summary import summary

_MISSED = 0.1
"""Share of the rounds that a site may have missed without a word of it."""

_ALONE = ", and the model that a site trains alone was trained in every one"


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


def missed_rounds(state: ServerState) -> list[str]:
    """Of which sites a gain may be too large, since they trained in few of the rounds, alone too."""
    there = ("participants", "unused", "following")
    rounds = [{site for how in there for site in record.get(how, ())} for record in state.history]
    took_part = {site: sum(site in present for present in rounds) for site in _told(state)}
    few = {site: number for site, number in took_part.items() if number < (1 - _MISSED) * len(rounds)}
    if not few:
        return []
    where = ", ".join(f"{site} ({number})" for site, number in few.items())
    return [
        f"Took part in fewer than the {len(rounds)} rounds: {where}. A site trains alone in the rounds in which it is "
        "asked, so that its own model had about as few: what is gained over it may be more than over one of "
        "all rounds."
    ]


def drawn_rounds(config: RunConfig, state: ServerState) -> list[str]:
    """In how many rounds sites trained, where a share of them is drawn for each; one that is drawn may have failed."""
    if not (config.turnout.draws and state.history):
        return []
    trained = Counter(site for record in state.history for site in record["participants"])
    numbers = [trained[site] for site in state.samples]
    least, most = min(numbers), max(numbers)
    each = f"each site did in {least}" if least == most else f"sites did in {least} to {most}"
    never = [site for site in state.samples if not trained[site]]
    over = [str(record["round"]) for record in state.history if not record["participants"]]
    said = [
        f"In a round {config.turnout.trained} of {config.sites} sites were drawn to train, and {each} of "
        f"{count(len(state.history), 'round')}; the others followed{_ALONE if config.has_rival else ''}."
    ]
    if over:
        said.append(
            f"Too few of those who were drawn gave a usable answer in round{'s' * (len(over) > 1)} {', '.join(over)}: "
            "nothing was mixed, and others were drawn for the next one."
        )
    if never:
        said.append(f"Trained in no round, not drawn or without an answer that was used: {', '.join(never)}.")
    return said


def _told(state: ServerState) -> dict[str, Any]:
    return {site: m["verdict"] for site, m in (state.final or {}).items() if m.get("verdict")}
