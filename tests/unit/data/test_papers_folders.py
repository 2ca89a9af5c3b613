"""Folders as the papers divide them: one over many sites, printed numbers of training pictures, a site set aside."""

import numpy as np
import pytest
import torch
from pictures import CENTRES, CLASSES, CPU, config, paint

from medpfl.algorithms.fedimpres.settings import ImpressionSettings
from medpfl.algorithms.fedimpres.start_images import start_images
from medpfl.core.errors import UserError
from medpfl.core.site_data import PARTS, scale
from medpfl.data.kinds.folders.picture_file import Reading, read_picture
from medpfl.data.kinds.registry import kind_of
from medpfl.data.public_images import public_images
from medpfl.data.sites import open_source
from medpfl.runs.experiment import run_experiment

NAMES = ("site-1", "site-2", "site-3", "site-4")


@pytest.fixture
def xrays(home):
    """One folder of four classes, as the COVID-19 set is laid out."""
    for number in range(48):
        label = ("bacterial", "covid", "normal", "viral")[number % 4]
        paint(home / "data" / "xrays" / label / f"{number}.png", (40 + 40 * (number % 4), 90, 5 * number), number)
    return "xrays"


@pytest.fixture
def retina(home):
    """Four sites of unlike sizes, 14 to 20 pictures of two classes."""
    for site, many in {"acrima": 16, "drishti": 14, "refuge": 20, "rim": 18}.items():
        for number in range(many):
            label = CLASSES[number % 2]
            paint(home / "retina" / site / label / f"{number}.png", (90 + 9 * (number % 2), 60, len(site) * 9), number)
    return home / "retina"


def counted(source):
    return {name: {part: site[part] for part in PARTS} for name, site in source.describe()["sites"].items()}


@pytest.mark.parametrize("partition", ["dirichlet:1", "equal-dirichlet:0.5", "iid"])
def test_one_folder_is_decoded_once_whatever_the_partition(xrays, home, partition):
    for seed in (0, 1):
        source = open_source(config(xrays, partition=partition, sites=4, seed=seed))
        source.prepare()
        sites = [source.site(name, CPU) for name in NAMES]
        seen = [image.numpy().tobytes() for site in sites for part in PARTS for image in site.images[part]]
        assert len(seen) == len(set(seen)) == 48
        # Each picture has its own label, wherever it is.
        for name, site in zip(NAMES, sites, strict=True):
            for row, picture in enumerate(source._parts(name)["test"]):
                assert (site.images["test"][row].numpy() == read_picture(picture.file, Reading(size=32))).all()
                assert site.labels["test"][row] == picture.label
    assert len(list((home / "cache" / "medpfl" / "folders").glob("*.safetensors"))) == 1


def test_what_is_pooled_is_the_sites_training_part(xrays):
    source = open_source(config(xrays, partition="iid", sites=4))
    pooled = source.pooled_training(0.5, CPU)
    training = {
        image.numpy().tobytes(): int(label)
        for name in NAMES
        for image, label in zip(*(of["train"] for of in _tensors(source.site(name, CPU))), strict=True)
    }
    assert pooled.samples("train") == round(0.5 * len(training)) and pooled.samples("test") == 0
    for image, label in zip(pooled.images["train"], pooled.labels["train"], strict=True):
        assert training[image.numpy().tobytes()] == label


def test_pooled_pictures_of_several_centres_keep_their_labels(fundus):
    source = open_source(config(fundus))
    pooled = source.pooled_training(1.0, CPU)
    training = [_tensors(source.site(name, CPU)) for name in NAMES[:3]]
    expected = {
        x.numpy().tobytes(): int(y) for xs, ys in training for x, y in zip(xs["train"], ys["train"], strict=True)
    }
    assert len(expected) == pooled.samples("train") == 18
    found = {x.numpy().tobytes(): int(y) for x, y in zip(pooled.images["train"], pooled.labels["train"], strict=True)}
    assert found == expected
    # Drawn in a mixed order, not centre by centre.
    order = [list(expected).index(x.numpy().tobytes()) // 6 for x in pooled.images["train"]]
    assert order != sorted(order) and set(order) == set(range(len(CENTRES)))


def _tensors(site):
    return site.images, site.labels


def test_as_many_train_as_are_printed(retina):
    counts = {"acrima": [5, 2], "drishti": [7, 0], "rim": [3, 6]}
    fields = {"held_out": "refuge", "fractions": (0.8, 0.05, 0.15), "data_args": {"train_counts": counts}}
    source = open_source(config(retina, **fields))
    assert counted(source) == {
        # Of the others of a class a quarter validates, rounded down.
        "site-1": {"train": 7, "validation": 0 + 1, "test": 3 + 5},
        "site-2": {"train": 7, "validation": 0 + 1, "test": 0 + 6},
        "site-3": {"train": 9, "validation": 1 + 0, "test": 5 + 3},
    }
    site = source.site("site-3", CPU)
    assert site.labels["train"].bincount().tolist() == [3, 6]
    every = torch.cat([site.images[part] for part in PARTS])
    assert len(every) == len(every.flatten(1).unique(dim=0)) == 18
    other = open_source(config(retina, seed=1, **fields)).site("site-3", CPU)
    assert not torch.equal(site.images["train"], other.images["train"])
    assert source.describe()["reading"]["train_counts"] == counts


@pytest.mark.parametrize(
    ("counts", "fields", "words"),
    [
        ({"acrima": [5, 2]}, {}, "train_counts: drishti: give each centre that trains: acrima, drishti, rim"),
        ({"acrima": [5, 2], "drishti": [1], "rim": [1, 1]}, {}, "drishti: 1 numbers; there are 2 classes"),
        ({"acrima": [9, 2], "drishti": [1, 1], "rim": [1, 1]}, {}, "acrima: 9 of class glaucoma; there are 8"),
        ({"acrima": [0, 0], "drishti": [1, 1], "rim": [1, 1]}, {}, "acrima: no picture is left to train on"),
        ({"acrima": [-1, 2]}, {}, "--data-arg train_counts"),
        ({"acrima": [1, 2]}, {"train_fraction": 0.5}, "says all, without --partition and --train-fraction"),
        ({"acrima": [1, 2]}, {"data_args": {"patient": "^([0-9])"}}, "patients are known"),
    ],
)
def test_printed_numbers_that_cannot_be_met(retina, counts, fields, words):
    arguments = {"train_counts": counts} | fields.pop("data_args", {})
    with pytest.raises(UserError, match=words):
        open_source(config(retina, held_out="refuge", data_args=arguments, **fields)).prepare()


def test_printed_numbers_are_no_hospitals(retina):
    with pytest.raises(UserError, match="train_counts: is for simulated sites"):
        kind_of(str(retina), {}).portable(config(retina, data_args={"train_counts": {"rim": [1, 1]}}))


def test_impressions_start_from_a_site_that_takes_no_part(retina, tmp_path):
    settings = {"start": "held-out", "images": 12, "warmup": 1, "synthesis_batch": 5}
    run = config(
        retina, algorithm="fedimpres", held_out="refuge", model="lenet5", rounds=2, alone="no",
        settings=settings | {"batch_size": 8, "admm_iterations": 1, "inner_steps": 1},
    )  # fmt: skip
    source = open_source(run)
    start = start_images(ImpressionSettings(start="held-out", images=12), source, public_images, seed=0)
    there = source.held_out(CPU)["refuge"].images["test"]
    assert start.shape == (12, 3, 32, 32)
    assert {x.numpy().tobytes() for x in start} <= {scale(x).numpy().tobytes() for x in there}
    assert len({x.numpy().tobytes() for x in start}) == 12
    every = start_images(ImpressionSettings(start="held-out", images=99), source, public_images, seed=0)
    np.testing.assert_array_equal(every, scale(there))
    results = run_experiment(run, tmp_path / "run", env="inprocess", threads=1)
    assert results["impression"] and list(results["data"]["held_out"]) == ["refuge"]


def test_a_start_needs_a_site_that_takes_no_part(retina):
    with pytest.raises(
        UserError, match="start=held-out needs a centre that takes no part in training: give --held-out"
    ):
        config(retina, algorithm="fedimpres", sites=4, settings={"start": "held-out"})
