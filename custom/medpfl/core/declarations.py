"""What stays at a site, said for any model: "batch-norm layers", "the top layer", "some attention heads".

A :class:`Declaration` names entries of a model's state, or slices of them; :mod:`medpfl.core.parameters` resolves it
against a real model.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import Protocol

from torch import Tensor, nn

from medpfl.core.adapters import adapter_names
from medpfl.core.attention import attention_blocks, head_entries
from medpfl.core.errors import UserError
from medpfl.core.layers import batch_norm_layers, how_to_get_batch_norm, weighted_layers


@dataclass(frozen=True)
class Slice:
    """Rows ``index`` along dimension ``dim`` of one state entry."""

    dim: int
    index: tuple[int, ...]


class Declaration(Protocol):
    """Says what stays at the site, for any model."""

    def personal(self, model: nn.Module, x: Tensor | None = None) -> dict[str, Slice | None]:
        """Personal entries of ``model.state_dict()``: the slice that is personal, or None for the whole entry.

        Args:
            model: of the architecture.
            x: a batch of inputs, in whose way through the model layers are counted; without it they are counted as the
                model registers them (:func:`medpfl.core.layers.weighted_layers`).
        """


@dataclass(frozen=True)
class Nothing:
    """Everything is shared."""

    def personal(self, model: nn.Module, x: Tensor | None = None) -> dict[str, Slice | None]:
        """See :class:`Declaration`."""
        return {}


@dataclass(frozen=True)
class Everything:
    """Nothing is shared (local training)."""

    def personal(self, model: nn.Module, x: Tensor | None = None) -> dict[str, Slice | None]:
        """See :class:`Declaration`."""
        return dict.fromkeys(model.state_dict())


@dataclass(frozen=True)
class BatchNorm:
    """All state of every batch-norm layer, found by module type (Li et al. 2021).

    Attributes:
        required: whether a network without any is refused; else it is shared whole.
    """

    required: bool = True

    def personal(self, model: nn.Module, x: Tensor | None = None) -> dict[str, Slice | None]:
        """See :class:`Declaration`.

        Raises:
            UserError: the model has no batch norm, or one without any state, and is to have some, as the method would
                silently be another one.
        """
        layers = batch_norm_layers(model)
        if self.required and not layers:
            raise UserError(
                f"{type(model).__name__} has no batch-norm layer, so there is nothing to keep at the sites: "
                f"{how_to_get_batch_norm(model)}, or another personal part (--personal)"
            )
        personal = {_join(path, name): None for path, layer in layers.items() for name in layer.state_dict()}
        if self.required and not personal:
            raise UserError(
                f"the batch norm of {type(model).__name__} has neither weights nor running statistics (affine=False, "
                "track_running_stats=False), so there is nothing to keep at the sites: give it one of these, or "
                "another personal part (--personal)"
            )
        return personal


@dataclass(frozen=True)
class TopLayers:
    """The ``count`` weighted layers nearest the output, with their normalisation (Arivazhagan et al. 2019)."""

    count: int

    def personal(self, model: nn.Module, x: Tensor | None = None) -> dict[str, Slice | None]:
        """See :class:`Declaration`."""
        return _entries(_layers(model, self.count, x)[-self.count :])


@dataclass(frozen=True)
class BelowTop:
    """Everything below the ``count`` weighted layers nearest the output (Liang et al. 2020)."""

    count: int

    def personal(self, model: nn.Module, x: Tensor | None = None) -> dict[str, Slice | None]:
        """See :class:`Declaration`."""
        return _entries(_layers(model, self.count, x)[: -self.count])


@dataclass(frozen=True)
class Modules:
    """All state of the modules at the given paths, e.g. ``("features.denseblock1", "fc")``."""

    paths: tuple[str, ...]

    def personal(self, model: nn.Module, x: Tensor | None = None) -> dict[str, Slice | None]:
        """See :class:`Declaration`.

        Raises:
            UserError: a path that the model does not have, or that holds no state.
        """
        names: dict[str, Slice | None] = {}
        for path in self.paths:
            inside = [name for name in model.state_dict() if name == path or name.startswith(path + ".")]
            if not inside:
                known = ", ".join(name for name, _ in model.named_children())
                raise UserError(f"{type(model).__name__} has no module {path!r} with state; it has: {known}")
            names.update(dict.fromkeys(inside))
        return names


@dataclass(frozen=True)
class Adapters:
    """The low-rank adapters (:mod:`medpfl.models.lora`)."""

    def personal(self, model: nn.Module, x: Tensor | None = None) -> dict[str, Slice | None]:
        """See :class:`Declaration`.

        Raises:
            UserError: the model has none.
        """
        if not (names := adapter_names(model)):
            raise UserError(f"{type(model).__name__} has no adapters: ask for some, e.g. --adapters lora:4")
        return dict.fromkeys(names)


@dataclass(frozen=True)
class AllButAdaptersAndTop:
    """What adapters stand for: everything but them and the weighted layer nearest the output (Hu et al. 2022)."""

    def personal(self, model: nn.Module, x: Tensor | None = None) -> dict[str, Slice | None]:
        """See :class:`Declaration`."""
        kept = {*Adapters().personal(model, x), *TopLayers(1).personal(model, x)}
        return dict.fromkeys(name for name in model.state_dict() if name not in kept)


@dataclass(frozen=True)
class Heads:
    """The first heads of every self-attention block: projections to q, k and v, and their columns of the output's.

    In windows of a Swin transformer their position biases, too.

    Shen et al., Federated learning for COPD classification with partial personalized attention mechanism, eqs. 3 and 4.
    Everything else (the output projection's bias, MLP, norms, embeddings, class token, classifier) is shared.

    Attributes:
        proportion: p in [0, 1], the share of heads that stays at the site.
    """

    proportion: float

    def personal(self, model: nn.Module, x: Tensor | None = None) -> dict[str, Slice | None]:
        """See :class:`Declaration`.

        Raises:
            UserError: the model has no such block, or blocks with a single head, which cannot be divided.
        """
        blocks = attention_blocks(model)
        return {
            _join(path, name): Slice(dim, index)
            for path, (count, _) in self.counts(model).items()
            if count
            for name, (dim, index) in head_entries(blocks[path], range(count)).items()
        }

    def counts(self, model: nn.Module) -> dict[str, tuple[int, int]]:
        """By attention block: how many heads are personal, and how many there are.

        P = pK rounded half up, and at least 1 and at most K - 1 for 0 < p < 1.
        """
        blocks = attention_blocks(model)
        if not blocks:
            raise UserError(
                f"{type(model).__name__} has no self-attention of MONAI's, so it has no heads to keep at the sites: "
                "choose vit-tiny, vit-small, monai:UNETR, monai:SwinUNETR or another model with SABlock or "
                "WindowAttention layers, or another personal part (--personal)"
            )
        if 0 < self.proportion < 1 and (one := next((k for k, b in blocks.items() if b.num_heads < 2), None)):
            raise UserError(f"attention block {one!r} has one head only: there is no share of {self.proportion} of it")
        return {path: (self._of(block.num_heads), block.num_heads) for path, block in blocks.items()}

    def _of(self, heads: int) -> int:
        if self.proportion in (0, 1):
            return int(self.proportion) * heads
        # 0.3 * 5 is 1.5 and 0.15 * 10 must be too, whatever floating point says.
        return min(max(floor(self.proportion * heads + 0.5 + 1e-9), 1), heads - 1)


@dataclass(frozen=True)
class Union:
    """What any of the parts declares personal; a whole entry outweighs a slice of it."""

    parts: tuple[Declaration, ...]

    def personal(self, model: nn.Module, x: Tensor | None = None) -> dict[str, Slice | None]:
        """See :class:`Declaration`."""
        merged: dict[str, Slice | None] = {}
        for part in self.parts:
            for name, piece in part.personal(model, x).items():
                merged[name] = joined(name, merged.get(name, piece), piece)
        return merged


def parse_declaration(text: str) -> Declaration:
    """The declaration that a text names; parts are joined by ``+``, e.g. ``batch-norm+top:1``.

    Forms: ``nothing``, ``everything``, ``batch-norm``, ``any-batch-norm``, ``adapters``, ``top:K``, ``below-top:K``,
    ``heads:P``, ``modules:PATH,PATH``.

    Raises:
        UserError: the text is none of these.
    """
    parts = tuple(_parse_part(part.strip()) for part in text.split("+"))
    return parts[0] if len(parts) == 1 else Union(parts)


_PLAIN = {
    "nothing": Nothing(),
    "everything": Everything(),
    "batch-norm": BatchNorm(),
    "any-batch-norm": BatchNorm(required=False),
    "adapters": Adapters(),
}


def _parse_part(text: str) -> Declaration:
    if text in _PLAIN:
        return _PLAIN[text]
    kind, _, argument = text.partition(":")
    if kind in ("top", "below-top") and argument.isdecimal() and int(argument) > 0:
        return (TopLayers if kind == "top" else BelowTop)(int(argument))
    if kind == "heads" and (proportion := _proportion(argument)) is not None:
        return Heads(proportion)
    if kind == "modules" and argument:
        return Modules(tuple(path.strip() for path in argument.split(",")))
    raise UserError(
        f"unknown personal part {text!r}: use {', '.join(_PLAIN)}, top:K, below-top:K, heads:P "
        "or modules:PATH,PATH (K >= 1, P from 0 to 1), joined by + where several are meant"
    )


def _proportion(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None


def counts_layers(declaration: Declaration) -> bool:
    """Whether a part of it is said by the order of layers."""
    parts = declaration.parts if isinstance(declaration, Union) else (declaration,)
    return any(isinstance(part, TopLayers | BelowTop) for part in parts)


def personal_heads(declaration: Declaration) -> Heads | None:
    """The declaration's part about attention heads; of several the largest, which contains the others."""
    parts = declaration.parts if isinstance(declaration, Union) else (declaration,)
    return max((part for part in parts if isinstance(part, Heads)), key=lambda part: part.proportion, default=None)


def joined(name: str, a: Slice | None, b: Slice | None) -> Slice | None:
    """What either declares personal of an entry; None stands for all of it."""
    if a is None or b is None:
        return None
    if a.dim != b.dim:
        raise UserError(f"two personal parts slice {name!r} along different dimensions")
    return Slice(a.dim, tuple(sorted({*a.index, *b.index})))


def _layers(model: nn.Module, count: int, x: Tensor | None) -> list[list[str]]:
    layers = weighted_layers(model, x)
    if not 1 <= count < len(layers):
        raise UserError(
            f"{type(model).__name__} has {len(layers)} weighted layers: a number of layers must lie between 1 and "
            f"{len(layers) - 1}, got {count}"
        )
    return layers


def _entries(layers: list[list[str]]) -> dict[str, Slice | None]:
    return {name: None for layer in layers for name in layer}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
