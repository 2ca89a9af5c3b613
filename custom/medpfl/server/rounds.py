"""The server's logic as pure functions: what to send in a state, and the next state from the sites' answers.

A run goes through the phases prepare (sites say hello, with statistics where the mixing needs them), train (rounds 1
to R), validate (the last mix on validation data), test (once, at the selected round and at the last) and done. Engines
only loop: ``messages``, carry, ``advance``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from medpfl.algorithms.failing import at_server
from medpfl.algorithms.mechanism import Mechanism, Step, Turn
from medpfl.core.channels import carried, require_tensors
from medpfl.core.errors import RunEnded, UserError
from medpfl.core.measure import LOSS
from medpfl.core.messages import Failure, Message, NotAsked, Update, named
from medpfl.core.numbers_in_words import count
from medpfl.core.parameters import State, StateError
from medpfl.core.plain import require_json
from medpfl.core.server_state import Phase, ServerState
from medpfl.core.statefile import serialised_bytes
from medpfl.server.magnitude import Shares, check_magnitudes
from medpfl.server.moving import moved_states
from medpfl.server.participation import counting, drawn, passed_over
from medpfl.server.state import Plan
from medpfl.server.updates import bytes_of, check_update, in_words
from medpfl.server.weighing import (
    large_numbers,
    made_of_updates,
    mean_shared,
    mixed_states,
    mixing_matrix,
    weights_of_updates,
    with_sent,
)
from medpfl.tasks.selection import selection


class QuorumNotMet(UserError):
    """Fewer usable updates than the run's quorum; the state before the round is intact."""


class QuorumLost(QuorumNotMet, RunEnded):
    """The same of sites that had begun."""


def messages(plan: Plan, state: ServerState) -> dict[str, Message]:
    """One message for each site that has something to do. No site gets anything of another's but in mixes and means.

    What of a site's own answer was scaled back (``scaled``) tells it the median length of the others'.
    """
    if state.phase == "done":
        return {}
    joined = [s for s in plan.config.site_names if s in state.samples]
    hello = {s: _hello(plan, state, s) for s in plan.config.site_names if s not in state.samples}
    if state.phase == "prepare":
        return hello
    if state.phase == "train":
        trains = drawn(plan.config, state.round + 1, joined)
        ask = {s: _train_message if s in trains else _follow_message for s in joined}
        return {s: message(plan, state, s) for s, message in ask.items()} | hello
    shared = {s: state.shared.get(s, plan.initial_shared) for s in joined}
    if state.phase == "validate":
        info = _selecting(plan, state)
        return {s: Message("validate", state.round, shared[s], info) for s in joined}
    return {s: Message("test", state.round, {}, {"selected_round": state.best_round or state.round}) for s in joined}


def advance(plan: Plan, state: ServerState, replies: Sequence[Update | Failure], seconds: float) -> ServerState:
    """The next state from the answers to :func:`messages`; ``seconds`` is how long they took.

    Updates that are not finite, not of the right shape, of another round, of an unknown site or far larger than the
    others never reach the mix as they are: they become failures that name the site. Tensors of usable updates are
    consumed.

    Raises:
        QuorumNotMet: too few usable updates; ``state`` is intact and the phase can be tried again.
        Stopped: the run was ended while a mechanism was at its step; ``state`` is intact.
    """
    expected = messages(plan, state)
    failures = [r for r in replies if isinstance(r, Failure)]
    usable: list[Update] = []
    refused: list[Update] = []
    # The order of arrival must not decide the order of summation.
    order = plan.config.places
    for update in sorted((r for r in replies if isinstance(r, Update)), key=lambda u: order.get(u.site, len(order))):
        try:
            usable.append(check_update(plan, expected, update, usable))
        except StateError as error:
            refused.append(update)
            failures.append(Failure(update.site, state.round, str(error)))
    answered = {r.site for r in replies}
    failures += [Failure(s, m.round, "no answer in time") for s, m in expected.items() if s not in answered]
    # A site's own words, and a round that it may have said: what results hold is the server's.
    rounds = {s: m.round for s, m in expected.items()}
    failures = [Failure(f.site, rounds.get(f.site, state.round), in_words(f.reason)) for f in failures]
    newcomers = [u for u in usable if expected[u.site].task == "prepare"]
    following = [u for u in usable if expected[u.site].task == "follow"]
    working = [u for u in usable if expected[u.site].task not in ("prepare", "follow")]
    shares: Shares = {}
    if state.phase == "train":
        kept, large, shares = check_magnitudes(plan.config, expected, working, plan.limited)
        refused += [u for u in working if all(u is not other for other in kept)]
        failures += large
        working = kept
        usable = newcomers + following + working
    failures += [
        Failure(u.site, u.round, f"its personal state was damaged or gone; it went on from that of round {earlier}")
        for u in following + working
        if (earlier := u.metrics.get("restored_round")) is not None
    ]
    over = state.phase == "train" and passed_over(plan.config, state.history, len(working), len(following))
    if not over:
        counted = newcomers if state.phase == "prepare" else working
        _require_quorum(plan, state.phase, counted, failures, expected)
    sizes = {u.site: _sizes(expected[u.site], u) for u in usable}
    unable = [r.site for r in replies if isinstance(r, Failure) and not isinstance(r, NotAsked)]
    travelled = [*sizes.values(), *_sizes_of_unused(expected, refused, unable, usable)]
    traffic = {k: n + sum(of_one[k] for of_one in travelled) for k, n in state.traffic.items()}
    state = replace(state, failures=(*state.failures, *failures), traffic=traffic)
    match state.phase:
        case "prepare":
            joined = _join(plan, state, newcomers)
            said = {"pretrained": plan.given_f, "judged": plan.judged, "selection": _selection(plan, newcomers)}
            return replace(joined, phase="train", **said)
        case "train":
            state = _with_validation(plan, state, [*working, *following]) if state.round else state
            mixed, unused = ([], working) if over else (working, [])
            state = with_sent(plan, state, unused)[0]  # what is asked once is not asked again
            state = _finish_round(plan, state, mixed, unused, following, shares, sizes, seconds)
            return _join(plan, state, newcomers)
        case "validate":
            return replace(_with_validation(plan, state, working), phase="test")
        case _:
            return replace(state, phase="done", final={u.site: u.metrics for u in working})


def next_round(plan: Plan, state: ServerState) -> dict[str, Message]:
    """The training messages that would follow the last round, with what the mechanisms' steps make of it.

    Nothing that sites send beside their models is joined after the last round: of what rests on it, sites get what the
    round before brought if that lasts (a control variate), else nothing.
    """
    lasting = {part.name: state.common[part.name] for part in plan.steps if part.lasts and part.name in state.common}
    state = _with_steps(plan, replace(state, common=lasting), {}, 0)
    return {s: _train_message(plan, state, s) for s in plan.config.site_names if s in state.samples}


def _hello(plan: Plan, state: ServerState, site: str) -> Message:
    info = {"split": plan.split.description()} | _asked(plan, "prepare", state, site)
    return Message("prepare", 0, {**(plan.pretrained or {}), **plan.brought_at_first}, info)


def _train_message(plan: Plan, state: ServerState, site: str) -> Message:
    info = _selecting(plan, state) | _asked(plan, "train", state, site) | _counted(state, site)
    shared = state.shared.get(site, plan.initial_shared)
    common = {k: t for channel, tensors in state.common.items() for k, t in named(channel, tensors).items()}
    return Message("train", state.round + 1, {**shared, **common} if common else shared, info)


def _follow_message(plan: Plan, state: ServerState, site: str) -> Message:
    shared = state.shared.get(site, plan.initial_shared)
    return Message("follow", state.round + 1, shared, _selecting(plan, state) | _counted(state, site))


def _counted(state: ServerState, site: str) -> dict[str, Any]:
    """The last two rounds whose answers of the site were used, and what of the last one was scaled back."""
    used = [*islice((record for record in reversed(state.history) if site in record["participants"]), 2)][::-1]
    scaled = used[-1]["sites"][site].get("scaled") if used else None
    return {"counted": [record["round"] for record in used]} | ({"scaled": scaled} if scaled else {})


def _selection(plan: Plan, newcomers: Sequence[Update]) -> dict[str, Any]:
    told = [said for u in newcomers if (said := u.metrics.get("selecting")) is not None]
    return selection(plan.config.learned, plan.config.select_by, told)


def _by(plan: Plan, state: ServerState) -> str:
    return (state.selection or selection(plan.config.learned, plan.config.select_by, ()))["measure"]


def _selecting(plan: Plan, state: ServerState) -> dict[str, Any]:
    """What sites must know of the selection: the best round so far, and whether to tell the loss too."""
    loss = {"select_by": LOSS.name} if _by(plan, state) == LOSS.name else {}
    return {"best_round": state.best_round} | loss


def _asked(plan: Plan, task: str, state: ServerState, site: str) -> dict[str, list[str]]:
    asked = [c.name for c, part in plan.upward(task) if part.asks(c, plan.config, state, site)]
    return {"asked": asked} if asked else {}


def _require_quorum(
    plan: Plan, phase: Phase, usable: Sequence[Update], failures: Sequence[Failure], expected: Mapping[str, Message]
) -> None:
    asked = [m.task for m in expected.values()]
    task, quorum = counting(plan.config, asked)
    if len(usable) < quorum:
        drawn_of = f"the {asked.count(task)} drawn of " if plan.config.turnout.draws and task else ""
        place, follow = plan.config.places, {s for s, m in expected.items() if m.task == "follow"}
        told: dict[str, list[str]] = {}
        for failure in sorted(failures, key=lambda f: place.get(f.site, len(place))):
            if failure.site not in follow:  # it is none of those who are too few
                told.setdefault(failure.reason, []).append(failure.site)
        reasons = "; ".join(f"{_some(sites)}: {reason}" for reason, sites in islice(told.items(), 3))
        raise (QuorumNotMet if phase == "prepare" else QuorumLost)(
            f"{count(len(usable), 'usable answer')} in phase {phase!r}, the quorum is {quorum} of "
            f"{drawn_of}{plan.config.sites} sites ({reasons}{'; ...' if len(told) > 3 else ''})"
        )


def _some(sites: Sequence[str]) -> str:
    return f"{', '.join(sites[:3])}{f' and {len(sites) - 3} more' if len(sites) > 3 else ''}"


def _join(plan: Plan, state: ServerState, newcomers: Sequence[Update]) -> ServerState:
    samples = dict(state.samples) | {u.site: u.metrics["samples"]["train"] for u in newcomers}
    told = (*state.failures, *large_numbers(plan, state, samples))
    return with_sent(plan, replace(state, samples=samples, failures=told), newcomers)[0]


def _sizes(message: Message, update: Update) -> dict[str, int]:
    """Bytes of the tensors that travelled, as serialised: counted here, so that no site can say otherwise."""
    return {"sent_bytes": serialised_bytes(update.tensors), "received_bytes": serialised_bytes(message.tensors)}


def _sizes_of_unused(
    expected: Mapping[str, Message], refused: Sequence[Update], unable: Sequence[str], usable: Sequence[Update]
) -> list[dict[str, int]]:
    """What is not used has travelled, too; a message counts once, however many answers a site gives to it.

    A site that was unable to answer has received it; of one that is silent nobody knows.
    """
    told, counted = [], {u.site for u in usable}
    for site, sent in [*((u.site, bytes_of(u.tensors)) for u in refused), *((site, 0) for site in unable)]:
        here = site in expected and site not in counted
        counted.add(site)
        received = serialised_bytes(expected[site].tensors) if here else 0
        told.append({"sent_bytes": sent, "received_bytes": received})
    return told


def _finish_round(
    plan: Plan,
    state: ServerState,
    updates: Sequence[Update],
    unused: Sequence[Update],
    following: Sequence[Update],
    shares: Shares,
    sizes: Mapping[str, dict[str, int]],
    seconds: float,
) -> ServerState:
    config = plan.config
    record = {
        "round": state.round + 1,
        "seconds": seconds,
        "participants": [u.site for u in updates],
        **({} if updates else {"unused": [u.site for u in unused]}),
        **({"following": [u.site for u in following]} if plan.config.turnout.draws else {}),
        "sites": {
            u.site: {
                "train_loss": u.metrics["train_loss"],
                "validation": None,
                **({"numbers": u.metrics["numbers"]} if u.metrics.get("numbers") else {}),
                **({"scaled": shares[u.site]} if u.site in shares else {}),
                **sizes[u.site],
                "seconds": u.seconds,
            }
            for u in updates
        },
    }
    state, means = _mixed(plan, state, updates) if updates else (state, {})
    round_ = state.round + 1
    phase: Phase = "validate" if round_ == config.rounds else "train"
    state = replace(state, phase=phase, round=round_, history=(*state.history, record))
    # Where nothing was mixed, what goes beside the models is of what is there already.
    return state if phase == "validate" or not updates else _with_steps(plan, state, means, len(updates))


def _mixed(plan: Plan, state: ServerState, updates: Sequence[Update]) -> tuple[ServerState, Mapping[str, State]]:
    """The state with the updates in its shared states, and the means of what came beside them by channel."""
    present = [plan.config.places[u.site] for u in updates]
    of_updates = made_of_updates(plan.config.mixer)
    weights = None if of_updates else mixing_matrix(plan, state, present)
    state, means = with_sent(plan, state, updates)
    if of_updates:
        state, weights = weights_of_updates(plan, state, present, updates)
    shared = mixed_states(plan, state, weights, [u.tensors for u in updates])
    state, shared = moved_states(plan, state, shared, len(updates))
    return replace(state, shared=shared), means


def _with_steps(plan: Plan, state: ServerState, means: Mapping[str, State], present: int) -> ServerState:
    """The state after the mechanisms' steps, which make what goes with the next round's messages."""
    for part, step in plan.steps.items():
        turn = Turn(state, lambda now=state: mean_shared(plan, now), means, present)
        with at_server(part, "its step", state.round):
            made = step(turn)
        if made is None:
            continue
        if not isinstance(made, Step):
            raise UserError(f"{part.name}: its step at the server gave {type(made).__name__}, not a Step or None")
        _require_declared(plan, part, made, state.round)
        require_json(made.report, f"{part.name}: what its step at the server reports after round {state.round}")
        state = replace(state, common={**state.common, part.name: carried(made.common)})
        if made.report is not None:
            record = {**state.history[-1], part.name: made.report}
            state = replace(state, history=(*state.history[:-1], record))
    return state


def _require_declared(plan: Plan, part: Mechanism, made: Step, round_: int) -> None:
    """UserError unless what a step gives is what its channel to the sites has, or nothing: they would not take it."""
    channel = next((c for c, of in plan.channels.items() if of is part and not c.to_server), None)
    try:
        require_tensors(made.common, "what it gave")
        if not made.common:
            return
        if channel is None:
            raise StateError("it gave tensors, and has no channel to the sites")
        channel.check(named(channel.name, made.common))
    except StateError as error:
        raise UserError(f"{part.name}: its step at the server after round {round_}: {error}") from error


def _with_validation(plan: Plan, state: ServerState, updates: Sequence[Update]) -> ServerState:
    """Files the validation of the last finished round, which comes with the next answer, and selects.

    A round is compared with the best one before over the sites that told of both: who is away at one must not decide.
    """
    record = dict(state.history[-1])
    record["sites"] = {s: dict(v) for s, v in record["sites"].items()}
    for u in updates:
        told = {name: u.metrics[name] for name in ("validation", "validation_loss") if name in u.metrics}
        record["sites"].setdefault(u.site, {}).update(told)
    history = (*state.history[:-1], record)
    best, now = state.best_round, _scores(plan, state, record)
    then = _scores(plan, state, history[best - 1]) if best else {}
    # Rounded, for sums of equal means differ in their last digits.
    gain = round(sum(now[site] - then[site] for site in now if site in then), 12)
    if now and (not then or gain > 0):
        best = record["round"]
    return replace(state, history=history, best_round=best)


def _scores(plan: Plan, state: ServerState, record: Mapping[str, Any]) -> dict[str, float]:
    """Of the sites that have one in a round, as numbers of which more is better."""
    learned, by = plan.config.learned, _by(plan, state)
    return {name: v for name, site in record["sites"].items() if (v := learned.score(site, by)) is not None}
