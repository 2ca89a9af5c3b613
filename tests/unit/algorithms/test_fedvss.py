"""FedVSS by hand: samples that are harder for the site's model and easier for the received one, and their weights."""

import pytest
import torch
from one_sample import TwoWeights, config, method
from tiny import Net, run, same
from tiny import config as tiny_config
from torch.nn.functional import cross_entropy

from medpfl.core.errors import UserError

ONE, FIRST = torch.ones(1, 1, 1, 1), torch.zeros(1, dtype=torch.int64)


def begun(model, **settings):
    found = method(config("fedvss", **settings), model)
    found.begin()
    return found


def test_what_a_site_minimises_by_hand():
    """Received (1, 2), then (3, 1): class 0's loss falls with x by the site's model, and rises by the received one.

    So both kinds go down, to 0.9 within a radius of 0.1. Loss log(1 + exp(-2 x)) at 1, 0.9 and 0.9, weights 1, 0.5, 2.
    """
    model = TwoWeights(1.0, 2.0)
    found = begun(model, adversarial=0.5, confident=2.0, radius=0.1, radius_step=0.04)
    with torch.no_grad():
        model.fc.weight.copy_(torch.tensor([[3.0], [1.0]]))
    told, minimised = found.objective(model)(ONE, FIRST)

    at = {x: torch.tensor(-2.0 * x).exp().log1p().item() for x in (1.0, 0.9)}
    assert told.item() == pytest.approx(at[1.0])
    assert minimised.item() == pytest.approx(at[1.0] + 2.5 * at[0.9])
    minimised.backward()
    p = {x: 1 / (1 + torch.tensor(2.0 * x).exp().item()) for x in (1.0, 0.9)}
    slope = p[1.0] + 2.5 * 0.9 * p[0.9]
    assert model.fc.weight.grad.flatten().tolist() == pytest.approx([-slope, slope])


def test_the_two_kinds_go_apart_where_the_models_agree():
    """At the received (1, 2) itself: harder is 1.1, easier 0.9; the scores' difference is x."""
    model = TwoWeights(1.0, 2.0)
    _, minimised = begun(model, adversarial=1.0, confident=1.0, radius=0.1, radius_step=0.1).objective(model)(
        ONE, FIRST
    )
    expected = sum(torch.tensor(x).exp().log1p().item() for x in (1.0, 1.1, 0.9))
    assert minimised.item() == pytest.approx(expected)


def test_samples_are_made_by_the_loss_that_the_site_minimises():
    """As a mechanism has changed it: with the sign turned harder is 0.9 and easier 1.1."""
    found = begun(TwoWeights(1.0, 2.0), adversarial=1.0, confident=1.0, radius=0.1, radius_step=0.1)
    for round_ in found.rounds.values():
        round_.loss = lambda output, y: -cross_entropy(output, y)
    (part,) = found._parts.values()
    harder, easier = (each.made(ONE, FIRST)[0].item() for each in part.beside)
    assert (harder, easier) == (pytest.approx(0.9), pytest.approx(1.1))


@pytest.mark.parametrize(("adversarial", "confident", "beside"), [(1, 0, 1), (0, 1, 1), (0.1, 1, 2)])
def test_a_kind_without_weight_is_not_made(adversarial, confident, beside):
    found = begun(TwoWeights(1.0, 2.0), adversarial=adversarial, confident=confident)
    (part,) = found._parts.values()
    assert [each.weight for each in part.beside] == [w for w in (adversarial, confident) if w]
    assert len(part.beside) == beside


def test_samples_are_made_in_eval_mode_and_leave_the_model_alone():
    """Batch norm by running statistics, which stay; what is made does not depend on who else is in the batch."""
    torch.manual_seed(0)
    run_config, model = tiny_config("fedvss"), Net()
    found = method(run_config, model)
    found.begin()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x, y = torch.randn(6, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    (part,) = found._parts.values()
    for each in part.beside:
        together, alone = each.made(x, y)[0], each.made(x[:1], y[:1])[0]
        torch.testing.assert_close(together[:1], alone)
        assert 0 < (together - x).abs().max() <= 0.05 + 1e-6
    assert model.training and same(before, model.state_dict())
    harder, easier = (each.made(x, y)[0] for each in part.beside)
    model.eval()
    with torch.no_grad():
        at = [cross_entropy(model(inputs), y).item() for inputs in (easier, x, harder)]
    assert at == sorted(at) and at[0] < at[2]


def test_without_weights_it_is_fedavg():
    plain, _ = run(tiny_config("fedavg"))
    off, _ = run(tiny_config("fedvss", settings={"adversarial": 0, "confident": 0}))
    assert all(same(plain.shared[name], off.shared[name]) for name in plain.shared)


def test_it_is_refused_where_a_sample_has_no_one_class():
    with pytest.raises(UserError, match="follow the label of one class a sample; multi-label has other labels"):
        tiny_config("fedvss", task="multi-label")
