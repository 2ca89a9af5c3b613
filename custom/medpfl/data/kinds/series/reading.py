"""How time series become a network's input: ``--data-arg`` of a run, the same at all sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, field_validator
from torch import Tensor

from medpfl.data.arguments import read_arguments

MOST_SAMPLES = 1_000_000
"""Of a window; a network over more is no network for windows."""
MOST_CHANNELS = 4096
Positive = Annotated[FiniteFloat, Field(gt=0)]


class SeriesReading(BaseModel):
    """How windows are read.

    Attributes:
        channels: how many a window must have; None takes what the file has.
        length: how many samples it must have, likewise.
        normalise: ``window``: each channel of each window to mean 0 and standard deviation 1 (a constant one to 0);
            ``none``: as it is.
        divide: what each channel is divided by before, in its unit; empty for 1.
    """

    model_config = ConfigDict(extra="forbid")

    channels: Annotated[int, Field(ge=1, le=MOST_CHANNELS)] | None = None
    length: Annotated[int, Field(ge=2, le=MOST_SAMPLES)] | None = None
    normalise: Literal["window", "none"] = "window"
    divide: tuple[Positive, ...] = ()

    @field_validator("divide")
    @classmethod
    def _few(cls, divide: tuple[float, ...]) -> tuple[float, ...]:
        if len(divide) > MOST_CHANNELS:
            raise ValueError(f"{len(divide):,} numbers; one for each channel, at most {MOST_CHANNELS:,}")
        return divide


def read_reading(data_args: Mapping[str, Any]) -> SeriesReading:
    """The reading of a run; UserError names a wrong ``--data-arg``."""
    return read_arguments(SeriesReading, data_args)


def as_input(values: Tensor, normalise: str, divide: tuple[float, ...]) -> Tensor:
    """Windows as networks see them.

    Args:
        values: (..., C, T) float32.
        normalise: see :class:`SeriesReading`.
        divide: likewise, one for each channel or none.

    Returns:
        (..., C, T) float32.
    """
    if divide:
        values = values / torch.tensor(divide, dtype=torch.float32)[:, None]
    if normalise == "none":
        return values
    # The mean of equal numbers is not always that number; taken from the first of them it is.
    values = values - values[..., :1]
    # By a power of two, which rounds nothing, near 1: in whatever units a sensor gives them, squares are numbers.
    values = torch.ldexp(values, -torch.frexp(values.abs().amax(-1, keepdim=True)).exponent)
    centred = values - values.mean(-1, keepdim=True)
    spread = centred.square().mean(-1, keepdim=True).sqrt()
    return centred / torch.where(spread > 0, spread, 1)
