"""What numbers an answer to each task may hold: names, types, ranges and lengths. Both ends check against it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from medpfl.messages import Task

MOST_SECONDS = 1e7
"""What an answer may say at most of the time that it took."""

_Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
_Count = Annotated[int, Field(ge=0, le=10**9)]
_Loss = Annotated[FiniteFloat, Field(ge=-1e30, le=1e30)]
_Round = Annotated[int, Field(ge=1, le=10**6)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Measures(_Strict):
    """Of one model on one part of a site's data."""

    n: _Count
    accuracy: _Share | None
    balanced_accuracy: _Share | None
    auroc: _Share | None
    auroc_ci95: Annotated[list[_Share], Field(min_length=2, max_length=2)] | None
    auroc_classes: Annotated[int, Field(ge=0, le=10**5)]


class Samples(_Strict):
    """Numbers of samples by part."""

    train: Annotated[int, Field(ge=1, le=10**9)]
    validation: _Count
    test: _Count


class Prepared(_Strict):
    """Of the hello."""

    samples: Samples


class Trained(_Strict):
    """Of a round of training; ``validation`` is of the model as received."""

    train_loss: _Loss | None
    validation: Measures | None
    restored_round: _Count | None = None


class Validated(_Strict):
    """Of the last mix."""

    validation: Measures | None
    restored_round: _Count | None = None


class Which(_Strict):
    """Measures of the two models that are tested."""

    selected: Measures | None
    last: Measures | None


class Rounds(_Strict):
    """After which rounds' mixes the two were the site's."""

    selected: _Round
    last: _Round


class Tested(_Strict):
    """Of the end."""

    test: Which
    tested: Rounds


_History = Annotated[list[Measures | None], Field(max_length=10**4)]


class Joined(_Strict):
    """Of a site that joins a finished run."""

    samples: Samples
    received: Measures | None
    adapted: Measures | None
    alone: Measures | None
    epoch: Annotated[int, Field(ge=0, le=10**4)]
    alone_epoch: Annotated[int, Field(ge=0, le=10**4)] | None
    validation: _History
    alone_validation: _History


class Nothing(_Strict):
    """No number."""


ANSWERS: dict[Task, type[BaseModel]] = {
    "prepare": Prepared,
    "train": Trained,
    "validate": Validated,
    "test": Tested,
    "statistics": Nothing,
    "join": Joined,
}
