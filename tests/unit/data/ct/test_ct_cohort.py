import json

import pytest
import torch
from make_dicom import chest, write_centre, write_nifti, write_series

from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.data.kinds.scans.centre_scans import read_centre
from medpfl.data.kinds.scans.manifest import open_manifest
from medpfl.data.sites import open_source


def _read(folder, **changes):
    manifest = open_manifest(folder).model_copy(update=changes)
    return read_centre(manifest, manifest.centres[0].name)


def _table(folder, *rows, head="series,label"):
    (folder / "labels.csv").write_text("\n".join([head, *rows]) + "\n")


def test_a_dicom_centre_by_folder_and_by_uid(tmp_path):
    write_centre(tmp_path, [0, 1, 1])
    uid = write_series(tmp_path / "deep" / "er", chest(), patient="P9")
    _table(tmp_path, "./s0/,0", "s2,1", f"{uid},1")
    scans = _read(tmp_path)
    assert [(s.patient, s.label, s.split, s.kind) for s in scans] == [
        ("P0", 0, None, "dicom"), ("P2", 1, None, "dicom"), ("P9", 1, None, "dicom")
    ]  # fmt: skip
    assert scans[2].id == uid and len(scans[2].files) == 12 and scans[0].centre == tmp_path.name


def test_a_table_from_a_spreadsheet(tmp_path):
    write_centre(tmp_path, [0, 1])
    text = "\ufeffSeries;Label;Patient;Split;Remark\r\ns0; ill ;A;Train;\r\n;;;;\r\ns1;healthy;B;test;looks, well\r\n"
    (tmp_path / "labels.csv").write_text(text, encoding="utf-8")
    scans = _read(tmp_path)
    assert [(s.patient, s.label, s.split) for s in scans] == [("A", 1, "train"), ("B", 0, "test")]


def test_a_nifti_centre_with_a_table(tmp_path):
    for name in ("x.nii.gz", "sub/y.nii"):
        write_nifti(tmp_path / name, chest())
    _table(tmp_path, "x.nii.gz,0", "sub/y.nii,1")
    assert [(s.patient, s.kind, s.id) for s in _read(tmp_path)] == [
        ("x", "nifti", "x.nii.gz"), ("y", "nifti", "sub/y.nii")
    ]  # fmt: skip


def test_a_datalist_with_files_and_series_and_keys_of_its_own(tmp_path):
    write_nifti(tmp_path / "x.nii.gz", chest())
    write_series(tmp_path / "s", chest(), patient="P5")
    items = [{"image": "x.nii.gz", "label": 1.0, "fold": 0}, {"image": "s", "label": 0, "patient": 17, "spacing": [1]}]
    (tmp_path / "datalist.json").write_text(json.dumps({"name": "ours", "training": items}))
    assert [(s.patient, s.label, s.split, s.kind) for s in _read(tmp_path)] == [
        ("x", 1, None, "nifti"), ("17", 0, None, "dicom")
    ]  # fmt: skip
    content = {"training": items[:1], "validation": items[1:]}
    (tmp_path / "datalist.json").write_text(json.dumps(content))
    assert [s.split for s in _read(tmp_path)] == ["train", "validation"]


def test_class_names_come_before_class_numbers(tmp_path):
    write_centre(tmp_path, ["1", "2"])
    assert [s.label for s in _read(tmp_path, classes=("1", "2"))] == [0, 1]
    assert [s.label for s in _read(tmp_path, classes=("low", "mid", "high"))] == [1, 2]


@pytest.fixture(scope="module")
def centre(tmp_path_factory):
    """Two scans, and what is none."""
    folder = tmp_path_factory.mktemp("centre")
    write_centre(folder, [0, 1])
    for name in ("a", "b"):
        write_series(folder / "two" / name, chest())
    (folder / "none").mkdir()
    (folder / "packed.zip").touch()
    write_series(folder / "mr", chest(), change=lambda n, d: setattr(d, "Modality", "MR"))
    write_series(folder / "anonymous", chest(), patient="")
    return folder


@pytest.mark.parametrize(
    "rows, head, words",
    [
        (["s0,0", "s1,7"], "series,label", r"line 3: label '7' is neither a class \(0, 1\) nor its number"),
        (
            ["s0,0", "s1,1.0"],
            "series,label",
            r"line 3: label '1.0': write 1, without decimals",
        ),
        (["s0,0", "s1,1", "s0,0"], "series,label", "line 4: s0 is there a second time, first in .*line 2"),
        (["s0,0", "s1,"], "series,label", "line 3: label is empty"),
        (["s0,0", ",1"], "series,label", "line 3: series is empty"),
        (["s0,0", "s1,1", "s7,1"], "series,label", "s7: there is neither a series nor a folder of that name"),
        (["s0,0", "s1,1", "two,1"], "series,label", "two: 2 series are in this folder"),
        (["s0,0", "s1,1", "none,1"], "series,label", "none: no DICOM series is in this folder"),
        (["s0,0,train", "s1,1,dev"], "series,label,split", "line 3: split is 'dev'; right are train"),
        (["s0,0,train", "s1,1,"], "series,label,split", "line 3: no split, while other rows have one"),
        (
            ["s0,0,train,A", "s1,1,test,A"],
            "series,label,split,patient",
            r"labels.csv, line 3: patient A is in train and in test \(first in .*labels.csv, line 2\)",
        ),
        (
            ["s0,0,train,q 0", "s1,1,test,Q0"],
            "series,label,split,patient",
            r"line 3: patient 'Q0' is in test and 'q 0' in train \(.*line 2\), and their names differ in case",
        ),
        (["s0,0", "s1,1", "1.28E+14,1"], "series,label", "a spreadsheet program has made a number of it"),
        (["s0,0", "s1,1", "two\\a,1"], "series,label", r"write / in paths, not \\"),
        (["s0,0", "s1,1", "packed,1"], "series,label", "packed.zip is there, unpack it"),
        (["s0,0", "s1,1", "mr,1"], "series,label", "mr: modality MR, not CT"),
        (["s0,0", "s1,1", "anonymous,1"], "series,label", "line 4: no patient: the files have no PatientID"),
    ],
)
def test_what_is_wrong_with_a_dicom_centre(centre, rows, head, words):
    _table(centre, *rows, head=head)
    with pytest.raises(UserError, match=words) as error:
        _read(centre, classes=("0", "1"))
    assert "\n" not in str(error.value)


def test_a_series_named_by_folder_and_by_uid_is_twice(tmp_path):
    write_centre(tmp_path, [0, 1])
    uid = write_series(tmp_path / "s2", chest())
    _table(tmp_path, "s0,0", "s2,1", f"{uid},1")
    with pytest.raises(UserError, match=r"is the series of .*line 3 once more"):
        _read(tmp_path)


@pytest.mark.parametrize(
    "content, words",
    [
        ({"training": [{"image": "x.nii", "label": 0}, {"image": "gone.nii", "label": 1}]}, r"gone.nii: there is no"),
        ({"training": [{"image": "x.nii", "label": 0}, {"image": "gone", "label": 1}]}, "no such folder or NIfTI"),
        ({"training": [{"image": "x.nii", "label": 0}, {"label": 1}]}, "training 2: must be"),
        ({"training": [{"image": "x.nii", "label": 0}, "y.nii"]}, "training 2: must be"),
        ({"training": [{"image": "x.nii", "label": 0}, {"image": "x.nii", "label": True}]}, "label is true"),
        ({"training": [{"image": "x.nii", "label": 0}, {"image": "sub/x.nii", "label": 1}]}, "2 files are called x"),
        ({"training": [{"image": "x.nii", "label": 0}], "test": [{"image": "x.nii", "label": 1}]}, "a second time"),
        ({"test": [{"image": "x.nii", "label": 0}]}, 'needs "training"'),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_datalist(tmp_path, content, words):
    write_nifti(tmp_path / "x.nii", chest())
    write_nifti(tmp_path / "sub" / "x.nii", chest())
    (tmp_path / "datalist.json").write_text(json.dumps(content))
    manifest = {"schema": 1, "name": "n", "classes": ["0", "1"]}
    manifest["centres"] = [{"name": "c", "kind": "nifti", "folder": ".", "datalist": "datalist.json"}]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=words):
        _read(tmp_path)


def _break(folder):
    (folder / "s0" / "005.dcm").unlink()
    content = (folder / "s2" / "003.dcm").read_bytes()
    (folder / "s2" / "003.dcm").write_bytes(content[:-100])


def test_the_first_problem_is_told_and_the_others_counted(tmp_path):
    write_centre(tmp_path, [0, 1, 1])
    _break(tmp_path)
    with pytest.raises(UserError, match=r"s0: 1 slice seems to be missing.*\(and 1 more: `medpfl data check"):
        _read(tmp_path)


def test_broken_scans_are_left_out_by_name_if_the_manifest_allows(tmp_path, caplog):
    write_centre(tmp_path, [0, 1, 1])
    _break(tmp_path)
    assert [s.patient for s in _read(tmp_path, skip_broken=True)] == ["P1"]
    assert "s0: 1 slice seems to be missing" in caplog.text and "003.dcm: cut short" in caplog.text


def test_results_count_no_scan_that_is_left_out_once_it_is_decoded(tmp_path, monkeypatch):
    """As raw values, of which headers say nothing; numbers of scans and patients were larger than what was trained."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root, parts = tmp_path / "ct", ("train", "train", "train", "test", "test")
    for name in ("north", "south"):
        for k in range(len(parts)):
            write_nifti(root / name / f"{name}{k}.nii", chest(seed=k) + 1024 * (k in (1, 4)))
        rows = [f"{name}{k}.nii,{k % 2},{part}" for k, part in enumerate(parts)]
        _table(root / name, *rows, head="series,label,split")
    centres = [{"name": n, "kind": "nifti", "folder": n, "labels": f"{n}/labels.csv"} for n in ("north", "south")]
    manifest = {"schema": 1, "name": "ct", "classes": ["0", "1"], "skip_broken": True, "centres": centres}
    (root / "manifest.json").write_text(json.dumps(manifest))
    small = {"data_args": {"size": 16, "slices": 2}, "partition": "natural", "sites": 1, "held_out": 1}
    source = open_source(make_config(algorithm="local", data=str(root), **small))
    site = source.site("site-1", torch.device("cpu"))
    told = source.describe()
    of_site, number = told["sites"]["site-1"], {part: len(site.owners(part).unique()) for part in ("train", "test")}
    assert {part: of_site[part] for part in number} == number == {"train": 2, "test": 1}
    assert of_site["scans"] == 3 and of_site["classes"] == {"0": 2, "1": 1}
    assert of_site["judged_classes"]["test"] == {"0": 0, "1": 1} and told["held_out"] == {"south": 3}


def test_a_wrong_table_is_never_left_out(tmp_path):
    write_centre(tmp_path, [0, 1])
    _table(tmp_path, "s0,0", "s1,9")
    with pytest.raises(UserError, match="label '9'"):
        _read(tmp_path, skip_broken=True, classes=("0", "1"))


def test_nothing_left_is_an_error(tmp_path):
    write_centre(tmp_path, [0, 1])
    for name in ("s0", "s1"):
        (tmp_path / name / "005.dcm").unlink()
    with pytest.raises(UserError, match="seems to be missing"):
        _read(tmp_path, skip_broken=True)


def test_no_such_centre(tmp_path):
    write_centre(tmp_path, [0, 1])
    with pytest.raises(UserError, match="has no centre 'x': it has"):
        read_centre(open_manifest(tmp_path), "x")


@pytest.mark.parametrize("name", ["x.nii", "x.nii.gz"])
def test_a_truncated_nifti_file_is_named(tmp_path, name):
    write_nifti(tmp_path / "y.nii", chest())
    path = write_nifti(tmp_path / name, chest())
    path.write_bytes(path.read_bytes()[:-500])
    _table(tmp_path, f"{name},0", "y.nii,1")
    with pytest.raises(UserError, match=f"{name}: cut short"):
        _read(tmp_path)
