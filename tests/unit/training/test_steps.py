"""A step: clipped, of several batches, in half precision, with the channels last."""

import math

import pytest
import torch
from tiny import Net, images, same, sites_of
from torch import nn

from medpfl.algorithms.apfl import train_both
from medpfl.config.run import make_config
from medpfl.core.own_loaders import LEFT_OUT
from medpfl.core.seeding import generator
from medpfl.core.site_data import ImageTensors, SiteLoaders
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.models import build_model
from medpfl.tasks import TASKS
from medpfl.training.loop import Epochs, plain_objective, train_epochs
from medpfl.training.steps import Steps
from medpfl.training.trainer import Trainer

LOSS = TASKS["classification"].loss


def trained(model, data, epochs=1, before_step=(), after_step=(), **settings):
    trainer = Trainer.of({"lr": 0.5, "batch_size": 4, **settings})
    objective = plain_objective(model, LOSS)
    hooks = {"before_step": before_step, "after_step": after_step}
    return train_epochs(model, data, trainer, epochs, generator(0), objective, **hooks)


def linear():
    model = nn.Linear(16, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return nn.Sequential(nn.Flatten(), model)


def one(value):
    """One image of class 0 with one bright pixel."""
    x = torch.zeros(1, 1, 4, 4)
    x[0, 0, 0, 0] = value
    parts = {"train": x, "validation": x[:0], "test": x[:0]}
    return ImageTensors(parts, {part: torch.zeros(len(p), dtype=torch.long) for part, p in parts.items()})


def test_clipping_by_hand():
    # Gradients of the biases: (-2/3, 1/3, 1/3); of the weights of the one pixel: three times that. All squared: 20/3.
    model = linear()
    trained(model, one(3.0), grad_clip=1.0)
    expected = torch.tensor([2 / 3, -1 / 3, -1 / 3]) * 0.5 / math.sqrt(20 / 3)
    torch.testing.assert_close(model[1].bias.detach(), expected)
    torch.testing.assert_close(model[1].weight[:, 0].detach(), 3 * expected)


def test_a_bound_that_nothing_reaches_changes_nothing():
    first, second = linear(), linear()
    trained(first, images())
    trained(second, images(), grad_clip=1e6)
    assert same(first.state_dict(), second.state_dict())


def test_mechanisms_steps_come_before_clipping():
    model, seen = linear(), []
    trained(model, one(3.0), before_step=[lambda: seen.append(model[1].bias.grad.norm().item())], grad_clip=0.01)
    assert seen == pytest.approx([math.sqrt(6) / 3])


@pytest.mark.parametrize("images_there", [12, 13, 18])
def test_accumulated_batches_are_one_large_one(images_there):
    """13: the last batch has five images; 18: a step of 12 and one of 6, whose batches have 4 and 2."""
    data, counted = images(train=images_there), []
    small, large = linear(), linear()
    trained(small, data, accumulate=3, epochs=2, before_step=[lambda: counted.append(1)])
    sizes = {12: 12, 13: 13, 18: 12}
    trained(large, data, batch_size=sizes[images_there], epochs=2)
    assert len(counted) == 2 * (1 + (images_there == 18))
    for name, tensor in large.state_dict().items():
        torch.testing.assert_close(small.state_dict()[name], tensor)


@pytest.mark.parametrize("method", ["plain", "apfl"])
def test_samples_that_the_loss_leaves_out_do_not_weigh_in_a_step_of_several_batches(method):
    """Batches of 4 with 1, 4 and 0 labels are a batch of 5, in the step and in the mean loss that is reported."""
    x = torch.rand(12, 1, 4, 4, generator=generator(0))
    y = torch.tensor([2, *[LEFT_OUT] * 3, 0, 1, 1, 0, *[LEFT_OUT] * 4])
    found = []
    for batches, settings in (
        (list(zip(x.split(4), y.split(4), strict=True)), {"accumulate": 3}),
        ([(x[y >= 0], y[y >= 0])], {}),
    ):
        model, own = linear(), linear()
        if method == "plain":
            loss = trained(model, SiteLoaders(batches), **settings)
        else:
            nn.init.ones_(own[1].bias[:1])
            trainer = Trainer.of({"lr": 0.5, "batch_size": 4, **settings})
            objective = plain_objective(model, LOSS)
            work = Epochs(model, SiteLoaders(batches), trainer, 1, generator(0), objective)
            loss, _ = train_both(work, own, 0.5, LOSS, adaptive=False)
        found.append(({**model.state_dict(), **{f"own.{k}": v for k, v in own.state_dict().items()}}, loss))
    (small, of_small), (large, of_large) = found
    assert of_small == pytest.approx(of_large)
    for name, tensor in large.items():
        torch.testing.assert_close(small[name], tensor)


@pytest.mark.parametrize("method", ["fedavg", "apfl"])
def test_a_step_of_several_batches_without_any_label_moves_nothing(method):
    model, own, x = linear(), linear(), torch.rand(4, 1, 4, 4, generator=generator(0))
    data = SiteLoaders([(part, torch.full((2,), LEFT_OUT)) for part in x.split(2)])
    if method == "fedavg":
        loss = trained(model, data, accumulate=2)
    else:
        work = Epochs(model, data, Trainer.of({"accumulate": 2}), 1, generator(0), plain_objective(model, LOSS))
        loss, alpha = train_both(work, own, 0.5, LOSS, adaptive=True)
        assert alpha == 0.5
    assert loss == 0
    assert not any(p.any() for p in (*model.parameters(), *own.parameters()))


def test_no_batch_waits_for_the_next_epoch():
    counted = []
    trained(linear(), images(train=12), accumulate=2, epochs=3, before_step=[lambda: counted.append(1)])
    assert len(counted) == 3 * 2


def test_the_step_of_batches_that_are_left_is_counted():
    """Of three, four and five batches two by two."""
    trainer = Trainer.of({"batch_size": 4, "accumulate": 2})
    assert [trainer.steps(images(train=n), even=False) for n in (12, 16, 20)] == [2, 2, 3]


def test_no_batch_of_a_second_model_waits_either():
    """With all of it in APFL's mixture it takes the steps that plain training takes."""
    data, plain, own, model = images(train=12), linear(), linear(), linear()
    trained(plain, data, accumulate=2, epochs=2)
    trainer = Trainer.of({"lr": 0.5, "batch_size": 4, "accumulate": 2})
    work = Epochs(model, data, trainer, 2, generator(0), plain_objective(model, LOSS))
    train_both(work, own, 1.0, LOSS, adaptive=False)
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(own.state_dict()[name], tensor)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_is_near_and_weights_stay_float32(precision):
    half, full = (build_model("lenet5", in_channels=1, num_classes=3, image_size=28) for _ in range(2))
    full.load_state_dict(half.state_dict())
    x = torch.rand(16, 1, 28, 28, generator=generator(0)) * 2 - 1
    parts = {"train": x, "validation": x[:0], "test": x[:0]}
    data = ImageTensors(parts, {part: torch.arange(len(p)) % 3 for part, p in parts.items()})
    losses = [trained(half, data, lr=0.05, precision=precision), trained(full, data, lr=0.05)]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    assert losses[0] != losses[1]
    assert all(p.dtype == torch.float32 for p in half.parameters())
    for ours, theirs in zip(half.parameters(), full.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=0.02, rtol=0.1)


def test_gradients_that_mechanisms_see_are_not_scaled():
    seen = []
    for precision in ("fp32", "fp16"):
        model = linear()
        trained(model, one(3.0), before_step=[lambda m=model: seen.append(m[1].bias.grad.clone())], precision=precision)
    torch.testing.assert_close(seen[0], seen[1], atol=1e-3, rtol=1e-2)


def test_who_hears_of_steps_is_told_by_what_a_scaled_loss_is_divided_again():
    """2^12 at first; a step that overflows counts as none, and the next one's scale is half of it."""
    model, heard = linear(), []
    trainer = Trainer.of({"lr": 0.5, "batch_size": 4, "precision": "fp16"})
    steps = Steps(trainer, model, list(model.parameters()), taken=heard.append)
    for times in (1.0, 1e38, 1.0):
        with steps.forward():
            loss = LOSS(model(torch.ones(1, 1, 4, 4)), torch.zeros(1, dtype=torch.long))
        steps.backward(times * loss.float(), 1)
        steps.step()
    assert heard == [2**-12, 0, 2**-11]


@pytest.mark.parametrize("size", [(16, 16), (4, 8, 8)], ids=["images", "volumes"])
def test_channels_last_computes_the_same_and_leaves_no_trace(size):
    seen = set()

    def network():
        convolution = [nn.Conv2d, nn.Conv3d][len(size) - 2]
        norm = [nn.BatchNorm2d, nn.BatchNorm3d][len(size) - 2](4)
        layers = convolution(2, 4, 3, padding=1), norm, nn.ReLU(), convolution(4, 4, 3), nn.Flatten(), nn.LazyLinear(3)
        layers[3].register_forward_hook(lambda layer, given, made: seen.add(made.stride(1) == 1))
        return nn.Sequential(*layers)

    x = torch.rand(8, 2, *size, generator=generator(0)) * 2 - 1
    last, first = network(), network()
    last(x), first(x)
    first.load_state_dict(last.state_dict())
    parts = {"train": x, "validation": x[:0], "test": x[:0]}
    data = ImageTensors(parts, {part: torch.arange(len(p)) % 3 for part, p in parts.items()})
    seen.clear()
    trained(last, data, lr=0.01, channels_last=1)
    assert seen == {True}
    trained(first, data, lr=0.01)
    for ours, theirs in zip(last.state_dict().values(), first.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)
        assert ours.is_contiguous()


def test_a_model_of_vectors_is_as_it_is():
    first, second = Net(), Net()
    second.load_state_dict(first.state_dict())
    trained(first, images())
    trained(second, images(), channels_last=1)
    assert same(first.state_dict(), second.state_dict())


def test_after_every_step_the_weights_are_the_new_ones():
    """Five batches two by two are three steps an epoch; what is done after each finds it taken, and gradients gone."""
    model = linear()
    seen = []

    def after():
        seen.append(model[1].bias.detach().clone())
        assert all(p.grad is None or not p.grad.any() for p in model.parameters())

    trained(model, images(train=20), accumulate=2, after_step=[after])
    assert len(seen) == 3
    assert not torch.equal(seen[0], seen[1]) and torch.equal(seen[-1], model[1].bias)


@pytest.mark.parametrize("method", ["fedavg", "ditto", "apfl"])
def test_channels_last_lays_out_whatever_a_method_trains(method):
    """Also a model of a method's own, and one that a method trains by itself."""
    seen = set()

    def hook(layer, given, made):
        if layer.training and isinstance(layer, nn.Conv2d) and layer.weight.shape[1] > 1:
            seen.add(layer.weight.is_contiguous(memory_format=torch.channels_last))

    watched = nn.modules.module.register_module_forward_hook(hook)
    try:
        fields = {"data": "organamnist-sample", "sites": 2, "rounds": 1, "alone": "no", "device": "cpu"}
        fields |= {"train_fraction": 0.05, "settings": {"channels_last": 1}}
        run_config = make_config(algorithm=method, **fields)
        federation = Federation.of(run_config)
        run_in_process(federation.plan(), sites_of(federation), federation.model, workers=1)
    finally:
        watched.remove()
    assert seen == {True}
