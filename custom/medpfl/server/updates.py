"""Which answers of sites the server uses: nothing malformed, non-finite or unasked reaches the mix or the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, PositiveInt, ValidationError

from medpfl.messages import STATISTICS, Message, Task, Update
from medpfl.parameters import ParameterSplit, State, StateError
from medpfl.server.similarity import LayerStatistics

Shapes = dict[str, tuple[int, ...]]
_Share = Annotated[FiniteFloat, Field(ge=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Measures(_Strict):
    n: NonNegativeInt
    accuracy: _Share | None
    balanced_accuracy: _Share | None
    auroc: _Share | None
    auroc_ci95: Annotated[list[_Share], Field(min_length=2, max_length=2)] | None
    auroc_classes: NonNegativeInt


class _Samples(_Strict):
    train: PositiveInt
    validation: NonNegativeInt
    test: NonNegativeInt


class _Prepared(_Strict):
    samples: _Samples


class _Trained(_Strict):
    train_loss: FiniteFloat
    validation: _Measures | None
    restored_round: NonNegativeInt | None = None


class _Validated(_Strict):
    validation: _Measures | None
    restored_round: NonNegativeInt | None = None


class _Which(_Strict):
    selected: _Measures | None
    last: _Measures | None


class _Rounds(_Strict):
    selected: PositiveInt
    last: PositiveInt


class _Tested(_Strict):
    test: _Which
    tested: _Rounds


class _Joined(_Strict):
    samples: _Samples
    received: _Measures | None
    adapted: _Measures | None
    alone: _Measures | None
    epoch: NonNegativeInt
    alone_epoch: NonNegativeInt | None
    validation: list[_Measures | None]
    alone_validation: list[_Measures | None]


_METRICS: dict[Task, type[_Strict]] = {
    "prepare": _Prepared,
    "train": _Trained,
    "validate": _Validated,
    "test": _Tested,
    "statistics": _Strict,
    "join": _Joined,
}


def check_update(
    split: ParameterSplit,
    expected: Mapping[str, Message],
    update: Update,
    others: Sequence[Update],
    statistics_known: Mapping[str, LayerStatistics],
) -> None:
    """Lets an update pass or says what is wrong with it.

    Args:
        split: what is shared.
        expected: the message that every site was sent.
        update: a site's answer.
        others: answers that have passed.
        statistics_known: the sites' statistics so far.

    Raises:
        StateError: the update must not be used.
    """
    message = expected.get(update.site)
    if message is None:
        raise StateError("an answer that was not asked for")
    if update.round != message.round:
        raise StateError(f"an answer for round {update.round}, but round {message.round} is under way")
    if any(u.site == update.site for u in others):
        raise StateError("a second answer; the first one counts")
    statistics = statistics_of(update)
    shared = {k: v for k, v in update.tensors.items() if k not in statistics}
    if message.task == "train":
        split.check_shared(shared)
    elif shared:
        raise StateError(f"entry {next(iter(shared))!r} does not belong into the answer to {message.task!r}")
    kind = message.info.get("statistics")
    if kind and not statistics:
        raise StateError(f"the {kind} statistics that the mixing needs are missing")
    if statistics and not kind:
        raise StateError("statistics that were not asked for")
    _check_statistics(statistics)
    _check_metrics(message, update)
    known = _shapes_known(statistics_known, others)
    if statistics and known and {k: tuple(v.shape) for k, v in statistics.items()} != known:
        raise StateError("statistics of other layers or channels than the other sites'")


def _check_statistics(statistics: State) -> None:
    for name, tensor in statistics.items():
        layer, _, which = name.rpartition("/")
        if which not in ("mean", "variance") or tensor.ndim != 1:
            raise StateError(f"{name} is not the mean or the variance of a layer's channels")
        other = statistics.get(f"{layer}/{'mean' if which == 'variance' else 'variance'}")
        if other is None or other.shape != tensor.shape:
            raise StateError(f"{name} lacks the other half of the layer's mean and variance")
        if not bool(torch.isfinite(tensor).all()):
            raise StateError(f"{name} has non-finite values")
        if which == "variance" and bool((tensor < 0).any()):
            raise StateError(f"{name} has negative values")


def _check_metrics(message: Message, update: Update) -> None:
    try:
        _METRICS[message.task].model_validate(update.metrics, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise StateError(f"metric {where!r}: {first['msg']}") from None
    if message.task == "join":
        _check_epochs(message.info["epochs"], update.metrics)


def _check_epochs(epochs: int, joined: Mapping[str, Any]) -> None:
    """A newcomer measures before and after every epoch and keeps one of them; a rival that diverged has no measures."""
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


def _shapes_known(
    statistics: Mapping[str, LayerStatistics], others: Sequence[Update]
) -> dict[str, tuple[int, ...]] | None:
    """What another site's statistics look like; None before there are any."""
    for layers in statistics.values():
        return {
            f"{STATISTICS}{layer}/{which}": pair[0].shape
            for layer, pair in layers.items()
            for which in ("mean", "variance")
        }
    found = ({k: tuple(v.shape) for k, v in statistics_of(u).items()} for u in others)
    return next((shapes for shapes in found if shapes), None)


def statistics_of(update: Update) -> State:
    """The statistics among an update's tensors."""
    return {k: v for k, v in update.tensors.items() if k.startswith(STATISTICS)}
