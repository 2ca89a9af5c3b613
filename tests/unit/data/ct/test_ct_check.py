import json
import shutil

import pytest
from make_dicom import chest, write_centre, write_nifti, write_series
from typer.testing import CliRunner

from medpfl.cli import app
from medpfl.data.check import check


def _words(path, level):
    return [finding.message for finding in check(path) if finding.level == level]


def test_a_good_folder_in_words(tmp_path):
    write_centre(tmp_path / "north", ["healthy", "ill", "ill"])
    (tmp_path / "north" / "notes.txt").touch()
    write_nifti(tmp_path / "south" / "x.nii.gz", chest())
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
    assert _words(tmp_path, "warning") == ["south: no scan of class healthy"]


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
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert _words(tmp_path, "error") == []
    assert "left out, as the manifest allows" in _words(tmp_path / "manifest.json", "warning")[0]


def test_many_alike_are_counted(tmp_path):
    write_centre(tmp_path, [0, 1])
    rows = [f"gone{n},0" for n in range(50)]
    (tmp_path / "labels.csv").write_text("\n".join(["series,label", "s0,0", "s1,1", *rows]))
    errors = _words(tmp_path, "error")
    assert len(errors) == 21 and "and 30 more like these" in errors[-1]


@pytest.mark.parametrize("kind", ["dicom", "nifti"])
def test_values_that_are_no_hu_are_a_warning(tmp_path, kind):
    stored = chest() + 1024
    for n in range(2):
        if kind == "dicom":
            write_series(tmp_path / f"s{n}", stored, patient=f"P{n}")
        else:
            write_nifti(tmp_path / f"s{n}.nii.gz", stored)
    ending = "" if kind == "dicom" else ".nii.gz"
    (tmp_path / "labels.csv").write_text(f"series,label\ns0{ending},0\ns1{ending},1\n")
    warnings = _words(tmp_path, "warning")
    assert len(warnings) == 2 and "no value below -900" in warnings[0]


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
    assert "all scans are of one patient" in _words(tmp_path, "warning")[0]


def test_an_empty_folder_and_a_wrong_manifest(tmp_path):
    assert "neither manifest.json" in _words(tmp_path, "error")[0]
    (tmp_path / "manifest.json").write_text("{")
    assert "line 1" in _words(tmp_path, "error")[0]


def test_the_command_says_it_and_exits_with_1_on_errors(tmp_path):
    write_centre(tmp_path, [0, 1])
    done = CliRunner().invoke(app, ["data", "check", str(tmp_path)])
    assert done.exit_code == 0 and "2 scans that can be used" in done.output
    (tmp_path / "s0" / "003.dcm").unlink()
    done = CliRunner().invoke(app, ["data", "check", str(tmp_path)])
    assert done.exit_code == 1 and "1 slice seems to be missing" in done.output
