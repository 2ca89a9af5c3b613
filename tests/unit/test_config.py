import json

import numpy as np
import pytest
from pydantic import ValidationError

from medpfl.algorithms import algorithms
from medpfl.config.run import RunConfig, make_config
from medpfl.core.errors import UserError
from medpfl.core.settings import defaults, value_of
from medpfl.training.settings import Training


def test_defaults():
    config = make_config(algorithm="fedavg")
    assert (config.sites, config.rounds, config.local_epochs, config.seed) == (20, 20, 1, 0)
    assert (config.data, config.model, config.partition) == ("organamnist-sample", "lenet5", "equal-dirichlet:0.1")
    assert config.all_settings == {
        "mu": 0.0,
        **defaults(Training),
        "update_clip": 0.0,
        "update_noise": 0.0,
    }
    training = {name: config.all_settings[name] for name in ("lr", "batch_size", "optimizer", "schedule", "momentum")}
    assert training == {"lr": 0.01, "batch_size": 32, "optimizer": "sgd", "schedule": "constant", "momentum": 0.0}
    assert config.site_names[0] == "site-1"
    assert config.site_names[-1] == "site-20"


@pytest.mark.parametrize(
    ("name", "personal", "mixing"),
    [
        ("local", "everything", "identity"),
        ("fedavg", "nothing", "samples"),
        ("fedprox", "nothing", "samples"),
        ("fedbn", "batch-norm", "samples"),
        ("fedper", "top:1", "samples"),
        ("lg-fedavg", "below-top:1", "samples"),
        ("fedap", "batch-norm", "similarity"),
        ("d-fedap", "batch-norm", "similarity-classifier"),
        ("f-fedap", "batch-norm", "similarity-running"),
    ],
)
def test_choices_of_the_methods(name, personal, mixing):
    choices = make_config(algorithm=name).choices()
    assert (choices["personal"], choices["mixing"]) == (personal, mixing)
    assert choices["objective"] == (
        "cross-entropy + 0.01/2 |psi - psi_received|^2" if name == "fedprox" else "cross-entropy"
    )
    assert bool(choices["server"]) == (name in ("fedap", "d-fedap"))


def test_choices_compose():
    config = make_config(
        algorithm="fedavg", personal="batch-norm", mixing="similarity", settings={"mu": 0.1, "lambda": 0.7}
    )
    assert config.resolved_personal == "batch-norm"
    assert config.mixer.under_model
    assert config.all_settings["lambda"] == 0.7
    assert "0.1/2" in config.choices()["objective"]
    assert make_config(algorithm="fedper", settings={"layers": 2}).resolved_personal == "top:2"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"algorithm": "fedagv"}, "unknown algorithm 'fedagv': did you mean fedavg"),
        ({"algorithm": "local", "mixing": "samples"}, "local training shares and mixes nothing"),
        (
            {"algorithm": "fedavg", "personal": "everything"},
            "with everything personal there is nothing to mix by 'samples'",
        ),
        ({"algorithm": "fedavg", "mixing": "identity"}, "identity mixing with the personal part 'nothing'"),
        ({"algorithm": "fedavg", "mixing": "best"}, "unknown mixing 'best': use identity, samples, similarity"),
        ({"algorithm": "local", "settings": {"mu": 0.1}}, "mu penalises moving away from received parameters"),
        ({"algorithm": "fedap", "sites": 1}, "mixing 'similarity' weighs sites against each other"),
        ({"algorithm": "fedbn", "mixing": "uniform", "sites": 1}, "mixing 'uniform' weighs sites"),
        ({"algorithm": "f-fedap", "rounds": 1}, "f-FedAP spends half of the rounds on FedBN"),
        ({"algorithm": "fedavg", "sites": 3, "min_sites": 4}, "the quorum of 4 sites can never be met by 3 sites"),
        (
            {"algorithm": "fedavg", "sites": 20, "participation": 0.09},
            "participation 0.09 of 20 sites is 1 in a round, and mixing 'samples' needs 2: give 0.1 or more",
        ),
        (
            {"algorithm": "fedavg", "sites": 1000, "participation": 0.001},
            "participation 0.001 of 1000 sites is 1 in a round, and mixing 'samples' needs 2: give 0.002 or more",
        ),
        (
            {"algorithm": "fedavg", "sites": 7, "participation": 0.4, "mixing": "median"},
            "participation 0.4 of 7 sites is 2 in a round, and mixing 'median' needs 3: give 0.43 or more",
        ),
        (
            {"algorithm": "fedavg", "sites": 20, "participation": 0.25, "min_sites": 6},
            "participation 0.25 of 20 sites is 5 in a round: they can never meet the quorum of 6 sites",
        ),
        ({"algorithm": 5}, "algorithm: give a method's name, not int"),
        ({"algorithm": ["fedavg"]}, "algorithm: give a method's name, not list"),
        ({"algorithm": "fedavg", "settings": [1]}, "settings: Input should be a valid dictionary"),
        ({"algorithm": "fedavg", "settings": {"lr": 1}, "mixing": [1]}, "mixing: Input should be a valid string"),
        ({"algorithm": "fedavg", "participation": 0}, "participation"),
        ({"algorithm": "fedavg", "participation": 1.5}, "participation"),
        ({"algorithm": "fedavg", "settings": {"lambda": 0.5}}, "setting 'lambda' has no meaning for fedavg"),
        ({"algorithm": "fedblend", "settings": {"learning_rate": 0.5}}, r"\(did you mean lr\?\)"),
        ({"algorithm": "fedbn", "settings": {"layers": 2}}, "setting 'layers' has no meaning for fedbn"),
        ({"algorithm": "fedper", "personal": "top:2", "settings": {"layers": 2}}, "setting 'layers' has no meaning"),
        ({"algorithm": "fedap", "mixing": "samples", "settings": {"lambda": 0.5}}, "setting 'lambda' has no meaning"),
        ({"algorithm": "f-fedap", "settings": {"pretrain": "pooled"}}, "setting 'pretrain' has no meaning for f-fedap"),
        (
            {"algorithm": "fedap", "settings": {"pretrain": "f.pt", "pretrain_epochs": 9}},
            "pretrain_epochs is of pooled pretraining, and pretrain=f.pt: leave it out",
        ),
        ({"algorithm": "fedap", "sites": 2, "settings": {"pretrain_check": 1}}, "pretrain_check says how W moves"),
        (
            {"algorithm": "fedavg", "settings": {"learning_rate": 0.1}},
            "it has: mu, update_clip, update_noise, lr, batch_size, momentum, nesterov, weight_decay",
        ),
        ({"algorithm": "fedavg", "settings": {"lr": 0}}, "setting lr must be positive, got 0"),
        ({"algorithm": "fedavg", "settings": {"lr": -0.1}}, "setting lr must be positive"),
        ({"algorithm": "fedavg", "settings": {"lr": float("nan")}}, "setting lr must be a number"),
        ({"algorithm": "fedavg", "settings": {"lr": float("inf")}}, "setting lr must be a number, got inf"),
        ({"algorithm": "fedavg", "settings": {"batch_size": float("inf")}}, "setting batch_size must be a number"),
        ({"algorithm": "fedavg", "settings": {"lr": "fast"}}, "setting lr must be a number, got 'fast'"),
        ({"algorithm": "fedavg", "settings": {"batch_size": 2.5}}, "setting batch_size must be a whole number"),
        ({"algorithm": "fedavg", "settings": {"momentum": -1}}, "setting momentum must be >= 0"),
        ({"algorithm": "fedap", "settings": {"lambda": 1.5}}, "setting lambda must lie between 0 and 1"),
        ({"algorithm": "fedap", "settings": {"pretrain_share": 2}}, "setting pretrain_share must lie between 0 and 1"),
        ({"algorithm": "fedper", "settings": {"layers": 0}}, "setting layers must be positive"),
        ({"algorithm": "fedvss", "settings": {"radius_steps": 101}}, "radius_steps must be above 0 and at most 100"),
        (
            {"algorithm": "fedavg", "device": "tpu"},
            "device must be auto, cpu, cuda or one of several GPUs, e.g. cuda:1",
        ),
        ({"algorithm": "fedavg", "device": "cuda0"}, "e.g. cuda:1, got 'cuda0'"),
        ({"algorithm": "fedavg", "device": "cuda:-1"}, "e.g. cuda:1, got 'cuda:-1'"),
        ({"algorithm": "fedavg", "rounds": 0}, "rounds: .*greater than or equal to 1"),
        ({"algorithm": "fedavg", "sites": 0}, "sites: "),
        ({"algorithm": "fedavg", "train_fraction": 0}, "train_fraction: "),
        ({"algorithm": "fedavg", "train_fraction": float("nan")}, "train_fraction: "),
        ({"algorithm": "fedavg", "timeout": float("inf")}, "timeout: "),
        ({"algorithm": "fedavg", "fractions": (0.5, float("inf"), 0.1)}, "fractions"),
        ({"algorithm": "fedavg", "fractions": (0.5, 0.1, float("nan"))}, "fractions"),
        (
            {"algorithm": "fedavg", "select_by": "f1"},
            "select_by must be one of auto, accuracy, balanced_accuracy, auroc, loss, got 'f1'",
        ),
        ({"algorithm": "fedavg", "epochs": 3}, "epochs: Extra inputs are not permitted"),
        ({"algorithm": "fedavg", "sites": 10**9}, "sites: Input should be less than or equal to 100000"),
        ({"algorithm": "fedavg", "data_args": {"n": np.int64(3)}}, "data_args.n: int64 is no plain value; use numbers"),
        ({"algorithm": "fedavg", "data_args": {"n": [np.ones(2)]}}, "data_args.n: list holds what is no plain value"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(fields, message):
    with pytest.raises(UserError, match=message) as caught:
        make_config(**fields)
    assert "\n" not in str(caught.value)


def test_none_stands_for_the_default():
    assert make_config(algorithm="fedavg", rounds=None, personal=None) == RunConfig(algorithm="fedavg")


def test_whole_settings_become_integers():
    settings = make_config(algorithm="fedper", settings={"batch_size": 16.0, "layers": 2.0}).all_settings
    assert settings["batch_size"] == 16
    assert isinstance(settings["batch_size"], int)
    assert isinstance(settings["layers"], int)


@pytest.mark.parametrize(("sites", "min_sites", "quorum"), [(1, 0, 1), (4, 0, 2), (5, 0, 3), (5, 1, 1), (5, 5, 5)])
def test_quorum(sites, min_sites, quorum):
    assert make_config(algorithm="fedavg", sites=sites, min_sites=min_sites).turnout.quorum == quorum


@pytest.mark.parametrize("name", algorithms())
def test_a_configuration_travels_as_json(name):
    config = make_config(algorithm=name, settings={"lr": 0.05}, grace=3.5, model_args={"x": [1, 2]})
    assert RunConfig(**json.loads(json.dumps(config.model_dump(mode="json")))) == config


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValidationError):
        make_config(algorithm="fedavg").rounds = 3


def test_sites_have_names_of_their_own():
    config = make_config(algorithm="fedavg", sites=2, names=("north", "south_2"))
    assert config.site_names == ["north", "south_2"] and config.places == {"north": 0, "south_2": 1}
    assert RunConfig(**json.loads(config.model_dump_json())) == config
    assert config.model_copy(update={"names": (), "sites": 3}).site_names == ["site-1", "site-2", "site-3"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("a",), "1 site names are given, and there are 2 sites"),
        (("a", "a"), "must differ"),
        (("a", "A"), "not in case alone"),
        (("a", "b/c"), "'b/c'"),
        (("a", "-b"), "'-b'"),
        (("a", ""), "''"),
        (("a", "Server"), "'Server' is the server's"),
    ],
)
def test_site_names_that_cannot_be_are_refused(names, said):
    with pytest.raises(UserError, match=said):
        make_config(algorithm="fedavg", sites=2, names=names)


@pytest.mark.parametrize(
    ("algorithm", "name", "most"),
    [("fedavg", "finetune_epochs", 10**4), ("fedavg", "finetune_steps", 10**6), ("fedrep", "head_epochs", 10**4)],
)
def test_what_a_setting_adds_to_training_ends_some_day(algorithm, name, most):
    make_config(algorithm=algorithm, settings={name: most})
    with pytest.raises(UserError, match=name):
        make_config(algorithm=algorithm, settings={name: most + 1})


@pytest.mark.parametrize(
    ("algorithm", "settings", "words"),
    [
        ("fedrep", {}, "10 epochs of the personal part"),
        ("fedrep", {"head_epochs": 1}, "1 epoch of the personal part"),
        ("ditto", {}, "a second model, as long"),
        ("fedper", {}, ""),
    ],
)
def test_what_a_method_trains_beside_the_local_epochs_is_said(algorithm, settings, words):
    assert make_config(algorithm=algorithm, settings=settings).each_round == words


def test_a_command_lines_numbers_are_read_as_a_presets_are():
    assert [value_of(text) for text in (".5", "-.5", "5.", "+.1E-2", "5e-4", "5")] == [0.5, -0.5, 5.0, 1e-3, 5e-4, 5]
    words = ["fast", ".", "0..1", "1.2.3", "./f.pt", "1,2", "5.pt"]
    assert [value_of(text) for text in words] == words


def test_a_run_is_made_again_from_the_settings_in_force_where_f_is_a_checkpoint():
    """As results have them, with the defaults of what only pooled pretraining has."""
    run = make_config(algorithm="fedap", settings={"pretrain": "f.pt"})
    assert make_config(algorithm="fedap", settings=run.all_settings).all_settings == run.all_settings
