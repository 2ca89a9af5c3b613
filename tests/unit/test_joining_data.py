"""Data of another form than the run's, and what a newcomer is told of it."""

import json

import numpy as np
import pytest
from joined_run import SAMPLE, finished
from PIL import Image

from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.data.sites import open_source
from medpfl.runs.join import join
from medpfl.site.newcomer import misfit


def npz(file, classes, shape=(28, 28)) -> str:
    """A file of one's own, whose classes are numbers."""
    rng = np.random.default_rng(0)
    parts = {f"{part}_images": rng.integers(0, 255, (33, *shape), dtype=np.uint8) for part in ("train", "val", "test")}
    labels = {f"{part}_labels": np.arange(33) % classes for part in ("train", "val", "test")}
    np.savez(file, **parts, **labels)
    return str(file)


def test_data_of_another_form_are_refused_once_for_each_site(tmp_path, caplog):
    finished(tmp_path / "run", make_config(algorithm="local", **SAMPLE))
    for other, words in (
        (npz(tmp_path / "four.npz", 4), "its number of classes is not the run's, 11: it has 4"),
        (npz(tmp_path / "colour.npz", 11, (28, 28, 3)), "its number of channels is not the run's, 1: it has 3"),
        (npz(tmp_path / "large.npz", 11, (32, 32)), "its image size is not the run's, 28: it has 32"),
    ):
        with pytest.raises(UserError) as refused:
            join("local", tmp_path / "run", {"data": other, "sites": 2}, tmp_path)
        assert str(refused.value) == f"new-1: {words}\nnew-2: {words}"
    with pytest.raises(UserError, match=r"--data-arg classes: .*four.npz is an npz file, .*; leave it out"):
        said = {"data": str(tmp_path / "four.npz"), "data_args": {"classes": ["a", "b", "c", "d"]}}
        join("local", tmp_path / "run", said, tmp_path)
    assert not caplog.records  # the terminal has them already


@pytest.mark.slow
def test_numbered_classes_are_those_of_the_run_by_number(tmp_path):
    numbered = npz(tmp_path / "own.npz", 11)
    fields = {**SAMPLE, "held_out": 0, "model": "lenet5"}
    organs = "organamnist-sample"
    finished(tmp_path / "named", make_config(algorithm="fedbn", **fields))
    finished(tmp_path / "numbers", make_config(algorithm="fedbn", data=numbered, **fields | {"train_fraction": 1.0}))
    for run, data in (("named", numbered), ("numbers", organs)):
        found = join("fedbn", tmp_path / run, {"data": data, "local_epochs": 1}, tmp_path / f"to-{run}")
        assert list(found["sites"]) == ["new-1"]
        folder = tmp_path / f"to-{run}" / "joined" / "new-1" / "selected"
        card = json.loads((folder / "card.json").read_text())
        assert card["classes"] == open_source(make_config(algorithm="local", data=organs)).dataset.classes
        assert '"pancreas"' in (folder / "bundle" / "configs" / "metadata.json").read_text()


def test_an_npz_file_joins_a_run_on_folders(tmp_path):
    rng = np.random.default_rng(0)
    for centre in ("north", "south"):
        for name in ("glaucoma", "normal"):
            (folder := tmp_path / "fundus" / centre / name).mkdir(parents=True)
            for i in range(10):
                Image.fromarray(rng.integers(0, 255, (28, 28), dtype=np.uint8)).save(folder / f"{i}.png")
    look = {"size": 28, "channels": "grey", "fit": "pad"}
    fields = {"model": "lenet5", "rounds": 1, "local_epochs": 1, "sites": 2, "partition": "natural", "device": "cpu"}
    finished(tmp_path / "run", make_config(algorithm="fedbn", data=str(tmp_path / "fundus"), data_args=look, **fields))
    said = {"data": npz(tmp_path / "own.npz", 2), "local_epochs": 1}
    join("fedbn", tmp_path / "run", said, tmp_path)
    card = json.loads((tmp_path / "joined" / "new-1" / "selected" / "card.json").read_text())
    assert card["classes"] == ["glaucoma", "normal"]


def test_misfit_says_what_differs_and_apart_from_it_what_the_site_has():
    run = {"in_channels": 1, "num_classes": 2, "image_size": 28, "classes": ["ill", "well"]}
    assert misfit(run, run) is None
    assert misfit(run, {"num_classes": 2}) is None
    reason, own = misfit(run, {**run, "classes": ["well", "ill"]})
    assert "in another order (--data-arg classes=... gives it, for scans a manifest.json too)" in reason
    assert own == "it has well, ill, the run ill, well"
    reason, own = misfit(run, {"num_classes": 3, "classes": ["a", "b", "c"]})
    assert reason == "its number of classes is not the run's, 2 (its log says more)" and own == "it has 3"
