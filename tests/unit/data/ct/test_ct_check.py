import json
import re
import shutil

import pytest
from make_dicom import chest, write_centre, write_nifti, write_series
from typer.testing import CliRunner

from medpfl.cli.main import app
from medpfl.core.errors import UserError
from medpfl.data.check import check, check_deep


def _words(path, level):
    return [finding.message for finding in check(path) if finding.level == level]


def test_a_good_folder_in_words(tmp_path):
    write_centre(tmp_path / "north", ["healthy", "ill", "ill"])
    (tmp_path / "north" / "notes.txt").touch()
    write_nifti(tmp_path / "south" / "x.nii.gz", chest(seed=9))
    (tmp_path / "south" / "datalist.json").write_text(
        json.dumps({"training": [{"image": "x.nii.gz", "label": "ill"}], "test": []})
    )
    assert _words(tmp_path, "error") == []
    text = "\n".join(_words(tmp_path, "ok"))
    for words in (
        "2 centres, classes: healthy, ill",
        "north: 3 patients, 3 scans that can be used",
        "north: healthy 1, ill 2",
        "DICOM: 12 slices, 2.5 mm apart and 2.5 mm thick; pixels 0.8 mm, 32×32",
        "scanners: ACME; kernels: B30f",
        "NIfTI: 32×32×12 voxels of 0.7, 0.8 and 2.5 mm",
        "north: 1 other file in the folder, not read",
    ):
        assert words in text
    warnings = _words(tmp_path, "warning")
    assert "south: no scan of class healthy" in warnings
    assert not [message for message in warnings if "HU" in message or "not used" in message]


def test_all_problems_are_listed(tmp_path):
    write_centre(tmp_path, [0, 1, 1, 0, 1])
    (tmp_path / "s0" / "003.dcm").unlink()
    path = tmp_path / "s1" / "004.dcm"
    path.write_bytes(path.read_bytes()[:-9])
    shutil.rmtree(tmp_path / "s2")
    write_series(tmp_path / "extra", chest())
    with open(tmp_path / "labels.csv", "a") as table:
        table.write("s3,1\n")
    errors, warnings = "\n".join(_words(tmp_path, "error")), "\n".join(_words(tmp_path, "warning"))
    for words in ("s0: 1 slice seems", "004.dcm: cut short", "s2: there is neither", "line 7: s3 is there a second"):
        assert words in errors
    assert "extra: the series" in warnings and "has no label" in warnings


def test_what_may_be_left_out_is_a_warning(tmp_path):
    write_centre(tmp_path / "a", [0, 1])
    (tmp_path / "a" / "s0" / "003.dcm").unlink()
    centre = {"name": "a", "kind": "dicom", "folder": "a", "labels": "a/labels.csv"}
    manifest = {"schema": 1, "name": "n", "classes": ["0", "1"], "skip_broken": True, "centres": [centre]}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"skip_broken": False}))
    assert len(_words(tmp_path, "error")) == 1
    assert '"skip_broken": true in a manifest.json' in _words(tmp_path, "note")[-1]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert _words(tmp_path, "error") == []
    assert not any("skip_broken" in words for words in _words(tmp_path, "note"))
    assert "left out, as the manifest allows" in _words(tmp_path / "manifest.json", "warning")[0]


def test_many_alike_are_counted(tmp_path):
    write_centre(tmp_path, [0, 1])
    rows = [f"gone{n},0" for n in range(50)]
    (tmp_path / "labels.csv").write_text("\n".join(["series,label", "s0,0", "s1,1", *rows]))
    errors = _words(tmp_path, "error")
    assert len(errors) == 21 and "and 30 more like these" in errors[-1]


@pytest.mark.parametrize("kind", ["dicom", "nifti"])
def test_values_without_their_offset_are_an_error(tmp_path, kind):
    for n in range(2):
        stored = chest(seed=n) + 1024
        if kind == "dicom":
            write_series(tmp_path / f"s{n}", stored, patient=f"P{n}")
        else:
            write_nifti(tmp_path / f"s{n}.nii.gz", stored)
    ending = "" if kind == "dicom" else ".nii.gz"
    (tmp_path / "labels.csv").write_text(f"series,label\ns0{ending},0\ns1{ending},1\n")
    errors = _words(tmp_path, "error")
    assert len(errors) == 2 and "look like HU without their offset of -1024" in errors[0]


def test_pixels_that_cannot_be_decoded_are_an_error(tmp_path):
    def cut(n, dataset):
        dataset.compress("1.2.840.10008.1.2.5")
        if n == 6:
            dataset["PixelData"]._value = dataset.PixelData.replace(dataset.PixelData[24:60], b"\x81" * 36)

    write_centre(tmp_path, [0, 1])
    shutil.rmtree(tmp_path / "s0")
    write_series(tmp_path / "s0", chest(), patient="P0", change=cut)
    assert "cannot be decoded" in "\n".join(_words(tmp_path, "error"))


def test_removed_patient_ids_are_noticed(tmp_path):
    for n in range(3):
        write_series(tmp_path / f"s{n}", chest(), patient="ANON")
    (tmp_path / "labels.csv").write_text("series,label\ns0,0\ns1,1\ns2,1\n")
    warnings = "\n".join(_words(tmp_path, "warning"))
    assert "all scans are of one patient" in warnings and "only one patient" not in warnings


def test_an_empty_folder_and_a_wrong_manifest(tmp_path):
    assert "the folder is empty" in _words(tmp_path, "error")[0]
    (tmp_path / "manifest.json").write_text("{")
    assert "line 1" in _words(tmp_path, "error")[0]


def _found(path, level, words):
    return [message for message in _words(path, level) if re.search(words, message)]


def _two_centres(tmp_path, split=("", "")):
    """P0 and P1 are patients of both, with scans of their own."""
    for name, part in zip(("a", "b"), split, strict=True):
        write_centre(tmp_path / name, [0, 1])
        if part:
            (tmp_path / name / "labels.csv").write_text(f"series,label,split\ns0,0,{part}\ns1,1,train\n")
    return tmp_path


def test_a_patient_in_two_centres_is_a_warning(tmp_path):
    (message,) = _found(_two_centres(tmp_path), "warning", "same person")
    assert "patient P0 (and 1 more like it) is in a and in b" in message
    assert _words(tmp_path, "error") == []


def test_a_patient_in_different_parts_of_two_centres_is_an_error(tmp_path):
    (message,) = _words(_two_centres(tmp_path, ("train", "test")), "error")
    assert "patient P0 is in train of a and in test of b" in message
    assert len(_found(tmp_path, "warning", "patient P1 is in a and in b")) == 1


@pytest.mark.parametrize("kind", ["dicom", "nifti"])
def test_a_series_in_two_centres_is_an_error(tmp_path, kind):
    if kind == "dicom":
        write_centre(tmp_path / "a", [0, 1])
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    else:
        for n in (0, 1):
            write_nifti(tmp_path / "a" / f"{n}.nii", chest(seed=n))
        (tmp_path / "a" / "labels.csv").write_text("series,label\n0.nii,0\n1.nii,1\n")
        (tmp_path / "b").symlink_to(tmp_path / "a")
    (message,) = _words(tmp_path, "error")
    assert re.search(r"the series .* \(and 1 more like it\) is in a and in b: a scan has one centre", message)
    assert not _found(tmp_path, "warning", "same person")


def test_folders_without_a_table_do_not_vanish(tmp_path):
    write_centre(tmp_path / "good", [0, 1])
    write_centre(tmp_path / "capital", [0, 1])
    (tmp_path / "capital" / "labels.csv").rename(tmp_path / "capital" / "Labels.csv")
    write_centre(tmp_path / "deep" / "ct", [0, 1])
    for name in ("empty", ".hidden", "office"):
        (tmp_path / name).mkdir()
    (tmp_path / "office" / "labels.xlsx").touch()
    assert _found(tmp_path, "warning", "not used") == [
        "capital: no labels.csv or datalist.json, not used (Labels.csv is there: call it labels.csv)",
        "deep: no labels.csv or datalist.json, not used (ct/labels.csv is there: it must lie in deep itself)",
        "empty: no labels.csv or datalist.json, not used",
        "office: no labels.csv or datalist.json, not used (labels.xlsx is there: save it as CSV (UTF-8), labels.csv)",
    ]
    assert not _found(tmp_path / "good", "warning", "not used")


@pytest.mark.parametrize("slices, warned", [(59, True), (60, False)])
def test_coverage_is_said_and_a_part_of_a_chest_is_a_warning(tmp_path, slices, warned):
    write_series(tmp_path / "dicom" / "s0", chest(slices))
    write_series(tmp_path / "dicom" / "s1", chest(72), patient="P2")
    (tmp_path / "dicom" / "labels.csv").write_text("series,label\ns0,0\ns1,1\n")
    # The same volume with its slices along the first axis.
    write_nifti(tmp_path / "nifti" / "x.nii", chest(slices), axcodes="SLP")
    (tmp_path / "nifti" / "labels.csv").write_text("series,label\nx.nii,0\n")
    low = round(slices * 2.5)
    assert _found(tmp_path, "ok", "scans cover") == [
        f"dicom: scans cover {low} to 180 mm from bottom to top",
        f"nifti: scans cover {low} mm from bottom to top",
    ]
    short = _found(tmp_path, "warning", "not a whole chest")
    assert len(short) == 2 * warned and all("1 scan of less than 150 mm" in message for message in short)


def test_coverage_of_a_coronal_series_is_its_height(tmp_path):
    write_series(tmp_path / "s0", chest(edge=40), orientation=(1, 0, 0, 0, 0, -1), spacing=(4.0, 1.0, 2.0))
    write_series(tmp_path / "s1", chest(80), patient="P2")
    (tmp_path / "labels.csv").write_text("series,label\ns0,0\ns1,1\n")
    assert len(_found(tmp_path, "ok", "scans cover 160 to 200 mm")) == 1


def test_what_the_default_split_would_give(tmp_path):
    write_centre(tmp_path / "small", [0, 1, 1])
    write_centre(tmp_path / "large", [0, 1] * 5)
    assert _found(tmp_path, "ok", "default split") == [
        "large: patients by the default split (0.5/0.1/0.4): train 5, validation 1, test 4",
        "small: patients by the default split (0.5/0.1/0.4): train 2, validation 0, test 1",
    ]
    assert _found(tmp_path, "warning", "default split|only one") == [
        "small: only one patient of class 0: cannot be in training and in test",
        "small: 3 patients and no validation case by the default split (0.5/0.1/0.4): rounds are selected without this "
        "site, and what it uses with FedBlend falls back to training alone; no --fractions gives it one beside "
        "training and test: that takes more patients",
        "small: all test cases are of class 1 by the default split (0.5/0.1/0.4): how well a model tells classes apart "
        "will not be seen",
    ]


def test_which_fractions_give_a_centre_a_validation_case(tmp_path):
    write_centre(tmp_path, [1, 1, 1])
    assert len(_found(tmp_path, "warning", "training alone; --fractions 0.4,0.2,0.4 gives it one")) == 1


def test_what_the_tables_split_lacks(tmp_path):
    write_centre(tmp_path, [0, 1])
    (tmp_path / "labels.csv").write_text("series,label,split\ns0,0,train\ns1,1,test\n")
    assert len(_found(tmp_path, "warning", "2 patients and no validation case by the table")) == 1
    assert len(_found(tmp_path, "warning", "no training scan of class 1 by the table")) == 1
    assert not _found(tmp_path, "ok", "default split")


@pytest.mark.parametrize(
    "heads, row, words",
    [
        ("series,label", "s2,9", "label '9' is neither"),
        ("series,label", "s2,", "label is empty"),
        ("series,label,split", "s2,1,dev", "split is 'dev'"),
        ("series,label", "s2,1\n./s2/,1", "is there a second time"),
    ],
)
def test_a_wrong_row_is_one_finding(tmp_path, heads, row, words):
    write_centre(tmp_path, [0, 1, 1])
    end = ",train" if "split" in heads else ""
    (tmp_path / "labels.csv").write_text(f"{heads}\ns0,0{end}\ns1,1{end}\n{row}\n")
    centre = {"name": "a", "kind": "dicom", "folder": ".", "labels": "labels.csv"}
    manifest = {"schema": 1, "name": "n", "classes": ["0", "1"], "centres": [centre]}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (message,) = _words(tmp_path, "error")
    assert words in message
    assert not _found(tmp_path, "warning", "has no label")


def test_what_is_given_instead_of_a_folder(tmp_path):
    write_centre(tmp_path / "a", [0, 1])
    assert "a table: give its folder" in _words(tmp_path / "a" / "labels.csv", "error")[0]
    archive = shutil.make_archive(str(tmp_path / "x"), "zip", tmp_path / "a")
    assert "a zip: unpack it" in _words(archive, "error")[0]


def test_the_order_of_the_classes(tmp_path):
    write_centre(tmp_path, [0, 1])
    assert len(_found(tmp_path, "note", "order of the classes is made of the labels")) == 1
    given = [f for f in check(tmp_path, {"classes": ["0", "1"]}) if "order of the classes" in f.message]
    assert not given
    (wrong,) = check(tmp_path, {"classes": ["healthy", "ill"]})
    assert (wrong.level, "its classes are 0, 1, the job's are healthy, ill" in wrong.message) == ("error", True)
    with pytest.raises(UserError, match=r"--data-arg fit: .* there are size, slices"):
        check(tmp_path, {"fit": "crop"})


def test_the_command_says_it_and_exits_with_1_on_errors(tmp_path):
    write_centre(tmp_path, [0, 1])
    done = CliRunner().invoke(app, ["data", "check", str(tmp_path)])
    assert done.exit_code == 0 and "2 scans that can be used" in done.output
    (tmp_path / "s0" / "003.dcm").unlink()
    done = CliRunner().invoke(app, ["data", "check", str(tmp_path)])
    assert done.exit_code == 1 and "1 slice seems to be missing" in done.output


def _twice(tmp_path, how, labels=(0, 1)):
    """The same scan under two names, in two centres."""
    for name, label in zip(("a", "b"), labels, strict=True):
        write_series(tmp_path / name / "own", chest(seed=8 + (name == "a")), patient=f"own {name}")
        (tmp_path / name / "labels.csv").write_text(f"series,label,patient\nown,{1 - label},own {name}\n")
        if how == "nifti" and name == "b":
            write_nifti(tmp_path / name / "same.nii.gz", chest(), axcodes="RAS")
        else:
            write_series(tmp_path / name / "same", chest(), patient=f"anonymous {name}")
        with open(tmp_path / name / "labels.csv", "a") as table:
            table.write(f"same{'.nii.gz' if how == 'nifti' and name == 'b' else ''},{label},{name}\n")
    return tmp_path


@pytest.mark.parametrize("labels, level", [((0, 1), "error"), ((1, 1), "warning")])
def test_an_anonymised_copy_at_another_centre_is_found_by_its_content(tmp_path, labels, level):
    _twice(tmp_path, "dicom", labels)
    (message,) = _found(tmp_path, level, "same content")
    assert "a/same (a) and" in message and ("different labels, 0 and 1" in message) == (level == "error")


@pytest.mark.parametrize("axes", ["LPS", "PIR"])
def test_the_same_nifti_under_two_names_is_found(tmp_path, axes):
    write_nifti(tmp_path / "a.nii", chest())
    write_nifti(tmp_path / "b.nii.gz", chest(), axcodes="LPS")
    write_nifti(tmp_path / "c.nii", chest(seed=1), axcodes=axes)
    (tmp_path / "labels.csv").write_text("series,label\na.nii,0\nb.nii.gz,1\nc.nii,1\n")
    assert len(_found(tmp_path, "error", "a.nii .* and .*b.nii.gz .* different labels, 0 and 1")) == 1
    assert not _found(tmp_path, "warning", "same content")


def test_the_deep_check_finds_a_copy_in_another_format(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _twice(tmp_path / "ct", "nifti")
    found = check_deep(tmp_path / "ct", tmp_path / "page.html")
    (message,) = [f.message for f in found if "same content" in f.message]
    assert "same.nii.gz" in message and "different labels" in message
