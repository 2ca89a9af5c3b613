"""Which parts of a model's state are shared with the server and which stay at the site.

A :class:`Declaration` ("batch-norm layers", "the top layer") is resolved against a real model by
:class:`ParameterSplit`. The split covers the model's state and is disjoint: every element of every entry is either
shared or personal, or frozen: the same at all parties, neither trained nor sent. Shared tensors are compact (slices,
never zero-padded), so nothing personal can travel by accident.

Integer entries (batch norm's ``num_batches_tracked``, index buffers) are never averaged and always stay at the site.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import cast

import torch
from torch import Tensor, nn

from medpfl.core.declarations import Declaration, Slice, joined, personal_heads
from medpfl.core.errors import UserError
from medpfl.core.layers import any_linear, classification_layer
from medpfl.core.reasons import Reason

MISSING = Reason("{side} entry {name} is missing ({number} in all)")
NOT_PART = Reason("entry {name} does not belong to the {side} state ({number} in all)")
OTHER_SHAPE = Reason("{side} entry {name} has shape {shape}, expected {shape}")
OTHER_TYPE = Reason("{side} entry {name} has type {dtype}, expected {dtype}")
NOT_FINITE = Reason("{side} entry {name} has non-finite values")
NEGATIVE = Reason("{side} entry {name} has negative variances")

State = dict[str, Tensor]
RUNNING_VARIANCE = "running_var"
"""What torch calls batch norm's estimate of a variance; below 0 the layer gives nan without a word."""


def on_cpu(model: nn.Module) -> State:
    """A copy of a model's whole state, on the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


class StateError(ValueError):
    """Tensors that do not fit the split: missing, extra, misshapen, non-finite or negative variances, each by name."""


@dataclass(frozen=True)
class _Entry:
    shape: tuple[int, ...]
    dtype: torch.dtype
    dim: int = 0
    # Indices along dim; None stands for the whole entry, an empty index for nothing of it.
    shared: Tensor | None = None
    personal: Tensor | None = None
    frozen: str = ""  # of what is in neither: a hash of its values

    def piece(self, index: Tensor | None) -> tuple[int, ...]:
        if index is None:
            return self.shape
        return (*self.shape[: self.dim], len(index), *self.shape[self.dim + 1 :])


_NONE_OF_IT = torch.empty(0, dtype=torch.long)

logger = logging.getLogger(__name__)

_GUESSED = (
    "{}: {!r} is taken for the layer that classifies, the linear layer that its code creates last, since the size of "
    "the images is not known before training (loaders of your own). If another one classifies, create that one last"
)


class ParameterSplit:
    """A declaration resolved against one model architecture.

    Args:
        model: any module of the architecture; neither it nor its values are kept.
        declaration: what stays at the site.
        x: a batch of inputs, by which layers are counted (:class:`~medpfl.core.declarations.Declaration`).
        frozen: entries that are neither shared nor personal (:mod:`medpfl.core.frozen`), with the model's values.

    Attributes:
        frozen: these entries, on the CPU.
        heads: by attention block, how many heads are personal and how many there are; empty where whole entries are
            declared only.
    """

    def __init__(
        self, model: nn.Module, declaration: Declaration, x: Tensor | None = None, frozen: Collection[str] = ()
    ) -> None:
        personal = _under_all_names(model, declaration.personal(model, x))
        heads = personal_heads(declaration)
        self.heads = heads.counts(model) if heads else {}
        for name, piece in (heads.personal(model) if heads else {}).items():
            if personal[name] != piece:
                raise UserError(f"heads:{heads.proportion} and another personal part both speak of {name!r}: use one")
        state = model.state_dict()
        self.frozen = {name: tensor.cpu().clone() for name, tensor in state.items() if name in frozen}
        self._entries = {
            name: _frozen(tensor) if name in frozen else _entry(tensor, name in personal, personal.get(name))
            for name, tensor in state.items()
        }
        self._trainable = frozenset(name for name, p in model.named_parameters() if p.requires_grad)
        self._classifier = classification_layer(model, x)[0] if any_linear(model) else None
        self._guessed = x is None and sum(isinstance(module, nn.Linear) for module in model.modules()) > 1

    def classification_layer(self, model: nn.Module) -> tuple[str, nn.Linear]:
        """Path and module of the layer that classifies, the last along the way of the split's input.

        Without an input it is the one registered last, which is said once.

        Args:
            model: of the architecture.

        Raises:
            UserError: see :func:`medpfl.core.layers.classification_layer`.
        """
        if self._guessed:
            self._guessed = False
            logger.warning(_GUESSED.format(type(model).__name__, self._classifier))
        if self._classifier is None:
            return classification_layer(model)
        return self._classifier, cast(nn.Linear, model.get_submodule(self._classifier))

    @property
    def heads_divided(self) -> bool:
        """Whether every attention block has personal and shared heads."""
        return bool(self.heads) and all(0 < personal < count for personal, count in self.heads.values())

    @property
    def shared_names(self) -> tuple[str, ...]:
        """Entries of which at least a slice is shared, in the model's order."""
        return tuple(name for name, e in self._entries.items() if e.shared is None or len(e.shared))

    @property
    def personal_names(self) -> tuple[str, ...]:
        """Entries of which at least a slice is personal, in the model's order."""
        return tuple(name for name, e in self._entries.items() if e.personal is None or len(e.personal))

    def shared_state(self, model: nn.Module) -> State:
        """Copies of the shared tensors: whole entries, or their shared slices only."""
        return self._take(model, self.shared_names, "shared")

    def personal_state(self, model: nn.Module) -> State:
        """Copies of what stays at the site."""
        return self._take(model, self.personal_names, "personal")

    def shared_views(self, model: nn.Module) -> State:
        """The shared parts of the trainable parameters, differentiable with respect to the model (for penalties)."""
        parameters = dict(model.named_parameters())
        names = [name for name in self.shared_names if name in self._trainable]
        return {name: _select(parameters[name], self._entries[name], "shared") for name in names}

    def trained_names(self, model: nn.Module) -> list[str]:
        """Names of shared entries that training changes; a tensor with several names (tied weights) has all of them."""
        trained = {id(p) for name, p in model.named_parameters() if name in self._trainable}
        every = {name for name, p in model.named_parameters(remove_duplicate=False) if id(p) in trained}
        return [name for name in self.shared_names if name in every]

    def load_shared(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """Puts shared tensors into the model, in place, and the frozen ones.

        Raises:
            StateError: an entry is missing, extra, misshapen or non-finite; nothing is changed then.
        """
        self.check_shared(tensors)
        self._put(model, tensors, "shared")
        state = model.state_dict()
        with torch.no_grad():
            for name, tensor in self.frozen.items():
                state[name].copy_(tensor)

    def load_personal(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """Puts personal tensors into the model, in place.

        Raises:
            StateError: an entry is missing, extra, misshapen or non-finite; nothing is changed then.
        """
        self._check(tensors, self.personal_names, "personal")
        self._put(model, tensors, "personal")

    def check_shared(self, tensors: Mapping[str, Tensor]) -> None:
        """Raises StateError unless the tensors are exactly the shared state of this architecture, and finite."""
        self._check(tensors, self.shared_names, "shared")

    def check_personal(self, tensors: Mapping[str, Tensor]) -> None:
        """Raises StateError unless the tensors are exactly the personal state of this architecture, and finite."""
        self._check(tensors, self.personal_names, "personal")

    def description(self) -> list[str]:
        """One line for each entry: name, shape, type and what of it is shared; of a frozen one a hash of its values."""
        return [f"{name} {list(e.shape)} {str(e.dtype)[6:]} {_words(e)}" for name, e in self._entries.items()]

    def first_difference(self, theirs: list[str]) -> str | None:
        """The first entry in which another end's :meth:`description` differs from this one, in words."""
        ours = self.description()
        for mine, other in zip(ours, theirs, strict=False):
            if mine != other:
                return f"here {mine!r}, there {other!r}"
        if len(ours) != len(theirs):
            longer, where = (ours, "here") if len(ours) > len(theirs) else (theirs, "there")
            return f"only {where} {longer[min(len(ours), len(theirs))]!r}"
        return None

    def _take(self, model: nn.Module, names: tuple[str, ...], side: str) -> State:
        state = model.state_dict()
        # index_select copies by itself; whole entries must be cloned or they would follow the model's training.
        pieces = {name: _select(state[name], self._entries[name], side) for name in names}
        return {name: piece.clone() if piece is state[name] else piece for name, piece in pieces.items()}

    def _put(self, model: nn.Module, tensors: Mapping[str, Tensor], side: str) -> None:
        state = model.state_dict()
        with torch.no_grad():
            for name, tensor in tensors.items():
                entry, target = self._entries[name], state[name]
                index = getattr(entry, side)
                if index is None:
                    target.copy_(tensor)
                else:
                    target.index_copy_(entry.dim, index.to(target.device), tensor.to(target.device, target.dtype))

    def _check(self, tensors: Mapping[str, Tensor], names: tuple[str, ...], side: str) -> None:
        expected = set(names)
        if missing := [name for name in names if name not in tensors]:
            raise StateError(MISSING(side, missing[0], len(missing)))
        if extra := [name for name in tensors if name not in expected]:
            raise StateError(NOT_PART(extra[0], side, len(extra)))
        for name in names:
            entry, tensor = self._entries[name], tensors[name]
            shape = entry.piece(getattr(entry, side))
            if tuple(tensor.shape) != shape:
                raise StateError(OTHER_SHAPE(side, name, list(tensor.shape), list(shape)))
            if tensor.is_floating_point() != entry.dtype.is_floating_point:
                raise StateError(OTHER_TYPE(side, name, tensor.dtype, entry.dtype))
            # As the model's own type: a float64 value may be too large for float32.
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor.to(entry.dtype)).all()):
                raise StateError(NOT_FINITE(side, name))
            if name.endswith(RUNNING_VARIANCE) and bool((tensor < 0).any()):
                raise StateError(NEGATIVE(side, name))


def distance(before: State, after: State) -> float:
    """Euclidean distance of a shared state from an earlier one, over all of the earlier one's tensors.

    Tensor by tensor, so that no more than one difference is held at a time; infinite where it overflows.
    """
    return _norm(after[name] - tensor for name, tensor in before.items())


def length(state: State) -> float:
    """Euclidean length of a state, over all of its tensors: its :func:`distance` from zeros."""
    return _norm(state.values())


def _norm(tensors: Iterable[Tensor]) -> float:
    return sqrt(float(sum(torch.linalg.vector_norm(tensor, dtype=torch.float64) ** 2 for tensor in tensors)))


def _frozen(tensor: Tensor) -> _Entry:
    values = hashlib.sha256(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()).hexdigest()[:16]
    return _Entry(tuple(tensor.shape), tensor.dtype, shared=_NONE_OF_IT, personal=_NONE_OF_IT, frozen=values)


def _entry(tensor: Tensor, declared: bool, piece: Slice | None) -> _Entry:
    shape, dtype = tuple(tensor.shape), tensor.dtype
    if not dtype.is_floating_point or (declared and piece is None):
        return _Entry(shape, dtype, shared=_NONE_OF_IT)
    if piece is None or not piece.index:
        return _Entry(shape, dtype, personal=_NONE_OF_IT)
    if not all(0 <= i < shape[piece.dim] for i in piece.index):
        raise ValueError(f"slice {piece} lies outside shape {list(shape)}")
    personal = torch.tensor(sorted(set(piece.index)))
    keep = torch.ones(shape[piece.dim], dtype=torch.bool)
    keep[personal] = False
    return _Entry(shape, dtype, piece.dim, shared=keep.nonzero().flatten(), personal=personal)


def _under_all_names(model: nn.Module, personal: dict[str, Slice | None]) -> dict[str, Slice | None]:
    """A tensor that the model holds under several names (tied weights) is personal under all if it is under one."""
    names: dict[int, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
    spread = dict(personal)
    for group in names.values():
        declared = [name for name in group if name in personal]
        for name in group:
            for other in declared:
                spread[name] = joined(name, spread.get(name, personal[other]), personal[other])
    return spread


def _select(tensor: Tensor, entry: _Entry, side: str) -> Tensor:
    index = getattr(entry, side)
    return tensor if index is None else tensor.index_select(entry.dim, index.to(tensor.device))


def _words(entry: _Entry) -> str:
    if entry.frozen:
        return f"frozen {entry.frozen}"
    if entry.shared is None:
        return "shared"
    if not len(entry.shared):
        return "personal"
    return f"shared[{entry.dim}] {_ranges(entry.shared.tolist())}"


def _ranges(index: list[int]) -> str:
    runs: list[list[int]] = []
    for i in index:
        if runs and runs[-1][1] == i:
            runs[-1][1] = i + 1
        else:
            runs.append([i, i + 1])
    return ",".join(f"{start}:{stop}" for start, stop in runs)
