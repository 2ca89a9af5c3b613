"""Label tables as hospitals write them, and reasons that are not dropped."""

import json
import shutil
import unicodedata
from pathlib import Path

import nibabel
import numpy as np
import pytest
from make_dicom import chest, write_nifti, write_series
from pydicom import Dataset

from medpfl.data.check import check
from medpfl.data.kinds.scans.centre_scans import read_centre
from medpfl.data.kinds.scans.inventory import take_inventory
from medpfl.data.kinds.scans.inventory_drawn import with_thumbnails
from medpfl.data.kinds.scans.label_table import Columns, read_rows
from medpfl.data.kinds.scans.manifest import open_manifest
from medpfl.data.kinds.scans.nifti import read_volume


def _words(path, level="error"):
    return [finding.message for finding in check(path) if finding.level == level]


def _table(folder, rows, heads="series,label"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "labels.csv").write_text("\n".join([heads, *rows]) + "\n", encoding="utf-8")


def test_a_file_without_a_label_is_told_however_its_name_is_written_unless_it_is_hidden(tmp_path):
    for name in ("a.nii", "b.nii", "c.NII", ".d.nii"):
        write_nifti(tmp_path / "x.nii", chest()).rename(tmp_path / name)
    _table(tmp_path, ["a.nii,0", "b.nii,1"])
    told = [words for words in _words(tmp_path, "warning") if "has no label and is not used" in words]
    assert len(told) == 1 and "c.NII" in told[0]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("order", [1, -1])
def test_rows_may_name_dicom_and_nifti_in_any_order(tmp_path, separator, order):
    uid = write_series(tmp_path / "s", chest(), patient="A")
    write_nifti(tmp_path / "x.nii.gz", chest(seed=1))
    rows = [separator.join((name, label, person)) for name, label, person in ((uid, "0", "a"), ("x.nii.gz", "1", "b"))]
    _table(tmp_path, rows[::order], separator.join(("series", "label", "patient")))
    assert _words(tmp_path) == []
    assert any("2 patients, 2 scans that can be used" in words for words in _words(tmp_path, "ok"))


@pytest.mark.parametrize("label", ["nan", "NA", "N/A", "-1", "null", "", " "])
def test_what_is_no_label_is_no_class(tmp_path, label):
    for n in range(3):
        write_nifti(tmp_path / f"{n}.nii", chest(seed=n))
    _table(tmp_path, ["0.nii,ill", "1.nii,healthy", f"2.nii,{label}"])
    (message,) = _words(tmp_path)
    assert "line 4: label" in message and ("is no class" in message or "is empty" in message)
    assert "classes: healthy, ill" in _words(tmp_path, "ok")[0]


@pytest.mark.parametrize("label", ["seg/0.nii.gz", [0, 1], ["a.nii", "b.nii"], {"a": 1}])
def test_a_datalist_of_segmentations_has_no_classes(tmp_path, label):
    items = []
    for n in range(3):
        write_nifti(tmp_path / f"{n}.nii", chest(seed=n))
        items.append({"image": f"{n}.nii", "label": [0, 1, label][n]})
    (tmp_path / "datalist.json").write_text(json.dumps({"training": items}))
    (message,) = _words(tmp_path)
    assert "training 3: label" in message and ("is a file" in message or "one class name or number" in message)


def test_blanks_around_a_patient_make_no_other_one(tmp_path):
    items = []
    for n, patient in enumerate(("a", "a ", "b", "c")):
        write_nifti(tmp_path / f"{n}.nii", chest(seed=n))
        items.append({"image": f"{n}.nii", "label": n % 2, "patient": patient})
    (tmp_path / "datalist.json").write_text(json.dumps({"training": items}))
    assert any("3 patients, 4 scans" in words for words in _words(tmp_path, "ok"))


def test_a_patient_with_two_labels_is_noted(tmp_path):
    for n in range(4):
        write_nifti(tmp_path / f"{n}.nii", chest(seed=n))
    _table(tmp_path, ["0.nii,0,a", "1.nii,1,a", "2.nii,0,b", "3.nii,1,c"], "series,label,patient")
    assert any("patient a has scans of 0 and 1" in words for words in _words(tmp_path, "note"))


@pytest.mark.parametrize(
    "name, words",
    [("x.nrrd", "NRRD"), ("x.mha", "MetaImage"), ("x.hdr", "Analyze or a NIfTI pair"), ("x.mnc", "MINC"),
     ("x.PAR", "PAR/REC"), ("x+orig.HEAD", "AFNI"), ("x.mgz", "MGH")],
)  # fmt: skip
def test_other_formats_are_named(tmp_path, name, words):
    (tmp_path / name).write_bytes(b"whatever")
    write_nifti(tmp_path / "0.nii", chest())
    _table(tmp_path, [f"{name},0", "0.nii,1"])
    (message,) = _words(tmp_path)
    assert f"{name}: {words} is not read: save it as one NIfTI file" in message


def test_why_no_series_of_a_folder_can_be_used_is_counted(tmp_path):
    def blank(n, dataset):
        dataset.SeriesInstanceUID = ""

    write_series(tmp_path / "s", chest(), change=blank)
    (tmp_path / "s" / "x.dcm").touch()
    (tmp_path / "e").mkdir()
    write_series(tmp_path / "t", chest())
    _table(tmp_path, ["s,0", "t,1", "e,0"])
    first, second = _words(tmp_path)
    assert "s: no DICOM series is in this folder: 12 files, 000.dcm first: SeriesInstanceUID is blank" in first
    assert "x.dcm: 0 bytes" in first and "e: no DICOM series is in this folder, it is empty" in second


def test_a_series_all_of_whose_files_are_damaged_has_its_reasons(tmp_path):
    uid = write_series(tmp_path / "s", chest())
    for file in (tmp_path / "s").iterdir():
        content = file.read_bytes()
        at = content.index(b"\x28\x00\x02\x00")
        file.write_bytes(content[:at] + b"\x28\x00\x02\x00XX\xff\xff")
    write_series(tmp_path / "t", chest())
    _table(tmp_path, [f"{uid},0", "t,1"])
    (message,) = _words(tmp_path)
    assert "none of the series' files can be used: 12 files, 000.dcm first: " in message


def test_absolute_paths_and_copies_have_their_own_words(tmp_path):
    write_series(tmp_path / "elsewhere", chest())
    for n in range(2):
        write_series(tmp_path / "ct" / f"s{n}", chest(), patient=f"P{n}")
    shutil.copytree(tmp_path / "ct" / "s1", tmp_path / "ct" / "copy")
    _table(tmp_path / "ct", [f"{tmp_path}/elsewhere,0", f"{tmp_path}/ct/s0,0", "s1,1", "../elsewhere,1"])
    outside, copied, relative = _words(tmp_path / "ct")
    assert "elsewhere: an absolute path, outside of" in outside and "../elsewhere: outside of" in relative
    assert "is in this folder and in" in copied and "name it by its UID if its slices lie in both" in copied


@pytest.mark.parametrize("given", ["relative", "link"])
def test_absolute_paths_are_those_of_the_folder_by_whatever_name_it_is_given(tmp_path, monkeypatch, given):
    for n in range(2):
        write_series(tmp_path / "ct" / f"s{n}", chest(seed=n), patient=f"P{n}")
    _table(tmp_path / "ct", [f"{tmp_path}/ct/s0,0", f"{tmp_path}/ct/s1,1"])
    (tmp_path / "link").symlink_to(tmp_path / "ct")
    monkeypatch.chdir(tmp_path)
    assert _words(Path("ct") if given == "relative" else tmp_path / "link") == []


@pytest.mark.parametrize(
    ("rescaling", "words"),
    [
        ({"intercept": np.array([-1024.0] * 11 + [0.0])}, "RescaleIntercept, 0 in {}, than the -1024 of most"),
        ({"slope": np.array([1.0] * 11 + [2.0])}, "RescaleSlope, 2 in {}, than the 1 of most"),
    ],
)
def test_slices_that_were_rescaled_otherwise_are_told_by_a_check_and_by_a_run(tmp_path, caplog, rescaling, words):
    write_series(tmp_path / "s", chest(), **rescaling)
    write_series(tmp_path / "t", chest(seed=1), patient="other")
    _table(tmp_path, ["s,0", "t,1"])
    (told,) = [words for words in _words(tmp_path, "warning") if "Rescale" in words]
    assert f"1 of 12 slices have another {words.format('011.dcm')}" in told
    manifest = open_manifest(tmp_path)
    read_centre(manifest, manifest.centres[0].name)
    assert told.removeprefix("centre ") in caplog.text


def _by_a_table(dataset):
    del dataset.RescaleSlope, dataset.RescaleIntercept
    table = Dataset()
    table.LUTDescriptor, table.ModalityLUTType = [2, 0, 16], "HU"
    table.add_new("LUTData", "US", [0, 1000])
    dataset.ModalityLUTSequence = [table]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda dataset: setattr(dataset, "RescaleSlope", None), "has a RescaleSlope without a value"),
        (_by_a_table, "has its values by a table (Modality LUT), which is not read: convert it to rescale slope"),
    ],
)
def test_a_rescaling_that_cannot_be_applied_is_told_with_the_file(tmp_path, change, what):
    write_series(tmp_path / "s", chest(), change=lambda n, dataset: change(dataset))
    write_series(tmp_path / "t", chest(seed=1), patient="other")
    _table(tmp_path, ["s,0", "t,1"])
    (told,) = [words for words in _words(tmp_path) if "escale" in words and "HU (" not in words]
    assert f"{tmp_path / 's' / '000.dcm'}: {what}" in told and "(and 11 more)" in told
    assert not any("taken as HU" in words for words in _words(tmp_path, "warning"))
    [broken] = [one for one, _ in with_thumbnails(take_inventory(tmp_path)) if not one.usable]
    assert [level for level, _ in broken.problems] == ["error"]  # and not what a decoder makes of it


def test_accents_in_two_ways_are_one_name(tmp_path):
    composed, apart = (unicodedata.normalize(form, "Müller Änne") for form in ("NFC", "NFD"))
    unicode = {"change": lambda n, dataset: setattr(dataset, "SpecificCharacterSet", "ISO_IR 192")}
    write_series(tmp_path / apart / "s", chest(), patient=apart, **unicode)
    write_series(tmp_path / "t", chest(seed=1), patient="other")
    write_nifti(tmp_path / f"{apart}.nii", chest(seed=2))
    _table(tmp_path, [f"{composed}/s,krank,", f"t,gesund,{composed}", f"{composed}.nii,krank,"], "series,label,patient")
    assert _words(tmp_path) == []
    assert any("1 patient, 3 scans" in words for words in _words(tmp_path, "ok"))


def test_a_table_of_a_spreadsheet_program_is_read_as_it_was_meant(tmp_path):
    for n in range(4):
        write_nifti(tmp_path / f"{n}.nii", chest(seed=n))
    parts = ('="007";Training', '"=""7""";VAL', '="007";train', '="008";testing')
    _table(
        tmp_path, ["series;label;patient;split", *(f"{n}.nii;{n % 2};{part}" for n, part in enumerate(parts))], "sep=;"
    )
    read = read_rows(tmp_path / "labels.csv", Columns())
    assert [(row.patient, row.split) for row in read.rows] == [
        ("007", "train"), ("7", "validation"), ("007", "train"), ("008", "test")
    ]  # fmt: skip
    assert read.rows[0].where.endswith("labels.csv, line 3")
    assert _words(tmp_path) == []


@pytest.mark.parametrize("first, divided", [("sep=,", ","), ('"sep=;"', ";"), ("SEP=\t", "\t"), ("sep=;;;", ";")])
def test_a_first_line_may_say_what_divides_columns(tmp_path, first, divided):
    for n in range(2):
        write_nifti(tmp_path / f"{n}.nii", chest(seed=n))
    _table(tmp_path, [divided.join(row) for row in (("series", "label"), ("0.nii", "ill"), ("1.nii", "well"))], first)
    assert _words(tmp_path) == []


def test_a_check_refuses_one_person_in_two_parts_by_two_ways_to_write_the_name(tmp_path):
    for n in range(4):
        write_nifti(tmp_path / f"{n}.nii", chest(seed=n))
    parts = ["0,p0,train", "0,P0,test", "1,p1,train", "1,P1,test"]
    _table(tmp_path, [f"{n}.nii,{part}" for n, part in enumerate(parts)], "series,label,patient,split")
    first, second = _words(tmp_path)
    assert "patient 'P0' is in test and 'p0' in train" in first and "patient 'P1' is in test" in second
    assert "call one person the same, or two otherwise" in first
    assert not any("stay in one part" in words for words in _words(tmp_path, "warning"))


def test_files_of_one_name_whose_patients_nobody_says_are_not_taken_for_one_patients_nor_each_for_its_own(tmp_path):
    for n in range(4):
        write_nifti(tmp_path / f"p{n}" / "ct.nii.gz", chest(seed=n))
    _table(tmp_path, [f"p{n}/ct.nii.gz,{n % 2}" for n in range(4)])
    (told,) = _words(tmp_path)
    assert told.endswith("4 files are called ct: name each one's patient in the table")
    others = _words(tmp_path, "warning") + _words(tmp_path, "note")
    assert not [words for words in others if "one patient" in words or "as its own" in words or "patient ct" in words]


def _nifti(path, affine, shape=(16, 16, 8), unit="mm"):
    image = nibabel.Nifti1Image(np.arange(np.prod(shape), dtype=np.int16).reshape(shape), affine)
    image.header.set_xyzt_units(unit)
    nibabel.save(image, path)
    return read_volume(path)


@pytest.mark.parametrize(
    "scale, unit, words",
    [
        (800, "mm", "voxels of 800×800×800 mm: are these micrometres?"),
        (0.0008, "mm", "mm: are these metres?"),
        (0.8, "micron", "measured in micrometres"),
        (0.8, "meter", "measured in metres"),
    ],
)
def test_other_units_than_millimetres_are_refused(tmp_path, scale, unit, words):
    volume = _nifti(tmp_path / "x.nii", np.diag([scale, scale, scale, 1]), unit=unit)
    assert not volume.usable and words in volume.problems[0].message


@pytest.mark.parametrize("number", [0, 7, 255])  # not said, or no unit at all, as nibabel refuses them
def test_a_unit_that_is_none_is_not_said(tmp_path, number):
    image = nibabel.Nifti1Image(np.arange(2048, dtype=np.int16).reshape(16, 16, 8), np.eye(4))
    image.header["xyzt_units"] = number
    nibabel.save(image, tmp_path / "x.nii")
    assert read_volume(tmp_path / "x.nii").problems == ()


@pytest.mark.parametrize("lean, warned", [(0.0, False), (0.3, True)])
def test_sheared_nifti_is_noticed(tmp_path, lean, warned):
    affine = np.diag([1.0, 1, 3, 1])
    affine[1, 2] = 3 * lean
    volume = _nifti(tmp_path / "x.nii", affine)
    assert volume.usable and [p.level for p in volume.problems] == ["warning"] * warned
    assert not warned or "16.7 degrees off right angles (sheared)" in volume.problems[0].message


@pytest.mark.parametrize("apart", [0, 1e-9, 1e-4])
def test_axes_that_lie_in_one_plane_are_refused(tmp_path, apart):
    affine = np.array([[1, 1, 0, 0], [0, apart, 0, 0], [0, 0, 3, 0], [0, 0, 0, 1]])
    volume = _nifti(tmp_path / "x.nii", np.eye(4))
    image = nibabel.load(tmp_path / "x.nii")
    image.set_sform(affine, 1)
    nibabel.save(image, tmp_path / "y.nii")
    assert volume.usable and not (flat := read_volume(tmp_path / "y.nii")).usable
    assert "its affine matrix gives the voxels no place in space" in flat.problems[0].message


def test_voxels_are_as_large_as_their_places_say_and_another_size_in_the_header_is_noticed(tmp_path):
    """Converters that set the sform alone leave 1 mm in pixdim."""
    place = np.diag([0.7, 0.7, 5.0, 1])
    _nifti(tmp_path / "x.nii", place)
    with open(tmp_path / "x.nii", "r+b") as file:
        file.seek(80)  # pixdim[1:4]
        file.write(np.ones(3, "<f4").tobytes())
    volume = read_volume(tmp_path / "x.nii")
    assert volume.spacing == pytest.approx((0.7, 0.7, 5))
    assert [p.level for p in volume.problems] == ["warning"]
    assert "voxels of 1, 1 and 1 mm (pixdim)" in volume.problems[0].message
    assert "0.7, 0.7 and 5 mm, which is read" in volume.problems[0].message
    assert not _nifti(tmp_path / "y.nii", place).problems


@pytest.mark.parametrize(
    ("change", "codes", "warned"),
    [
        (np.diag([-1.0, 1, 1, 1]), (1, 1), True),  # mirrored
        (np.eye(4), (1, 1), False),
        (np.diag([-1.0, 1, 1, 1]), (1, 0), False),
        (np.diag([-1.0, 1, 1, 1]), (0, 1), False),
    ],
)
def test_two_places_of_voxels_that_differ_are_told(tmp_path, change, codes, warned):
    place = np.diag([0.7, 0.7, 5.0, 1])
    _nifti(tmp_path / "x.nii", place)
    image = nibabel.load(tmp_path / "x.nii")
    image.header.set_sform(place, codes[0])
    image.header.set_qform(change @ place, codes[1])
    nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj), None, image.header), tmp_path / "y.nii")
    problems = read_volume(tmp_path / "y.nii").problems
    assert [p.level for p in problems] == ["warning"] * warned
    assert not warned or "where its voxels lie, up to 21 mm apart: sform is read, not qform" in problems[0].message


@pytest.mark.parametrize(("beside", "warned"), [(0.3, False), (0.4, True)])
def test_two_places_of_voxels_may_differ_by_half_a_voxel(tmp_path, beside, warned):
    place = np.diag([0.7, 0.7, 5.0, 1])
    _nifti(tmp_path / "x.nii", place)
    image = nibabel.load(tmp_path / "x.nii")
    moved = place.copy()
    moved[0, 3] += beside
    image.header.set_qform(moved, 1)
    nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj), None, image.header), tmp_path / "y.nii")
    assert bool(read_volume(tmp_path / "y.nii").problems) is warned


def test_a_qform_that_is_no_rotation_is_not_read(tmp_path):
    _nifti(tmp_path / "x.nii", np.diag([0.7, 0.7, 5.0, 1]))
    with open(tmp_path / "x.nii", "r+b") as file:
        file.seek(252)  # qform_code, and from 256 on quatern_b, c, d
        file.write(np.array([1], "<i2").tobytes())
        file.seek(256)
        file.write(np.array([1, 1, 1], "<f4").tobytes())
    assert not read_volume(tmp_path / "x.nii").problems


@pytest.mark.parametrize("sign", ["\n", "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_a_sign_that_python_takes_for_the_end_of_a_line_ends_no_row(tmp_path, sign):
    uid = write_series(tmp_path / "s", chest(), patient="A")
    other = write_series(tmp_path / "t", chest(seed=1), patient="B")
    rows = [f'{uid},"not{sign}ill","a text{sign}of two","P{sign} 1"']
    rows.append(f'{other},ill,"one{sign}cell",P2')
    _table(tmp_path, rows, "series,label,note,patient")
    assert _words(tmp_path) == []
    assert {row.patient: row.label for row in read_rows(tmp_path / "labels.csv", Columns()).rows} == {
        "P 1": "not ill",
        "P2": "ill",
    }
    assert any("2 patients, 2 scans that can be used" in words for words in _words(tmp_path, "ok"))


def test_a_size_beyond_the_limit_is_refused_before_anything_is_read(tmp_path):
    path = tmp_path / "x.nii"
    _nifti(path, np.eye(4))
    content = bytearray(path.read_bytes())
    content[42:48] = np.array([20000, 20000, 20000], "<i2").tobytes()
    path.write_bytes(content)
    (problem,) = read_volume(path).problems
    assert "20,000×20,000×20,000 voxels would need" in problem.message and "up to 4 GiB are read" in problem.message


def test_a_single_intact_file_is_not_called_damaged(tmp_path):
    write_series(tmp_path / "s", chest(slices=1))
    write_series(tmp_path / "t", chest())
    _table(tmp_path, ["s,0", "t,1"])
    (message,) = _words(tmp_path)
    assert "a single slice, not a volume" in message
    volume = _nifti(tmp_path / "flat.nii", np.eye(4), shape=(8, 8, 1))
    assert "is 8×8×1; one volume with several slices is needed" in volume.problems[0].message
