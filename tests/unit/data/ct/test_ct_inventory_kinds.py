"""What an inventory says of other things than CT series: X-ray images, MR, masks, reports; and of nameless patients."""

import csv
import shutil
from pathlib import Path

import nibabel
import numpy as np
import pydicom.data
import pytest
from make_dicom import chest, write_nifti, write_series
from PIL import Image
from pydicom import dcmread
from pydicom.uid import generate_uid
from typer.testing import CliRunner

from medpfl.cli.main import app
from medpfl.data.check import check
from medpfl.data.kinds.registry import kind_of
from medpfl.data.kinds.scans.inventory import in_words, take_inventory
from medpfl.data.kinds.scans.inventory_drawn import with_thumbnails
from medpfl.data.kinds.scans.proposal import propose

INSTALLED = Path(pydicom.data.__file__).parent / "test_files"
REAL = INSTALLED / "dicomdirtests" / "77654033"


def _xray(file, seed=0, patient="ANNA", **fields):
    """An X-ray image as pydicom's real one has it, with other pixels."""
    dataset = dcmread(REAL / "CR1" / "6154")
    values = np.random.default_rng(seed).integers(0, 4000, (24, 20), dtype=np.uint16)
    dataset.Rows, dataset.Columns, dataset.PixelData, dataset.PatientID = 24, 20, values.tobytes(), patient
    for name, value in fields.items():
        setattr(dataset, name, value)
    file.parent.mkdir(parents=True, exist_ok=True)
    dataset.save_as(file)
    return file


def _mr(n, dataset):
    dataset.Modality = "MR"
    dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.4"


def _inventory(root, out, *more):
    done = CliRunner().invoke(app, ["data", "inventory", str(root), "--out", str(out), *more])
    assert done.exit_code == 0, done.output
    return {row["where"]: row for row in csv.DictReader((out / "inventory.csv").open())}, " ".join(done.output.split())


def test_xray_images_are_pictures_one_by_one(tmp_path):
    root, out = tmp_path / "export", tmp_path / "out"
    shutil.copytree(REAL / "CR1", root / "real")
    series = generate_uid()
    for number in range(2):
        _xray(root / "MG" / f"{number}.dcm", number, Modality="MG", SeriesInstanceUID=series, ViewPosition="CC")
    _xray(root / "MG" / "raw.dcm", 7, Modality="MG", SeriesInstanceUID=series, PresentationIntentType="FOR PROCESSING")
    _xray(root / "DX" / "no series", 3, "", Modality="DX", SeriesInstanceUID="")
    _xray(root / "DX" / "again", 3, "BEN", Modality="DX")
    _xray(root / "DX" / "odd.name", 4, "CLEO", Modality="DX")
    cut = _xray(root / "DX" / "cut.dcm", 5, "DORA", Modality="DX")
    cut.write_bytes(cut.read_bytes()[:-300])
    (root / "MG" / "empty.dcm").touch()
    rows, said = _inventory(root, out)
    assert {where: (row["modality"], row["patient"], row["read as"]) for where, row in rows.items()} == {
        "real/6154": ("CR", "77654033", "picture"),
        "MG/0.dcm": ("MG", "ANNA", "picture"),
        "MG/1.dcm": ("MG", "ANNA", "picture"),
        "MG/raw.dcm": ("MG", "ANNA", ""),
        "MG/empty.dcm": ("", "", ""),
        "DX/no series": ("DX", "", "picture"),
        "DX/again": ("DX", "BEN", "picture"),
        "DX/odd.name": ("DX", "CLEO", ""),
        "DX/cut.dcm": ("DX", "DORA", ""),
    }
    assert rows["MG/0.dcm"]["kind"] == "X-ray" and rows["MG/0.dcm"]["description"].endswith("CC")
    assert rows["MG/0.dcm"]["matrix"] == "24×20" and rows["real/6154"]["state"] == "good"
    for where, words in (
        ("MG/raw.dcm", "raw values of the detector"), ("DX/odd.name", "call it .dcm"), ("DX/cut.dcm", "cut short"),
        ("MG/empty.dcm", "0 bytes"), ("DX/again", "has the same content as DX/no series"),
    ):  # fmt: skip
        assert words in rows[where]["what is wrong"]
    assert (out / "inventory.html").read_text().count("data:image/png;base64,") == 7  # not of the cut and the empty one
    assert "5 X-ray images that can be read as pictures, of 4 patients" in said
    assert "of 2 patients nothing can be used: CLEO (an X-ray image" in said and "DORA (cut short" in said


def test_the_draft_of_xray_images_filled_in_is_a_table_of_pictures(tmp_path):
    root, out = tmp_path / "export", tmp_path / "out"
    for number in range(4):
        _xray(root / str(number), number, f"P{number // 2}", Modality="DX", SeriesInstanceUID=generate_uid())
    _inventory(root, out)
    assert not (out / "labels.csv").exists()  # there is no CT
    lines = (out / "labels-pictures.csv").read_text().splitlines()
    filled = [lines[0], *(line.replace(",,", f",{'ab'[n % 2]},", 1) for n, line in enumerate(lines[1:]))]
    (root / "labels.csv").write_text("\n".join(filled) + "\n")
    found = check(root)
    assert not [f.message for f in found if f.level == "error"]
    assert any("4 pictures of 2 patients: a 2, b 2" in f.message for f in found)
    again = CliRunner().invoke(app, ["data", "inventory", str(root), "--out", str(out)])
    assert again.exit_code != 0 and "labels-pictures.csv: is there already" in str(again.exception)


def test_one_file_is_one(tmp_path):
    write_nifti(tmp_path / "a.nii", chest(20, edge=16), spacing=(0.8, 0.7, 8.0))
    Image.new("L", (16, 16)).save(tmp_path / "b.png")
    assert in_words(take_inventory(tmp_path))[1] == "1 NIfTI file, 1 picture"
    write_nifti(tmp_path / "c.nii", chest(20, edge=16), spacing=(0.8, 0.7, 8.0))
    assert in_words(take_inventory(tmp_path))[1] == "2 NIfTI files, 1 picture"


def test_mr_says_what_reads_it(tmp_path):
    root, out = tmp_path / "export", tmp_path / "out"
    brain = np.random.default_rng(0).integers(0, 700, (20, 16, 16)).astype(np.int16)
    write_series(root / "t1", brain, patient="MIA", intercept=0, change=_mr)
    write_nifti(root / "alone.nii", 1 + brain)
    write_nifti(root / "sub" / "t2.nii", 3 * brain)
    write_nifti(root / "sub" / "t2_mask.nii", (brain > 600).astype(np.uint8))
    write_nifti(root / "ct.nii", chest(20, edge=16), spacing=(0.8, 0.7, 8.0))
    before = in_words(take_inventory(root))
    assert (
        before[0] == "3 CT volumes that can be used, of 3 patients; 3 of them NIfTI, which does not say that it is CT"
    )
    rows, said = _inventory(root, out)
    assert (rows["t1"]["modality"], rows["t1"]["read as"], rows["t1"]["state"]) == ("MR", "MR scan", "good")
    assert rows["ct.nii"]["read as"] == "CT scan" and rows["sub/t2.nii"]["read as"] == "MR scan, or image with its mask"
    assert rows["sub/t2_mask.nii"]["read as"] == "mask of sub/t2.nii"
    assert "MR is read with --data-arg normalise, or with a mask beside it" in rows["alone.nii"]["what is wrong"]
    assert "1 image with a mask beside, by their names" in said and "2 of them no CT by their values" in said
    assert "To learn the masks copy nothing: `medpfl data check" in said
    assert "1 MR volume (DICOM) that can be used with --data-arg normalise, of 1 patient" in said
    assert (out / "inventory.html").read_text().count("data:image/png;base64,") == 5
    draft = {row["patient"]: row for row in csv.DictReader((out / "labels.csv").open())}
    assert set(draft) == {"alone", "ct", "t2"} and draft["ct"]["reason"] == "the only CT volume"
    assert "not like HU: is it CT?" in draft["t2"]["reason"]


def test_an_image_of_another_modality_that_names_no_series_spoils_no_scan(tmp_path):
    write_series(tmp_path, chest(20, edge=16), spacing=(0.8, 0.7, 8.0))
    _xray(tmp_path / "x.dcm", SeriesInstanceUID="", Modality="DX")
    scan, image = sorted(take_inventory(tmp_path).found, key=lambda one: one.form)
    assert scan.usable and scan.read_as == "CT scan" and image.read_as == "picture"


def test_a_patient_of_reports_alone_is_named(tmp_path):
    report = dcmread(INSTALLED / "reportsi.dcm")
    write_series(tmp_path / "ct", chest(20, edge=16), spacing=(0.8, 0.7, 8.0), patient="ANNA")
    for name, patient in (("a", "ANNA"), ("b", "BEN"), ("c", "BEN")):
        report.PatientID = patient
        report.save_as(tmp_path / f"{name}.dcm")
    inventory = take_inventory(tmp_path)
    assert [(one.patient, one.place) for one in inventory.found] == [("BEN", "b.dcm"), ("ANNA", "ct")]
    assert "of 1 patient nothing can be used: BEN (Basic Text SR Storage, no image" in " ".join(in_words(inventory))
    assert inventory.others == 2


@pytest.mark.parametrize("place", ["{}", "anonymous/{}"])
def test_nobody_without_a_name_is_lost(tmp_path, place):
    for number in range(3):
        for kind in ("thin", "thick"):
            folder = tmp_path / place.format(f"case {number}") / kind
            write_series(folder, chest(20, edge=16, seed=number), patient="", spacing=(0.8, 0.7, 8.0))
    proposed = propose(take_inventory(tmp_path))
    assert {Path(one.chosen.place).parent.name for one in proposed} == {"case 0", "case 1", "case 2"}
    assert all("no PatientID, so the folder counts as the patient" in one.reason for one in proposed)


def test_people_who_may_be_one_have_one_name_and_a_hint(tmp_path):
    for case in ("case 0", "case 1"):
        write_series(tmp_path / "anonymous" / case, chest(20, edge=16), patient="", spacing=(0.8, 0.7, 8.0))
    proposed = propose(take_inventory(tmp_path))
    assert [one.patient for one in proposed] == ["anonymous", "anonymous"]  # in one part rather than in two
    assert all("give people in other rows of it other names" in one.reason for one in proposed)


def test_a_medium_that_was_not_copied_as_a_whole_is_told(tmp_path):
    root = shutil.copytree(REAL.parent, tmp_path / "export" / "cd")
    assert not any("names" in words for one in take_inventory(tmp_path).found for _, words in one.problems)
    for folder in (root / "98892003" / "MR700", root / "77654033" / "CR2"):
        shutil.rmtree(folder)
    (root / "TINY_ALPHA" / "PT000000").rename(root / "TINY_ALPHA" / "pt000000")  # as some file systems have it
    (one,) = [one for one in take_inventory(tmp_path / "export").found if one.place == "cd/DICOMDIR"]
    assert "names 31 files of which 8 are not there, 77654033/CR2/6247 first" in one.problems[0][1]
    (tmp_path / "export" / "labels.csv").write_text("series,label\ncd/98892001/CT5N,0\ncd/98892001/CT2N,1\n")
    told = [f.message for f in check(tmp_path / "export") if f.level == "warning"]
    assert any("cd/DICOMDIR: names 31 files of which 8 are not there" in words for words in told)


def test_what_decoding_tells_reaches_the_draft(tmp_path):
    write_series(tmp_path / "export" / "raw", chest() + 1024, patient="ANNA")
    _inventory(tmp_path / "export", tmp_path / "out")
    (row,) = csv.DictReader((tmp_path / "out" / "labels.csv").open())
    assert row["series"] == "" and "without their offset" in row["reason"]


def test_an_axial_series_is_proposed_before_thinner_ones_that_were_made_of_it(tmp_path):
    volume = chest(20, edge=16)
    write_series(tmp_path / "axial", volume, spacing=(0.8, 0.7, 8.0))
    coronal = np.ascontiguousarray(np.repeat(volume, 4, axis=1).transpose(1, 0, 2))
    write_series(tmp_path / "coronal", coronal, spacing=(8.0, 0.7, 0.2), orientation=(1, 0, 0, 0, 0, -1))
    (proposal,) = propose(take_inventory(tmp_path))
    assert (proposal.chosen.place, proposal.reason) == ("axial", "the only axial CT volume")


def test_where_nothing_is_to_be_labelled_no_table_is_drafted(tmp_path):
    write_series(tmp_path / "export" / "t1", chest(), intercept=0, change=_mr)
    _, said = _inventory(tmp_path / "export", tmp_path / "out")
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["inventory.csv", "inventory.html"]
    assert "Give each row" not in said


def test_the_draft_has_a_column_for_each_of_several_labels(tmp_path):
    root = tmp_path / "export"
    for number in range(2):
        write_series(root / str(number), chest(20, edge=16, seed=number), patient=f"P{number}", spacing=(1, 1, 8))
    _inventory(root, tmp_path / "out", "--labels", "emphysema, nodule")
    lines = (tmp_path / "out" / "labels.csv").read_text().splitlines()
    assert lines[0] == "series,label: emphysema,label: nodule,patient,description,reason"
    filled = [lines[0], lines[1].replace(",,,", ",1,0,", 1), lines[2].replace(",,,", ",,1,", 1)]
    (root / "labels.csv").write_text("\n".join(filled) + "\n")
    assert any("emphysema 1 of 1 known, nodule 1" in f.message for f in check(root))
    done = CliRunner().invoke(app, ["data", "inventory", str(root), "--labels", "one"])
    assert done.exit_code != 0 and "give two different names or more" in str(done.exception)


def test_the_check_counts_series_of_other_modalities(tmp_path):
    for number in range(2):
        write_series(tmp_path / str(number), chest(seed=number), patient=f"P{number}")
        write_series(tmp_path / f"mr{number}", chest(seed=9), patient=f"P{number}", change=_mr)
    (tmp_path / "labels.csv").write_text("series,label\n0,0\n1,1\n")
    assert any("other modalities in the folder, not used: MR 2" in f.message for f in check(tmp_path))
    (tmp_path / "labels.csv").write_text("series,label\n0,0\n1,1\nmr0,1\n")
    errors = [f.message for f in check(tmp_path) if f.level == "error"]
    assert (
        len(errors) == 1
        and "mr0: modality MR, not CT: a run with --data-arg normalise=percentile or zscore" in errors[0]
    )


def test_a_mask_that_does_not_fit_its_image_cannot_be_used(tmp_path):
    root = tmp_path / "export"
    for name, shape in [("a", (20, 16, 16)), ("a_mask", (20, 16, 8)), ("b", (20, 16, 16)), ("b_mask", (20, 16, 16))]:
        write_nifti(root / f"{name}.nii", np.ones(shape, np.uint8))
    for name, size in [("c.png", (16, 12)), ("c_mask.png", (12, 16))]:
        Image.new("L", size).save(root / name)
    rows, _ = _inventory(root, tmp_path / "out")
    assert rows["a_mask.nii"]["state"] == "cannot be used" and rows["b_mask.nii"]["state"] == "good"
    assert rows["a_mask.nii"]["what is wrong"].endswith("the mask is 8×16×20, its image 16×16×20")
    assert rows["c_mask.png"]["what is wrong"].endswith("the mask is 16×12, its image 12×16")


def test_a_table_of_pictures_goes_before_masks_beside_volumes(tmp_path):
    _xray(tmp_path / "a.dcm", 1, "P1")
    _xray(tmp_path / "b.dcm", 2, "P2")
    for name in ("t1.nii", "t1_mask.nii"):
        nibabel.save(nibabel.Nifti1Image(np.zeros((8, 8, 4), np.uint8), np.eye(4)), tmp_path / name)
    assert kind_of(str(tmp_path), {}).name == "masks"
    (tmp_path / "labels.csv").write_text("picture,label\na.dcm,ill\nb.dcm,healthy\n")
    assert kind_of(str(tmp_path), {}).name == "folders"
    assert not [f.message for f in check(tmp_path) if f.level == "error"]


def test_dicom_without_a_patient_is_told_of_the_tables_rows_alone(tmp_path):
    for number in range(3):
        _xray(tmp_path / f"{number}.dcm", number, "")
    (tmp_path / "labels.csv").write_text("picture,label,patient\n0.dcm,a,P\n1.dcm,b,\n")
    words = [f.message for f in check(tmp_path) if f.level == "warning"]
    assert any(w.startswith("1 DICOM images say no PatientID") and "1.dcm first" in w for w in words)
    assert any(w.startswith("1 pictures and DICOM images are in no row") and "2.dcm first" in w for w in words)


def test_the_real_xray_images_of_an_export_are_pictures():
    drawn = with_thumbnails(take_inventory(REAL.parent))
    pictures = [one.place for one, image in drawn if one.read_as == "picture" and image]
    assert pictures == ["77654033/CR1/6154", "77654033/CR2/6247", "77654033/CR3/6278"]
    assert all(image for one, image in drawn if one.modality == "MR")


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (
            ["Müller_José_1", "Müller_José_2", "Schmidt_1"],
            "2 patients are called as another but for a number at the end",
        ),
        (["patient_1", "patient_2", "patient_3"], ""),
        (["a_001", "a_002", "b_001"], ""),
    ],
)
def test_names_that_differ_in_a_visits_number_alone_are_told(tmp_path, names, told):
    for k, name in enumerate(names):
        write_nifti(tmp_path / f"{name}.nii.gz", chest(20, edge=16, seed=k), spacing=(0.8, 0.7, 8.0))
    lines = " ".join(in_words(take_inventory(tmp_path)))
    assert (told in lines and "Müller_José_1 and Müller_José_2 first" in lines) if told else "number at" not in lines
