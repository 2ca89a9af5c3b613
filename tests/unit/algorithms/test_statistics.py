import numpy as np
import pytest
import torch
from tiny import Net, config
from tiny import images as tiny_images
from torch import nn

from medpfl.algorithms.fedap.similarity import similarity_weights, wasserstein_distances
from medpfl.algorithms.fedap.statistics import (
    layers_of,
    named_statistics,
    running_statistics,
    statistics_entries,
    statistics_under,
)
from medpfl.core.declarations import Nothing
from medpfl.core.layers import batch_norm_layers
from medpfl.core.moments import input_statistics
from medpfl.core.parameters import ParameterSplit
from medpfl.models import build_model
from medpfl.site.noise import noise_source


class Keep(nn.Module):
    """Passes its input on and remembers it."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(x.detach())
        return x


def network():
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3), Keep(), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), Keep(), nn.BatchNorm1d(64)]
    model = nn.Sequential(*layers, nn.Linear(64, 3)).double()
    model[2].running_mean.normal_()
    return model


def images(n):
    return torch.randn(n, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 3 + 5


@pytest.mark.parametrize("batch_size", [1, 7, 19, 50])
def test_equal_to_a_reference_over_all_data_for_any_batch_size(batch_size):
    model, x = network(), images(50)
    found = input_statistics(model, batch_norm_layers(model), x.split(batch_size))
    assert list(found) == ["2", "6"]
    for path, keep in (("2", model[1]), ("6", model[5])):
        inputs = torch.cat(keep.seen).numpy()
        axes = (0, *range(2, inputs.ndim))
        mean, variance = found[path]
        np.testing.assert_allclose(mean, inputs.mean(axes), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(variance, inputs.var(axes), rtol=1e-10, atol=1e-12)


def test_a_large_mean_does_not_drown_the_variance():
    layer = nn.BatchNorm1d(1).double()
    x = 1e8 + torch.tensor([[0.0], [1.0], [2.0], [3.0]], dtype=torch.float64)
    mean, variance = input_statistics(layer, {"": layer}, x.split(2))[""]
    assert (mean.item(), variance.item()) == (1e8 + 1.5, 1.25)


def test_float32_models_give_float64():
    layer = nn.BatchNorm1d(2)
    mean, variance = input_statistics(layer, {"": layer}, [torch.tensor([[1.0, 2.0], [3.0, 2.0]])])[""]
    assert mean.dtype == variance.dtype == torch.float64
    assert (mean.tolist(), variance.tolist()) == ([2.0, 2.0], [1.0, 0.0])


def test_volumes():
    layer, x = nn.BatchNorm3d(2).double(), torch.randn(3, 2, 4, 5, 6, dtype=torch.float64)
    mean, variance = input_statistics(layer, {"": layer}, x.split(2))[""]
    np.testing.assert_allclose(mean, x.numpy().mean((0, 2, 3, 4)), rtol=1e-10)
    np.testing.assert_allclose(variance, x.numpy().var((0, 2, 3, 4)), rtol=1e-10)


@pytest.mark.parametrize("shape", [(9, 5), (9, 4, 5)])
def test_channels_of_a_linear_layer_come_last(shape):
    layer, x = nn.Linear(5, 2).double(), torch.randn(shape, dtype=torch.float64)
    mean, variance = input_statistics(layer, {"out": layer}, x.split(4))["out"]
    np.testing.assert_allclose(mean, x.numpy().reshape(-1, 5).mean(0), rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(variance, x.numpy().reshape(-1, 5).var(0), rtol=1e-10)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(training):
    model = network().train(training)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    input_statistics(model, batch_norm_layers(model), [images(4)])
    assert all(module.training == training for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_the_model_is_left_as_it_was_after_an_error():
    model = network().train()
    with pytest.raises(RuntimeError):
        input_statistics(model, batch_norm_layers(model), [images(4), torch.zeros(1, 9, 6, 6)])
    assert all(module.training for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_the_model_runs_in_eval_mode():
    """With batch statistics the second layer's input would have mean zero."""
    model = nn.Sequential(nn.BatchNorm1d(1), nn.BatchNorm1d(1)).train()
    model[0].eps = 1e-12
    mean, _ = input_statistics(model, {"1": model[1]}, [torch.tensor([[4.0], [6.0]])])["1"]
    assert mean.item() == pytest.approx(5.0)


def test_running_statistics():
    model = build_model("lenet5", in_channels=1, num_classes=3, image_size=28)
    model.bn2.running_var.fill_(4.0)
    sent = running_statistics(model)
    found = layers_of(sent)
    assert list(found) == ["bn1", "bn2"]
    mean, variance = found["bn2"]
    assert sent["bn2/mean"].dtype == sent["bn2/variance"].dtype == torch.float64
    assert (mean.tolist(), variance.tolist()) == ([0.0] * 16, [4.0] * 16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_running_statistics_are_no_longer_the_networks(dtype):
    model = nn.BatchNorm1d(2).to(dtype)
    found = running_statistics(model)
    model.running_mean.fill_(7.0)
    assert found["/mean"].tolist() == [0.0, 0.0]


def test_layers_without_running_statistics_have_none():
    assert running_statistics(nn.BatchNorm1d(3, track_running_stats=False)) == {}


class HasUnused(nn.Module):
    """A network with a batch norm that no input reaches."""

    def __init__(self):
        super().__init__()
        self.first, self.unused, self.top = nn.BatchNorm2d(1), nn.BatchNorm1d(5), nn.Linear(16, 3)

    def forward(self, x):
        return self.top(self.first(x).flatten(1))


def shapes(kind, model):
    entries = statistics_entries(kind, model, ParameterSplit(model, Nothing()))
    assert {entry.dtypes for entry in entries.values()} <= {(torch.float64,)}
    return {name: entry.shape for name, entry in entries.items()}


@pytest.mark.parametrize("kind", ["batch-norm", "classifier", "running"])
@pytest.mark.parametrize("model", [Net(), HasUnused()], ids=["all are used", "one is not"])
def test_what_a_site_sends_has_the_shapes_that_follow_from_the_model(kind, model):
    source = noise_source(config("fedap"), "site-1", "statistics", 0, None)
    asked = (kind, model, ParameterSplit(model, Nothing()), tiny_images(), {}, source)
    sent = running_statistics(model) if kind == "running" else statistics_under(*asked)
    assert {name: tuple(t.shape) for name, t in sent.items()} == shapes(kind, model)
    assert {t.dtype for t in sent.values()} == {torch.float64}
    if kind == "batch-norm" and isinstance(model, HasUnused):
        assert sent["unused/mean"].tolist() == sent["unused/variance"].tolist() == [0.0] * 5


def test_layers_without_running_statistics_are_not_expected():
    assert shapes("running", nn.BatchNorm1d(3, track_running_stats=False)) == {}


@pytest.mark.parametrize(
    ("name", "shape", "model_args"),
    [
        ("unet", (16, 16), {"channels": [4, 8]}),
        ("unet", (8, 8, 8), {"channels": [4, 8]}),
        ("segresnet-small", (8, 8, 8), {}),
        ("monai:DynUNet", (16, 16), {"filters": [4, 4, 4, 4], "norm_name": "batch"}),
    ],
)
def test_w_of_segmentation_networks(name, shape, model_args):
    torch.manual_seed(0)
    model = build_model(name, in_channels=1, num_classes=2, image_size=shape, model_args=model_args)
    layers = batch_norm_layers(model)
    # Two sites whose images are alike, and one whose are brighter.
    x = torch.rand(3, 4, 1, *shape) + torch.tensor([0.0, 0.01, 3.0]).reshape(3, *[1] * (len(shape) + 2))
    found = [input_statistics(model, layers, images.split(2)) for images in x]
    assert found[0].keys() == layers.keys()
    assert all(pair[0].shape == (layers[path].num_features,) for path, pair in found[0].items())
    distances = wasserstein_distances([layers_of(named_statistics(of_site)) for of_site in found])
    weights = similarity_weights(distances, 0.5)
    np.testing.assert_allclose(weights.sum(1), 1)
    assert np.diag(weights).tolist() == [0.5] * 3
    assert weights[0, 1] > weights[0, 2]
    assert weights[1, 0] > weights[1, 2]
