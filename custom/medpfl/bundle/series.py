"""A window of a time series as a run's networks see it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from monai.config import KeysCollection

from medpfl.core.errors import UserError
from medpfl.data.each_value import EachValued
from medpfl.data.kinds.series.reading import as_input


class LoadSeriesd(EachValued):
    """An ``.npy`` file with one window, (C, T) or (T,) of one channel, in the training data's units, to (C, T) float32.

    Args:
        keys: what to load.
        channels: how many the window must have.
        length: how many samples it must have.
        normalise: see :class:`medpfl.data.kinds.series.reading.SeriesReading`.
        divide: likewise.

    Raises:
        UserError: the file cannot be read, or holds something else.
    """

    def __init__(
        self, keys: KeysCollection, channels: int, length: int, normalise: str = "none", divide: Sequence[float] = ()
    ):
        super().__init__(keys)
        self.channels, self.length, self.normalise, self.divide = channels, length, normalise, tuple(divide)

    def _changed(self, value: str | Path) -> torch.Tensor:
        file = Path(value)
        try:
            found = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{file}: cannot be read as an .npy file: {error}") from None
        if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiu":
            raise UserError(f"{file}: holds no array of numbers; an .npy file of one window is needed")
        window = found[None] if found.ndim == 1 else found
        if window.shape != (self.channels, self.length):
            shape = "×".join(map(str, found.shape))
            raise UserError(f"{file}: is {shape}; {self.channels}×{self.length} (channels, samples) is needed")
        values = torch.from_numpy(np.ascontiguousarray(window, dtype=np.float32))
        if not torch.isfinite(values).all():
            raise UserError(f"{file}: holds values that are no finite number")
        return as_input(values, self.normalise, self.divide)
