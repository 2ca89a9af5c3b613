"""A model's multi-head self-attention blocks, and which rows and columns of their weights make which head."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

_BLOCKS = {
    "monai.networks.blocks.selfattention": "SABlock",
    "monai.networks.nets.swin_unetr": "WindowAttention",
}


def attention_blocks(model: nn.Module) -> dict[str, Any]:
    """MONAI's self-attention blocks by module path, in the model's order, found by type.

    ``SABlock`` (of ViT and UNETR) and ``WindowAttention`` (of SwinUNETR).
    """
    # A model that holds one has loaded the class; importing MONAI to find none would take seconds.
    known = tuple(getattr(sys.modules[module], name) for module, name in _BLOCKS.items() if module in sys.modules)
    return {path: m for path, m in model.named_modules(remove_duplicate=False) if isinstance(m, known)}


def head_size(block: Any) -> int:
    """The width of a head's queries, keys and values."""
    return block.dim_head if hasattr(block, "dim_head") else block.dim // block.num_heads


def output_projection(block: Any) -> nn.Module:
    """What reads the heads side by side."""
    return block.out_proj if hasattr(block, "out_proj") else block.proj


def head_entries(block: Any, heads: range) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Where the given heads lie in an attention block's state.

    The rows of the query, key and value projections, weight and bias, that make them; the columns of the output
    projection that read them; and of a window's relative position bias (entries, heads) their columns. MONAI lays the
    rows of its fused projections out as (qkv, head, dim), in both kinds of blocks.

    Args:
        block: one of :func:`attention_blocks`.
        heads: consecutive heads, counted from 0.

    Returns:
        By entry of the block's ``state_dict()``: the dimension and the indices along it.
    """
    size = head_size(block)
    one = tuple(range(heads.start * size, heads.stop * size))
    fused = tuple(part * block.num_heads * size + row for part in range(3) for row in one)
    places = {"qkv.": (0, fused), "to_q.": (0, one), "to_k.": (0, one), "to_v.": (0, one)}
    places |= {"out_proj.weight": (1, one), "proj.weight": (1, one)}
    places |= {"relative_position_bias_table": (1, tuple(heads))}
    return {name: place for name in block.state_dict() for prefix, place in places.items() if name.startswith(prefix)}
