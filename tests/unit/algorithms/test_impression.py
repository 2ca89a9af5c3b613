import pytest
import torch
from tiny import Net, same
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from medpfl.algorithms.fedimpres import synthesis as impression
from medpfl.algorithms.fedimpres.settings import ImpressionSettings
from medpfl.algorithms.fedimpres.synthesis import SynthesisDiverged, synthesise
from medpfl.core.errors import Stopped


def model_and_images(n: int = 10) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = Net().double()
    for _ in range(3):  # running statistics of its own
        model(torch.randn(8, 1, 4, 4, dtype=torch.float64))
    return model.train(), torch.randn(n, 1, 4, 4, dtype=torch.float64)


def plain_reference(model, start, how):
    """The same, written down as the paper has it: one batch after the other, everything by autograd."""
    model = model.eval()
    weight = model.fc2.weight.detach()

    def features(x):
        return torch.relu(model.norm(model.fc1(x.flatten(1))))

    def matrix(x, y):
        f = features(x)
        return (model.fc2(f).softmax(1) - one_hot(y, 3)).T @ f / len(x) + how.gamma * weight

    images, dual = start.clone(), torch.zeros_like(weight)
    labels = model(start).argmax(1)
    norms, duals = [float(matrix(images, labels).detach().norm())], []
    for _ in range(how.admm_iterations):
        moved = []
        for x, y in zip(images.split(how.synthesis_batch), labels.split(how.synthesis_batch), strict=True):
            x, velocity = x.clone().requires_grad_(True), torch.zeros_like(x)
            for _ in range(how.inner_steps):
                loss = cross_entropy(model(x), y)
                if how.constraint:
                    m = matrix(x, y)
                    loss = loss + how.rho / 2 * (m**2).sum() + (dual * m).sum()
                (gradient,) = torch.autograd.grad(loss, x)
                velocity = 0.9 * velocity + gradient
                x = (x - how.pixel_lr * velocity).detach().requires_grad_(True)
            moved.append(x.detach())
        images = torch.cat(moved)
        m = matrix(images, labels).detach()
        dual = dual + how.rho * m * how.constraint
        norms.append(float(m.norm()))
        duals.append(float(dual.norm()))
    return images, labels, norms, duals


@pytest.mark.parametrize("constrained", [True, False])
@pytest.mark.parametrize("batch_size", [3, 4, 10])
def test_as_a_plain_reference_in_float64(constrained, batch_size):
    model, start = model_and_images()
    how = ImpressionSettings(
        admm_iterations=3, inner_steps=4, rho=0.7, gamma=0.05, synthesis_batch=batch_size, constraint=constrained
    )
    images, labels, norms, duals = plain_reference(model, start, how)
    found = synthesise(model, start, how)
    torch.testing.assert_close(found.images, images)
    assert torch.equal(found.labels, labels)
    assert found.constraint == pytest.approx(norms)
    assert found.dual == pytest.approx(duals)


def test_the_constraint_is_met_and_the_dual_variable_settles():
    model, start = model_and_images(64)
    found = synthesise(model, start, ImpressionSettings(pixel_lr=0.3, rho=5.0, admm_iterations=10, inner_steps=20))
    assert found.constraint[-1] < 0.1 * found.constraint[0]
    assert abs(found.dual[-1] - found.dual[-2]) < 0.1 * abs(found.dual[1] - found.dual[0])
    assert found.moved > 0


def test_without_the_constraint_the_loss_alone_falls():
    model, start = model_and_images(64)
    found = synthesise(model, start, ImpressionSettings(pixel_lr=1.0, inner_steps=20, constraint=0))
    assert found.losses[-1] < 0.5 * found.losses[0]
    assert found.dual == [0.0] * 5


def test_more_images_than_are_worked_on_at_once_change_nothing(monkeypatch):
    model, start = model_and_images(23)
    how = ImpressionSettings(admm_iterations=2, inner_steps=3, synthesis_batch=4)
    together = synthesise(model, start, how)
    monkeypatch.setattr(impression, "_TOGETHER", 2)
    torch.testing.assert_close(synthesise(model, start, how).images, together.images)


def test_without_iterations_the_start_images_with_their_pseudo_labels():
    model, start = model_and_images()
    found = synthesise(model, start, ImpressionSettings(admm_iterations=0))
    assert torch.equal(found.images, start)
    assert torch.equal(found.labels, model.eval()(start).argmax(1))
    assert found.report()["moved"] == 0
    assert sum(found.report()["labels"].values()) == 10


def test_the_model_and_the_start_images_are_left_as_they_were():
    model, start = model_and_images()
    model.fc1.bias.requires_grad_(False)
    before, images = {k: v.clone() for k, v in model.state_dict().items()}, start.clone()
    synthesise(model, start, ImpressionSettings(admm_iterations=1))
    assert same(model.state_dict(), before)
    assert torch.equal(start, images)
    assert model.training
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["fc1.bias"]
    assert all(p.grad is None for p in model.parameters())
    assert not model.fc2._forward_pre_hooks


def test_divergence_is_noticed():
    model, start = model_and_images()
    with pytest.raises(SynthesisDiverged, match="lower pixel_lr"):
        synthesise(model, start, ImpressionSettings(pixel_lr=1e200))


def test_it_can_be_stopped_between_steps():
    model, start = model_and_images()
    asked = iter([False, False, True])
    with pytest.raises(Stopped):
        synthesise(model, start, ImpressionSettings(), stop=lambda: next(asked))
    assert model.training
