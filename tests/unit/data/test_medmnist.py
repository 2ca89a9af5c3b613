import hashlib

import numpy as np
import pytest
import torch

from medpfl.core.errors import UserError
from medpfl.data.kinds.npz.medmnist import MEDMNIST, _table, official, official_md5, split_name
from medpfl.data.kinds.npz.npz_file import load


def test_all_parts_in_one_array(write, arrays):
    path, content = write(), arrays()
    dataset = load(path)
    np.testing.assert_array_equal(
        dataset.images, np.concatenate([content[f"{p}_images"] for p in ("train", "val", "test")])
    )
    np.testing.assert_array_equal(np.bincount(dataset.split), [30, 9, 12])
    assert dataset.labels[:4].tolist() == [0, 1, 2, 0]
    assert (dataset.labels.dtype, dataset.split.dtype, dataset.images.dtype) == (np.int64, np.int8, np.uint8)
    assert (dataset.name, dataset.size, dataset.channels, dataset.n_classes) == ("mine", 8, 1, 3)
    assert dataset.classes == ["0", "1", "2"]
    assert dataset.md5 == hashlib.md5(path.read_bytes()).hexdigest()
    assert dataset.site_ids is None
    assert len(dataset) == 51


def test_images_chw(write):
    grey, colour = load(write()), load(write(shape=(8, 8, 3)))
    assert grey.images_chw([4, 2]).shape == (2, 1, 8, 8)
    chosen = colour.images_chw(np.array([4, 2]))
    assert chosen.shape == (2, 3, 8, 8)
    assert chosen.dtype == torch.uint8
    assert chosen.is_contiguous()
    assert colour.channels == 3
    np.testing.assert_array_equal(chosen[1, 2], colour.images[2, :, :, 2])
    assert grey.images_chw(np.array([])).shape == (0, 1, 8, 8)


def test_column_order_and_single_channel_and_flat_labels(write, arrays):
    content = arrays()
    change = {"train_images": np.asfortranarray(content["train_images"]), "train_labels": content["train_labels"][:, 0]}
    np.testing.assert_array_equal(load(write(change=change)).images, load(write()).images)
    assert load(write(shape=(8, 8, 1))).images.shape == (51, 8, 8)


def test_known_name_brings_class_names(write):
    dataset = load(write("bloodmnist_64.npz"))
    assert dataset.classes[3] == "immature granulocyte"
    assert dataset.n_classes == 8


def test_empty_validation_part(write):
    np.testing.assert_array_equal(np.bincount(load(write(val=0)).split, minlength=3), [30, 0, 12])


def test_site_ids(write):
    change = {
        f"{p}_sites": np.array(["berlin", "lima", "oslo"] * n) for p, n in (("train", 10), ("val", 3), ("test", 4))
    }
    assert load(write(change=change)).site_ids[:3].tolist() == ["berlin", "lima", "oslo"]
    with pytest.raises(UserError, match=r"mine\.npz: has train_sites, but no val_sites"):
        load(write(change=change | {"val_sites": None}))
    with pytest.raises(UserError, match="val_sites is int64 1"):
        load(write(change=change | {"val_sites": np.array([1])}))


U8 = np.uint8
WRONG = {
    "keys": ({"val_labels": None}, "has no val_labels"),
    "several labels": ({"train_labels": np.zeros((30, 14), U8)}, "one label an image, or several"),
    "volumes": ({"train_images": np.zeros((30, 8, 8, 8), U8)}, "val_images are 8×8, train_images 8×8×8"),
    "transparency": ({"train_images": np.zeros((30, 8, 8, 4), U8)}, r"\(n, H, H, 3\), square images, or"),
    "not square": ({"train_images": np.zeros((30, 8, 7), U8)}, "square"),
    "no images": ({"train_images": np.zeros(30, U8)}, "square"),
    "pixels of the wrong type": ({"val_images": np.zeros((9, 8, 8))}, "val_images is float64; uint8"),
    "labels of the wrong type": ({"val_labels": np.zeros((9, 1))}, "val_labels is float64"),
    "labels in words": ({"val_labels": np.array(["ill"] * 9)}, "val_labels is text"),
    "objects": ({"val_labels": np.array([None] * 9)}, "val_labels is not a plain array"),
    "lengths": ({"test_labels": np.zeros((11, 1), U8)}, "test has 12 images and 11 labels"),
    "sizes": ({"test_images": np.zeros((12, 9, 9), U8)}, "test_images are 9×9, train_images 8×8"),
    "negative": ({"test_labels": np.full((12, 1), -1)}, "test_labels has the label -1; right are 0 to 2"),
    "stray": ({"test_labels": np.full((12, 1), 2**40)}, "has the label 1099511627776, but fewer images"),
    "one class": (
        {f"{p}_labels": np.zeros(n, U8) for p, n in (("train", 30), ("val", 9), ("test", 12))},
        "two classes",
    ),
    "empty": ({"train_images": np.zeros((0, 8, 8), U8), "train_labels": np.zeros(0, U8)}, "train_images is empty"),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_content_is_named(write, change, message):
    with pytest.raises(UserError, match=message) as error:
        load(write(change=change))
    assert "mine.npz: " in str(error.value)


def test_label_beyond_the_known_classes(write):
    with pytest.raises(UserError, match="has the label 8; right are 0 to 7"):
        load(write("bloodmnist.npz", classes=9))


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(UserError, match="there is no such file"):
        load(tmp_path / "no.npz")
    with pytest.raises(UserError, match="a folder"):
        load(tmp_path)


@pytest.mark.parametrize("keep", [0, 100, 0.5, 0.99])
def test_truncated_file(write, keep):
    path = write()
    content = path.read_bytes()
    path.write_bytes(content[: keep if isinstance(keep, int) else int(keep * len(content))])
    with pytest.raises(UserError, match=r"mine\.npz: damaged"):
        load(path)


def test_flipped_bytes_never_give_a_traceback(write):
    path = write(train=6, val=3, test=3)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    damaged = 0
    for position in rng.integers(0, len(content), 300):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :])
        try:
            load(path)
        except UserError:
            damaged += 1
    assert damaged > 200


def test_official_names():
    assert split_name("organamnist_64") == ("organamnist", 64)
    assert split_name("my_set") == ("my_set", 28)
    assert official_md5("organamnist") == "68e3f8846a6bd62f0c9bf841c0d9eacc"
    assert official_md5("bloodmnist_64") != official_md5("bloodmnist")
    assert official_md5("mine") is None
    assert official("bloodmnist_64")[0].endswith("bloodmnist_64.npz?download=1")
    with pytest.raises(UserError, match="no set 'heartmnist3d'"):
        official("heartmnist3d")


def test_reading_the_table_makes_nothing_in_the_users_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _table.__wrapped__() == _table()
    assert not list(tmp_path.iterdir())


def _kind(task):
    return "m" if task.startswith("multi-label") else task[0] if task.startswith("ordinal") else ""


def test_table_agrees_with_the_medmnist_package():
    table = _table()
    assert set(table) == set(MEDMNIST)
    for name, known in MEDMNIST.items():
        entry = table[name]
        assert known.title == entry["python_class"]
        assert known.images == sum(entry["n_samples"].values())
        assert known.licence == entry["license"]
        assert known.volumes == name.endswith("3d")
        assert known.task == {"m": "multi-label", "o": "ordinal"}.get(_kind(entry["task"]), "classification")
        # One class name is shortened: "immature granulocytes(myelocytes, ...)".
        pairs = zip(known.classes, entry["label"].values(), strict=True)
        assert all(theirs.lower().startswith(ours.lower()) for ours, theirs in pairs)
