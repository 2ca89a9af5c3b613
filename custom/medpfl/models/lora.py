"""Low-rank adapters on the linear layers of a transformer, in the place of training these."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from medpfl.core.adapters import ADAPTER
from medpfl.core.attention import attention_blocks
from medpfl.core.errors import UserError

_FORM = re.compile(r"lora:([1-9][0-9]{0,3})(?::([1-9][0-9]{0,3}))?")


@dataclass(frozen=True)
class LoRA:
    """What ``lora:RANK`` or ``lora:RANK:ALPHA`` says; alpha is the rank where nothing is said.

    Attributes:
        rank: r, the rows of A.
        alpha: the adapter counts alpha / r.
    """

    rank: int
    alpha: int

    @classmethod
    def parse(cls, text: str) -> LoRA:
        """From text; UserError if it is neither form."""
        if not (found := _FORM.fullmatch(text)):
            raise UserError(f"unknown adapters {text!r}: use lora:RANK or lora:RANK:ALPHA, e.g. lora:4")
        rank = int(found[1])
        return cls(rank, int(found[2] or rank))


class LoRALinear(nn.Linear):
    """A linear layer with W + (alpha / r) B A in the place of W.

    Hu et al., LoRA: low-rank adaptation of large language models, ICLR 2022, section 4.1. A is drawn as torch draws a
    linear layer's weights and B is zero, so that it begins as the layer that it is made of.

    Args:
        layer: whose weight and bias these become; they keep their names.
        lora: rank and alpha.

    Shape:
        (..., in_features) to (..., out_features).
    """

    def __init__(self, layer: nn.Linear, lora: LoRA) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.scale = lora.alpha / lora.rank
        a = torch.empty(lora.rank, layer.in_features, device=layer.weight.device)
        nn.init.kaiming_uniform_(a, a=math.sqrt(5))
        self.register_parameter(f"{ADAPTER}a", nn.Parameter(a))
        self.register_parameter(f"{ADAPTER}b", nn.Parameter(a.new_zeros(layer.out_features, lora.rank)))
        self.between = nn.Identity()  # what A hands to B goes through it, for whoever looks at passes

    def forward(self, x: Tensor) -> Tensor:
        """W x + b + (alpha / r) B (A x)."""
        return super().forward(x) + self.scale * linear(self.between(linear(x, self.lora_a)), self.lora_b)


def add_adapters(model: nn.Module, name: str, text: str) -> nn.Module:
    """Gives every linear layer of the model's attention and MLP blocks an adapter, in place.

    Args:
        model: with MONAI's blocks.
        name: what the user calls it.
        text: see :class:`LoRA`.

    Raises:
        UserError: the text, or the model has no such blocks.
    """
    lora = LoRA.parse(text)
    if not attention_blocks(model):
        raise UserError(
            f"{name} has no self-attention of MONAI's for adapters: use vit-tiny, vit-small, monai:UNETR or "
            "monai:SwinUNETR, or leave --adapters out"
        )
    from monai.networks.blocks import MLPBlock

    blocks = [*attention_blocks(model).values(), *(m for m in model.modules() if isinstance(m, MLPBlock))]
    for block in blocks:
        for attribute, layer in list(block.named_children()):
            if type(layer) is nn.Linear:
                setattr(block, attribute, LoRALinear(layer, lora))
    return model
