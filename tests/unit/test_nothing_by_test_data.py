"""Nothing is chosen by test data, nor trained by validation data: with others in their place it is the same."""

from dataclasses import replace

import pytest
from tiny import FEW_STEPS, config, run, same, site_data

from medpfl.core.permitted_code import permit
from medpfl.core.site_data import ImageTensors
from medpfl.site.rival import ALONE, ALONE_BEST

permit("test_nothing_by_test_data")


def ours(site: str, seed: int) -> ImageTensors:
    return site_data(site, seed, validation=12)


def others(site: str, seed: int) -> ImageTensors:
    return _changed(ours(site, seed), "test")


def other_validation(site: str, seed: int) -> ImageTensors:
    return _changed(ours(site, seed), "validation")


def contrary(site: str, seed: int) -> ImageTensors:
    """The same images in all parts, which are of other classes in the validation part."""
    data = site_data(site, seed)
    images, labels = ({part: of["train"] for part in of} for of in (data.images, data.labels))
    return replace(data, images=images, labels=labels | {"validation": (data.labels["train"] + 1) % 3})


def _changed(data: ImageTensors, part: str) -> ImageTensors:
    """The same images in negative, of other classes."""
    pixels, labels = 255 - data.images[part], (data.labels[part] + 1) % 3
    return replace(data, images=data.images | {part: pixels}, labels=data.labels | {part: labels})


RUNS = {
    "blended": {"algorithm": "fedblend", "settings": FEW_STEPS},
    "the best": {"algorithm": "fedper", "use": "best", "select_by": "loss", "settings": FEW_STEPS},
    "as published": {"algorithm": "fedap", "use": "received"},
    "of one's own": {"algorithm": "ditto", "use": "blend", "settings": {"prior": 1.0}},
}


@pytest.fixture(
    scope="module", params=[*list(RUNS)[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in list(RUNS)[2:])]
)
def runs(request):
    """By the function of the data the server's state and the sites after a run."""
    fields = {"alone": "yes", "rounds": 3, **RUNS[request.param]}
    found = {}
    for data in (ours, others, other_validation):
        found[data] = run(config(data=f"test_nothing_by_test_data:{data.__name__}", **fields))
    return found


def states(sites) -> dict:
    return {(name, *key): state for name, site in sites.items() for key, state in site.store._states.items()}


def without_seconds(value):
    if isinstance(value, dict):
        return {key: without_seconds(one) for key, one in value.items() if key != "seconds"}
    return [without_seconds(one) for one in value] if isinstance(value, list | tuple) else value


def test_all_that_sites_keep_and_use_is_the_same_whatever_the_test_data(runs):
    (state, sites), (other_state, other_sites) = runs[ours], runs[others]
    found, other = states(sites), states(other_sites)
    assert found.keys() == other.keys() and len(found) > 20
    assert [key for key in found if key[1] != "data" and not same(found[key], other[key])] == []
    assert without_seconds(state.history) == without_seconds(other_state.history)
    for name, metrics in state.final.items():
        assert metrics["tested"] == other_state.final[name]["tested"]
        assert metrics["validation"] == other_state.final[name]["validation"]
        assert metrics["verdict"]["used"] == other_state.final[name]["verdict"]["used"]
        assert metrics["test"] != other_state.final[name]["test"]  # they are other data


def test_what_is_trained_is_the_same_whatever_the_validation_data(runs):
    (state, sites), (other_state, other_sites) = runs[ours], runs[other_validation]
    assert all(same(state.shared[name], other_state.shared[name]) for name in state.shared)
    for kind in ("personal", ALONE):
        for name, site in sites.items():
            assert same(site.store.get(kind, 3), other_sites[name].store.get(kind, 3))


def test_a_site_that_trains_alone_takes_the_best_round_of_its_validation_data():
    """What it learns of its training images makes it ever worse there."""
    _, sites = run(config(data="test_nothing_by_test_data:contrary", rounds=4, alone="yes"))
    assert [site.store.rounds(ALONE_BEST) for site in sites.values()] == [[1]] * 3
