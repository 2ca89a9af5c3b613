"""What tells a comparison's groups apart is in their labels, and nothing else is."""

import pytest
from accuracies import FEDAP, FEDAVG, fine_tuned

from medpfl.report.pairing import grouped


def test_what_sites_use_is_named_where_it_is_not_as_published(make_run):
    runs = []
    for use, alone in (("received", "no"), ("blend", "yes")):
        run = make_run("ditto", FEDAP[0], alone=alone, use=use)
        run["choices"]["use"] = use
        runs.append(run)
    assert list(grouped(runs)) == ["Ditto", "Ditto (use=blend)"]


def test_training_alone_beside_is_named_where_nothing_else_tells_apart(make_run):
    plain = make_run("fedavg", FEDAVG[0], alone="no", settings={})
    further = make_run("fedavg", FEDAVG[0], alone="yes", settings={"finetune_steps": 200})
    assert list(grouped([plain, further])) == ["FedAvg", "FedAvg (finetune_steps=200)"]
    beside = make_run("fedavg", FEDAVG[0], alone="yes", settings={})
    assert list(grouped([plain, beside])) == ["FedAvg (alone=no)", "FedAvg"]


def test_how_a_variant_trains_is_named_also_where_its_method_is_there_once(make_run):
    """Else a rate that is fifty times another's would look like the method."""
    runs = [make_run(name, FEDAVG[0], settings={"lr": lr}) for name, lr in (("fedprox", 0.01), ("local", 0.5))]
    assert list(grouped(runs)) == ["FedProx", "Local training (lr=0.5)"]
    runs[1] = make_run("local", FEDAVG[0], settings={"lr": 0.01})
    assert list(grouped(runs)) == ["FedProx", "Local training"]
    both = [make_run(name, FEDAVG[0], settings={"lr": 0.5}) for name in ("fedprox", "local")]
    assert list(grouped(both)) == ["FedProx", "Local training"]  # said once, of all


def test_a_default_that_goes_with_the_optimizer_is_not_named(make_run):
    """FedBlend has momentum at the server under SGD alone: without it it is as published under Adam, not under SGD."""

    def blended(optimizer, server_lr):
        run = make_run("fedblend", FEDAVG[0], settings={"optimizer": optimizer, "server_lr": server_lr})
        run["choices"]["use"] = "blend"
        return run

    assert list(grouped([blended("adam", 0.0), blended("adam", 1.0)])) == ["FedBlend", "FedBlend (server_lr=1.0)"]
    assert list(grouped([blended("sgd", 1.0), blended("sgd", 0.0)])) == ["FedBlend", "FedBlend (server_lr=0.0)"]


def test_momentum_that_a_method_brings_is_not_named_beside_it(make_run):
    def blended(momentum):
        settings = {"optimizer": "sgd", "server_lr": 1.0, "momentum": momentum}
        run = make_run("fedblend", FEDAVG[0], settings=settings)
        run["choices"]["use"] = "blend"
        return run

    local = make_run("local", FEDAVG[0], settings={"optimizer": "sgd", "momentum": 0.0})
    names = ["FedBlend", "FedBlend (momentum=0.0)", "Local training"]
    assert list(grouped([blended(0.9), blended(0.0), local])) == names
    by_adam = blended(0.0)
    by_adam["config"]["settings"] |= {"optimizer": "adam", "server_lr": 0.0}
    assert list(grouped([blended(0.9), by_adam])) == ["FedBlend (optimizer=sgd)", "FedBlend (optimizer=adam)"]


def test_a_setting_that_does_nothing_is_not_named(make_run):
    runs = [make_run("fedavg", FEDAVG[0], settings={"lr": 0.1}), fine_tuned(make_run, 5)]
    assert list(grouped(runs)) == ["FedAvg", "FedAvg (finetune_epochs=5)"]
    runs.append(fine_tuned(make_run, 0, finetune_steps=200))
    assert list(grouped(runs)) == ["FedAvg", "FedAvg (finetune_epochs=5)", "FedAvg (finetune_steps=200)"]


def test_no_run_takes_the_place_of_another(make_run):
    """They differ in what one of them lacks: arguments of the network, transforms of one's own."""
    wide = make_run("fedavg", FEDAVG[0], augment="none", model_args={"width": 16})
    own = make_run("fedavg", FEDAVG[0], augment={"transforms": ["RandFlip"]})
    runs = [make_run("fedavg", FEDAVG[0], augment="none"), wide, own]
    found = grouped(runs)
    assert list(found) == ["FedAvg", "FedAvg (width=16)", 'FedAvg (transforms=["RandFlip"])']
    assert [by_seed[0] for by_seed in found.values()] == runs


def test_an_argument_of_the_data_is_told_from_one_of_the_model_of_the_same_name(make_run):
    model = {"channels": [8, 16]}
    runs = [make_run("fedavg", FEDAVG[0], data_args={"channels": c}, model_args=model) for c in ("rgb", "grey")]
    assert list(grouped(runs)) == ["FedAvg (data_args.channels=rgb)", "FedAvg (data_args.channels=grey)"]


@pytest.mark.parametrize("other", [{"settings": {"finetune_steps": 0}}, {"model_args": {"width": 0}}, {"init": "a.pt"}])
def test_every_group_has_a_label_of_its_own(make_run, other):
    runs = [make_run("fedavg", FEDAVG[0]), make_run("fedavg", FEDAVG[0], **other)]
    assert [list(by_seed.values()) for by_seed in grouped(runs).values()] == [[run] for run in runs]
