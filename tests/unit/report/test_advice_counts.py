"""Files of what sites tell: numbers of samples, and every other thing is refused by file, site and column."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medpfl.core.errors import UserError
from medpfl.report.advice.counts import read_counts
from medpfl.report.advice.numbers import SiteNumbers

GOOD = "site,train,validation,test,class:a,class:b\nnorth,73,10,40,100,23\nsouth,20,3,9,,\n"
READ = [SiteNumbers("north", 73, 10, 40, {"a": 100, "b": 23}), SiteNumbers("south", 20, 3, 9)]


def read(tmp_path, text, name="sites.csv"):
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_counts(file).sites


@pytest.mark.parametrize(
    "text", [GOOD, GOOD.replace(",", ";"), GOOD.replace(",", "\t"), "\ufeff" + GOOD, "\n" + GOOD, "sep=,\n" + GOOD]
)
def test_csv(tmp_path, text):
    assert read(tmp_path, text) == READ


def test_json(tmp_path):
    content = {site.name: site.to_json() for site in READ}
    assert read(tmp_path, json.dumps(content), "sites.json") == READ
    del content["south"]["classes"]
    assert read(tmp_path, json.dumps(content), "sites.json") == READ


def test_an_earlier_run_tells_them_too(tmp_path):
    entry = {"train": 5, "validation": 1, "test": 4, "classes": {"0": 10}, "centre": "x", "patients": 3}
    content = {
        "schema": 1,
        "algorithm": "fedbn",
        "config": {},
        "data": {"sites": {"a": entry, "b": entry}},
        "rounds": [],
    }
    (tmp_path / "results.json").write_text(json.dumps(content))
    expected = [SiteNumbers(name, 5, 1, 4, {"0": 10}) for name in "ab"]
    assert read_counts(tmp_path) == read_counts(tmp_path / "results.json") == (expected, "accuracy", None)
    content["config"]["task"] = "segmentation"  # whose counts are of images that have a structure, in any number
    entry["classes"] = {"0": 10, "1": 9}
    (tmp_path / "results.json").write_text(json.dumps(content))
    assert read_counts(tmp_path) == ([site._replace(classes=None) for site in expected], "dice", None)
    for partition, shift in [("dirichlet:0.5", False), ("natural", None), ("file:mine.json", None)]:
        content["data"]["partition"] = partition  # one data set that is dealt looks alike at all sites
        (tmp_path / "results.json").write_text(json.dumps(content))
        assert read_counts(tmp_path).shift is shift
    content["data"]["sites"] = {}
    (tmp_path / "results.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="does not say its sites' numbers"):
        read_counts(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("73", "73.5", "site 'north', train: 73.5; a whole number of samples"),
        ("73", "-1", "site 'north', train: -1"),
        ("73", "1e3", "site 'north', train: 1e3"),
        ("73", "９", "site 'north', train"),
        ("73", "99999999999", "site 'north', train"),
        ("73", "nan", "site 'north', train: nan"),
        ("20,", ",", "site 'south', train: nothing"),
        ("20,", "0,", "site 'south', train: 0; a site that takes part has training samples"),
        ("100,23", "100,x", "site 'north', class:b: x"),
        ("100,23", "100,", "site 'north', class:b: nothing"),
        ("100,23", "60,10000", "its classes sum to 10060, and it has 73 samples for training and 123 in all"),
        ("100,23", "1,2", "its classes sum to 3"),
        ("class:b", "age", "column 'age' is not known; right are site, train, validation, test, and class:NAME"),
        ("class:b", "class:a", "column 'class:a' is there twice"),
        ("class:b", "class:", "names no class"),
        ("validation", "train", "column 'train' is there twice"),
        (",test", ",class:t", "column 'test' is missing"),
        ("south", "north", "site 'north' is there twice"),
        ("south", "", "a site has no name"),
        ("south,", "south,1,", "site 'south' has 7 values, and there are 6 columns"),
        (GOOD, "", "it is empty"),
        (GOOD, GOOD[: GOOD.index("south")], "1 site: a federation has two or more"),
        ("north", '"nor\x00th', ""),
    ],
)
def test_what_is_wrong_with_csv_is_named(tmp_path, old, new, said):
    assert old in GOOD
    with pytest.raises(UserError, match=r"sites\.csv") as raised:
        read(tmp_path, GOOD.replace(old, new, 1))
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "no object of sites"),
        ("{", "not JSON"),
        ('{"a": 3}', "site 'a' is no object"),
        ('{"a": {"train": 3, "validation": 1, "test": 1, "mean age": 61}}', "site 'a': 'mean age' is not known"),
        ('{"a": {"train": true, "validation": 1, "test": 1}}', "site 'a', train: True"),
        ('{"a": {"train": 3.0, "validation": 1, "test": 1}}', "site 'a', train: 3.0"),
        ('{"a": {"train": NaN, "validation": 1, "test": 1}}', "site 'a', train: nan"),
        ('{"a": {"train": [3], "validation": 1, "test": 1}}', "site 'a', train: [3]"),
        ('{"a": {"train": 3, "test": 1}}', "site 'a', validation: nothing"),
        ('{"a": {"train": 3, "validation": 1, "test": 1, "classes": [3]}}', "site 'a': classes is no object"),
        ('{"a": {"train": 3, "validation": 1, "test": 1, "classes": {"x": 0.5}}}', "site 'a', classes.x: 0.5"),
        ('{"a": {"train": 3, "train": 4, "validation": 1, "test": 1}}', "name 'train' is there twice"),
        ('{"schema": 1}', "sites.json: 'algorithm' is missing"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_what_is_wrong_with_json_is_named(tmp_path, text, said):
    with pytest.raises(UserError, match=r"sites\.json") as raised:
        read(tmp_path, text, "sites.json")
    assert said in str(raised.value)


def test_no_file_and_no_text(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_counts(tmp_path / "nowhere.csv")
    with pytest.raises(UserError, match="not a text file"):
        read(tmp_path, b"\xff\xfe\x00PK")
    with pytest.raises(UserError, match=r"results\.json: no such file"):
        read_counts(tmp_path)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_in_words(tmp_path_factory, text):
    file = tmp_path_factory.getbasetemp() / "any.csv"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(UserError, match=r"any\.csv"):
        read_counts(file)
