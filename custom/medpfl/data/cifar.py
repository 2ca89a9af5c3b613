"""Images of files in CIFAR's binary format: CIFAR-10's, CIFAR-100's, and others' in the same.

https://www.cs.toronto.edu/~kriz/cifar.html, "binary version": records of one label byte (CIFAR-10) or of two
(CIFAR-100, coarse and fine) and 3072 bytes, the red, green and blue plane of 32 x 32 pixels, row by row. No header.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from medpfl.core.errors import UserError

ENDING = ".bin"
_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_LABELS = {"CIFAR-10": (10,), "CIFAR-100": (20, 100)}
"""How many values each label byte of a record has."""
_PICKLED = {"batches.meta", "data_batch_1", "test_batch", "meta"}
"""Files of the python version."""
BINARY = (
    "CIFAR's python version is pickled, and reading that may run any code: take the binary version "
    "(cifar-10-binary.tar.gz, cifar-100-binary.tar.gz), unpack it and give its folder"
)


class CifarImages:
    """All images of some files, in the files' order; they stay on disk.

    Args:
        files: in CIFAR's binary format, one or more.

    Raises:
        UserError: one of them is not: which, and why.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._parts = [_mapped(file) for file in files]
        self._firsts = np.cumsum([0, *map(len, self._parts)])

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def read(self, rows: np.ndarray) -> Tensor:
        """Images of these numbers, (n, 3, 32, 32) uint8."""
        pixels = np.empty((len(rows), _PIXELS), np.uint8)
        where = np.searchsorted(self._firsts, rows, side="right") - 1
        for number in np.unique(where):
            here = where == number
            pixels[here] = self._parts[number][rows[here] - self._firsts[number]]
        return torch.from_numpy(pixels).view(-1, *_SHAPE)


def is_pickled(path: Path) -> bool:
    """Whether a folder, or a file in it, is of CIFAR's python version."""
    if path.is_dir():
        return any((path / name).is_file() for name in _PICKLED)
    if not path.is_file() or path.suffix not in ("", ".meta"):
        return False
    with path.open("rb") as stream:
        return path.name in _PICKLED or stream.read(1) == b"\x80"


def _mapped(file: Path) -> np.ndarray:
    """The pixels of a file, (n, 3072) uint8, on disk."""
    try:
        size = file.stat().st_size
        values = np.memmap(file, np.uint8, "r") if size else np.empty(0, np.uint8)
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    fitting = {name: classes for name, classes in _LABELS.items() if size and not size % (len(classes) + _PIXELS)}
    if not fitting:
        raise UserError(
            f"{file}: not in CIFAR's binary format, or cut short: its {size:,} bytes are no whole number of records of "
            "3,073 bytes (CIFAR-10) or 3,074 (CIFAR-100): get it again"
        )
    for classes in fitting.values():
        records = values.reshape(-1, len(classes) + _PIXELS)
        if (records[:, : len(classes)] < np.array(classes)).all():
            return records[:, len(classes) :]
    raise UserError(f"{file}: not in CIFAR's binary format: some labels are none of {' or '.join(fitting)}'s")
