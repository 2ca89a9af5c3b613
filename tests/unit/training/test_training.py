import math

import pytest
import torch
from tiny import Net, images, same
from torch import nn

from medpfl.algorithms.fedprox import proximal_term
from medpfl.core.declarations import BatchNorm, Nothing
from medpfl.core.parameters import ParameterSplit
from medpfl.core.seeding import generator
from medpfl.core.site_data import ImageTensors
from medpfl.models import build_model
from medpfl.tasks import TASKS
from medpfl.training.loop import TrainingDiverged, plain_objective, train_epochs, train_plainly
from medpfl.training.objective import objective_of
from medpfl.training.part import Beside, Part
from medpfl.training.trainer import Trainer

SGD = {"lr": 0.5, "batch_size": 4, "momentum": 0.0, "nesterov": 0, "weight_decay": 0.0}


LOSS = TASKS["classification"].loss


def trained(model, data, settings, epochs, order, objective=None):
    """The mean loss of epochs of SGD."""
    return train_epochs(model, data, Trainer.of(settings), epochs, order, objective or plain_objective(model, LOSS))


class Batches:
    """Training data given batch by batch."""

    reproducible = True
    images_per_sample = 1

    def __init__(self, *batches):
        self.given = batches

    def samples(self, part):
        return sum(len(y) for _, y in self.given)

    def training_batches(self, batch_size, generator):
        return iter(self.given)


def linear():
    """Two inputs, two classes, weights zero: every class has probability 1/2."""
    model = nn.Linear(2, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


X, Y = torch.tensor([[1.0, 2.0]]), torch.tensor([0])


def test_one_step_by_hand():
    model = linear()
    loss = trained(model, Batches((X, Y)), SGD, 1, generator(0))
    # The gradient of the cross-entropy with respect to the logits is p - onehot = (-1/2, 1/2).
    assert model.bias.tolist() == [0.25, -0.25]
    assert model.weight.tolist() == [[0.25, 0.5], [-0.25, -0.5]]
    assert loss == pytest.approx(math.log(2))


def test_weight_decay_by_hand():
    model = linear()
    nn.init.constant_(model.bias, 1.0)
    trained(model, Batches((X, Y)), SGD | {"weight_decay": 0.1}, 1, generator(0))
    assert model.bias.tolist() == pytest.approx([1 - 0.5 * (-0.5 + 0.1), 1 - 0.5 * (0.5 + 0.1)])


def test_loss_is_the_mean_over_samples_and_not_over_batches():
    model = linear()
    still = SGD | {"lr": 1e-12}
    sure = torch.tensor([[100.0, 0.0]])
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    # Three samples with loss log 2 in one batch, one with loss 0 in the other.
    unsure = torch.zeros(3, 2)
    data = Batches((unsure, torch.zeros(3, dtype=torch.long)), (sure, torch.tensor([0])))
    assert trained(model, data, still, 2, generator(0)) == pytest.approx(0.75 * math.log(2))


def test_terms_are_not_in_the_reported_loss_but_in_the_gradient():
    model = linear()
    terms = (lambda: 2.0 * model.bias.sum(), lambda: model.bias.sum())
    objective = objective_of(model, [Part(term=term) for term in terms], LOSS)
    loss = trained(model, Batches((X, Y)), SGD, 1, generator(0), objective)
    assert loss == pytest.approx(math.log(2))
    assert model.bias.tolist() == [0.25 - 1.5, -0.25 - 1.5]


def test_samples_beside_count_as_means_of_their_own_and_a_term_knows_its_rows():
    """At zero weights every loss is log 2: an own sample, two beside of weight 3, one of weight 5; rows add 10 + 1."""
    seen = []

    def rows_of(y, labels, rows):
        seen.append((y.tolist(), labels.tolist(), rows))
        return torch.tensor(10.0 + rows.start)

    two = Beside(lambda x, y: (torch.cat((x, x + 1)), torch.tensor([1, 1])), 3.0, rows_of)
    one = Beside(lambda x, y: (x, 1 - y), 5.0)
    told, minimised = objective_of(linear(), [Part(beside=[two]), Part(), Part(beside=[one])], LOSS)(X, Y)

    assert told.item() == pytest.approx(math.log(2))
    assert minimised.item() == pytest.approx(9 * math.log(2) + 11)
    assert seen == [([0], [1, 1], slice(1, 3))]


def test_a_pass_may_add_what_it_takes_labels_for():
    """Of the site's own samples alone, whatever goes through the model beside them: log 2 twice, and 7 + 1 labels."""
    model = linear()

    def forward(x):
        return model(x), lambda y: torch.tensor(7.0 + len(y))

    beside = Beside(lambda x, y: (torch.cat((x, x)), torch.tensor([1, 1])), 1.0)
    told, minimised = objective_of(model, [Part(forward=forward, beside=[beside])], LOSS)(X, Y)
    assert told.item() == pytest.approx(math.log(2))
    assert minimised.item() == pytest.approx(2 * math.log(2) + 8)


def test_nesterov_looks_ahead_by_hand():
    model = linear()
    trained(model, Batches((X, Y)), SGD | {"momentum": 0.9, "nesterov": 1}, 1, generator(0))
    # First step: the buffer is the gradient, and Nesterov goes along gradient + 0.9 * buffer.
    assert model.bias.tolist() == pytest.approx([0.25 * 1.9, -0.25 * 1.9])


def test_gradient_of_the_proximal_term():
    torch.manual_seed(0)
    model, split = Net(), ParameterSplit(Net(), BatchNorm())
    received = split.shared_state(Net())
    term = proximal_term(split, model, received, mu=0.3)
    term.backward()
    squares = 0.0
    for name, parameter in model.named_parameters():
        if name.startswith("norm"):
            assert parameter.grad is None
            continue
        difference = parameter.detach() - received[name]
        torch.testing.assert_close(parameter.grad, 0.3 * difference)
        squares += difference.square().sum().item()
    assert term.item() == pytest.approx(0.15 * squares, rel=1e-5)


def test_the_proximal_term_leaves_buffers_out():
    model = Net()
    split = ParameterSplit(model, Nothing())
    received = split.shared_state(model)
    model.norm.running_mean.fill_(5.0)
    assert proximal_term(split, model, received, mu=1.0).item() == 0.0


def test_momentum_starts_afresh_and_lives_through_the_epochs():
    """Two calls differ from one of two epochs only by the momentum that is dropped in between."""
    settings = SGD | {"momentum": 0.5, "lr": 0.1}
    data = Batches((X, Y))
    one, two = linear(), linear()
    trained(one, data, settings, 2, generator(0))
    trained(two, data, settings, 1, generator(0))
    first = two.bias.detach().clone()
    trained(two, data, settings, 1, generator(0))
    carried = settings["momentum"] * first  # the first step, lr x gradient, is taken again by half
    torch.testing.assert_close(one.bias.detach() - two.bias.detach(), carried)


def test_a_batch_of_one_with_batch_norm():
    torch.manual_seed(0)
    model = Net()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    loss = trained(model, images(train=1), SGD, 1, generator(0))
    after = model.state_dict()
    assert math.isfinite(loss)
    assert not torch.equal(after["fc1.weight"], before["fc1.weight"])
    assert torch.equal(after["norm.running_mean"], before["norm.running_mean"])
    assert all(module.training for module in model.modules())


def test_the_last_single_image_joins():
    sizes = [len(y) for _, y in images(train=9).training_batches(4, generator(0))]
    assert sizes == [4, 5]


def test_a_single_bag_of_slices_trains_batch_norm():
    torch.manual_seed(0)
    model = build_model("resnet32", in_channels=1, num_classes=2, image_size=16, pooling="attention")
    bags = {part: torch.randn(n, 4, 1, 16, 16) for part, n in (("train", 1), ("validation", 0), ("test", 0))}
    data = ImageTensors(bags, {part: torch.zeros(len(x), dtype=torch.long) for part, x in bags.items()})
    trained(model, data, SGD | {"batch_size": 1}, 2, generator(0))
    counts = {int(t) for name, t in model.state_dict().items() if name.endswith("num_batches_tracked")}
    assert counts == {2}


def test_frozen_parameters_stay():
    model = Net()
    model.fc1.requires_grad_(False)
    before = model.fc1.weight.clone()
    trained(model, images(), SGD, 1, generator(0))
    assert torch.equal(model.fc1.weight, before)


def test_outputs_with_hidden_states():
    class Tuple(nn.Linear):
        def forward(self, x):
            return super().forward(x), ["hidden"]

    model = Tuple(2, 2)
    assert math.isfinite(trained(model, Batches((X, Y)), SGD, 1, generator(0)))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_divergence_is_an_error(value):
    with pytest.raises(TrainingDiverged, match=r"the training loss became nan: lower the learning rate \(lr=0.5\)"):
        trained(Net(), Batches((torch.full((2, 16), value), torch.tensor([0, 1]))), SGD, 1, generator(0))


def test_a_last_step_to_infinity_is_an_error():
    """No loss after it says so."""
    with pytest.raises(TrainingDiverged, match=r"weights that are not finite: lower the learning rate \(lr=1e\+38\)"):
        trained(linear(), Batches((1e4 * X, Y)), SGD | {"lr": 1e38}, 1, generator(0))


def test_the_order_comes_from_the_generator_alone():
    models = []
    for noise in (1, 2):
        torch.manual_seed(0)
        model = Net()
        torch.manual_seed(noise)
        trained(model, images(), SGD, 2, generator(3, "shuffle"))
        models.append(model.state_dict())
    assert same(*models)


def test_samples_beside_have_the_loss_of_whoever_gave_their_labels():
    """1 of the site's own, twice 1 of what is made of them, half of 10 of others."""
    beside = [Beside(lambda x, y: (x, y), 0.5), Beside(lambda x, y: (x, y), 2.0, own=True)]
    losses = [lambda output, y, each=each: each + 0 * output.sum() for each in (1.0, 10.0)]
    found, minimised = objective_of(linear(), [Part(beside=beside)], *losses)(X, Y)
    assert (found.item(), minimised.item()) == (1, 1 + 2 * 1 + 0.5 * 10)


def test_what_dropout_leaves_out_follows_from_the_order_alone():
    """So that a run that was killed goes on as it would have, whatever was drawn before."""
    start, left = Net(dropout=0.5), []
    for drawn in (0, 1):
        model = Net(dropout=0.5)
        model.load_state_dict(start.state_dict())
        torch.manual_seed(drawn)
        train_plainly(model, images(), Trainer.of(SGD), 1, generator(3), LOSS)
        left.append(model.state_dict())
    assert same(*left) and not same(left[0], start.state_dict())


def test_samples_made_of_the_sites_own_come_next_to_these_whichever_mechanism_is_first():
    """Who watches a pass for how much each patient has of it counts them there."""
    passed = []

    def forward(x):
        passed.extend(x.flatten().tolist())
        return x.repeat(1, 2), 0.0

    def beside(value, *, own):
        return Beside(lambda x, y: (torch.full_like(x, value), y), 1.0, own=own)

    parts = [Part(beside=[beside(3.0, own=False), beside(1.0, own=True)]), Part(beside=[beside(2.0, own=True)])]
    objective_of(linear(), [*parts, Part(forward=forward)], LOSS)(torch.zeros(2, 1), torch.zeros(2, dtype=torch.long))
    assert passed == [0, 0, 1, 1, 2, 2, 3, 3]
