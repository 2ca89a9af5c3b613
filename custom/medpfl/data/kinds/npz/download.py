"""Fetches the official MedMNIST files.

By the standard library: MONAI's ``download_url`` waits for a silent server for ever and copies the file into its place
from the system's temporary folder, where a kill leaves half of it; torch's checks SHA-256 alone, and MedMNIST publishes
MD5; pooch would save some 20 lines for one package more. None of them goes on with half a file either.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from medpfl.core.errors import UserError
from medpfl.data.elsewhere import ELSEWHERE
from medpfl.data.kinds.npz.catalog import MASKED_SAMPLE, SAMPLE, find
from medpfl.data.kinds.npz.medmnist import MEDMNIST, SIZES, official
from medpfl.data.kinds.npz.npz_file import file_md5
from medpfl.data.places import cache_folder, folders

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are there and, where the server says so, the bytes to come in all."""

_CHUNK = 1 << 18
_SILENCE = 60.0
"""Seconds without a byte after which a download is given up."""


def prepare(name: str, size: int = 28, progress: Progress | None = None) -> Path:
    """Puts an official file into the cache folder, unless it is on this machine already with the right checksum.

    Nothing half-written stays: the file appears under its name only when its MD5 is the official one.

    Raises:
        UserError: no such set or size, no connection, a wrong checksum, or a folder that cannot be written.
    """
    name = name.lower()
    if name in (SAMPLE, MASKED_SAMPLE):  # which came with the package
        return find(name)
    if name in ELSEWHERE:
        raise UserError(ELSEWHERE[name].in_words(name))
    if size not in SIZES:
        raise UserError(f"MedMNIST has no images of {size} pixels: use --size {', '.join(map(str, SIZES))}")
    if name in MEDMNIST and MEDMNIST[name].volumes and size not in (28, 64):
        raise UserError(f"{name}: volumes come in 28 and 64 voxels: use --size 28 or 64")
    stem = name if size == 28 else f"{name}_{size}"
    url, md5 = official(stem)
    for folder in folders():
        if (there := folder / f"{stem}.npz").is_file() and file_md5(there) == md5:
            return there
    target = cache_folder() / f"{stem}.npz"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{stem}.", suffix=".part")
        try:
            with os.fdopen(descriptor, "wb") as file:
                received = _download(url, file, target, progress)
            if received != md5:
                raise UserError(
                    f"{url}: MD5 is {received} and should be {md5}: an incomplete or altered file; try again"
                )
            os.replace(temporary, target)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{target.parent}: cannot be written ({error}): set XDG_CACHE_HOME to another folder") from None
    return target


def _download(url: str, file: IO[bytes], target: Path, progress: Progress | None) -> str:
    digest, done = hashlib.md5(usedforsecurity=False), 0
    for chunk, length in _chunks(url, target):
        file.write(chunk)
        digest.update(chunk)
        done += len(chunk)
        if progress:
            progress(done, length)
    return digest.hexdigest()


def _chunks(url: str, target: Path) -> Iterator[tuple[bytes, int | None]]:
    """What comes, and how much it will be in all; UserError if it cannot be fetched."""
    try:
        with urllib.request.urlopen(url, timeout=_SILENCE) as response:
            length = response.headers.get("Content-Length")
            while chunk := response.read(_CHUNK):
                yield chunk, int(length) if length else None
    except (OSError, http.client.HTTPException) as error:
        raise UserError(
            f"{url}: cannot be fetched ({error}).\nDownload it elsewhere and put it at {target}, "
            "or into a folder that MEDPFL_DATA names."
        ) from None
