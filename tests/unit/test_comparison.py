import json
from contextlib import nullcontext

import pytest

from medpfl.config.fields import OPTIONS
from medpfl.config.run import make_config, published_defaults
from medpfl.core.errors import UserError
from medpfl.runs.asked import as_meant, configs_of
from medpfl.runs.comparison import How, Variant, model_arguments_of, run_comparison, settings_of, with_local


def texts(*given, model="vit-tiny"):
    return [v.text for v in with_local([Variant.parse(text) for text in given], model)]


def test_local_training_of_every_model_is_among_them_once():
    assert texts("fedavg", "fedper:layers=2", model="lenet5") == ["local", "fedavg", "fedper:layers=2"]
    assert texts("fedavg:model=vit-tiny", "vit-heads:p=0.4")[0] == "local"
    assert len(texts("fedavg:model=vit-tiny", "vit-heads:p=0.4")) == 3
    assert texts("fedavg:model=resnet32", "vit-heads")[:2] == ["local:model=resnet32", "local"]
    assert texts("local:model=resnet32", "fedavg:model=resnet32") == ["local:model=resnet32", "fedavg:model=resnet32"]
    for variant in ("finetune_steps=200", "personal=batch-norm"):  # which does not replace it
        assert texts("fedavg", f"local:{variant}")[0] == "local"


@pytest.mark.parametrize(
    ("given", "seeds"),
    [
        (3, [0, 1, 2]),
        ("3", [0, 1, 2]),
        ("3..6", [3, 4, 5, 6]),
        ("5..5", [5]),
        (" 0, 5,7 ", [0, 5, 7]),
        ([0, 5, 7], [0, 5, 7]),
        (range(2, 4), [2, 3]),
    ],
)
def test_seeds_are_how_many_or_which(given, seeds):
    empty = {"data_args": {}, "model_args": {}, "settings": {}}
    made = configs_of(["local", "fedavg"], given, as_meant(dict.fromkeys(OPTIONS) | empty | {"sites": "2"}))
    assert [(name, config.seed) for name, config in made] == [(n, s) for s in seeds for n in ("local", "fedavg")]


def test_the_same_run_twice_is_refused_before_training(tmp_path):
    both = [make_config(algorithm="fedprox", settings=settings) for settings in ({}, {"mu": 0.01})]
    with pytest.raises(UserError, match=r"fedprox_mu=0.01 and fedprox are the same run"):
        run_comparison(
            list(zip(("fedprox", "fedprox_mu=0.01"), both, strict=True)),
            tmp_path,
            How(lambda title, total: None, "inprocess"),
        )
    assert not list(tmp_path.iterdir())


def test_a_variant_that_cannot_be_is_named_before_the_others_train(tmp_path):
    variants = [Variant.parse(text) for text in ("local", "vit-heads:model=resnet32")]
    runs = [
        (v.folder, make_config(algorithm=v.algorithm, sites=2, rounds=1, seed=seed, **v.choices))
        for seed in (0, 1)
        for v in variants
    ]
    with pytest.raises(UserError, match=r"^vit-heads_model=resnet32: .*no self-attention"):
        run_comparison(runs, tmp_path, How(lambda title, total: pytest.fail(f"{title} was started"), "inprocess"))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_rivals_of_the_heads_with_a_resnet_share_what_their_methods_say(tmp_path):
    variants = [Variant.parse(f"{name}:model=resnet32") for name in ("local", "fedavg", "fedper", "lg-fedavg", "fedbn")]
    tiny = {"sites": 2, "rounds": 1, "fractions": (0.01, 0.0, 0.01), "held_out": 1, "device": "cpu"}
    runs = [(v.folder, make_config(algorithm=v.algorithm, **tiny, **v.choices)) for v in variants]
    silent = nullcontext(lambda progress: None)
    run_comparison(runs, tmp_path, How(lambda title, total: silent, "inprocess", threads=1))
    results = [json.loads((tmp_path / folder / "seed-0" / "results.json").read_text()) for folder, _ in runs]
    sent = {r["algorithm"]: r["rounds"][0]["sites"]["site-1"]["sent_bytes"] for r in results}
    assert all(r["status"] == "finished" and r["new"]["held_out"] for r in results)
    # 464,219 parameters for 11 classes, of which 715 are the classifier's, and running statistics.
    assert sent["local"] == 0 < 715 * 4 <= sent["lg-fedavg"] < 1.3 * 715 * 4
    assert sent["fedavg"] > 464_219 * 4 and sent["fedper"] < sent["fedavg"] > sent["fedbn"]


def test_common_settings_go_where_they_mean_something():
    variants = [Variant.parse(text) for text in ("local", "vit-heads", "fedap", "fedavg:mu=0.1")]
    each = settings_of(variants, {"lambda": 0.3, "lr": 0.1})
    assert each[0] == {"lr": 0.1}
    assert each[1] == {"consistency": 0.3, "lr": 0.1}
    assert each[2] == {"lambda": 0.3, "lr": 0.1}
    assert each[3] == {"lr": 0.1, "mu": 0.1}
    assert settings_of([Variant.parse("local"), Variant.parse("fedbn")], {"mu": 0.2}) == [{}, {"mu": 0.2}]
    assert settings_of([Variant.parse(t) for t in ("local", "fedavg", "fedprox")], {"mu": 0.2}) == [{}, {}, {"mu": 0.2}]
    # Who has one of its own is whom it is for: it is not given to all who could have it.
    assert settings_of([Variant.parse("fedavg:mu=0.1"), Variant.parse("fedbn")], {"mu": 0.2}) == [{"mu": 0.1}, {}]
    with pytest.raises(UserError, match="setting 'layers': none of local, vit-heads"):
        settings_of(variants, {"layers": 2})


def test_what_a_switch_brings_along_goes_where_the_switch_goes():
    variants = [Variant.parse(text) for text in ("local", "fedavg", "fedimpres", "fedbn:beta=0.25")]
    each = settings_of(variants, {"beta": 0.5, "warmup": 3})
    assert each == [{}, {}, {"beta": 0.5, "warmup": 3}, {"beta": 0.25, "warmup": 3}]
    assert settings_of(variants[:2], {"beta": 0.5, "warmup": 3}) == [{}, {"beta": 0.5, "warmup": 3}]


def test_a_setting_with_two_names_is_one():
    heads = [Variant.parse("vit-heads:lambda=0.3")]
    assert settings_of(heads, {"lambda": 0.1}) == settings_of(heads, {"consistency": 0.1}) == [{"consistency": 0.3}]
    both = {"lambda": 0.1, "consistency": 0.2}
    assert settings_of([Variant.parse("fedap:lambda=0.6"), *heads], {"lambda": 0.1}) == [
        {"lambda": 0.6},
        {"consistency": 0.3},
    ]
    for given in (both, dict(reversed(both.items()))):
        with pytest.raises(UserError, match="consistency is given twice for vit-heads, by its name and by the paper's"):
            settings_of([Variant.parse("vit-heads")], given)
    with pytest.raises(UserError, match="consistency is given twice for vit-heads"):
        settings_of([Variant.parse("vit-heads:lambda=0.3,consistency=0.1")], {})


def test_a_variant_says_what_is_chosen_and_what_is_set():
    found = Variant.parse("fedap:personal=top:1,mixing=uniform,model=lenet5,use=best,lambda=0.5")
    assert found.choices == {"personal": "top:1", "mixing": "uniform", "model": "lenet5", "use": "best"}
    assert (found.algorithm, found.settings) == ("fedap", {"lambda": 0.5})
    assert found.folder == "fedap_personal=top_1_mixing=uniform_model=lenet5_use=best_lambda=0.5"


@pytest.mark.parametrize("text", ["fedap:", "fedap:mixing", "fedap:mixing=", "fedap:mixing=uniform,"])
def test_a_variant_gives_a_value_to_each_name(text):
    with pytest.raises(UserError, match="give ALGORITHM or ALGORITHM:KEY=VALUE"):
        Variant.parse(text)


@pytest.mark.parametrize("text", ["fedprox:mu=0.1,mu=0.2", "fedap:model=lenet5,model=alexnet-bn"])
def test_a_variant_says_each_thing_once(text):
    with pytest.raises(UserError, match=r"'fed.*: (mu|model) is there twice; give it once"):
        Variant.parse(text)


def test_model_arguments_go_to_the_models_that_have_them():
    found = model_arguments_of(["lenet5", "vit-tiny"], {"patch_size": 7})
    assert found == {"lenet5": {}, "vit-tiny": {"patch_size": 7}}
    with pytest.raises(UserError, match="--model-arg depth: none of lenet5, vit-tiny"):
        model_arguments_of(["lenet5", "vit-tiny"], {"depth": 3})


def test_a_papers_schedule_holds_for_all_that_are_compared():
    schedule, training = published_defaults(["local", "fedavg", "vit-heads"])
    assert (schedule["model"], schedule["local_epochs"], training["nesterov"]) == ("vit-tiny", 3, 1)
    assert published_defaults(["local", "fedap"]) == ({}, {})


def made_of(*algorithms, **fields):
    """By run of a comparison its configuration."""
    empty = {"data_args": {}, "model_args": {}, "settings": {}}
    made = configs_of(algorithms, 2, as_meant(dict.fromkeys(OPTIONS) | empty | fields))
    return {name: config for name, config in made if config.seed == 1}


def alone_of(*algorithms, **fields):
    """By run of a comparison whether its sites train alone beside it."""
    return {name: config.alone for name, config in made_of(*algorithms, **fields).items()}


def test_what_a_paper_fixes_for_all_is_said(caplog):
    alone_of("fedavg", "fedimpres", local_epochs=1)
    assert caplog.messages == [
        "All run as fedimpres was published, unless you say otherwise: model impression-cnn, rounds 80, batch_size 16"
    ]
    caplog.clear()
    alone_of("fedavg", "fedap")
    assert not caplog.messages


def test_sites_train_alone_beside_what_chooses_or_trains_further():
    """Else the steps at the end would count as what the federation gives."""
    plain = {"local": "no", "fedavg": "no"}
    tuned = "fedavg:finetune_steps=9"
    assert alone_of("fedavg", tuned, "fedbabu", "fedblend") == plain | {
        "fedavg_finetune_steps=9": "yes",
        "fedbabu": "yes",
        "fedblend": "yes",
    }
    # Also where local training with these steps is among them, so that a run is the same in any company.
    assert alone_of("local", "local:finetune_steps=9", "fedavg", tuned) == plain | {
        "local_finetune_steps=9": "no",
        "fedavg_finetune_steps=9": "yes",
    }
    assert alone_of(tuned, alone="no") == {"local": "no", "fedavg_finetune_steps=9": "no"}
    assert set(alone_of("fedavg", alone="yes").values()) == {"yes"}


def test_a_choice_at_the_end_is_of_methods_that_share_something():
    made = made_of("fedavg", "fedbn:use=received", "fedblend", use="best")
    assert {name: (config.use, config.alone) for name, config in made.items()} == {
        "local": (None, "no"),
        "fedavg": ("best", "yes"),
        "fedbn_use=received": ("received", "no"),
        "fedblend": ("best", "yes"),
    }
    with pytest.raises(UserError, match="local, which shares nothing there is only one"):
        made_of("fedavg", "local:use=best")
