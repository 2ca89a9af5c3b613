"""Tensors that lie in a temporary file where they are large, so that a set may exceed the memory of the machine."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

IN_MEMORY_BYTES = 256 << 20
"""Tensors of more than this go into a file."""


def allocate(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor in memory, or in a memory-mapped file if it is larger than :data:`IN_MEMORY_BYTES`.

    The file has no name: its space is free again with the tensor, or with the process however that ends. It lies in
    ``$TMPDIR``, or else in /var/tmp, because /tmp is memory on many machines.

    Raises:
        OSError: the folder cannot be written or has too little space.
    """
    size = math.prod(shape) * dtype.itemsize
    if size <= IN_MEMORY_BYTES:
        return torch.empty(*shape, dtype=dtype)
    folder = _folder()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            _reserve(file.fileno(), size)
            mapping = mmap.mmap(file.fileno(), size)
    except OSError as error:
        reason = f"no temporary file of {size >> 20} MiB ({error.strerror}); $TMPDIR names another folder"
        raise OSError(error.errno, reason, str(folder)) from None
    return torch.frombuffer(mapping, dtype=dtype).view(*shape)


def _folder() -> Path:
    if named := os.environ.get("TMPDIR"):
        return Path(named)
    large = Path("/var/tmp")
    return large if os.access(large, os.W_OK) else Path(tempfile.gettempdir())


def _reserve(file: int, size: int) -> None:
    """Takes the space now: on a full disk, a write through the mapping would kill the process later."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.truncate(file, size)
