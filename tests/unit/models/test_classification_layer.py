"""The layer that classifies is the last that an image comes to, wherever the model registers it."""

import pytest
import tiny
import torch
from torch import nn

from medpfl.algorithms.fedimpres.settings import ImpressionSettings
from medpfl.algorithms.fedimpres.synthesis import synthesise
from medpfl.core.declarations import Nothing
from medpfl.core.errors import UserError
from medpfl.core.layers import classification_layer
from medpfl.core.parameters import ParameterSplit
from medpfl.engine.federation import Federation
from medpfl.models import build_model, logits


class HeadFirst(nn.Module):
    """Registers its output first, and a layer that it never uses last."""

    def __init__(self, in_channels=1, num_classes=3, image_size=(28, 28)):
        super().__init__()
        self.head, self.norm = nn.Linear(4, num_classes), nn.BatchNorm1d(4)
        self.into, self.idle = nn.Linear(image_size[0] * image_size[1], 4), nn.Linear(2, 2)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.into(x.flatten(1)))))


class Scaled(HeadFirst):
    """Goes on after its last linear layer."""

    def forward(self, x):
        return 2 * super().forward(x)


class Convolutions(nn.Module):
    """Has no linear layer."""

    def __init__(self, in_channels=1, num_classes=3, image_size=(28, 28)):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, num_classes, 3), nn.BatchNorm2d(num_classes)

    def forward(self, x):
        return self.norm(self.conv(x)).mean((2, 3))


@pytest.fixture(autouse=True)
def models(monkeypatch):
    for model in (HeadFirst, Scaled, Convolutions):
        monkeypatch.setattr(model, "__module__", "tiny")
        monkeypatch.setattr(tiny, model.__name__, model, raising=False)


def of(algorithm, model, **fields):
    settings = {"warmup": 1} if algorithm == "fedimpres" else {}
    options = {"data": "organamnist-sample", "model": f"tiny:{model}", "sites": 2, "settings": settings, **fields}
    return Federation.of(tiny.config(algorithm, **options))


def test_the_last_that_is_used():
    model, x = HeadFirst(), torch.zeros(1, 1, 28, 28)
    assert classification_layer(model)[0] == "idle"
    assert classification_layer(model, x) == ("head", model.head)
    assert ParameterSplit(model, Nothing(), x).classification_layer(model) == ("head", model.head)
    assert model.training


def test_of_a_transformer_with_its_head_first():
    """Both ends are in the order of registration: the pass decides."""
    arguments = {"patch_size": 7, "hidden_size": 24, "mlp_dim": 48, "num_layers": 1, "num_heads": 3}
    model = build_model("monai:ViT", in_channels=1, num_classes=3, image_size=28, model_args=arguments)
    x = torch.zeros(1, 1, 28, 28)
    assert classification_layer(model, x)[0] == "classification_head"
    head = model._modules.pop("classification_head")
    model._modules = {"classification_head": head, **model._modules}
    assert classification_layer(model)[0] != "classification_head"
    assert classification_layer(model, x)[0] == "classification_head"


def test_similarity_of_the_classifier_is_of_its_input():
    federation = of("d-fedap", "HeadFirst")
    (channel,) = federation.channels
    assert {name: entry.shape for name, entry in channel.entries.items()} == {"head/mean": (4,), "head/variance": (4,)}


def test_a_label_prior_goes_to_its_bias():
    state, sites = tiny.run(of("fedavg", "HeadFirst", rounds=1, train_fraction=0.1, settings={"prior": 1.0}).config)
    assert state.round == 1
    site = sites["site-1"]
    used, received = (site.store.get(kind, 1) for kind in ("model", "received"))
    assert {name for name in used if not torch.equal(used[name], received[name])} >= {"head.bias"}
    assert torch.equal(used["idle.bias"], received["idle.bias"])


def test_an_impression_is_made_through_it():
    torch.manual_seed(0)
    model, start = HeadFirst().eval(), torch.randn(6, 1, 28, 28)
    found = synthesise(model, start, ImpressionSettings(admm_iterations=0, gamma=0.0, synthesis_batch=6))
    with torch.no_grad():
        scores = logits(model(start))
        errors = scores.softmax(1) - nn.functional.one_hot(scores.argmax(1), 3)
        features = torch.relu(model.norm(model.into(start.flatten(1))))
    assert found.constraint[0] == pytest.approx(float((errors.T @ features / 6).norm()), rel=1e-5)


def test_an_impression_needs_a_network_that_ends_in_it():
    assert of("fedimpres", "HeadFirst").channels
    with pytest.raises(UserError, match="Convolutions has no linear layer that classifies"):
        of("fedimpres", "Convolutions")
    with pytest.raises(UserError, match="Scaled does not end in its last linear layer: an impression needs"):
        of("fedimpres", "Scaled")
