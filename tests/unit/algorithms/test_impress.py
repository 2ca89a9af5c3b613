"""The impression as it leaves the server."""

from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch
from tiny import Net
from torch import nn

from medpfl.algorithms.fedimpres.impress import impression_maker
from medpfl.algorithms.fedimpres.settings import ImpressionSettings
from medpfl.core.declarations import parse_declaration
from medpfl.core.errors import Stopped
from medpfl.core.parameters import ParameterSplit

SETTINGS = ImpressionSettings(admm_iterations=1, inner_steps=2, synthesis_batch=4)


def make_model():
    torch.manual_seed(0)
    return Net()


def maker(images, personal="batch-norm", **options):
    split = ParameterSplit(make_model(), parse_declaration(personal))
    start = torch.randn(images, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    impress = impression_maker(split, make_model, split.personal_state(make_model()), start, SETTINGS, **options)
    return impress, split.shared_state(make_model())


@pytest.mark.parametrize("images", [1, 2, 257])
def test_any_number_of_images_where_batch_norm_is_personal(images):
    impress, shared = maker(images)
    tensors, report = impress(shared)
    assert tensors["images"].shape == (images, 1, 4, 4)
    assert tensors["images"].dtype == torch.float16
    assert report["images"] == images
    assert "failed" not in report


def test_what_the_federation_has_learned_of_batch_norm_is_kept(monkeypatch):
    """Only layers that are personal have no statistics of the federation, and take those of the images."""
    seen = {}

    def look(model, start, how, stop):
        seen.update({name: tensor.clone() for name, tensor in model.state_dict().items()})
        raise OSError("seen")

    def two():
        torch.manual_seed(0)
        return nn.Sequential(OrderedDict(a=nn.Conv2d(1, 2, 1), shared=nn.BatchNorm2d(2), own=nn.BatchNorm2d(2)))

    monkeypatch.setattr("medpfl.algorithms.fedimpres.impress.synthesise", look)
    split = ParameterSplit(two(), parse_declaration("modules:own"))
    start = torch.randn(8, 1, 4, 4)
    impress = impression_maker(split, two, split.personal_state(two()), start, SETTINGS)
    impress(split.shared_state(two()) | {"shared.running_mean": torch.full((2,), 7.0)})
    assert seen["shared.running_mean"].tolist() == [7.0, 7.0]
    assert seen["own.running_mean"].abs().min() > 1  # of what comes out of the layer before, about -7


@pytest.mark.parametrize("images", [256, 258, 700])
def test_of_many_images_all_count_the_same(monkeypatch, images):
    seen = {}

    def look(model, start, how, stop):
        seen.update(model.state_dict())
        raise OSError("seen")

    monkeypatch.setattr("medpfl.algorithms.fedimpres.impress.synthesise", look)
    make, start = (lambda: nn.Sequential(nn.BatchNorm2d(1))), torch.randn(images, 1, 4, 4)
    start[-2:] += 100  # which alone would be a batch of 258 images' second
    split = ParameterSplit(make(), parse_declaration("batch-norm"))
    impression_maker(split, make, split.personal_state(make()), start, SETTINGS)(split.shared_state(make()))
    assert float(seen["0.running_mean"]) == pytest.approx(float(start.mean()), rel=0.01)


@pytest.mark.parametrize("personal", ["nothing", "batch-norm"])
def test_it_can_be_stopped_from_the_first_look_at_the_images_on(personal):
    impress, shared = maker(9, personal, stop=lambda: True)
    with pytest.raises(Stopped):
        impress(shared)


@pytest.mark.parametrize("value", [9.0, float("inf"), float("nan")])
def test_pixels_that_no_site_takes_are_a_failed_step_and_no_failed_round(value, monkeypatch):
    impress, shared = maker(3)
    made = SimpleNamespace(images=torch.full((3, 1, 4, 4), value), labels=torch.zeros(3, dtype=torch.int64))
    monkeypatch.setattr("medpfl.algorithms.fedimpres.impress.synthesise", lambda *_: made)
    tensors, report = impress(shared)
    assert tensors == {} and report["failed"].startswith("pixels of the impression are beyond 8, which no site takes")


def test_statistics_of_the_first_model_have_no_share_in_those_of_the_images(monkeypatch):
    """Start weights bring running statistics, and how many batches these are of."""
    seen = {}

    def look(model, start, how, stop):
        seen.update(model.state_dict())
        raise OSError("seen")

    def make():
        model = nn.Sequential(nn.BatchNorm2d(1))
        model[0].running_mean.fill_(50.0), model[0].num_batches_tracked.fill_(1000)
        return model

    monkeypatch.setattr("medpfl.algorithms.fedimpres.impress.synthesise", look)
    split, start = ParameterSplit(make(), parse_declaration("batch-norm")), torch.randn(8, 1, 4, 4)
    impression_maker(split, make, split.personal_state(make()), start, SETTINGS)(split.shared_state(make()))
    assert float(seen["0.running_mean"]) == pytest.approx(float(start.mean()), abs=1e-6)
