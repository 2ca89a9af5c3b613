"""What numbers an answer to each task may hold: names, types, ranges and lengths. Both ends check against it."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, create_model

from medpfl.core.messages import Task

MOST_SECONDS = 1e7
"""What an answer may say at most of the time that it took."""

_Count = Annotated[int, Field(ge=0, le=10**9)]
_Loss = Annotated[FiniteFloat, Field(ge=-1e30, le=1e30)]
_CaseLoss = Annotated[FiniteFloat, Field(ge=0, le=20)]
"""Of the mean over validation cases: no task lets a case cost more, and the mean over sites selects the round."""
_Round = Annotated[int, Field(ge=1, le=10**6)]


Measured = TypeVar("Measured", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Samples(_Strict):
    """Numbers of samples by part."""

    train: Annotated[int, Field(ge=1, le=10**9)]
    validation: _Count
    test: _Count


class Selecting(_Strict):
    """Of the validation cases: their number, and the class that nearly all are of (:mod:`medpfl.tasks.selection`)."""

    cases: _Count
    majority: Annotated[int, Field(ge=0, le=10**5)] | None


class Prepared(_Strict):
    """Of the hello."""

    samples: Samples
    selecting: Selecting | None = None


class Trained(_Strict, Generic[Measured]):
    """Of a round of training; ``validation`` is of the model as received."""

    train_loss: _Loss | None
    validation: Measured | None
    validation_loss: _CaseLoss | None = None
    numbers: Annotated[dict[Annotated[str, Field(max_length=40)], _Loss], Field(max_length=20)] | None = None
    restored_round: _Count | None = None


class Validated(_Strict, Generic[Measured]):
    """Of the last mix."""

    validation: Measured | None
    validation_loss: _CaseLoss | None = None
    restored_round: _Count | None = None


class Which(_Strict, Generic[Measured]):
    """Measures of the two models that are tested."""

    selected: Measured | None
    last: Measured | None


class Rounds(_Strict):
    """After which rounds' mixes the two were the site's."""

    selected: _Round
    last: _Round


Gained = TypeVar("Gained", bound=BaseModel)


def _difference(span: float) -> type[BaseModel]:
    """What a measure gains, with its 95 % interval; at most ``span``."""
    change = Annotated[FiniteFloat, Field(ge=-span, le=span)]
    return create_model("Difference", __base__=_Strict, **dict.fromkeys(("difference", "low", "high"), (change, ...)))


class Use(_Strict):
    """What a site uses: a candidate with a weight, and the model that it trained alone with the rest."""

    candidate: Literal["as published", "before fine-tuning", "as received", "partly fine-tuned"]
    round: _Round
    weight: Annotated[FiniteFloat, Field(ge=0, le=1)]


class Uses(_Strict):
    """Of the two models that are tested."""

    selected: Use
    last: Use


class Verdict(_Strict, Generic[Measured, Gained]):
    """How what the site uses compares with training alone."""

    alone: Measured | None
    alone_round: _Round
    used: Uses
    gain: Gained | None


class Tested(_Strict, Generic[Measured, Gained]):
    """Of the end; ``validation`` is of what the site uses of the selected round."""

    test: Which[Measured]
    validation: Measured | None = None
    tested: Rounds
    verdict: Verdict[Measured, Gained] | None = None


class Joined(_Strict, Generic[Measured]):
    """Of a site that joins a finished run."""

    samples: Samples
    received: Measured | None
    adapted: Measured | None
    alone: Measured | None
    epoch: Annotated[int, Field(ge=0, le=10**4)]
    alone_epoch: Annotated[int, Field(ge=0, le=10**4)] | None
    validation: Annotated[list[Measured | None], Field(max_length=10**4)]
    alone_validation: Annotated[list[Measured | None], Field(max_length=10**4)]
    used: Measured | None = None
    weight: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = None


class Nothing(_Strict):
    """No number."""


@cache
def answers(measures: type[BaseModel], gains: tuple[tuple[str, float], ...] = ()) -> dict[Task, type[BaseModel]]:
    """The schema of the answer to each task.

    Args:
        measures: the schema of one model's measures on one part of a site's data, from what is learned.
        gains: the measures of which a difference to training alone is told, and the most that it can be.
    """
    gained = create_model(
        "Gained", __base__=_Strict, **{name: (_difference(span) | None, None) for name, span in gains}
    )
    return {
        "prepare": Prepared,
        "train": Trained[measures],
        "follow": Validated[measures],
        "validate": Validated[measures],
        "test": Tested[measures, gained],
        "statistics": Nothing,
        "join": Joined[measures],
    }
