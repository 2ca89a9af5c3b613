"""Every method segments, or says in words why it does not."""

import pytest
from masked import config, write_slices, write_volumes

from medpfl.algorithms import algorithms
from medpfl.core.errors import UserError
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.runs.new_test import new_test
from medpfl.site.store import MemoryStore

REFUSED = {
    "fedimpres": "impressions have pseudo-labels, one class each; segmentation has other labels",
    "fedcurv": "curvature rests on the likelihood of one class a sample; segmentation has none",
    "fedreg": "pseudo data bear probabilities of one class each; segmentation has other labels",
    "vhl": "virtual images are of one class each; segmentation has other labels",
    "fedvss": "virtual samples follow the label of one class a sample; segmentation has other labels",
    "d-fedap": "no linear layer that classifies",
    "vit-heads": "no attention heads|attention",
}
NETWORK = {"model": "unet", "model_args": {"channels": [4, 8], "num_res_units": 0}}
TINY = {"task": "segmentation", "rounds": 2, "alone": "no", "fractions": (0.5, 0.25, 0.25)}


@pytest.fixture(scope="module")
def slices(tmp_path_factory):
    return write_slices(tmp_path_factory.mktemp("slices"), patients=4, slices=2)


def final(asked):
    federation = Federation.of(asked)
    sites = {name: federation.site(name, MemoryStore()) for name in asked.site_names}
    state = run_in_process(federation.plan(), sites, federation.model, workers=1)
    assert not state.failures
    return [state.final[name]["test"]["selected"] for name in asked.site_names]


QUICK = ("fedbn", "f-fedap", "ditto", *REFUSED)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in sorted(algorithms())]
)
def test_on_slices(slices, name):
    def run():
        settings = {"batch_size": 4, **({"pretrain_epochs": 1} if name == "fedap" else {})}
        own = {"use": "received"} if name == "fedblend" else {}
        fields = NETWORK | TINY | {"data_args": {"size": 16}, "settings": settings} | own
        return final(config(slices, algorithm=name, **fields))

    if name in REFUSED:
        with pytest.raises(UserError, match=REFUSED[name]):
            run()
    else:
        assert all(0 <= measured["dice"] <= 1 and measured["n"] > 0 for measured in run())


def test_no_masks_of_all_models_together_and_held_out_centres_are_named(slices, tmp_path):
    fields = NETWORK | TINY | {"data_args": {"size": 16}}
    (tmp_path / "site-1.safetensors").touch()
    federation = Federation.of(config(slices, sites=1, held_out="south", **fields))
    assert new_test(federation, tmp_path, asked=True) == (
        "no test of all sites' models together: masks of several models are not averaged. So the images of the centres "
        "that were held out, south, are not scored."
    )
    federation = Federation.of(config(slices, **fields))
    assert new_test(federation, tmp_path, asked=True).endswith("masks of several models are not averaged.")


@pytest.mark.parametrize("name", ["fedbn", *(pytest.param(n, marks=pytest.mark.slow) for n in ("f-fedap", "ditto"))])
def test_on_volumes(tmp_path, name):
    data = write_volumes(tmp_path, cases=4)
    fields = NETWORK | TINY | {"data_args": {"patch": [8, 8, 8], "patches": 2}}
    for measured in final(config(data, algorithm=name, **fields)):
        assert measured["hd95"] is not None  # NIfTI files say their spacing


def test_a_network_without_batch_norm_is_refused_with_what_gives_it(slices):
    fields = TINY | {"model": "monai:SegResNet", "data_args": {"size": 16}}
    with pytest.raises(UserError, match=r"--model-arg norm=batch"):
        final(config(slices, algorithm="fedbn", **fields))


def test_a_classifier_is_refused(slices):
    fields = TINY | {"model": "lenet5", "data_args": {"size": 32}}
    with pytest.raises(UserError, match=r"output of shape \[2, 2\]: a map of 2 classes for every pixel"):
        final(config(slices, algorithm="fedavg", **fields))
