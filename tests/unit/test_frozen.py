"""Frozen parts: the same at all parties, neither trained nor sent."""

import copy

import pytest
import torch
from tiny import FEW_STEPS, MODEL, Net, config, run, same, sites_of

from medpfl.algorithms.fine_tuning import FineTuning
from medpfl.core.declarations import parse_declaration
from medpfl.core.errors import UserError
from medpfl.core.frozen import freeze, frozen_names
from medpfl.core.parameters import ParameterSplit
from medpfl.engine.federation import Federation
from medpfl.models import build_model

NORM = {f"norm.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
SAMPLE = {"data": "organamnist-sample", "model": "lenet5", "train_fraction": 0.03, "rounds": 2, "alone": "yes"}


def frozen(text, model):
    return frozen_names(model, parse_declaration(text))


def test_which_entries_and_what_is_left_to_share_and_to_keep():
    model = Net()
    names = frozen("modules:fc1+batch-norm", model)
    assert names == {"fc1.weight", "fc1.bias"} | NORM
    split = ParameterSplit(model, parse_declaration("top:1"), None, names)
    assert split.frozen.keys() == names
    assert split.shared_names == ()
    assert set(split.personal_names) == {"fc2.weight", "fc2.bias"}
    everything = ParameterSplit(model, parse_declaration("everything"), None, names)
    assert set(everything.personal_names) == {"fc2.weight", "fc2.bias"}


def test_all_parties_must_have_the_same_values():
    torch.manual_seed(0)
    model, other = Net(), Net()
    ours, theirs = (
        ParameterSplit(m, parse_declaration("nothing"), None, frozen("modules:fc1", m)) for m in (model, other)
    )
    difference = ours.first_difference(theirs.description())
    assert "here 'fc1.weight [6, 16] float32 frozen " in difference
    again = ParameterSplit(copy.deepcopy(model), parse_declaration("nothing"), None, frozen("modules:fc1", model))
    assert ours.first_difference(again.description()) is None
    free = ParameterSplit(model, parse_declaration("nothing"))
    assert "there 'fc1.weight [6, 16] float32 shared'" in ours.first_difference(free.description())


def test_what_comes_brings_the_frozen_values_back():
    model = Net()
    split = ParameterSplit(model, parse_declaration("batch-norm"), None, frozen("modules:fc1", model))
    before, shared = model.fc1.weight.clone(), split.shared_state(model)
    with torch.no_grad():
        model.fc1.weight.zero_()
    split.load_shared(model, shared)
    assert torch.equal(model.fc1.weight, before)


@pytest.mark.parametrize("make", [Net, lambda: copy.deepcopy(Net())])
def test_frozen_batch_norm_goes_by_its_running_statistics(make):
    model = make()
    freeze(model, frozen("modules:norm", model))
    model = copy.deepcopy(model).train()
    before = {name: tensor.clone() for name, tensor in model.norm.state_dict().items()}
    for x in torch.randn(3, 4, 16):
        model(x).sum().backward()
    assert same(model.norm.state_dict(), before)
    assert model.norm.weight.grad is None
    assert model.fc1.weight.grad is not None


def test_of_a_segmentation_network_in_3d():
    model = build_model("unet", in_channels=1, num_classes=2, image_size=(8, 8, 8), model_args={"channels": [4, 8]})
    names = frozen("modules:model.0", model)
    freeze(model, names)
    model.train()(torch.randn(2, 1, 8, 8, 8)).sum().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == (name in names)
    assert model.state_dict()["model.0.conv.unit0.adn.N.num_batches_tracked"] == 0
    assert model.state_dict()["model.2.0.adn.N.num_batches_tracked"] == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("everything", "--frozen leaves nothing of Net to train"),
        ("modules:fc1,norm,fc2", "--frozen leaves nothing of Net to train"),
        ("modules:conv", "Net has no module 'conv'"),
        ("some", "unknown personal part 'some'"),
    ],
)
def test_what_cannot_be_frozen(text, message):
    with pytest.raises(UserError, match=message):
        frozen(text, Net())


def test_heads_cannot_be_frozen_in_part():
    model = build_model("vit-tiny", in_channels=1, num_classes=2, image_size=28)
    with pytest.raises(UserError, match="can be frozen as a whole only; name modules and not heads:P"):
        frozen("heads:0.5", model)


def test_a_run_with_nothing_left_to_share():
    with pytest.raises(UserError, match="--personal top:1 with --frozen below-top:1 leaves nothing to share"):
        Federation.of(config("fedper", frozen="below-top:1"))


SLOW = [
    pytest.param(name, marks=pytest.mark.slow) for name in ("local", "fedap", "ditto", "apfl", "fedrep", "fedblend")
]


@pytest.mark.parametrize("method", ["scaffold", *SLOW])
def test_no_method_moves_or_sends_them(method):
    settings = {"pretrain_epochs": 1} if method == "fedap" else {}
    asked = config(method, frozen="modules:conv1,bn1", settings=settings, **SAMPLE)
    federation = Federation.of(asked)
    first, kept = federation.first(), federation.split.frozen
    assert kept.keys() == {n for n in first if n.startswith(("conv1.", "bn1."))}
    assert not kept.keys() & federation.initial_shared.keys()
    state, sites = run(asked)
    for site in sites.values():
        for model in (site.store.get(MODEL, state.round), site.rival.best() if site.rival else first):
            assert all(torch.equal(model[name], first[name]) for name in kept)
        assert not torch.equal(site.store.get(MODEL, state.round)["fc1.weight"], first["fc1.weight"])
    assert not state.failures


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("ditto", {}),
        ("fedavg", {"finetune_epochs": 1, "prior": 1.0}),
        pytest.param("apfl", {}, marks=pytest.mark.slow),
        pytest.param("fedblend", FEW_STEPS, marks=pytest.mark.slow),
    ],
)
def test_a_mask_of_minus_infinity_goes_with_what_methods_make_of_a_whole_model(method, settings):
    fields = {"model": "tiny:Odd", "model_args": {"entry": "infinite"}, "frozen": "modules:odd"}
    state, sites = run(config(method, settings=settings, rounds=2, **fields))
    assert not state.failures
    assert all(site.store.get(MODEL, 2)["odd"].tolist() == [0.0, -torch.inf] for site in sites.values())


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_method_that_makes_another_mask_of_it_is_named(monkeypatch, value):
    monkeypatch.setattr(FineTuning, "finish", lambda self, round_: bool(round_.model.odd.fill_(value).numel()))
    fields = {"model": "tiny:Odd", "model_args": {"entry": "infinite"}, "frozen": "modules:odd"}
    with pytest.raises(UserError, match="fine_tuning: what it made of the model has 'odd' with values that are not"):
        run(config("fedavg", settings={"finetune_epochs": 1}, rounds=1, **fields))


def test_results_name_them():
    assert config("fedavg", frozen="modules:fc1").choices()["frozen"] == "modules:fc1"
    assert "frozen" not in config("fedavg").choices()
    site = sites_of(Federation.of(config("fedavg", frozen="modules:fc1")))["site-1"]
    assert site.initial_personal.keys() == {"norm.num_batches_tracked"}
