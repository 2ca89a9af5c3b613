"""Scans with several labels each, in a list or in columns, some of them not known."""

import json
import re

import pytest
import torch
from make_dicom import chest, write_nifti, write_series

from medpfl.cli.options import Options
from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.data.check import check, check_deep
from medpfl.data.kinds.scans.manifest import open_manifest
from medpfl.data.sites import open_source
from medpfl.runs.experiment import run_experiment

CPU = torch.device("cpu")
LISTED = ["", "emphysema", "nodule|emphysema", "nodule"] * 2
IN_COLUMNS = ["0,0", "1,0", "1.0,yes", ",1", "1,NA", "-1,0", "1,1", "false,0"]


def _table(folder, rows, heads):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "labels.csv").write_text("\n".join([heads, *rows]) + "\n")
    return folder


def _listed(folder, rows=LISTED):
    for n in range(len(rows)):
        write_series(folder / f"s{n}", chest(slices=4, edge=16, seed=n), patient=f"{folder.name}-{n // 2}")
    return _table(folder, [f"s{n},{labels}" for n, labels in enumerate(rows)], "series,labels")


def _in_columns(folder, rows=IN_COLUMNS, heads="series,label: emphysema,Label:nodule"):
    for n in range(len(rows)):
        write_nifti(folder / f"{folder.name}{n}.nii", chest(slices=4, edge=16, seed=50 + n))
    return _table(folder, [f"{folder.name}{n}.nii,{labels}" for n, labels in enumerate(rows)], heads)


@pytest.fixture
def cohort(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "chest"
    _listed(root / "north")
    _in_columns(root / "south")
    return root


def _config(data, **fields):
    arguments = {"size": 16, "slices": 2, "spacing": [0, 0, 0]} | fields.pop("data_args", {})
    given = {"sites": 2, "fractions": (0.5, 0.0, 0.5), "rounds": 1, "local_epochs": 1, "task": "multi-label"}
    fields = {"algorithm": "fedavg", "partition": "natural", "model": "lenet5", "alone": "no"} | given | fields
    return make_config(data=str(data), data_args=arguments, device="cpu", **fields)


def test_a_list_says_all_and_columns_may_leave_out(cohort):
    source = open_source(_config(cohort))
    north, south = source._samples("north"), source._samples("south")
    assert source.manifest.classes == ("emphysema", "nodule")
    assert [scan.labels for scan in north[:4]] == [(0, 0), (1, 0), (1, 1), (0, 1)]
    assert [scan.labels for scan in south] == [
        (0, 0), (1, 0), (1, 1), (-1, 1), (1, -1), (-1, 0), (1, 1), (0, 0)
    ]  # fmt: skip
    # Divided by the rarest label there is: in the south nodule (3) before emphysema (4), and those without any.
    assert [scan.label for scan in south] == [2, 0, 1, 1, 0, 2, 1, 2]


@pytest.mark.parametrize("pooling", ["mean", "attention"])
def test_a_scans_slices_carry_its_labels(cohort, pooling):
    source = open_source(_config(cohort, pooling=pooling))
    data = source.site("site-1", CPU)
    each = 1 if pooling == "attention" else 2
    labels = torch.cat([data.labels[part] for part in ("train", "validation", "test")])
    assert labels.shape == (8 * each, 2) and labels.sum(0).tolist() == [4 * each, 4 * each]
    # A patient whose scans have different labels is two, of one person.
    assert len(set(data.bags("train").tolist())) == 4 and len(set(data.owners("train").tolist())) == 2
    sites = source.describe()["sites"]
    assert sites["site-2"]["classes"] == {"0": 4, "1": 3} and "judged_classes" not in sites["site-1"]


def test_the_data_say_the_task_and_a_run_ends(cohort, tmp_path):
    asked = Options(data=str(cohort)).config("fedavg")
    assert asked.task == "multi-label" and asked.sites == 2
    with pytest.raises(UserError, match=r"--task classification: .* has several labels an image"):
        Options(data=str(cohort), task="classification").config("fedavg")
    results = run_experiment(_config(cohort), tmp_path / "run", env="inprocess")
    assert results["status"] == "finished" and results["data"]["classes"] == ["emphysema", "nodule"]
    assert results["config"]["task"] == "multi-label" and results["data"]["sites"]["site-2"]["test"] == 4


def test_a_sites_own_table_of_another_form_is_refused(cohort, tmp_path):
    _table(tmp_path / "own", ["a.nii,emphysema", "b.nii,nodule"], "series,label")
    with pytest.raises(UserError, match="say one class a scan; --task multi-label needs another"):
        open_source(_config(cohort, sites=1), tmp_path / "own").site("site-1", CPU)
    with pytest.raises(UserError, match="say several labels a scan; --task classification needs another"):
        open_source(_config(cohort, task="classification"), cohort / "north").site("site-1", CPU)


def test_one_centre_is_divided_over_sites_by_patient(cohort):
    source = open_source(_config(cohort / "north", partition="iid"))
    sites = [source.site(name, CPU) for name in ("site-1", "site-2")]
    assert sum(site.labels[part].shape[0] for site in sites for part in ("train", "validation", "test")) == 16


def test_the_check_counts_labels_and_what_is_not_known(cohort, tmp_path):
    found = [f.message for f in check_deep(cohort, tmp_path / "page.html", {"size": 16, "slices": 2})]
    assert "chest, 2 centres, labels, several a scan: emphysema, nodule" in found
    assert "north: emphysema 4, nodule 4; 2 scans with none of them" in found
    assert "south: emphysema 4 of 6 known, nodule 3 of 7 known; 3 scans with none of them" in found
    assert any("patient north-0 has scans with different labels (and 3 more" in words for words in found)
    assert not any("test cases are of class" in words for words in found)
    page = (tmp_path / "page.html").read_text()
    assert "emphysema + nodule" in page and "no label" in page


def test_a_label_that_a_table_has_no_column_for_is_not_known_there(cohort):
    _in_columns(cohort / "west", ["1", "0"], "series,label: emphysema")
    source = open_source(_config(cohort, sites=3))
    assert [scan.labels for scan in source._samples("west")] == [(1, -1), (0, -1)]
    assert any("west: emphysema 1, nodule 0 of 0 known" in f.message for f in check(cohort))


def test_copies_with_other_labels_are_an_error(cohort):
    write_series(cohort / "south" / "s", chest(slices=4, edge=16, seed=1), patient="again")
    with open(cohort / "south" / "labels.csv", "a") as table:
        table.write("s,0,1\n")
    (words,) = [f.message for f in check(cohort) if f.level == "error"]
    assert "have the same content and different labels, emphysema and nodule" in words


@pytest.mark.parametrize(
    ("heads", "row", "words"),
    [
        ("series,labels", "emphysema|mass", "line 3: label 'mass' is neither a class"),
        ("series,labels", "7", "line 3: label '7' is neither a class"),
        ("series,labels", "nodule|NA", "line 3: label 'NA' is no class"),
        ("series,labels", "seg.nii.gz", "line 3: label 'seg.nii.gz' is a file"),
        ("series,label: emphysema,label: nodule", "1,2", r"line 3: label: nodule is '2'; right are 1 \(there\), 0"),
        ("series,label: emphysema,label: nodule", ",nan", "line 3: of none of its labels it is said"),
        ("series,label: emphysema,label: mass", "1,1", "label 'mass' is neither a class"),
        ("series,label: emphysema,label: emphysema", "1,1", "two columns are called 'label: emphysema'"),
        ("series,label: emphysema,label:", "1,1", "a column is called 'label: '"),
        ("series,label,labels", "nodule,nodule", "says labels in two ways"),
        ("series,labels,label: nodule", "nodule,1", "says labels in two ways"),
        ("series,labels", "emphysema,nodule", "line 3: 3 cells, and the first line has 2"),
        ("series,diagnosis", "nodule", r"'label'.*Several labels a row stand in one column 'labels'"),
    ],
)
def test_a_table_of_several_labels_that_cannot_be_used(tmp_path, heads, row, words):
    for n in range(2):
        write_nifti(tmp_path / f"{n}.nii", chest(slices=4, edge=16, seed=n))
    first = "1,0" if heads.count(",") == 2 else "nodule"
    _table(tmp_path, [f"0.nii,{first}", f"1.nii,{row}"], heads)
    centre = {"name": "a", "kind": "nifti", "folder": ".", "labels": "labels.csv"}
    manifest = {"schema": 1, "name": "ct", "classes": ["emphysema", "nodule"], "centres": [centre]}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    found = [f.message for f in check(tmp_path) if f.level == "error"]
    assert re.search(words, "\n".join(found))


def test_tables_of_one_form_alone(cohort):
    _table(cohort / "west", ["a.nii,emphysema", "b.nii,nodule"], "series,label")
    with pytest.raises(UserError, match=r"says several labels a row, .*west.* a class: all must have one form"):
        open_source(_config(cohort, sites=3)).site("site-1", CPU)
    assert any("all must have one form" in f.message for f in check(cohort) if f.level == "error")


def test_a_datalist_has_one_class_a_scan(tmp_path):
    items = [{"image": f"{n}.nii", "label": [n % 2, 1]} for n in range(3)]
    (tmp_path / "datalist.json").write_text(json.dumps({"training": items}))
    with pytest.raises(UserError, match=r"not a list \(several labels stand in a labels.csv"):
        open_manifest(tmp_path)
