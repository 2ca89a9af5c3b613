"""A model's multi-head self-attention blocks, and which rows and columns of their weights make which head."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

_BLOCKS = "monai.networks.blocks.selfattention"


def attention_blocks(model: nn.Module) -> dict[str, Any]:
    """MONAI's self-attention blocks (``SABlock``) by module path, in the model's order, found by type."""
    # A model that holds one has loaded the class; importing MONAI to find none would take seconds.
    if (module := sys.modules.get(_BLOCKS)) is None:
        return {}
    return {path: m for path, m in model.named_modules(remove_duplicate=False) if isinstance(m, module.SABlock)}


def head_entries(block: Any, heads: range) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Where the given heads lie in an attention block's state.

    The rows of the query, key and value projections, weight and bias, that make them; and the columns of the output
    projection that read them. MONAI lays the rows of its fused projection out as (qkv, head, dim).

    Args:
        block: one of :func:`attention_blocks`.
        heads: consecutive heads, counted from 0.

    Returns:
        By entry of the block's ``state_dict()``: the dimension and the indices along it.
    """
    size = block.dim_head
    one = tuple(range(heads.start * size, heads.stop * size))
    fused = tuple(part * block.inner_dim + row for part in range(3) for row in one)
    places = {"qkv.": (0, fused), "to_q.": (0, one), "to_k.": (0, one), "to_v.": (0, one), "out_proj.weight": (1, one)}
    return {name: place for name in block.state_dict() for prefix, place in places.items() if name.startswith(prefix)}
