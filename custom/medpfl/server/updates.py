"""Which answers of sites the server uses: nothing malformed, non-finite or unasked reaches the mix or the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError
from torch import Tensor

from medpfl.core.answers import MOST_SECONDS, answers
from medpfl.core.messages import Message, Update, in_channel
from medpfl.core.parameters import State, StateError
from medpfl.core.statefile import serialised_bytes
from medpfl.server.state import Plan

_WORDS = 500
"""Characters of a reason."""

_SECONDS: TypeAdapter[float] = TypeAdapter(Annotated[FiniteFloat, Field(ge=0, le=MOST_SECONDS)])


def check_update(
    plan: Plan,
    expected: Mapping[str, Message],
    update: Update,
    others: Sequence[Update],
) -> Update:
    """Lets an update pass or says what is wrong with it, whatever it holds.

    Args:
        plan: of the run.
        expected: the message that every site was sent.
        update: a site's answer; anything may stand in it but for the site's name, which is the transport's.
        others: answers that have passed.

    Returns:
        The update with the same tensors; metrics and seconds are plain JSON values.

    Raises:
        StateError: the update must not be used.
    """
    message = expected.get(update.site)
    if message is None:
        raise StateError("an answer that was not asked for")
    try:
        return _checked(plan, message, update, others)
    except StateError:
        raise
    except Exception as error:  # whatever a site sends: it must not end the run
        raise StateError(f"malformed answer: {type(error).__name__}") from error


def bytes_of(tensors: Any) -> int:
    """Of the tensors of an answer, as serialised, whatever it holds; 0 where these are no plain tensors by name."""
    try:
        _check_tensors(tensors)
        return serialised_bytes(tensors)
    except Exception:  # whatever a site sends: it must not end the run
        return 0


def _checked(
    plan: Plan,
    message: Message,
    update: Update,
    others: Sequence[Update],
) -> Update:
    if type(update.round) is not int or not 0 <= update.round <= 10**9:
        raise StateError("malformed answer: its round is no number of a round")
    if update.round != message.round:
        raise StateError(f"an answer for round {update.round}, but round {message.round} is under way")
    if any(u.site == update.site for u in others):
        raise StateError("a second answer; the first one counts")
    _check_tensors(update.tensors)
    shared = {k: v for k, v in update.tensors.items() if "/" not in k}
    if message.task == "train":
        plan.split.check_shared(shared)
        _check_types(shared, message.shared)
    elif shared:
        raise StateError(f"entry {next(iter(shared))!r} does not belong into the answer to {message.task!r}")
    asked = {c.name: c for c in plan.channels if c.to_server and c.name in message.asked}
    for name in update.tensors:
        if (channel := name.partition("/")[0]) not in asked and "/" in name:
            raise StateError(f"{channel} that were not asked for")
    for name, channel in asked.items():
        if not (sent := in_channel(name, update.tensors)):
            raise StateError(f"the {name} that the method needs are missing")
        channel.check(sent)
    return replace(
        update, metrics=_plain_metrics(plan, message, update.metrics), seconds=_plain_seconds(update.seconds)
    )


def _check_tensors(tensors: Any) -> None:
    if not isinstance(tensors, dict):
        raise StateError("malformed answer: no tensors by name")
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise StateError("malformed answer: an entry is no tensor with a name")
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta or tensor.requires_grad:
            raise StateError(f"entry {name!r} is no plain tensor")


def _check_types(shared: State, sent: State) -> None:
    # One site's wider type would become that of all sites' next states.
    for name, tensor in sent.items():
        if shared[name].dtype != tensor.dtype:
            raise StateError(f"shared entry {name!r} has type {shared[name].dtype}, expected {tensor.dtype}")


def _plain_seconds(seconds: Any) -> float:
    try:
        return _SECONDS.validate_python(seconds, strict=True)
    except ValidationError as error:
        raise StateError(f"seconds: {error.errors(include_input=False)[0]['msg']}") from None


def _plain_metrics(plan: Plan, message: Message, metrics: Any) -> dict[str, Any]:
    schema = answers(plan.config.learned.schema, plan.config.learned.spans)[message.task]
    try:
        found = schema.model_validate(metrics, strict=True).model_dump(exclude_unset=True)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise StateError(f"metric {where!r}: {first['msg']}") from None
    if message.task == "join":
        _check_epochs(message.info["epochs"], found)
    for which, round_ in found.get("tested", {}).items():
        if round_ > plan.config.rounds:
            raise StateError(f"metric 'tested.{which}': round {round_} of {plan.config.rounds}")
    if verdict := found.get("verdict"):
        _check_verdict(plan, verdict)
    _check_numbers(plan.config.numbers, found.get("numbers") or {})
    return found


def _check_verdict(plan: Plan, verdict: Mapping[str, Any]) -> None:
    """Only where sites train alone too, of rounds that there were, of all measures, with intervals that are some."""
    if not plan.config.has_rival:
        raise StateError("metric 'verdict': in this run no site trains alone")
    for round_ in (verdict["alone_round"], *(used["round"] for used in verdict["used"].values())):
        if round_ > plan.config.rounds:
            raise StateError(f"metric 'verdict': round {round_} of {plan.config.rounds}")
    if verdict["gain"] is None:
        return
    for name in plan.config.learned.everywhere:
        if name not in verdict["gain"]:
            raise StateError(f"metric 'verdict.gain.{name}': missing")
    for name, gained in verdict["gain"].items():
        if gained and not gained["low"] <= gained["difference"] <= gained["high"]:
            raise StateError(f"metric 'verdict.gain.{name}': a difference outside its interval")


def _check_numbers(known: Mapping[str, tuple[float, float]], numbers: Mapping[str, float]) -> None:
    """What the method reports and nothing else."""
    for name, value in numbers.items():
        if name not in known:
            raise StateError(f"metric 'numbers': {name!r} is none of the method's")
        least, most = known[name]
        if not least <= value <= most:
            raise StateError(f"metric 'numbers.{name}': {value:g} is not between {least:g} and {most:g}")


def _check_epochs(epochs: int, joined: Mapping[str, Any]) -> None:
    """A newcomer measures before and after every epoch, tells all or two, and keeps one; a rival may diverge."""
    trainings = [("epoch", "validation")]
    if joined["alone_epoch"] is not None:
        trainings.append(("alone_epoch", "alone_validation"))
    elif joined["alone"] is not None or joined["alone_validation"]:
        raise StateError("metric 'alone_epoch': measures of a training that kept no epoch")
    for kept, measured in trainings:
        if len(joined[measured]) != epochs + 1:
            raise StateError(f"metric {measured!r}: {len(joined[measured])} of {epochs + 1} measures")
        if joined[kept] > epochs:
            raise StateError(f"metric {kept!r}: epoch {joined[kept]} of {epochs}")


def in_words(reason: object) -> str:
    """A reason as results and logs may hold it: one line of printable characters, not long. It may be a site's own."""
    text = reason[: 2 * _WORDS] if isinstance(reason, str) else f"a reason that is no text ({type(reason).__name__})"
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _WORDS else f"{line[:_WORDS]} ..."
