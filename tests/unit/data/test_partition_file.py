import json

import numpy as np
import pytest

from medpfl.core.errors import UserError
from medpfl.core.site_data import PARTS
from medpfl.data.partition.make import make_partition
from medpfl.data.partition.partition_file import Partition


@pytest.fixture
def saved(dataset, tmp_path):
    path = tmp_path / "p.json"
    make_partition(dataset, "dirichlet:0.5", 4, 3, holdout=0.05).save(path)
    return path


def test_round_trip(dataset, saved):
    before = make_partition(dataset, "dirichlet:0.5", 4, 3, holdout=0.05)
    after = make_partition(dataset, f"file:{saved}")
    assert (after.spec, after.seed, after.md5, after.dataset) == ("dirichlet:0.5", 3, dataset.md5, "mine")
    assert after.holdout.tolist() == before.holdout.tolist()
    for a, b in zip(before.sites, after.sites, strict=True):
        assert a.name == b.name
        assert all(getattr(a, part).tolist() == getattr(b, part).tolist() for part in PARTS)
    assert [s.name for s in after.sites] == ["site-1", "site-2", "site-3", "site-4"]
    assert sum(map(len, after.sites)) == 950


def test_by_hand(dataset, tmp_path):
    path = tmp_path / "hand.json"
    path.write_text('{"berlin": {"train": [0, 6], "test": [7]}, "lima": {"train": [1], "validation": []}}')
    partition = Partition.load(path, dataset)
    assert [site.name for site in partition.sites] == ["berlin", "lima"]
    assert partition.md5 == ""
    counts = {s.name: dataset.counts(np.concatenate([getattr(s, part) for part in PARTS])) for s in partition.sites}
    assert {name: c.tolist() for name, c in counts.items()} == {"berlin": [1, 1, 1, 0, 0], "lima": [0, 1, 0, 0, 0]}
    assert partition.sites[1].test.dtype == np.int64


def test_a_file_is_taken_as_it_is(dataset, saved):
    with pytest.raises(UserError, match=r"--sites 5: .*has 4 sites"):
        make_partition(dataset, f"file:{saved}", 5)
    with pytest.raises(UserError, match="without --train-fraction"):
        make_partition(dataset, f"file:{saved}", 4, train_fraction=0.5)


TAMPERED = {
    "md5": (lambda c: c["dataset"].update(md5="0"), "belongs to mine with MD5 0"),
    "schema": (lambda c: c.update(schema=9), "has schema 9"),
    "twice": (
        lambda c: c["sites"]["site-2"]["test"].append(c["sites"]["site-1"]["train"][0]),
        "site-1 train and in site-2",
    ),
    "twice in one": (lambda c: c["holdout"].append(c["holdout"][0]), "in holdout and in holdout"),
    "range": (
        lambda c: c["sites"]["site-3"]["train"].append(1000),
        "site-3 train has image 1000; the data set has 0 to 999",
    ),
    "negative": (lambda c: c["sites"]["site-3"]["train"].append(-1), "site-3 train has image -1"),
    "no training": (lambda c: c["sites"]["site-4"].update(train=[]), "site-4 has no training image"),
    "floats": (lambda c: c["sites"]["site-1"].update(test=[0.5]), "site-1 test must be a list"),
    "nested": (lambda c: c["sites"]["site-1"].update(test=[[1], [2, 3]]), "site-1 test must be a list"),
    "text": (lambda c: c["sites"]["site-1"].update(test="17"), "site-1 test must be a list"),
    "huge": (lambda c: c["sites"]["site-1"].update(test=[2**80]), "site-1 test must be a list"),
    "part": (lambda c: c["sites"]["site-1"].update(val=[1]), "site-1 has 'val'; right are train"),
    "site": (lambda c: c["sites"].update({"../x": {"train": [1]}}), "site name '../x'"),
    "no site": (lambda c: c.update(sites={}), "has no site"),
    "sites": (lambda c: c.update(sites=[]), "sites is missing or not an object"),
    "seed": (lambda c: c.update(seed="x"), "seed is 'x'"),
}


@pytest.mark.parametrize(("change", "message"), TAMPERED.values(), ids=TAMPERED.keys())
def test_tampering_is_named(dataset, saved, change, message):
    content = json.loads(saved.read_text())
    change(content)
    saved.write_text(json.dumps(content))
    with pytest.raises(UserError, match=message) as error:
        Partition.load(saved, dataset)
    assert str(error.value).startswith(str(saved))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a JSON file"),
        ("[1]", "not a partition"),
        ("", "not a JSON file"),
        ('{"a": {"train": [1]}, "a": {"train": [2]}}', "a occurs twice"),
        ('{"a": 1}', "a is missing or not an object"),
    ],
)
def test_not_a_partition(dataset, tmp_path, text, message):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UserError, match=message):
        Partition.load(tmp_path / "x.json", dataset)


def test_missing_and_unwritable(dataset, tmp_path):
    with pytest.raises(UserError, match=r"no\.json: the partition cannot be read"):
        Partition.load(tmp_path / "no.json", dataset)
    with pytest.raises(UserError, match="cannot be written"):
        make_partition(dataset, "iid", 2).save(tmp_path / "no" / "p.json")
