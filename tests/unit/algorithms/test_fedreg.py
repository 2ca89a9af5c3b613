"""FedReg by hand: pseudo data, the four steps, and what is taken back; and what it does not go with.

One sample, x = 1 of class 0, and the weights a, b: the scores are a x and b x, and with the probability p of class 1
the gradient is (-p x, p x) of the weights and p (b - a) of the pixel.
"""

import pytest
import torch
from one_sample import TwoWeights, config, data, method, trained
from tiny import Net, images, run, same
from tiny import config as tiny_config
from torch.func import functional_call
from torch.nn.functional import cross_entropy, softmax

from medpfl.algorithms.fedreg import project, pseudo_data
from medpfl.algorithms.mechanism import LocalRound
from medpfl.algorithms.signed_steps import fixed, moved
from medpfl.core import scratch
from medpfl.core.declarations import Nothing
from medpfl.core.errors import UserError
from medpfl.core.messages import Message
from medpfl.core.parameters import ParameterSplit
from medpfl.core.seeding import Chance
from medpfl.core.site_data import scale
from medpfl.models import logits

ONE, FIRST = torch.ones(1, 1, 1, 1), torch.zeros(1, dtype=torch.int64)


def local_round(model, own, run_config):
    split = ParameterSplit(model, Nothing())
    message = Message("train", 2, split.shared_state(model))
    found = LocalRound("site-1", run_config, 2, message, model, split, own, lambda: None, lambda: None)
    found.loss = run_config.learned.loss
    return found


def test_signed_steps_by_hand():
    """With a = 1, b = 2 the loss of class 0 grows with x: three steps of 0.3 to 1.9, or down to 0.1, or 0.5 at most."""
    model = fixed(TwoWeights(1.0, 2.0))

    def scores(x):
        return logits(model(x))

    assert moved(scores, ONE, FIRST, cross_entropy, 0.3, 3).item() == pytest.approx(1.9)
    assert moved(scores, ONE, FIRST, cross_entropy, -0.3, 3).item() == pytest.approx(0.1)
    assert moved(scores, ONE, FIRST, cross_entropy, 0.3, 3, within=0.5).item() == pytest.approx(1.5)
    assert ONE.item() == 1 and all(p.grad is None for p in model.parameters())


def test_pseudo_data_by_hand():
    """Ten steps of 0.2 and of 0.01: x_s = 3, x_p = 1.1; f gives class 1 of x_s the probability sigmoid(3 (b - a))."""
    run_config = config("fedreg", pseudo_size=0.2, perturbed_size=0.01)
    model = TwoWeights(1.0, 2.0)
    (x_s, known, x_p, y, whose), = pseudo_data(local_round(model, data(), run_config), 0.2, 0.01)  # fmt: skip

    assert x_s.item() == pytest.approx(3.0) and x_p.item() == pytest.approx(1.1)
    torch.testing.assert_close(known, softmax(torch.tensor([[3.0, 6.0]]), 1))
    assert y.tolist() == whose.tolist() == [0] and model.training


def test_pseudo_data_go_up_the_loss_that_the_site_minimises():
    """As a mechanism has changed it: with the sign turned they go the other way, x_s = 1 - 2 and x_p = 1 - 0.1."""
    round_ = local_round(TwoWeights(1.0, 2.0), data(), config("fedreg"))
    round_.loss = lambda output, y: -cross_entropy(output, y)
    (x_s, _, x_p, *_), = pseudo_data(round_, 0.2, 0.01)  # fmt: skip
    assert x_s.item() == pytest.approx(-1.0) and x_p.item() == pytest.approx(0.9)


def test_what_a_step_adds_is_taken_back_by_hand():
    """theta_0 = (0, 0), theta = (-1, 1): half of the way is (-1/2, 1/2); the data are x = 1 with the label 0.

    g = (-p, p) with p = sigmoid(1): <way, g> = 2p, |g|^2 = 2 p^2, w = 1/p, so that w g = (-1, 1): all is taken back.
    With the label 1 the way lowers the loss, and nothing is.
    """
    received = {"fc.weight": torch.zeros(2, 1)}
    for label, left in ((0, [0.0, 0.0]), (1, [-1.0, 1.0])):
        model = TwoWeights(-1.0, 1.0)
        project(model, dict(model.named_parameters()), received, [(ONE, torch.tensor([label]), cross_entropy)])
        assert model.fc.weight.flatten().tolist() == pytest.approx(left, abs=1e-6)


def test_the_second_data_see_what_the_first_left():
    """A linear loss with gradient g1 = (1, 0), then one with g2 = (1, 1): (2, 2) -> (0, 2) -> (0, 2) - 1 (1, 1)."""
    model = TwoWeights(2.0, 2.0)
    first = (ONE, FIRST, lambda scores, y: scores[0, 0])
    second = (ONE, FIRST, lambda scores, y: scores.sum())
    project(model, dict(model.named_parameters()), {"fc.weight": torch.zeros(2, 1)}, [first, second])
    assert model.fc.weight.flatten().tolist() == pytest.approx([-1.0, 1.0])


def test_both_slopes_are_taken_at_half_of_the_whole_way():
    """Of a b the gradient is (b, a), at half of (2, 2) so (1, 1): (0, 2) - 1 (1, 1). Half of (0, 2) would give 0."""
    model = TwoWeights(2.0, 2.0)
    first = (ONE, FIRST, lambda scores, y: scores[0, 0])
    second = (ONE, FIRST, lambda scores, y: scores[0, 0] * scores[0, 1])
    project(model, dict(model.named_parameters()), {"fc.weight": torch.zeros(2, 1)}, [first, second])
    assert model.fc.weight.flatten().tolist() == pytest.approx([-1.0, 1.0])


def test_a_loss_without_a_slope_takes_nothing_back():
    model = TwoWeights(2.0, 2.0)
    flat = (ONE, FIRST, lambda scores, y: 0 * scores.sum())
    project(model, dict(model.named_parameters()), {"fc.weight": torch.zeros(2, 1)}, [flat])
    assert model.fc.weight.flatten().tolist() == [2.0, 2.0]


@pytest.mark.parametrize("slow", [0.0, 0.5, 1.0])
def test_gradients_are_taken_on_the_way_by_hand(slow):
    """theta_0 = (0, 0), theta = (2, 0): the gradient at (2 slow, 0), whole and not times slow."""
    model = TwoWeights(0.0, 0.0)
    begun = method(config("fedreg", slow=slow), model)
    begun.begin()
    with torch.no_grad():
        model.fc.weight.copy_(torch.tensor([[2.0], [0.0]]))
    begun.objective(model)(ONE, FIRST)[1].backward()

    p = 1 / (1 + torch.tensor(2 * slow).exp().item())
    assert model.fc.weight.grad.flatten().tolist() == pytest.approx([-p, p])


def test_a_round_of_one_step_recomputed():
    """With plain steps written out: gradient at theta_0, then both projections at half of the way."""
    run_config = config("fedreg", pseudo_size=0.2, perturbed_size=0.02)
    model = TwoWeights(0.5, 0.1)
    trained(run_config, model)

    first = torch.tensor([0.5, 0.1], requires_grad=True)

    def gradient(at, x, target):
        (g,) = torch.autograd.grad(cross_entropy((at * x)[None], target[None]), at)
        return g

    # b < a: more x makes class 0 surer, so that x goes down.
    x_s, x_p = 1 - 2.0, 1 - 0.2
    known = softmax(first.detach() * x_s, 0)
    way = -0.1 * gradient(first, 1.0, torch.tensor(0))
    between = (first.detach() + way / 2).requires_grad_()
    for g in (gradient(between, x_s, known), gradient(between, x_p, torch.tensor(0))):
        way = way - ((way @ g) / (g @ g)).clamp(min=0) * g
    torch.testing.assert_close(model.fc.weight.detach().flatten(), (first + way).detach())


def test_running_statistics_are_of_the_sites_own_batches():
    """Pseudo data pass batch norm in training, too; with one step in a round statistics are FedAvg's all the same."""
    plain, kept = tiny_config("fedavg", settings={"batch_size": 32}), tiny_config("fedreg", settings={"batch_size": 32})
    first, one = run(plain.model_copy(update={"rounds": 1}))[1], run(kept.model_copy(update={"rounds": 1}))[1]
    for name, site in first.items():
        before, after = (s.store.get("model", 1) for s in (site, one[name]))
        for entry in ("norm.running_mean", "norm.running_var"):
            torch.testing.assert_close(before[entry], after[entry])


def test_pseudo_data_lie_in_one_order_and_large_sets_in_a_file(monkeypatch):
    torch.manual_seed(0)
    run_config, model, own = tiny_config("fedreg"), Net(), images(train=9)
    sizes = []
    real = scratch.allocate
    monkeypatch.setattr(scratch, "allocate", lambda shape, dtype: sizes.append(tuple(shape)) or real(shape, dtype))
    first, again = (pseudo_data(local_round(model, own, run_config), 0.1, 0.001) for _ in range(2))

    assert sizes == [(2, 9, 1, 4, 4)] * 2
    assert [len(y) for *_, y, _ in first] == [4, 5]
    assert all(torch.equal(a, b) for one, two in zip(first, again, strict=True) for a, b in zip(one, two, strict=True))
    assert sorted(y for *_, labels, _ in first for y in labels.tolist()) == sorted(own.labels["train"].tolist())
    assert all(own.labels["train"][whose].tolist() == labels.tolist() for *_, labels, whose in first)


def test_pseudo_data_of_each_batch_stay_their_own():
    """Ten steps of a thousandth lead no farther than a hundredth from the sample that they are made of."""
    own = images(train=13)
    x = scale(own.images["train"])
    assert torch.pdist(x.flatten(1)).min() > 1
    found = pseudo_data(local_round(Net(), own, tiny_config("fedreg")), 0.001, 0.0001)
    assert [len(y) for *_, y, _ in found] == [4, 4, 5]
    for x_s, _, x_p, _, whose in found:
        assert 0 < (x_s - x[whose]).abs().max() < 0.0101
        assert (x_p - x[whose]).abs().max() < 0.00101


@pytest.mark.parametrize("one_order", [False, True])
def test_pseudo_data_are_of_each_sample_once_however_training_balances_classes(one_order):
    """In an order of a site's own rare classes are repeated, and an epoch has more samples than there are."""
    run_config, own = tiny_config("fedreg", settings={"sampling": "balanced"}), images(train=9)
    own.labels["train"] = torch.tensor([0] * 6 + [1] * 2 + [2])
    round_ = local_round(Net(), own, run_config)
    round_.chance = Chance(0, one_order=one_order)
    found = pseudo_data(round_, 0.1, 0.001)
    assert sorted(y for *_, labels, _ in found for y in labels.tolist()) == own.labels["train"].tolist()


def test_to_first_order_no_loss_is_above_where_the_round_began():
    """Of a network with batch norm: the way that is left has no positive slope on the data that came last."""
    torch.manual_seed(0)
    model = Net()
    received = {name: p.detach().clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    way = {name: p.detach() - received[name] for name, p in model.named_parameters()}
    x, y = torch.randn(6, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    between = {name: (received[name] + way[name] / 2).requires_grad_(True) for name in way}
    found = cross_entropy(functional_call(model, {**between, **before}, (x,)), y)
    slopes = torch.autograd.grad(found, list(between.values()))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}

    project(model, dict(model.named_parameters()), received, [(x, y, cross_entropy)])

    added = sum((way[name] * slope).sum() for name, slope in zip(way, slopes, strict=True))
    left = sum(((p - received[n]) * g).sum() for (n, p), g in zip(model.named_parameters(), slopes, strict=True))
    assert added > 0.1 and left.item() == pytest.approx(0, abs=1e-4)
    assert same(before, dict(model.named_buffers()))  # running statistics are not of pseudo data


def test_what_is_not_trained_at_the_time_does_not_move():
    """As in the epochs of a head, which is trained before the body."""
    torch.manual_seed(0)
    model = Net()
    run_config = tiny_config("fedreg")
    part = next(m for m in run_config.mechanisms if m.name == "pseudo").begin(local_round(model, images(), run_config))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p))
    model.fc2.requires_grad_(False)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    part.after_step()

    assert not torch.equal(before["fc1.weight"], model.fc1.weight)
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters() if name.startswith("fc2"))
    part.forward(torch.randn(4, 1, 4, 4))[0].sum().backward()
    assert model.fc2.weight.grad is None and model.fc1.weight.grad is not None


def test_off_it_is_fedavg():
    plain, _ = run(tiny_config("fedavg"))
    off, _ = run(tiny_config("fedreg", settings={"pseudo": 0}))
    assert all(same(plain.shared[name], off.shared[name]) for name in plain.shared)


@pytest.mark.parametrize(
    ("algorithm", "fields", "words"),
    [
        ("fedreg", {"task": "multi-label"}, "one class each; multi-label has other labels"),
        ("scaffold", {"settings": {"pseudo": 1}}, "pseudo moves weights after each step"),
        ("vit-heads", {"settings": {"pseudo": 1}}, "consistency and pseudo replace the pass through the model"),
        ("apfl", {"settings": {"head_epochs": 1}, "personal": "top:1"}, "replace the epochs of a round"),
        ("apfl", {"settings": {"ditto": 1}}, "ditto and alpha replace the model that a site uses"),
        ("ditto", {"settings": {"alpha": 0.5}}, "replace the model that a site uses"),
    ],
)
def test_what_it_does_not_go_with(algorithm, fields, words):
    with pytest.raises(UserError, match=words):
        tiny_config(algorithm, **fields)
