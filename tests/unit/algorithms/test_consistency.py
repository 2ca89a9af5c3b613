import copy
import math

import pytest
import torch
from monai.networks.blocks import PatchEmbeddingBlock
from monai.networks.nets import ViT
from tiny import config, images, objective_with
from torch import nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from medpfl.algorithms.mechanism import LocalRound
from medpfl.algorithms.vit_heads import Consistency, ConsistencySettings
from medpfl.algorithms.vit_heads.consistency import consistency_term, sub_network_logits
from medpfl.core.declarations import Heads
from medpfl.core.messages import Message
from medpfl.core.parameters import ParameterSplit
from medpfl.models import logits
from medpfl.models.bag_attention import BagAttention
from medpfl.training.objective import objective_of


def vit(**changes) -> ViT:
    torch.manual_seed(0)
    arguments = {
        "in_channels": 1, "img_size": (8, 8), "patch_size": (4, 4), "hidden_size": 12, "mlp_dim": 8, "num_layers": 3,
        "num_heads": 4, "classification": True, "num_classes": 3, "spatial_dims": 2, "post_activation": None,
        "qkv_bias": True,
    }  # fmt: skip
    model = ViT(**arguments | changes)
    with torch.no_grad():  # at its start MONAI's ViT gives nearly the same logits whatever the heads do
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def without(model: nn.Module, start: int, stop: int) -> nn.Module:
    """A copy in which these rows' heads contribute nothing: their columns of the output projections are zero."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for block in other.blocks:
            block.attn.out_proj.weight[:, start:stop] = 0
    return other


def expected(model: nn.Module, personal: int, x: torch.Tensor) -> list[torch.Tensor]:
    cut = personal * model.blocks[0].attn.dim_head
    width = model.blocks[0].attn.inner_dim
    return [logits(m(x)) for m in (model, without(model, 0, cut), without(model, cut, width))]


@pytest.mark.parametrize("spread", [1.0, 0.1])
def test_of_bfloat16_logits_that_nearly_agree_the_gradient_is_not_rounding(spread):
    torch.manual_seed(0)
    shared = (3 * torch.randn(64, 5)).bfloat16()
    personal = (shared.float() + spread * torch.randn(64, 5)).bfloat16()

    def gradient(dtype):
        x = shared.clone().to(dtype).requires_grad_()
        consistency_term(x, personal.to(dtype), 1.0).backward()
        return x.grad.double()

    exact = gradient(torch.float64)
    assert (gradient(torch.bfloat16) - exact).norm() < 0.01 * exact.norm()  # as bfloat16 has it in the end
    assert (gradient(torch.float32) - exact).norm() < 1e-5 * exact.norm()


class Wrapped(nn.Module):
    """A model that only the general way knows."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


@pytest.mark.parametrize("wrap", [lambda m: m, Wrapped], ids=["one pass", "three passes"])
@pytest.mark.parametrize("personal", [1, 2, 3])
@pytest.mark.parametrize("changes", [{}, {"num_layers": 1}, {"qkv_bias": False}], ids=["", "one layer", "no bias"])
def test_sub_networks_are_the_model_with_the_other_heads_zeroed(wrap, personal, changes):
    model, x = vit(**changes), torch.randn(5, 1, 8, 8)
    network = wrap(model)
    found = sub_network_logits(network, Heads(personal / 4).counts(network))(x)
    for one, other in zip(found, expected(model, personal, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found[1], found[2], atol=1e-2)


class Normed(Wrapped):
    """With batch norm behind attention."""

    def __init__(self) -> None:
        super().__init__(vit())
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(super().forward(x))


def test_running_statistics_are_of_the_whole_model_alone():
    networks, x = (Normed().train(), Normed().train()), torch.randn(6, 1, 8, 8)
    whole, shared, _ = sub_network_logits(networks[0], Heads(0.5).counts(networks[0]))(x)
    alone = networks[1](x)
    torch.testing.assert_close(whole, alone)
    assert not torch.allclose(shared, alone, atol=1e-2)
    for name, buffer in networks[1].named_buffers():
        torch.testing.assert_close(networks[0].get_buffer(name), buffer)
    assert networks[0].norm.num_batches_tracked == 1


def test_gradients_of_one_pass_are_those_of_three():
    x, y = torch.randn(6, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
    gradients = []
    for wrap in (lambda m: m, Wrapped):
        model = vit()
        network = wrap(model)
        whole, shared, personal = sub_network_logits(network, Heads(0.5).counts(network))(x)
        (cross_entropy(whole, y) + consistency_term(shared, personal, 2.0)).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("num_layers", [1, 3])
def test_bags_of_slices_are_weighed_by_each_sub_network(num_layers):
    torch.manual_seed(2)
    model, x = BagAttention(vit(num_layers=num_layers), hidden=4), torch.randn(3, 2, 1, 8, 8)
    cut, width = model.trunk.blocks[0].attn.dim_head, model.trunk.blocks[0].attn.inner_dim
    found = sub_network_logits(model, Heads(0.25).counts(model))(x)
    for one, (start, stop) in zip(found, ((0, 0), (0, cut), (cut, width)), strict=True):
        other = copy.deepcopy(model)
        other.trunk = without(model.trunk, start, stop)
        torch.testing.assert_close(one, other(x), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found[1], found[2], atol=1e-2)


@pytest.mark.parametrize(
    ("network", "shape", "passes"),
    [
        (vit, (5, 1, 8, 8), 1),
        (lambda: BagAttention(vit()), (5, 2, 1, 8, 8), 1),
        (lambda: Wrapped(vit()), (5, 1, 8, 8), 3),
    ],
    ids=["vit", "bags", "another network"],
)
def test_number_of_passes(network, shape, passes):
    model, embedded = network(), []
    (embedding,) = (m for m in model.modules() if isinstance(m, PatchEmbeddingBlock))
    embedding.register_forward_hook(lambda *_: embedded.append(1))
    sub_network_logits(model, Heads(0.5).counts(model))(torch.randn(shape))
    assert len(embedded) == passes


def test_dropout_takes_the_general_way():
    model = vit(dropout_rate=0.5).train()
    whole, shared, personal = sub_network_logits(model, Heads(0.5).counts(model))(torch.randn(2, 1, 8, 8))
    assert whole.shape == shared.shape == personal.shape == (2, 3)
    assert not any(block.attn.out_proj._forward_pre_hooks for block in model.blocks)


def test_term_by_hand():
    # Softmax of (0, ln 3) is (1/4, 3/4), of (0, 0) it is (1/2, 1/2), at T = 2 from logits twice as large.
    g, personal = torch.tensor([[0.0, 2 * math.log(3)]]), torch.zeros(1, 2)
    forth = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    back = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert float(consistency_term(g, personal, 2.0)) == pytest.approx(forth + back)
    assert float(consistency_term(g, g, 2.0)) == 0


def test_term_of_an_image_with_a_mask_is_the_mean_over_its_pixels():
    """Of three pixels one has (1/2, 1/2) against (3/4, 1/4), which adds up to log(3) / 4; the others agree."""
    g = torch.tensor([[[0.0, math.log(3), 0.0], [0.0, 0.0, 0.0]]])
    personal = torch.tensor([[[math.log(3), math.log(3), 0.0], [0.0, 0.0, 0.0]]])
    assert float(consistency_term(g, personal, 1.0)) == pytest.approx(math.log(3) / 12)


def test_term_is_both_divergences_averaged_over_the_batch():
    torch.manual_seed(1)
    g, personal = torch.randn(7, 5, requires_grad=True), torch.randn(7, 5, requires_grad=True)
    log_g, log_l = log_softmax(g / 4, 1), log_softmax(personal / 4, 1)
    both = kl_div(log_l, log_g, log_target=True, reduction="batchmean")
    both = both + kl_div(log_g, log_l, log_target=True, reduction="batchmean")
    term = consistency_term(g, personal, 4.0)
    torch.testing.assert_close(term, both)
    term.backward()
    assert bool(g.grad.abs().sum() > 0)
    assert bool(personal.grad.abs().sum() > 0)


def consistency(weight: float) -> Consistency:
    return Consistency(ConsistencySettings(consistency=weight, temperature=4.0))


def test_objective_adds_the_term_and_reports_cross_entropy():
    model, x, y = vit(), torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    split = ParameterSplit(model, Heads(0.5))
    reported, minimised = objective_with(consistency(1.0), model, split)(x, y)
    whole, shared, personal = expected(model, 2, x)
    torch.testing.assert_close(reported, cross_entropy(whole, y))
    torch.testing.assert_close(minimised, cross_entropy(whole, y) + consistency_term(shared, personal, 4.0))


@pytest.mark.parametrize(("p", "weight"), [(0.5, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_without_weight_or_without_two_kinds_of_heads_it_is_cross_entropy(p, weight):
    model, x, y = vit(), torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    objective = objective_with(consistency(weight), model, ParameterSplit(model, Heads(p)))
    reported, minimised = objective(x, y)
    assert torch.equal(reported, minimised)
    torch.testing.assert_close(reported, cross_entropy(model(x)[0], y))


def test_a_site_that_joins_minimises_the_same():
    model, x, y = vit(), torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    split, given = ParameterSplit(model, Heads(0.5)), (Message("train", 1, {}), model)
    round_ = LocalRound("new", config(), "join", *given, split, images(), lambda: None, lambda: None)
    part = consistency(0.5).adapts(round_)
    _, shared, personal = expected(model, 2, x)
    _, minimised = objective_of(model, [part], cross_entropy)(x, y)
    term = 0.5 * consistency_term(shared, personal, 4.0)
    torch.testing.assert_close(minimised, cross_entropy(model(x)[0], y) + term)


def test_dropout_drops_in_the_whole_model():
    """One pass that computes what all three have in common would leave it out."""
    model, x = vit(dropout_rate=0.5).train(), torch.randn(4, 1, 8, 8)
    torch.manual_seed(3)
    dropped = logits(model(x))
    torch.manual_seed(3)
    torch.testing.assert_close(sub_network_logits(model, Heads(0.5).counts(model))(x)[0], dropped)
    assert not torch.allclose(dropped, logits(model.eval()(x)))
