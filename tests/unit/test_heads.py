"""Attention heads as a personal part: which rows and columns, how many, and that they put the same model together."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from monai.networks.blocks.selfattention import SABlock
from monai.networks.nets import ViT
from monai.networks.nets.swin_unetr import WindowAttention
from tiny import same
from torch import nn

from medpfl.core.declarations import Heads, parse_declaration
from medpfl.core.errors import UserError
from medpfl.core.parameters import ParameterSplit
from medpfl.core.statefile import serialised_bytes
from medpfl.models import build_model

TRANSFORMER = {"hidden_size": 24, "mlp_dim": 48, "num_heads": 3, "feature_size": 4}


def small_vit(heads: int = 4) -> ViT:
    return ViT(
        in_channels=1, img_size=(8, 8), patch_size=(4, 4), hidden_size=heads * 3, mlp_dim=8, num_layers=2,
        num_heads=heads, classification=True, num_classes=3, spatial_dims=2, post_activation=None, qkv_bias=True,
    )  # fmt: skip


def test_rows_and_columns_of_the_fused_projection_by_hand():
    # 3 heads of 2: rows 0-5 make q, 6-11 k, 12-17 v. Two heads are the first four of each.
    block = SABlock(6, 3, qkv_bias=True)
    personal = Heads(0.6).personal(block)
    rows = (0, 1, 2, 3, 6, 7, 8, 9, 12, 13, 14, 15)
    assert {name: (s.dim, s.index) for name, s in personal.items()} == {
        "qkv.weight": (0, rows),
        "qkv.bias": (0, rows),
        "out_proj.weight": (1, (0, 1, 2, 3)),
    }


def test_rows_of_separate_projections():
    personal = Heads(0.3).personal(nn.Sequential(SABlock(6, 3, use_combined_linear=False)))
    assert {name: (s.dim, s.index) for name, s in personal.items()} == {
        "0.to_q.weight": (0, (0, 1)),
        "0.to_k.weight": (0, (0, 1)),
        "0.to_v.weight": (0, (0, 1)),
        "0.out_proj.weight": (1, (0, 1)),
    }


@pytest.mark.parametrize("fused", [True, False])
def test_personal_rows_alone_decide_what_the_personal_heads_see(fused):
    """The layout, from the block's own output: only what the declaration calls personal moves the first head's part."""
    torch.manual_seed(0)
    block, x = SABlock(6, 3, qkv_bias=True, use_combined_linear=fused), torch.randn(2, 5, 6)
    block.out_proj = nn.Identity()  # the heads side by side
    before = block(x)
    split = ParameterSplit(block, Heads(0.3))
    split.load_personal(block, {name: t + 1 for name, t in split.personal_state(block).items()})
    changed = (block(x) - before).abs().amax((0, 1)) > 1e-6
    assert changed.tolist() == [True, True, False, False, False, False]


@pytest.mark.parametrize(
    ("p", "of", "personal"),
    [
        *[(0, 6, 0), (0.01, 6, 1), (0.2, 6, 1), (0.25, 6, 2), (0.4, 6, 2), (0.6, 6, 4), (0.8, 6, 5), (0.99, 6, 5)],
        *[(1, 6, 6), (0.15, 10, 2), (0.35, 10, 4), (0.5, 3, 2), (0.5, 2, 1), (0.58, 25, 15)],
    ],
)
def test_number_of_personal_heads(p, of, personal):
    assert set(Heads(p).counts(small_vit(heads=of)).values()) == {(personal, of)}


@given(p=st.floats(0, 1), heads=st.integers(2, 5), seed=st.integers(0, 9))
def test_shared_and_personal_slices_put_the_same_model_together(p, heads, seed):
    torch.manual_seed(seed)
    model, other = small_vit(heads), small_vit(heads)
    split = ParameterSplit(model, Heads(p))
    split.load_shared(other, split.shared_state(model))
    split.load_personal(other, split.personal_state(model))
    assert same(other.state_dict(), model.state_dict())
    sizes = [sum(t.numel() for t in part.values()) for part in (split.shared_state(model), split.personal_state(model))]
    assert sum(sizes) == sum(t.numel() for t in model.state_dict().values())


def test_no_personal_value_is_sent_not_even_as_zero():
    model = small_vit()
    split = ParameterSplit(model, Heads(0.5))
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(1.0)
    split.load_personal(model, {name: torch.full_like(t, 7.0) for name, t in split.personal_state(model).items()})
    sent = split.shared_state(model)
    assert all(bool((t == 1.0).all()) for t in sent.values())
    assert sent["blocks.0.attn.qkv.weight"].shape == (3 * 2 * 3, 12)
    assert sent["blocks.0.attn.out_proj.weight"].shape == (12, 6)
    assert sent["blocks.0.attn.out_proj.bias"].shape == (12,)


def test_no_heads_is_fedavg_and_all_heads_leave_the_rest_shared():
    model = small_vit()
    everything = {name for name, t in model.state_dict().items() if t.is_floating_point()}
    assert set(ParameterSplit(model, Heads(0)).shared_names) == everything
    split = ParameterSplit(model, Heads(1))
    gone = {f"blocks.{i}.attn.{name}" for i in range(2) for name in ("qkv.weight", "qkv.bias", "out_proj.weight")}
    assert set(split.personal_names) == gone
    assert set(split.shared_names) == everything - gone


def test_bytes_of_vit_small_as_published():
    with torch.device("meta"):
        model = build_model("vit-small", in_channels=1, num_classes=2, image_size=224)
    split = ParameterSplit(model, Heads(0.6))
    assert set(split.heads.values()) == {(4, 6)}
    every, sent = (serialised_bytes(ParameterSplit(model, d).shared_state(model)) for d in (Heads(0), Heads(0.6)))
    # In each of 12 layers 4 heads of 64 rows for q, k and v of 384 inputs with a bias, and 256 columns of 384.
    personal = 4 * 12 * (3 * 256 * (384 + 1) + 256 * 384)
    assert every - sent == pytest.approx(personal, rel=1e-3)
    assert 0.20 < (every - sent) / every < 0.24


def test_rows_columns_and_position_biases_of_a_window_by_hand():
    # 3 heads of 2 in windows of 2 x 2, whose pixels lie -1, 0 or 1 from each other along both axes: 9 biases a head.
    block = WindowAttention(6, 3, (2, 2), qkv_bias=True)
    rows = (0, 1, 2, 3, 6, 7, 8, 9, 12, 13, 14, 15)
    assert block.relative_position_bias_table.shape == (9, 3)
    assert {name: (s.dim, s.index) for name, s in Heads(0.6).personal(block).items()} == {
        "relative_position_bias_table": (1, (0, 1)),
        "qkv.weight": (0, rows),
        "qkv.bias": (0, rows),
        "proj.weight": (1, (0, 1, 2, 3)),
    }


@pytest.mark.parametrize("window", [(2, 2), (2, 2, 2)])
def test_personal_parts_of_a_window_alone_decide_what_its_personal_heads_see(window):
    torch.manual_seed(0)
    block, x = WindowAttention(6, 3, window, qkv_bias=True), torch.randn(2, 2 ** len(window), 6)
    block.proj = nn.Identity()  # the heads side by side
    before = block(x, None)
    split = ParameterSplit(block, Heads(0.3))
    personal = split.personal_state(block)
    split.load_personal(
        block, personal | {n: t + torch.rand(t.shape) for n, t in personal.items() if t.is_floating_point()}
    )
    changed = (block(x, None) - before).abs().amax((0, 1)) > 1e-6
    assert changed.tolist() == [True, True, False, False, False, False]


@pytest.mark.parametrize(
    ("name", "side", "model_args", "blocks", "of"),
    [
        ("monai:UNETR", 16, TRANSFORMER, 12, {(2, 3)}),
        ("monai:SwinUNETR", 64, {"feature_size": 12, "norm_name": "batch"}, 8, {(2, 3), (4, 6), (7, 12), (14, 24)}),
    ],
)
def test_heads_of_segmentation_networks(name, side, model_args, blocks, of):
    torch.manual_seed(0)
    model, other = (
        build_model(name, in_channels=1, num_classes=2, image_size=side, model_args=model_args) for _ in range(2)
    )
    split = ParameterSplit(model, Heads(0.6))
    assert len(split.heads) == blocks
    assert set(split.heads.values()) == of
    split.load_shared(other, split.shared_state(model))
    split.load_personal(other, split.personal_state(model))
    assert same(other.state_dict(), model.state_dict())


def test_a_model_without_attention_is_refused():
    with pytest.raises(UserError, match="no self-attention"):
        ParameterSplit(nn.Linear(3, 3), Heads(0.5))


def test_a_single_head_cannot_be_divided():
    with pytest.raises(UserError, match="one head only"):
        ParameterSplit(small_vit(heads=1), Heads(0.5))
    assert ParameterSplit(small_vit(heads=1), Heads(1)).heads == {f"blocks.{i}.attn": (1, 1) for i in range(2)}


@pytest.mark.parametrize("text", ["heads:", "heads:x", "heads:-0.1", "heads:1.1", "heads:nan"])
def test_proportions_that_are_none(text):
    with pytest.raises(UserError, match="heads:P"):
        parse_declaration(text)


def test_heads_go_with_other_personal_parts():
    model = small_vit()
    split = ParameterSplit(model, parse_declaration("heads:0.5+top:1"))
    assert "classification_head.weight" not in split.shared_names
    assert split.heads == {f"blocks.{i}.attn": (2, 4) for i in range(2)}
    assert split.heads_divided
