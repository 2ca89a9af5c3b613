"""Npz files with several labels an image, and with volumes: read, divided, checked, learned, refused in words."""

import numpy as np
import pytest
import torch

from medpfl.core.errors import UserError
from medpfl.data.kinds.npz.check_npz import check_npz
from medpfl.data.kinds.npz.npz_file import load
from medpfl.data.kinds.registry import kind_of
from medpfl.runs.api import run


def write(path, shape=(8, 8), labels=3, n=(40, 10, 20), change=None):
    """Pictures or volumes whose brightness in a corner says the first label; of several the last is often unknown."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, size in zip(("train", "val", "test"), n, strict=True):
        there = rng.integers(0, 2, (size, labels)) if labels else rng.integers(0, 2, size)
        images = rng.integers(0, 60, (size, *shape), dtype=np.uint8)
        first = there[:, 0] if labels else there
        images[(slice(None), *(slice(0, 4) for _ in shape))] += (
            (150 * first).astype(np.uint8).reshape(-1, *[1] * len(shape))
        )
        if labels:
            there[: size // 2, -1] = -1
        arrays |= {f"{part}_images": images, f"{part}_labels": there}
    np.savez(path, **(arrays | (change or {})))
    return path


def test_several_labels_are_learned_and_unknown_ones_count_nowhere(tmp_path):
    file = write(tmp_path / "several.npz", shape=(28, 28), n=(120, 20, 60))
    assert kind_of(str(file), {}).task(str(file), {}) == "multi-label"
    found = run(
        "fedbn", data=file, sites=2, partition="iid", rounds=5, settings={"lr": 0.05, "batch_size": 8, "momentum": 0.9}
    )
    results = found.results
    assert results["config"]["task"] == "multi-label"
    assert results["measures"][0]["name"] == "auroc"
    site = results["final"]["selected"]["sites"]["site-1"]
    assert len(site["auroc_by_label"]) == 3
    assert site["auroc_by_label"][0] > 0.9
    assert results["data"]["sites"]["site-1"]["classes"].keys() == {"0", "1", "2"}
    assert results["verdict"]["measure"] == "auroc"


def test_a_site_with_more_of_the_rarest_label_is_drawn_by_it(tmp_path):
    data = load(write(tmp_path / "several.npz"))
    counts = (data.labels == 1).sum(0)
    order = np.argsort(counts, kind="stable")
    for row, stratum in zip(data.labels, data.strata, strict=True):
        has = [label for label in order if row[label] == 1]
        assert stratum == (has[0] if has else 3)


def test_volumes_are_learned_by_networks_for_them(tmp_path):
    file = write(tmp_path / "volumes.npz", shape=(12, 16, 16), labels=0)
    network = {"model": "monai:SEResNet50"}
    with pytest.raises(UserError, match=r"2-D images, got the image size \[12, 16, 16\]: for volumes"):
        run("fedbn", data=file, sites=2, rounds=1)
    with pytest.raises(UserError, match="volumes, which are not padded"):
        run("fedbn", data=file, sites=2, rounds=1, data_args={"pad": 20}, **network)
    found = run(
        "fedbn", data=file, sites=2, partition="iid", rounds=1, alone="no", model="monai:DenseNet",
        model_args={"init_features": 4, "growth_rate": 4, "block_config": [1, 1]},
    )  # fmt: skip
    assert found.results["final"]["selected"]["counted"]["accuracy"] == 2
    assert found.models["site-1"](torch.zeros(1, 1, 12, 16, 16)).shape == (1, 2)


def test_a_check_says_what_they_are(tmp_path):
    said = [f.message for f in check_npz(str(write(tmp_path / "several.npz")), {})]
    assert any("3 labels, several an image: 0 " in line for line in said)
    assert any("16.7 % of the labels are not known (-1)" in line for line in said)
    volumes = write(tmp_path / "volumes.npz", shape=(6, 8, 8), labels=0)
    assert any("70 volumes, 6×8×8 voxels" in f.message for f in check_npz(str(volumes), {}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"val_labels": np.full((10, 3), 2)}, "val_labels has 3 labels an image and the value 2; right are 1"),
        ({"val_labels": np.ones(10, dtype=int)}, "val_labels and train_labels must both have one label"),
        ({"test_labels": np.ones((20, 2), dtype=int)}, "2 labels an image in one part and 3 are right"),
        ({"train_images": np.zeros((40, 8, 8, 8, 3), np.uint8)}, r"volumes are \(n, D, H, H\), of one channel"),
    ],
)
def test_what_is_wrong_is_said_before_training(tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        load(write(tmp_path / "wrong.npz", change=change))


@pytest.mark.parametrize(
    ("depth", "right"), [(1, r"(n, H, H) is right: images[:, 0]"), (3, "(n, H, H, 3) is right"), (4, None)]
)
def test_a_check_asks_whether_few_slices_are_channels(tmp_path, depth, right):
    file = write(tmp_path / "first.npz", shape=(depth, 8, 8), labels=0)
    said = [f.message for f in check_npz(str(file), {}) if f.level == "warning" and "slice" in f.message]
    assert [right in line for line in said] == ([True] if right else [])


def test_empty_parts_are_a_note_since_parts_are_pooled(tmp_path):
    file = write(tmp_path / "whole.npz", labels=0, n=(40, 0, 0))
    notes = [f for f in check_npz(str(file), {}) if "empty" in f.message]
    assert [f.level for f in notes] == ["note"]
    assert notes[0].message.startswith("the validation and test parts are empty: all images are divided by --fractions")


def test_a_file_without_parts_is_told_that_they_may_be_empty(tmp_path):
    file = tmp_path / "train.npz"
    np.savez(file, train_images=np.zeros((4, 8, 8), np.uint8), train_labels=np.arange(4) % 2)
    with pytest.raises(UserError, match=r"has no val_images, .*, of val and test with empty arrays if there are no"):
        load(file)


def test_a_task_for_other_labels_is_refused(tmp_path):
    file = write(tmp_path / "several.npz")
    with pytest.raises(UserError, match=r"--task ordinal: .*several.npz has several labels an image; it is for multi"):
        run("fedavg", data=file, sites=2, task="ordinal")
    with pytest.raises(UserError, match="it is for segmentation"):
        run("fedavg", data="sarcoma-sample", task="classification")


def test_published_sets_say_their_task():
    assert kind_of("retinamnist", {}).task("retinamnist", {}) == "ordinal"
    assert kind_of("chestmnist_64", {}).task("chestmnist_64", {}) == "multi-label"
    assert kind_of("organmnist3d", {}).task("organmnist3d", {}) == "classification"
