"""The method as a whole: without personal heads it is FedAvg, personal heads never meet, and the paper's settings."""

import pytest
import torch
from tiny import last_models, run, same

from medpfl.algorithms import algorithm
from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.models import build_model

SMALL_VIT = {"hidden_size": 24, "mlp_dim": 24, "num_layers": 2, "num_heads": 6, "patch_size": 14}


def small(algorithm: str, **fields):
    defaults = {"model": "vit-tiny", "model_args": SMALL_VIT, "sites": 2, "rounds": 2, "local_epochs": 1}
    defaults |= {"alone": "no"}
    return make_config(algorithm=algorithm, train_fraction=0.05, device="cpu", **(defaults | fields))


def test_no_personal_heads_is_fedavg_bit_for_bit():
    training = dict(algorithm("vit-heads").training)
    heads = last_models(*run(small("vit-heads", settings={"p": 0})))
    fedavg = last_models(*run(small("fedavg", settings=training)))
    assert all(same(heads[site], fedavg[site]) for site in fedavg)


def test_all_heads_personal_still_shares_the_rest():
    models = last_models(*run(small("vit-heads", settings={"p": 1})))
    one, two = models["site-1"], models["site-2"]
    attention = [n for n in one if n.endswith(("attn.qkv.weight", "attn.qkv.bias", "attn.out_proj.weight"))]
    assert all(not torch.equal(one[n], two[n]) for n in attention)
    assert all(torch.equal(one[n], two[n]) for n in one if n not in attention)


def test_after_the_mix_sites_differ_in_their_personal_heads_alone():
    models = last_models(*run(small("vit-heads")))
    one, two = models["site-1"]["blocks.0.attn.qkv.weight"], models["site-2"]["blocks.0.attn.qkv.weight"]
    differ = (one != two).any(1).view(3, 6, 4).any(2)  # (q, k and v; heads; rows of a head)
    assert differ.tolist() == [[True] * 4 + [False] * 2] * 3


@pytest.mark.slow
def test_bytes_of_a_round_are_those_of_the_shared_slices():
    state, sites = run(small("vit-heads", model_args={}))
    split = sites["site-1"].split
    model = build_model("vit-tiny", in_channels=1, num_classes=11, image_size=28)
    slices = sum(tensor.numel() * 4 for tensor in split.shared_state(model).values())
    everything = sum(tensor.numel() * 4 for tensor in model.state_dict().values())
    assert slices < 0.7 * everything
    for record in state.history:
        for site in record["sites"].values():
            assert slices <= site["sent_bytes"] == site["received_bytes"] <= 1.02 * slices


def test_papers_settings_are_the_defaults():
    config = make_config(algorithm="vit-heads")
    assert (config.model, config.rounds, config.local_epochs) == ("vit-tiny", 50, 3)
    settings = config.all_settings
    assert {k: settings[k] for k in ("p", "consistency", "temperature")} == {
        "p": 0.6,
        "consistency": 1.0,
        "temperature": 4.0,
    }
    assert (settings["momentum"], settings["nesterov"], settings["weight_decay"]) == (0.9, 1, 5e-4)
    assert make_config(algorithm="vit-heads", rounds=3, settings={"momentum": 0.5}).all_settings["momentum"] == 0.5


def test_lambda_is_the_papers_name_of_the_consistency():
    assert make_config(algorithm="vit-heads", settings={"lambda": 0.5}).all_settings["consistency"] == 0.5
    mixed = make_config(algorithm="vit-heads", mixing="uniform", settings={"lambda": 0.5, "consistency": 2})
    assert (mixed.all_settings["lambda"], mixed.all_settings["consistency"]) == (0.5, 2)


def test_consistency_goes_with_any_method_that_keeps_heads():
    config = make_config(algorithm="fedprox", personal="heads:0.5", model="vit-tiny", settings={"consistency": 1})
    assert "consistency" in config.choices()["objective"]
    assert "psi_received" in config.choices()["objective"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"algorithm": "fedavg", "settings": {"consistency": 1}}, "'consistency' has no meaning for fedavg"),
        ({"algorithm": "vit-heads", "settings": {"p": 1.5}}, "setting p must lie between 0 and 1"),
        ({"algorithm": "vit-heads", "settings": {"temperature": 0}}, "temperature must be positive"),
        ({"algorithm": "vit-heads", "settings": {"momentum": 0}}, "give momentum too"),
        ({"algorithm": "vit-heads", "personal": "heads:0.5", "settings": {"p": 0.5}}, "'p' has no meaning"),
        ({"algorithm": "vit-heads", "held_out": -1}, "held_out"),
    ],
)
def test_what_makes_no_sense(fields, message):
    with pytest.raises(UserError, match=message):
        make_config(**fields)


def test_a_network_without_heads_is_refused_before_training():
    with pytest.raises(UserError, match="no self-attention"):
        run(small("vit-heads", model="lenet5", model_args={}))
