"""FedCurv by hand: Fisher information, the penalty of the others, the server's sums; and what it refuses.

One sample, x = 1 of class 0, and the weights (0, 0): probabilities are (1/2, 1/2), the gradient is (-1/2, 1/2) and the
Fisher information (1/4, 1/4).
"""

from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch
from one_sample import TwoWeights, config, data, weights
from tiny import Net, images, run
from tiny import config as tiny_config
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from medpfl.algorithms.fedcurv import Curvature, fisher_information
from medpfl.algorithms.mechanism import LocalRound, ServerParts, Turn
from medpfl.core.declarations import Nothing
from medpfl.core.errors import UserError
from medpfl.core.messages import Message, named
from medpfl.core.own_loaders import NotPlain
from medpfl.core.parameters import ParameterSplit
from medpfl.core.server_state import ServerState
from medpfl.core.site_data import SiteLoaders, scale
from medpfl.models import build_model, logits
from medpfl.site.worker import Site
from medpfl.tasks import TASKS

NAME = "fc.weight"


def pair(a, b):
    return torch.tensor([[a], [b]])


def part_of(run_config):
    return next(m for m in run_config.mechanisms if m.name == "curvature")


def begun(model, *, kept=None, brought=None, when=2, asked=("curvature",), loss=cross_entropy, own=None, **settings):
    run_config = config("fedcurv", **settings)
    split = ParameterSplit(model, Nothing())
    tensors = split.shared_state(model) | named("curvature", brought or {})
    message = Message("train", when, tensors, {"asked": list(asked)})
    round_ = LocalRound("site-1", run_config, when, message, model, split, own or data(), lambda: kept, lambda: None)
    round_.likelihood = loss
    return part_of(run_config).begin(round_)


def test_fisher_information_by_hand():
    model = TwoWeights(0.0, 0.0)
    found = fisher_information(model, [NAME], data(), cross_entropy)
    assert found[NAME].flatten().tolist() == [0.25, 0.25]
    # p = (1/4, 3/4): the gradient is (-3/4, 3/4).
    steep = fisher_information(TwoWeights(0.0, float(torch.log(torch.tensor(3.0)))), [NAME], data(3), cross_entropy)
    assert steep[NAME].flatten().tolist() == pytest.approx([0.5625, 0.5625])


@pytest.mark.parametrize("name", ["lenet5", "vit-tiny"])
def test_fisher_information_is_the_mean_of_single_samples_squared_gradients(name):
    torch.manual_seed(0)
    arguments = {"num_layers": 1} if name == "vit-tiny" else {}
    model = build_model(name, in_channels=1, num_classes=3, image_size=28, model_args=arguments)
    x, y = torch.randn(5, 1, 28, 28), torch.tensor([0, 1, 2, 1, 0])
    batches = [(x[:3], y[:3]), (x[3:], y[3:])]
    before = {k: t.clone() for k, t in model.state_dict().items()}
    own = SimpleNamespace(batches=lambda part, size: iter({"train": batches}[part]))
    found = fisher_information(model, [n for n, _ in model.named_parameters()], own, cross_entropy)
    assert model.training and all(torch.equal(t, before[k]) for k, t in model.state_dict().items())
    model.eval()
    expected = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for i in range(5):
        model.zero_grad()
        cross_entropy(logits(model(x[i : i + 1])), y[i : i + 1]).backward()
        for n, p in model.named_parameters():
            expected[n] += p.grad.square() / 5 if p.grad is not None else 0
    for n in expected:
        torch.testing.assert_close(found[n], expected[n], rtol=1e-3, atol=1e-8)


def test_fisher_information_is_the_mean_over_samples_with_a_label():
    torch.manual_seed(0)
    model, x, y = Net(), torch.randn(4, 1, 4, 4), torch.tensor([0, -100, 1, -100])
    loss, some = TASKS["classification"].loss, y >= 0
    found, expected = (
        fisher_information(model, ["fc2.bias"], SiteLoaders([batch]), loss) for batch in ((x, y), (x[some], y[some]))
    )
    torch.testing.assert_close(found, expected)
    nothing = fisher_information(model, ["fc2.bias"], SiteLoaders([(x[~some], y[~some])]), loss)
    assert not nothing["fc2.bias"].any()


def test_personal_parameters_leave_no_graph_in_what_is_sent():
    """They are the model's own and trained; a graph would hold every training image's activations, and cannot leave."""
    model = Net()
    every = fisher_information(model, [name for name, _ in model.named_parameters()], images(), cross_entropy)
    some = fisher_information(model, ["fc2.bias"], images(), cross_entropy)
    assert not any(tensor.requires_grad for tensor in (*every.values(), *some.values()))
    torch.testing.assert_close(some["fc2.bias"], every["fc2.bias"])


def test_the_penalty_is_the_others_by_hand():
    """Own: I = (1, 2), theta = (3, 1). Others: I = (2, 0) at (5, 9) and (1, 4) at (2, 1).

    u = (4, 6), v = (1*3 + 2*5 + 1*2, 2*1 + 0 + 4*1) = (15, 6). With lambda 1/2 at theta = (1, 2):
    sum over the others of I (theta - theta_j)^2 = 2*16 + 1*1 + 4*1 = 37, its gradient 2 (2*(-4) - 1, 4*1) = (-18, 8).
    """
    model = TwoWeights(1.0, 2.0)
    own = {f"{NAME}/information": pair(1.0, 2.0), f"{NAME}/weighted": pair(3.0, 2.0), "round": torch.tensor(1)}
    sums = {f"{NAME}/information": pair(4.0, 6.0), NAME: pair(15 / 4, 1.0)}
    part = begun(model, kept=own, brought=sums, curvature=0.5)

    at_one = part.term()
    (gradient,) = torch.autograd.grad(at_one, model.fc.weight)
    assert gradient.flatten().tolist() == pytest.approx([-9.0, 4.0])
    with torch.no_grad():
        model.fc.weight.copy_(pair(2.0, 1.0))
    # 2*9 + 1*0 + 4*0 = 18 there: the term is the penalty but for a constant.
    assert (part.term() - at_one).item() == pytest.approx(0.5 * (18 - 37))


def test_a_site_that_was_away_has_nothing_in_the_sums():
    model = TwoWeights(1.0, 2.0)
    own = {f"{NAME}/information": pair(1.0, 2.0), f"{NAME}/weighted": pair(3.0, 2.0), "round": torch.tensor(1)}
    sums = {f"{NAME}/information": pair(4.0, 6.0), NAME: pair(3.0, 1.0)}
    (gradient,) = torch.autograd.grad(
        begun(model, kept=own, brought=sums, when=3, curvature=0.5).term(), model.fc.weight
    )
    assert gradient.flatten().tolist() == pytest.approx([4 * (1 - 3), 6 * (2 - 1)])


def test_a_step_goes_no_farther_than_to_where_the_penalty_pulls():
    """2 lr lambda u = (40, 0.4): the first becomes 1 and leads from 1 to 5 in a step; 0.4 of the second's way."""
    model = TwoWeights(1.0, 2.0)
    part = begun(model, brought={f"{NAME}/information": pair(200.0, 2.0), NAME: pair(5.0, 7.0)}, curvature=1.0)
    (gradient,) = torch.autograd.grad(part.term(), model.fc.weight)
    assert (model.fc.weight - 0.1 * gradient).flatten().tolist() == pytest.approx([5.0, 2 + 0.4 * 5])
    adam = begun(model, brought={f"{NAME}/information": pair(200.0, 2.0), NAME: pair(5.0, 7.0)}, optimizer="adam")
    (gradient,) = torch.autograd.grad(adam.term(), model.fc.weight)
    assert gradient.flatten().tolist() == pytest.approx([2 * 200 * (1 - 5), 2 * 2 * (2 - 7)])


@pytest.mark.parametrize("weight", [pytest.param(1e3, marks=pytest.mark.slow), 1e8])
def test_however_large_the_weight_it_stays_finite(weight):
    state, _ = run(tiny_config("fedcurv", rounds=6, settings={"curvature": weight}))
    assert not state.failures
    assert state.round == 6


def test_sums_smaller_than_the_own_part_pull_nowhere():
    """As rounding may leave them: a negative weight would push parameters away without end."""
    model = TwoWeights(1.0, 2.0)
    own = {f"{NAME}/information": pair(1.0, 2.0), f"{NAME}/weighted": pair(3.0, 2.0), "round": torch.tensor(1)}
    sums = {f"{NAME}/information": pair(0.5, 2.0), NAME: pair(7.0, 7.0)}
    (gradient,) = torch.autograd.grad(begun(model, kept=own, brought=sums).term(), model.fc.weight)
    assert gradient.flatten().tolist() == [0.0, 0.0]


def test_what_a_site_sends_and_keeps():
    model = TwoWeights(0.0, 0.0)
    part = begun(model)
    assert part.term is None  # no sums have come
    outcome = part.end()
    assert weights(outcome.sends["curvature"], f"{NAME}/information") == [0.25, 0.25]
    assert weights(outcome.sends["curvature"], f"{NAME}/weighted") == [0.0, 0.0]
    assert int(outcome.state["round"]) == 2
    assert begun(model, asked=()).end() == type(outcome)()


def test_loaders_made_for_training_are_refused_before_a_round_is_trained():
    samples = TensorDataset(torch.ones(8, 1), torch.zeros(8, dtype=torch.long))
    shuffled = SiteLoaders(DataLoader(samples, 2, shuffle=True), plain=DataLoader(samples, 2))
    assert begun(TwoWeights(0.0, 0.0), own=shuffled).end().sends["curvature"]
    noisy = SiteLoaders(Noisy())
    with pytest.raises(NotPlain, match="shuffles, augments or drops samples"):
        begun(TwoWeights(0.0, 0.0), own=noisy)
    assert begun(TwoWeights(0.0, 0.0), own=noisy, asked=()).term is None  # nobody uses the last round's


class Noisy(list):
    """Batches that differ from reading to reading, as those of a loader that augments."""

    def __iter__(self):
        yield torch.rand(2, 1), torch.zeros(2, dtype=torch.long)


def test_the_information_is_of_the_loss_that_the_site_minimises():
    """As with the label prior, under which a site of one class has next to none."""

    def other(output, y):
        return cross_entropy(output + torch.tensor([5.0, 0.0]), y)

    model = TwoWeights(0.0, 0.0)
    sent = begun(model, loss=other).end().sends["curvature"]
    assert torch.equal(sent[f"{NAME}/information"], fisher_information(model, [NAME], data(), other)[NAME])
    assert not torch.equal(sent[f"{NAME}/information"], fisher_information(model, [NAME], data(), cross_entropy)[NAME])


def test_a_class_that_an_epoch_lacks_makes_no_information_nan():
    """Its weight is 0, and so would be the sum of a single sample's weights, by which its loss is divided."""

    def lacking(sites):
        for site in sites.values():
            x, y = scale(site.data.images["train"]), site.data.labels["train"]
            test = [(scale(site.data.images["test"]), site.data.labels["test"])]
            site.data = SiteLoaders([(x[y > 0], y[y > 0])], test, test, plain=[(x, y)])

    state, _ = run(tiny_config("fedcurv", settings={"class_weights": "balanced"}), lacking)
    assert state.failures == ()


def test_the_servers_sums_by_hand():
    """Two sites, means I = (2, 0) and I theta = (3, 0): u = (4, 0), v / u = 1.5, and the sites' mean where u is 0."""
    part = part_of(config("fedcurv"))
    step = part.server_step(ServerParts(None, None, None, {}, {}, None, None, None, lambda: False))
    sent = {"curvature": {f"{NAME}/information": pair(2.0, 0.0), f"{NAME}/weighted": pair(3.0, 0.0)}}

    made = step(Turn(ServerState(), lambda: {NAME: pair(8.0, 9.0)}, sent, present=2)).common

    assert weights(made, f"{NAME}/information") == [4.0, 0.0]
    assert weights(made) == [1.5, 9.0]


@pytest.mark.parametrize(
    ("information", "weighted"), [(0.0, 1e30), (1e-30, 1e30), (1e-3, -1e30), (1e30, 1e30), (1e30, -3.0)]
)
def test_whatever_one_site_sends_the_sums_can_travel(information, weighted):
    """What a site's answer may hold; where v / u is no number that may travel the point is the sites' mean, 8."""
    run_config, model = config("fedcurv"), TwoWeights(0.0, 0.0)
    part = part_of(run_config)
    down, up = part.channels(run_config, model, ParameterSplit(model, Nothing()))
    sent = {f"{NAME}/information": pair(information, 1.0), f"{NAME}/weighted": pair(weighted, 2.0)}
    up.check(named("curvature", sent))
    step = part.server_step(ServerParts(None, None, None, {}, {}, None, None, None, lambda: False))

    made = step(Turn(ServerState(), lambda: {NAME: pair(8.0, 9.0)}, {"curvature": sent}, present=3)).common

    down.check(named("curvature", made))
    assert weights(made)[0] == pytest.approx(8.0 if information < 1 else weighted / information)
    assert weights(made)[1] == 2.0


def test_little_information_in_half_precision_pulls_to_where_it_says():
    """2^-20 is below the least normal number of float16, and exact in it."""
    part = part_of(config("fedcurv"))
    step = part.server_step(ServerParts(None, None, None, {}, {}, None, None, None, lambda: False))
    sent = {f"{NAME}/information": pair(2**-20, 0.0).half(), f"{NAME}/weighted": pair(3 * 2**-20, 0.0).half()}
    made = step(Turn(ServerState(), lambda: {NAME: pair(8.0, 9.0).half()}, {"curvature": sent}, present=2)).common
    assert weights(made) == [3.0, 9.0]


def test_in_a_run_the_sums_are_the_sites():
    """After round 1 of a run, u and v recomputed from the models and data of the sites."""
    state, sites = run(tiny_config("fedcurv", rounds=2))
    own = [site.store.get("curvature", 1) for site in sites.values()]
    for name, p in Net().named_parameters():
        u = sum(o[f"{name}/information"] for o in own)
        v = sum(o[f"{name}/weighted"] for o in own)
        torch.testing.assert_close(state.common["curvature"][f"{name}/information"], u)
        there = u > 0
        torch.testing.assert_close(state.common["curvature"][name][there], (v / u)[there])
        assert p.shape == u.shape
    # In the last round nobody is asked.
    assert all(site.store.get("curvature", 2) is None for site in sites.values())


def test_much_information_is_not_scaled_back():
    """A site takes away what it sent: of less in the sums it would take away others' too. Honest ones lie far apart."""

    class Louder(Site):
        def handle(self, message, model):
            update = super().handle(message, model)
            for name in [name for name in update.tensors if name.startswith("curvature/")]:
                update.tensors[name] = update.tensors[name] * 100
            return update

    def change(sites):
        sites["site-2"] = Louder(**{f.name: getattr(sites["site-2"], f.name) for f in fields(Site) if f.init})

    plain, _ = run(tiny_config("fedcurv", sites=4, rounds=2))
    state, _ = run(tiny_config("fedcurv", sites=4, rounds=2), change)
    assert state.failures == plain.failures == ()
    name = "fc1.weight/information"
    assert state.common["curvature"][name].sum() > 10 * plain.common["curvature"][name].sum()


def test_a_weight_of_zero_is_fedavg_and_a_large_one_holds_fast():
    def moved(curvature):
        state, sites = run(tiny_config("fedcurv", settings={"curvature": curvature, "lr": 0.05}))
        trained = {s: site.store.get("model", 3) for s, site in sites.items()}
        return state, trained

    plain, _ = run(tiny_config("fedavg", settings={"lr": 0.05}))
    off, _ = moved(0.0)
    assert all(torch.equal(plain.shared[s][k], off.shared[s][k]) for s in plain.shared for k in plain.shared[s])
    held, _ = moved(5.0)
    assert any(not torch.equal(plain.shared[s][k], held.shared[s][k]) for s in held.shared for k in held.shared[s])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"settings": {"update_clip": 1}}, "would leave beside it as it is"),
        ({"personal": "heads:0.5"}, "parts of some are personal"),
        ({"task": "multi-label"}, "likelihood of one class a sample"),
    ],
)
def test_what_it_does_not_go_with(fields, words):
    with pytest.raises(UserError, match=words):
        tiny_config("fedcurv", **fields)


def test_nothing_shared_and_trained_is_refused():
    model = nn.Sequential(nn.BatchNorm1d(2, affine=False))
    with pytest.raises(UserError, match="something that is shared and trained"):
        Curvature(part_of(config("fedcurv")).settings).channels(None, model, ParameterSplit(model, Nothing()))


def test_images_of_the_sample_have_information_everywhere_it_can_be():
    torch.manual_seed(0)
    found = fisher_information(Net(), ["fc2.bias"], images(), cross_entropy)
    assert (found["fc2.bias"] > 0).all()
