"""Names of sites that an npz file has itself."""

import numpy as np
import pytest
import torch

from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.data.sites import open_source

NUMBERS = {"north": 12, "south": 24}


@pytest.fixture
def file(tmp_path):
    part = {
        "images": np.random.default_rng(0).integers(0, 256, (12, 8, 8), np.uint8),
        "labels": np.arange(12)[:, None] % 2,
        "sites": np.repeat([*NUMBERS], [n // 3 for n in NUMBERS.values()]),
    }
    path = tmp_path / "own.npz"
    np.savez(path, **{f"{name}_{key}": value for name in ("train", "val", "test") for key, value in part.items()})
    return path


def sizes(file, *names):
    fields = {"partition": "natural", "sites": 2, "names": names}
    source = open_source(make_config(algorithm="fedbn", data=str(file), **fields))
    sites = {name: source.site(name, torch.device("cpu")) for name in names}
    return {name: sum(map(site.samples, ("train", "validation", "test"))) for name, site in sites.items()}


@pytest.mark.parametrize("names", [("north", "south"), ("south", "north")])
def test_a_name_of_the_files_is_that_site_in_any_order(file, names):
    assert sizes(file, *names) == NUMBERS


def test_other_names_are_given_in_the_order_of_the_files(file):
    assert sizes(file, "berlin", "paris") == {"berlin": 12, "paris": 24}


def centres(file, *names, **fields):
    config = make_config(algorithm="fedbn", data=str(file), sites=2, names=names, **fields)
    return {name: told.get("centre") for name, told in open_source(config).describe()["sites"].items()}


def test_results_say_which_of_the_files_sites_each_is(file):
    """The published sample of masks does too; a divided file has none."""
    assert centres(file, partition="natural") == {"site-1": "north", "site-2": "south"}
    assert centres(file, "south", "north", partition="natural") == {"north": "north", "south": "south"}
    assert centres(file, "berlin", "paris", partition="natural") == {"berlin": "north", "paris": "south"}
    assert centres(file, partition="iid") == {"site-1": None, "site-2": None}


def test_some_of_the_files_names_and_others_are_refused(file):
    with pytest.raises(UserError, match=r"own\.npz has the sites north, south; name the first 2 as it does"):
        sizes(file, "south", "paris")
