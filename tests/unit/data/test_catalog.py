import errno
import hashlib
import pwd
import re
import urllib.error
from pathlib import Path

import numpy as np
import pytest
from tiny import no_space

from medpfl.core.errors import UserError
from medpfl.data import places
from medpfl.data.check import check, check_deep
from medpfl.data.elsewhere import ELSEWHERE
from medpfl.data.kinds.npz import download
from medpfl.data.kinds.npz.catalog import MASKED_SAMPLE, SAMPLE, SAMPLE_IMAGES, find, open_dataset, rows
from medpfl.data.kinds.npz.download import prepare
from medpfl.data.kinds.npz.medmnist import MEDMNIST


def test_sample_is_there_and_balanced_like_the_original(home):
    dataset = open_dataset(SAMPLE)
    assert len(dataset) == SAMPLE_IMAGES
    assert (dataset.size, dataset.channels, dataset.n_classes) == (28, 1, 11)
    np.testing.assert_allclose(
        np.bincount(dataset.split) / len(dataset), np.array([34561, 6491, 17778]) / 58830, atol=1e-3
    )
    official = np.array([1956, 1390, 1357, 1474, 3963, 3817, 6164, 3919, 3929, 3031, 3561])
    training = np.bincount(dataset.labels[dataset.split == 0])
    np.testing.assert_allclose(training / training.sum(), official / official.sum(), atol=1e-3)
    assert dataset.classes[6] == "liver"
    assert dataset.source.endswith("organamnist-sample.npz")


def test_find_looks_in_order(home, write):
    path = write()
    assert find(path) == path
    (home / "cache" / "medpfl").mkdir(parents=True)
    cached = home / "cache" / "medpfl" / "bloodmnist_64.npz"
    path.rename(cached)
    assert find("BloodMNIST_64") == cached
    own = home / "data" / "bloodmnist_64.npz"
    own.write_bytes(cached.read_bytes())
    assert find("bloodmnist_64") == own


def test_a_user_without_a_home_needs_none_for_what_comes_with_the_package(home, monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME", "MEDPFL_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])  # as in a container that knows no such user
    assert find(SAMPLE).is_file()
    with pytest.raises(UserError, match="looked in no folder: set MEDPFL_DATA"):
        find("bloodmnist")
    with pytest.raises(UserError, match="no home folder to keep a cache in: set XDG_CACHE_HOME"):
        prepare("bloodmnist")
    with pytest.raises(UserError, match=r"^~/x\.npz: there is no such file"):
        find("~/x.npz")


def test_a_home_that_nobody_here_has_is_no_path(home):
    with pytest.raises(UserError, match=r"^~nobody-here/x\.npz: there is no such file"):
        find("~nobody-here/x.npz")


def test_a_cache_that_may_not_be_looked_into_has_nothing(home, write, monkeypatch):
    closed, stat = home / "cache" / "medpfl", Path.stat

    def may_not(path, **how):
        if closed in path.parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", may_not)
    assert find(SAMPLE).is_file()
    with pytest.raises(UserError, match="'bloodmnist' is not on this machine") as error:
        find("bloodmnist")
    assert str(closed) not in str(error.value)
    (home / "data" / "bloodmnist.npz").touch()
    assert find("bloodmnist") == home / "data" / "bloodmnist.npz"


def test_what_is_missing_and_how_to_get_it(home):
    with pytest.raises(UserError, match=r"'bloodmnist' .* run `medpfl data prepare bloodmnist`") as error:
        find("bloodmnist")
    assert str(home / "data") in str(error.value)
    assert str(home / "cache" / "medpfl") in str(error.value)
    with pytest.raises(UserError, match="prepare bloodmnist --size 64"):
        find("bloodmnist_64")
    (home / "data" / "bloodmnist_64.npz").touch()
    with pytest.raises(UserError, match="use bloodmnist_64, which is there"):
        find("bloodmnist")
    with pytest.raises(
        UserError, match=r"blodmnist: there is no file or folder of that name, .*: give the path of data, or"
    ):
        find("blodmnist")
    for name, words in (("a.nii", "one volume"), ("a.nii.gz", "compressed, as a NIfTI"), ("a.dcm", "one DICOM file")):
        (home / name).write_bytes(b"x")
        with pytest.raises(UserError, match=f"{name}: {words}.*: give the folder of its table"):
            open_dataset(home / name)
    with pytest.raises(UserError, match=r"x/mine\.npz: there is no such file"):
        find("x/mine.npz")
    with pytest.raises(UserError, match="a folder"):
        find(home / "data")


def test_rows(home):
    listing = {row.name: row for row in rows()}
    assert list(listing) == [SAMPLE, MASKED_SAMPLE, *MEDMNIST, *ELSEWHERE]
    assert listing["bloodmnist"].where == "medpfl data prepare bloodmnist"
    assert listing["chestmnist"].where == "medpfl data prepare chestmnist"
    assert listing[SAMPLE].where.endswith(".npz")
    assert listing["pamap2"].where.startswith("https://archive.ics.uci.edu/")
    (home / "data" / "pamap2").mkdir()
    assert {row.name: row for row in rows()}["pamap2"].where == str(home / "data" / "pamap2")
    for name in ELSEWHERE:
        assert (Path(__file__).parents[3] / "datasets" / f"{name}.md").is_file()


@pytest.fixture
def published(home, write, monkeypatch):
    path = write("published.npz")
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    monkeypatch.setattr(download, "official", lambda name: (path.as_uri(), md5))
    return path


def test_prepare_fetches_once(home, published, monkeypatch):
    seen = []
    target = prepare("breastmnist", progress=lambda done, total: seen.append((done, total)))
    assert target == home / "cache" / "medpfl" / "breastmnist.npz"
    assert target.read_bytes() == published.read_bytes()
    assert seen[-1] == (published.stat().st_size,) * 2
    assert find("breastmnist") == target
    monkeypatch.setattr(download, "_download", None)
    assert prepare("breastmnist") == target
    assert all(prepare(name) == find(name) for name in (SAMPLE, MASKED_SAMPLE))


def test_prepare_replaces_a_damaged_file(home, published):
    target = home / "cache" / "medpfl" / "breastmnist_64.npz"
    target.parent.mkdir(parents=True)
    target.write_bytes(b"half")
    assert prepare("breastmnist", size=64).read_bytes() == published.read_bytes()


def test_prepare_leaves_nothing_half_written(home, published, monkeypatch):
    monkeypatch.setattr(download, "official", lambda name: (published.as_uri(), "0" * 32))
    with pytest.raises(UserError, match="should be 0000"):
        prepare("breastmnist")

    def unreachable(url, timeout):
        raise urllib.error.URLError("no route")

    monkeypatch.setattr(download.urllib.request, "urlopen", unreachable)
    with pytest.raises(UserError, match=r"file:.*cannot be fetched .*no route.*\n.*breastmnist\.npz"):
        prepare("breastmnist")
    assert list((home / "cache" / "medpfl").iterdir()) == []


def test_prepare_on_a_full_disk_blames_the_disk(home, published):
    with no_space(), pytest.raises(UserError, match=r"medpfl: cannot be written \(.*File too large.*XDG_CACHE_HOME"):
        prepare("breastmnist")
    assert list((home / "cache" / "medpfl").iterdir()) == []


def test_prepare_refuses(home):
    with pytest.raises(UserError, match="no images of 32 pixels"):
        prepare("breastmnist", size=32)
    with pytest.raises(UserError, match="volumes come in 28 and 64 voxels"):
        prepare("organmnist3d", size=224)
    with pytest.raises(UserError, match="no set 'mine'"):
        prepare("mine")
    places.cache_folder().parent.touch()
    with pytest.raises(UserError, match="cannot be written"):
        prepare("breastmnist")


def test_check_of_a_good_file(write):
    findings = check(write())
    assert {finding.level for finding in findings} == {"ok", "note"}
    text = "\n".join(finding.message for finding in findings)
    assert "51 grey images, 8×8 pixels" in text
    assert "train 30, validation 9, test 12" in text
    assert "3 classes: 0 17, 1 17, 2 17" in text
    assert "label 0 is the first class of the job: ask for their order" in text
    assert "each counts as its own patient" in text


LOOK = {"classes": "a,b,c", "size": 8, "channels": "grey"}


@pytest.mark.parametrize(
    ("change", "level", "said"),
    [
        ({}, "ok", "labels are taken as the job's classes by number: 0 a, 1 b, 2 c"),
        ({"classes": "a,b"}, "error", "has the label 2; .* 2 classes, 0 to 1: a, b"),
        ({"size": 28}, "error", "images of 8 pixels; .* 28"),
        ({"channels": "rgb"}, "error", "grey images; .* colour ones"),
        ({"size": None, "channels": None}, "ok", "labels are taken as the job's classes by number: 0 a, 1 b, 2 c"),
        ({"classes": "a,b", "size": None, "channels": None}, "error", "has the label 2; .* 2 classes, 0 to 1: a, b"),
    ],
)
def test_check_of_a_file_as_a_job_describes_it(write, change, level, said):
    found = check(write(), {name: value for name, value in (LOOK | change).items() if value is not None})
    assert any(f.level == level and re.search(said, f.message) for f in found)
    assert ("error" in {f.level for f in found}) == (level == "error")


def test_check_of_a_file_with_arguments_that_images_do_not_have(write):
    with pytest.raises(UserError, match="--data-arg window: images have the argument pad, or classes, size and chann"):
        check(write(), {"window": [0, 1]})
    with pytest.raises(UserError, match="--data-arg window: "):
        check(write(), LOOK | {"window": [0, 1]})
    with pytest.raises(UserError, match="--data-arg size: an npz file takes size and channels with classes: add"):
        check(write(), {"size": 8})


def test_check_finds_what_spoils_results(write, arrays):
    content = arrays()
    images = content["test_images"]
    images[:3] = content["train_images"][:3]
    images[3] = 7
    labels = content["test_labels"]
    labels[0] = 3
    path = write("organamnist.npz", change={"test_images": images, "test_labels": labels})
    warnings = [finding.message for finding in check(path) if finding.level == "warning"]
    assert any("test images that are training images too: 3;" in w for w in warnings)
    assert "images with one value in all pixels: 1, the first is number 42" in warnings
    assert "identical images with different labels: 1" in warnings
    assert "no training image of class heart" in warnings
    assert any(w.startswith("no image at all of class kidney-left") for w in warnings)
    assert any("is not the official 68e3f8846a6bd62f0c9bf841c0d9eacc" in w for w in warnings)


def test_check_of_a_broken_file(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"no zip")
    (finding,) = check(tmp_path / "x.npz")
    assert finding.level == "error"
    assert "damaged" in finding.message


def test_a_check_of_a_path_where_nothing_is_says_so_whatever_else_is_said(tmp_path):
    for found in (check("no/folder", {"size": 64}), check_deep("no/folder", tmp_path / "page.html", {"size": 64})):
        assert [(one.level, one.message) for one in found] == [("error", "no/folder: there is no such file or folder")]


def test_a_folder_by_name_that_holds_nothing_to_train_on_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MEDPFL_DATA", str(tmp_path))
    (tmp_path / "ward" / "series").mkdir(parents=True)
    for found in (check("ward"), check_deep("ward", tmp_path / "page.html")):
        assert [f.level for f in found] == ["error"]
        assert f"{tmp_path / 'ward'} has neither a label table nor images of classes or with masks" in found[0].message
    [found] = check_deep("wrad", tmp_path / "page.html")
    assert "no file or folder of that name" in found.message
    assert not (tmp_path / "page.html").exists()


def test_an_empty_folder_is_said_to_be_empty(tmp_path):
    (tmp_path / "ward").mkdir()
    [found] = check(str(tmp_path / "ward"))
    assert found.message.endswith("ward: the folder is empty")
    (tmp_path / "ward" / "notes.txt").write_text("")
    [found] = check(str(tmp_path / "ward"))
    assert f"`medpfl data inventory {tmp_path / 'ward'}` lists what is there" in found.message
