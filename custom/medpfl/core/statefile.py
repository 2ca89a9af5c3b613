"""Tensors and a JSON value in one file that is there as a whole or not at all.

Files are safetensors, written beside their place and moved into it, so that a kill leaves the old file or the new one.
A checksum inside tells a torn one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as deserialise
from safetensors.torch import save as serialise
from torch import Tensor

from medpfl.core.errors import TornFile
from medpfl.core.whole_file import write_bytes

_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.complex64: "C64",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.uint64: "U64",
}
"""What safetensors calls the types; it lays the tensors of the last of them first."""

_ORDER = {dtype: position for position, dtype in enumerate(_DTYPES)}


class Sealing(Protocol):
    """Ties a file's content to its owner (:class:`medpfl.site.seal.Seal`); broken seals are ValueErrors."""

    encrypted: bool

    def tag(self, name: str, content: bytes | str) -> str:
        """The seal of some content under a file's name."""

    def require(self, name: str, content: bytes | str, tag: str | None) -> None:
        """Raises ValueError unless the tag is this content's."""

    def encrypt(self, name: str, content: bytes) -> bytes:
        """The content, unreadable to others."""

    def decrypt(self, name: str, content: bytes) -> bytes:
        """The content again; what is not encrypted as it is. Raises ValueError."""


def write_state(
    path: Path,
    state: Mapping[str, Tensor],
    *,
    durable: bool = True,
    info: dict | str | None = None,
    seal: Sealing | None = None,
    mode: int | None = None,
) -> None:
    """Writes tensors and a JSON value as one safetensors file, atomically, with a checksum.

    Args:
        path: the file.
        state: the tensors.
        durable: wait for the disk.
        info: the JSON value, or its text.
        seal: of the owner; the file can then only be read with it, or by who does not ask.
        mode: see :func:`~medpfl.core.whole_file.write_bytes`.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    # Rows of one product share storage, which safetensors refuses: only what is really shared is copied.
    seen: set[int] = set()
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != tensor.nbytes:
            tensors[name] = tensor.clone()
        seen.add(storage.data_ptr())
    text = info if isinstance(info, str) else json.dumps(info or {})
    metadata = {"info": text, "sha256": _checksum(tensors, text)}
    if seal:
        metadata["seal"] = seal.tag(path.name, metadata["sha256"])
    content = serialise(tensors, metadata)
    if seal and seal.encrypted:
        content = seal.encrypt(path.name, content)
    write_bytes(path, content, durable=durable, mode=mode)


def read_state(path: Path, seal: Sealing | None = None) -> tuple[dict[str, Tensor], dict]:
    """The tensors and the JSON value of a file from :func:`write_state`.

    Args:
        path: the file.
        seal: of the owner, if the file must be the owner's.

    Raises:
        TornFile: the file is truncated, its checksum does not fit, or it has not the owner's seal.
        OSError: it is not there, or may not be read; its name is in the error.
    """
    try:
        if seal and seal.encrypted:
            tensors, metadata = _from_bytes(seal.decrypt(path.name, path.read_bytes()))
        else:
            with _opened(path) as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
                metadata = file.metadata()
    except SafetensorError as error:
        raise TornFile(f"{path} is damaged: {error}") from None
    except ValueError as error:
        raise TornFile(f"{path} is damaged or another's: {error}") from None
    text = (metadata or {}).get("info", "")
    if not metadata or metadata.get("sha256") != _checksum(tensors, text):
        raise TornFile(f"{path} is damaged: its content does not fit its checksum")
    if seal:
        try:
            seal.require(path.name, metadata["sha256"], metadata.get("seal"))
        except ValueError as error:
            raise TornFile(f"{path} is damaged or another's: {error}") from None
    return tensors, json.loads(text)


def read_info(path: Path) -> dict:
    """The JSON value alone of a file from :func:`write_state`; its tensors are not read, nor held against the checksum.

    Raises:
        TornFile: the file is truncated, or no such file.
        OSError: as of :func:`read_state`.
    """
    try:
        with _opened(path) as file:
            return json.loads((file.metadata() or {}).get("info", ""))
    except (SafetensorError, ValueError) as error:
        raise TornFile(f"{path} is damaged: {error}") from None


@contextmanager
def _opened(path: Path) -> Iterator[safe_open]:
    path.open("rb").close()  # of every file that cannot be opened safetensors says that there is none
    with safe_open(path, "pt") as file:
        yield file


def _from_bytes(content: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """safetensors gives a file's metadata, not those of bytes: they stand in the JSON header, after its length."""
    length = int.from_bytes(content[:8], "little")
    return deserialise(content), json.loads(content[8 : 8 + length]).get("__metadata__", {})


def fingerprint(state: Mapping[str, Tensor]) -> str:
    """SHA-256 of tensors' names, types, shapes and values, whatever file they are in."""
    return _checksum({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}, "")


def _checksum(tensors: Mapping[str, Tensor], info: str) -> str:
    digest = hashlib.sha256(info.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {list(tensors[name].shape)}".encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def serialised_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Size of the tensors as a safetensors message: data, and a header with names, types and shapes."""
    if not tensors:
        return 0
    order = sorted(tensors, key=lambda name: (-_ORDER[tensors[name].dtype], name))
    header, offset = {}, 0
    for name in order:
        end = offset + tensors[name].nbytes
        header[name] = {
            "dtype": _DTYPES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return 8 + -(-len(text) // 8) * 8 + offset
