"""Weights from a file that a run begins with, in the place of random ones, and what of them fits the network."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from medpfl.core.errors import UserError
from medpfl.core.layers import weighted_layers
from medpfl.core.statefile import fingerprint
from medpfl.models.blend import is_blend

_MOST_NAMES = 20
"""How many names of each kind results list; the rest is counted."""
_INSIDE = ("state_dict", "model_state_dict", "model", "network", "net")
"""Under which names training programs save a network's state beside an optimizer's."""
_IN_BUNDLE = ("models/model.pt", "models/model.safetensors", "models/model.pth")


@dataclass(frozen=True)
class Start:
    """What a run begins with.

    Attributes:
        state: the network's whole state, on the CPU.
        report: what was loaded and what was not, as results.json has it; empty where only the values came.
    """

    state: Mapping[str, Tensor]
    report: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def named(self) -> str:
        """By which all parties know these values."""
        return f"sha256:{fingerprint(self.state)}"

    def in_words(self) -> str:
        """The report in a line."""
        found = self.report
        words = [f"{found['loaded']['count']} entries of the network are {found['file']}'s"]
        for kind, what in _KINDS.items():
            if count := found[kind]["count"]:
                names = found[kind]["names"]
                words.append(f"{count} {what} ({', '.join(names[:5])}{', ...' if count > 5 else ''})")
        return f"Start weights (sha256 {found['sha256'][:12]}): {'; '.join(words)}."


_KINDS = {
    "missing": "that the file does not have are as drawn",
    "classes": "are as drawn, since the file's network has another number of classes",
    "reshaped": "were made to fit the images' channels (their mean over the file's channels, scaled)",
    "unused": "of the file have no place in the network",
}
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def start_weights(file: Path, model: nn.Module, x: Tensor | None) -> Start:
    """A file's weights as a network takes them.

    Entries go by their names. Two kinds may have another shape than the network's. Where the images had another number
    of channels, each of the network's C gets the mean over the file's F, times F / C, so that an image repeated in all
    channels gives what it gave. Where the file's network had another number of classes, what has a value for each of
    them stays as drawn.

    Args:
        file: safetensors; a state dict that torch has saved (.pt, .pth); or a MONAI bundle's folder.
        model: with the values that stay where the file has none.
        x: a batch of inputs, in whose way the first and the last layer are found; None for the order of registration.

    Raises:
        UserError: the file cannot be read, nothing of it fits, or an entry has a shape that no rule is for.
    """
    file = _in_folder(file)
    found = _read(file)
    own, layers = model.state_dict(), weighted_layers(model, x) or [[]]
    channels = _sizes(layers[0], own, found, 1)
    classes = _sizes(layers[-1], own, found, 1 if _is_transposed(model, layers[-1]) else 0)
    state = {name: tensor.detach().cpu().clone() for name, tensor in own.items()}
    kinds: dict[str, list[str]] = {kind: [] for kind in ("loaded", *_KINDS)}
    kinds["unused"] = [name for name in found if name not in own]
    for name, tensor in own.items():
        given = found.get(name)
        if given is None:
            kinds["missing"].append(name)
        elif given.is_floating_point() != tensor.is_floating_point():
            raise UserError(f"--init {file.name}: {name} has type {given.dtype}, the network's has {tensor.dtype}")
        elif given.shape == tensor.shape:
            state[name] = given.to(tensor.dtype)
            kinds["loaded"].append(name)
        elif _differs(given, tensor, channels, (1,)) and (channels != classes or name in layers[0]):
            mean = given.to(tensor.dtype).mean(1, keepdim=True) * (given.shape[1] / tensor.shape[1])
            state[name] = mean.expand(tensor.shape).clone()
            kinds["reshaped"].append(name)
        elif _differs(given, tensor, classes, range(given.ndim)):
            kinds["classes"].append(name)
        else:
            raise UserError(
                f"--init {file.name}: {name} has shape {list(given.shape)}, and {list(tensor.shape)} in the network: "
                "give the network of the file (--model, --model-arg); only another number of classes or of the "
                "images' channels can be made to fit"
            )
        if not bool(torch.isfinite(state[name].double()).all()):
            raise UserError(f"--init {file.name}: {name} has non-finite values")
    if not kinds["loaded"] and not kinds["reshaped"]:
        theirs, ours = next(iter(found)), next(iter(own), "nothing")
        raise UserError(
            f"--init {file.name}: none of its {len(found)} entries ({theirs}, ...) is one of the network's ({ours}, "
            "...): give the network of the file (--model, --model-arg)"
        )
    report = {"file": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    counted = {kind: {"count": len(names), "names": sorted(names)[:_MOST_NAMES]} for kind, names in kinds.items()}
    return Start(state, report | counted)


def _is_transposed(model: nn.Module, layer: Iterable[str]) -> bool:
    """Whether entries are of a transposed convolution, whose weights have its outputs in their second dimension."""
    return any(isinstance(model.get_submodule(name.rpartition(".")[0]), _TRANSPOSED) for name in layer)


def _sizes(layer: list[str], own: Mapping[str, Tensor], found: Mapping[str, Tensor], dim: int) -> tuple[int, int]:
    """The lengths of a layer's weights along a dimension: in the network and in the file; twice 0 if it has none."""
    weights = (name for name in layer if name in found and own[name].ndim > 1 and found[name].ndim == own[name].ndim)
    name = next((n for n in weights if own[n].shape[dim] != found[n].shape[dim]), None)
    return (own[name].shape[dim], found[name].shape[dim]) if name else (0, 0)


def _differs(given: Tensor, own: Tensor, sizes: tuple[int, int], dims: Iterable[int]) -> bool:
    """Whether two shapes differ in some of these dimensions alone, and there by these sizes."""
    if given.ndim != own.ndim:
        return False
    shapes = enumerate(zip(own.shape, given.shape, strict=True))
    return all(a == b or (i in dims and (a, b) == sizes) for i, (a, b) in shapes)


def _in_folder(file: Path) -> Path:
    if file.is_dir():
        there = next((file / name for name in _IN_BUNDLE if (file / name).is_file()), None)
        if there is None:
            raise UserError(f"--init {file}: no bundle's folder: it has none of {', '.join(_IN_BUNDLE)}")
        return there
    if not file.is_file():
        raise UserError(f"--init {file}: there is no such file; give a .safetensors, .pt or .pth file, or a bundle")
    return file


def content_of(file: Path, called: str) -> Any:
    """What a file of weights holds; UserError where it cannot be read.

    Torch's own words, which would have the reader run what is in the file, are left out.
    """
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        return torch.load(file, map_location="cpu", weights_only=True)
    except (SafetensorError, UnpicklingError, RuntimeError, OSError, ValueError, EOFError, KeyError) as error:
        plain = not isinstance(error, UnpicklingError)
        why = (plain and str(error).partition("\n")[0]) or "it is empty, damaged, or holds more than tensors"
        raise UserError(
            f"{called} cannot be read as safetensors or as a torch state dict ({why}); save a network's state_dict()"
        ) from None


def _read(file: Path) -> dict[str, Tensor]:
    content = content_of(file, f"--init {file}:")
    while isinstance(content, Mapping) and not any(isinstance(v, Tensor) for v in content.values()):
        inside = next((content[name] for name in _INSIDE if isinstance(content.get(name), Mapping)), None)
        if inside is None:
            break
        content = inside
    state = content if isinstance(content, Mapping) else {}
    # As torch's DataParallel calls what it wraps.
    found = {str(k).removeprefix("module."): v.detach() for k, v in state.items() if isinstance(v, Tensor)}
    if not found:
        raise UserError(f"--init {file}: holds no tensors by name, as a network's state_dict() does")
    if is_blend(found):
        raise UserError(f"--init {file.name}: holds two models that predict together; give one model's weights")
    return found
