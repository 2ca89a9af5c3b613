"""The vision transformer's two sub-networks, of the shared and of the personal attention heads, and their agreement.

Shen et al., Federated learning for COPD classification with partial personalized attention mechanism, eqs. 5 and 6.
A sub-network has every layer of the model; the other kind of heads contributes nothing to the output projections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import linear, log_softmax, scaled_dot_product_attention

from medpfl.core.attention import attention_blocks, head_size, output_projection
from medpfl.core.mixing import reckoned_in
from medpfl.models import logits
from medpfl.models.bag_attention import BagAttention

ThreeLogits = tuple[Tensor, Tensor, Tensor]


def consistency_term(shared: Tensor, personal: Tensor, temperature: float) -> Tensor:
    """KL(s(g/T) || s(l/T)) + KL(s(l/T) || s(g/T)), mean over batch and pixels (eq. 5); s is the softmax.

    The two divergences share their logarithms: their sum is the inner product of (p_g - p_l) with (log p_g - log p_l).

    Args:
        shared: (B, classes, ...), logits g of the sub-network of the shared heads.
        personal: (B, classes, ...), logits l of that of the personal heads.
        temperature: T > 0.

    Returns:
        A scalar >= 0; gradients flow into both.
    """
    dtype = reckoned_in(shared.dtype)  # where heads come to agree, the difference of bfloat16 logits is rounding
    log_g, log_l = (log_softmax(scores.to(dtype) / temperature, 1) for scores in (shared, personal))
    return ((log_g.exp() - log_l.exp()) * (log_g - log_l)).sum(1).mean()


def sub_network_logits(model: nn.Module, heads: Mapping[str, tuple[int, int]]) -> Callable[[Tensor], ThreeLogits]:
    """A function from a batch to the logits of the whole model, of its shared heads, and of its personal heads.

    Args:
        model: with MONAI's self-attention blocks.
        heads: by block, how many heads (the first ones) are personal and how many there are; both kinds must exist.

    Returns:
        For MONAI's ``ViT``, also as the trunk of attention over slices, one pass that computes what the three have in
        common once; three passes for other models.
    """
    counts = {path: personal for path, (personal, _) in heads.items()}
    if _is_plain_vit(model):
        return lambda x: _one_pass(model, counts, x)
    if isinstance(model, BagAttention) and _is_plain_vit(model.trunk):
        of_trunk = {path.removeprefix("trunk."): personal for path, personal in counts.items()}
        return lambda x: _one_pass_of_bags(model, of_trunk, x)
    return lambda x: _three_passes(model, counts, x)


def _three_passes(model: nn.Module, counts: Mapping[str, int], x: Tensor) -> ThreeLogits:
    whole = logits(model(x))
    with _only(model, counts, "shared"):
        shared = logits(_beside(model, x))
    with _only(model, counts, "personal"):
        personal = logits(_beside(model, x))
    return whole, shared, personal


def _beside(model: nn.Module, x: Tensor) -> Any:
    """A pass that leaves running statistics alone: they are the whole model's, which alone is ever used."""
    return functional_call(model, {name: buffer.clone() for name, buffer in model.named_buffers()}, (x,))


@contextmanager
def _only(model: nn.Module, counts: Mapping[str, int], kind: str) -> Iterator[None]:
    """Inside, the other kind of heads contributes nothing to any output projection."""

    def masked(size: int) -> Callable[[nn.Module, tuple[Tensor]], Tensor]:
        def hook(_: nn.Module, inputs: tuple[Tensor]) -> Tensor:
            mask = torch.arange(inputs[0].shape[-1], device=inputs[0].device) < size
            return inputs[0] * (mask if kind == "personal" else ~mask)

        return hook

    blocks = attention_blocks(model)
    hooks = [
        output_projection(blocks[p]).register_forward_pre_hook(masked(n * head_size(blocks[p])))
        for p, n in counts.items()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _is_plain_vit(model: nn.Module) -> bool:
    """Whether :func:`_one_pass` knows all that the model does: MONAI's ViT with class token, without dropout."""
    from monai.networks.nets import ViT

    return (
        type(model) is ViT
        and isinstance(getattr(model, "classification_head", None), nn.Linear | nn.Identity)
        and not any(m.p for m in model.modules() if isinstance(m, nn.Dropout))
        and not any(block.with_cross_attention or block.attn.save_attn for block in model.blocks)
    )


def _one_pass(model: nn.Module, counts: Mapping[str, int], x: Tensor) -> ThreeLogits:
    """All three from one pass over MONAI's own layers.

    The embedding and the first layer's attention are the same for all three. Behind it they run side by side as one
    batch (3, B, T, D), where the two sub-networks compute their own heads only, together as many as the whole model.
    Of the last layer only the class token's row is needed, for the whole model too.
    """
    z = model.patch_embedding(x)
    z = torch.cat((model.cls_token.expand(len(x), -1, -1), z), dim=1)
    last = len(model.blocks) - 1
    for i, block in enumerate(model.blocks):
        rows = slice(0, 1) if i == last else slice(None)
        attended = _attention(block.attn, counts[f"blocks.{i}.attn"], block.norm1(z), rows)
        z = z[..., rows, :] + attended
        z = z + block.mlp(block.norm2(z))
    scores = model.classification_head(model.norm(z[..., 0, :]))
    whole, shared, personal = scores if scores.ndim == 3 else scores.expand(3, -1, -1)
    return whole, shared, personal


def _one_pass_of_bags(model: BagAttention, counts: Mapping[str, int], x: Tensor) -> ThreeLogits:
    """:func:`_one_pass` over the slices of bags (B, S, C, H, W); each of the three weighs its own slices' features."""
    whole, shared, personal = (
        model.classify(features.unflatten(0, x.shape[:2]))
        for features in _one_pass(model.trunk, counts, x.flatten(0, 1))
    )
    return whole, shared, personal


def _attention(attn: nn.Module, personal: int, z: Tensor, rows: slice) -> Tensor:
    """One attention block's output for the whole model and the two sub-networks.

    Args:
        attn: MONAI's block of K heads of size d.
        personal: the first heads that are personal.
        z: (B, T, D) where the three are still the same, else (3, B, T, D).
        rows: the tokens whose output is needed.

    Returns:
        (3, B, rows, D).
    """
    k, d, cut = attn.num_heads, attn.dim_head, personal * attn.dim_head
    out, bias = attn.out_proj.weight, attn.out_proj.bias
    if z.ndim == 3:
        found = _heads(attn.qkv(z).unflatten(-1, (3, k, d)), rows)
        of_personal, of_shared = linear(found[..., :cut], out[:, :cut]), linear(found[..., cut:], out[:, cut:])
        return torch.stack((of_personal + of_shared, of_shared, of_personal)) + bias
    weight = attn.qkv.weight.unflatten(0, (3, k, d))
    biases = attn.qkv.bias.unflatten(0, (3, k, d)) if attn.qkv.bias is not None else None
    parts = []
    for stream, part in ((2, slice(0, personal)), (1, slice(personal, k))):
        of_part = None if biases is None else biases[:, part].flatten()
        parts.append(linear(z[stream], weight[:, part].flatten(0, 2), of_part).unflatten(-1, (3, -1, d)))
    whole = linear(_heads(attn.qkv(z[0]).unflatten(-1, (3, k, d)), rows), out)
    found = _heads(torch.cat(parts, dim=-2), rows)
    of_personal, of_shared = linear(found[..., :cut], out[:, :cut]), linear(found[..., cut:], out[:, cut:])
    return torch.stack((whole, of_shared, of_personal)) + bias


def _heads(qkv: Tensor, rows: slice) -> Tensor:
    """Softmax attention of (B, T, 3, K, d) for the given rows: (B, rows, K d)."""
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    return scaled_dot_product_attention(q[..., rows, :], k, v).transpose(1, 2).flatten(2)
