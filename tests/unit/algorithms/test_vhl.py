"""VHL by hand: the virtual images, the contrast of features, what a site minimises; and what it does not go with."""

import math

import pytest
import torch
from tiny import Net, images, run, same
from tiny import config as tiny_config
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from medpfl.algorithms.mechanism import LocalRound
from medpfl.algorithms.vhl import Virtual, contrast
from medpfl.algorithms.vhl.noise_images import noise_images
from medpfl.core.declarations import Nothing
from medpfl.core.errors import UserError
from medpfl.core.messages import Message
from medpfl.core.parameters import ParameterSplit
from medpfl.site.words import listed
from medpfl.tasks import TASKS
from medpfl.training.objective import objective_of
from medpfl.training.part import Beside, Part


def test_contrast_by_hand():
    """Unit features at 0, 0 and 90 degrees, classes 0, 0, 1, temperature 1/2: similarities 2 and 0.

    Each of the first two has the other as its like: -log(e^2 / (e^2 + 1)). The third has none and counts as 0.
    """
    features = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]])
    expected = 2 / 3 * math.log1p(math.exp(-2))
    assert contrast(features, torch.tensor([0, 0, 1]), 0.5).item() == pytest.approx(expected)


def test_contrast_is_khoslas_equation_2():
    """Written out with loops, for classes of one to four samples."""
    torch.manual_seed(0)
    features, labels = torch.randn(8, 5), torch.tensor([0, 1, 1, 2, 2, 2, 2, 3])
    unit, total = normalize(features), 0.0
    for i in range(8):
        others = sum(math.exp(unit[i] @ unit[k] / 0.07) for k in range(8) if k != i)
        like = [k for k in range(8) if k != i and labels[k] == labels[i]]
        total -= sum(math.log(math.exp(unit[i] @ unit[k] / 0.07) / others) for k in like) / max(len(like), 1)
    assert contrast(features, labels).item() == pytest.approx(total / 8, rel=1e-5)


def test_samples_that_the_loss_leaves_out_are_not_drawn_to_each_other():
    torch.manual_seed(0)
    features, labels = torch.randn(7, 5), torch.tensor([0, -100, 1, 0, -100, 1, -100])
    some = labels >= 0
    found, expected = (f.clone().requires_grad_(True) for f in (features, features[some]))
    contrast(found, labels).backward()
    contrast(expected, labels[some]).backward()
    torch.testing.assert_close(contrast(found, labels), contrast(expected, labels[some]))
    torch.testing.assert_close(found.grad[some], expected.grad)
    assert not found.grad[~some].any()


def test_virtual_images_are_the_same_wherever_they_are_made():
    noise_images.cache_clear()
    first, labels = noise_images(3, 2, 5, (3, 20, 12))
    noise_images.cache_clear()
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        again, _ = noise_images(3, 2, 5, (3, 20, 12))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(first, again) and noise_images(3, 2, 5, (3, 20, 12))[0] is again
    assert first.shape == (10, 3, 20, 12) and first.dtype == torch.uint8 and labels.tolist() == [0] * 5 + [1] * 5
    assert not torch.equal(first, noise_images(4, 2, 5, (3, 20, 12))[0])
    assert first.float().std() > 30


def test_virtual_images_can_be_told_apart():
    """A linear classifier of half of them is right on most of the other half: the method needs separable images."""
    x, y = noise_images(0, 3, 100, (1, 16, 16))
    x = x.flatten(1).float() / 127.5 - 1
    first = torch.arange(len(y)) % 2 == 0
    torch.manual_seed(0)
    layer = nn.Linear(256, 3)
    steps = torch.optim.SGD(layer.parameters(), lr=0.02, weight_decay=0.01)
    for _ in range(200):
        steps.zero_grad()
        cross_entropy(layer(x[first]), y[first]).backward()
        steps.step()
    assert (layer(x[~first]).argmax(1) == y[~first]).float().mean() > 0.7


def part_of(model, **settings):
    run_config = tiny_config("vhl", settings=settings)
    mechanism = next(m for m in run_config.mechanisms if m.name == "virtual")
    split = ParameterSplit(model, Nothing())
    message = Message("train", 1, split.shared_state(model))
    return mechanism.begin(LocalRound("site-1", run_config, 1, message, model, split, images(), lambda: None, None))


def test_what_a_site_minimises_recomputed():
    torch.manual_seed(0)
    model = Net()
    x, y = torch.randn(4, 1, 4, 4), torch.tensor([0, 1, 2, 1])
    loss = TASKS["classification"].loss
    told_loss, minimised = objective_of(
        model, [part_of(model, virtual=0.5, align=2.0, spread=0.25, virtual_images=3)], loss
    )(x, y)
    (gradient,) = torch.autograd.grad(minimised, model.fc1.weight)

    made, _ = part_of(model, virtual_images=3).beside[0].made(x, y)
    labels = part_of(model, virtual_images=3).beside[0].made(x, y)[1]
    assert made.min() >= -1 and made.max() <= 1 and len(made) == 4
    features = torch.relu(model.norm(model.fc1(torch.cat((x, made)).flatten(1))))
    scores = model.fc2(features)
    both = torch.cat((features[:4], features[4:].detach()))
    expected = loss(scores[:4], y) + 0.5 * loss(scores[4:], labels)
    expected = expected + 2 * contrast(both, torch.cat((y, labels))) + 0.25 * contrast(features[4:], labels)
    torch.testing.assert_close(told_loss, loss(scores[:4], y))
    torch.testing.assert_close(minimised, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, model.fc1.weight)[0])


def test_beside_others_it_finds_its_own_rows():
    """With two images of another kind before its own in the pass, the alignment is of the right features."""
    torch.manual_seed(0)
    model = Net().eval()  # so that the other images change nothing by batch norm
    x, y = torch.randn(4, 1, 4, 4), torch.tensor([0, 1, 2, 1])
    other = Beside(lambda x, y: (x[:2] + 1, y[:2]), 0.0)
    loss = TASKS["classification"].loss
    alone, both = (
        objective_of(model, [*before, part_of(model, virtual_images=3)], loss)(x, y)[1]
        for before in ([], [Part(beside=[other])])
    )
    torch.testing.assert_close(alone, both)


def test_no_hook_is_left_on_the_model():
    model = Net()
    objective = objective_of(model, [part_of(model, virtual_images=3)], TASKS["classification"].loss)
    x, y = torch.randn(4, 1, 4, 4), torch.tensor([0, 1, 2, 1])
    for _ in range(3):
        objective(x, y)
    assert not model.fc2._forward_pre_hooks


def test_all_sites_learn_of_the_same_images_in_another_order():
    found = []
    for site in ("site-1", "site-2"):
        run_config, model = tiny_config("vhl", settings={"virtual_images": 4}), Net()
        split = ParameterSplit(model, Nothing())
        message = Message("train", 1, split.shared_state(model))
        mechanism = next(m for m in run_config.mechanisms if m.name == "virtual")
        round_ = LocalRound(site, run_config, 1, message, model, split, images(), lambda: None, None)
        (beside,) = mechanism.begin(round_).beside
        x = torch.zeros(4, 1, 4, 4)
        seen = torch.cat([beside.made(x, torch.zeros(4, dtype=torch.int64))[0] for _ in range(3)])
        found.append(seen.flatten(1))
    assert not torch.equal(*found)
    assert sorted(map(tuple, found[0].tolist())) == sorted(map(tuple, found[1].tolist()))


def test_the_papers_symbols():
    assert tiny_config("vhl", settings={"lambda": 0.5}).all_settings["align"] == 0.5
    assert tiny_config("fedvss", settings={"epsilon": 0.1}).all_settings["radius"] == 0.1
    values = tiny_config("fedreg", settings={"eta_s": 0.3, "eta_p": 0.4}).all_settings
    assert [values[name] for name in ("pseudo_size", "perturbed_size")] == [0.3, 0.4]


def test_off_it_is_fedavg():
    state, _ = run(tiny_config("vhl", settings={"virtual": 0}))
    plain, _ = run(tiny_config("fedavg"))
    assert all(same(plain.shared[name], state.shared[name]) for name in plain.shared)


def test_what_it_does_not_go_with():
    with pytest.raises(UserError, match="of one class each; multi-label has other labels"):
        tiny_config("vhl", task="multi-label")
    with pytest.raises(UserError, match="one pass through the model, and consistency makes three: set one to 0"):
        tiny_config("vit-heads", settings={"virtual": 1})
    mechanism = next(m for m in tiny_config("vhl").mechanisms if m.name == "virtual")
    assert isinstance(mechanism, Virtual)
    convolution = nn.Sequential(nn.Conv2d(1, 3, 4), nn.Flatten())
    with pytest.raises(UserError, match="no linear layer that classifies"):
        mechanism.channels(None, convolution, ParameterSplit(convolution, Nothing()))
    pixels = nn.Sequential(nn.Flatten(2), nn.Linear(16, 3))
    split = ParameterSplit(pixels, Nothing())
    for model, x in ((Net(), torch.zeros(2, 1, 4, 4, 4)), (pixels, torch.zeros(2, 1, 4, 4))):
        with pytest.raises(UserError) as error:
            mechanism.suits(model.eval(), split if model is pixels else ParameterSplit(model, Nothing()), x)
        assert listed(str(error.value), ()) == str(error.value)
    mechanism.suits(Net().eval(), ParameterSplit(Net(), Nothing()), torch.zeros(2, 1, 4, 4))
    frozen = Net().eval()
    split = ParameterSplit(frozen, Nothing())
    _, layer = split.classification_layer(frozen)
    for parameter in {*frozen.parameters()} - {*layer.parameters()}:
        parameter.requires_grad_(False)
    with pytest.raises(UserError, match="all that makes features is frozen: freeze less, or set both to 0") as refused:
        mechanism.suits(frozen, split, torch.zeros(2, 1, 4, 4))
    assert listed(str(refused.value), ()) == str(refused.value)
    many = Virtual(Virtual.settings_class(virtual=1.0, virtual_images=10_000))
    with pytest.raises(UserError, match="virtual images would hold more than 2e9 numbers") as refused:
        many.suits(Net().eval(), ParameterSplit(Net(), Nothing()), torch.zeros(2, 1, 300, 300))
    assert listed(str(refused.value), ()) == str(refused.value)
