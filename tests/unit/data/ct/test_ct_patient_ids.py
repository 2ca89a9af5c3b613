"""One person's series are one patient's, whether the table or the PatientID says whose they are."""

import pytest
from hospitals import write_table
from make_dicom import chest, write_series

from medpfl.core.errors import UserError
from medpfl.data.check import check
from medpfl.data.kinds.scans.centre_scans import read_centre
from medpfl.data.kinds.scans.manifest import open_manifest


def _centre(folder, rows, heads="series,label,patient", ids="AABB"):
    for n, ident in enumerate(ids):
        write_series(folder / f"s{n}", chest(slices=6, edge=16, seed=n), patient=f"{ident}-ID" if ident else "")
    write_table(folder, [(f"s{n}", "ill" if n < 2 else "well", *row) for n, row in enumerate(rows)], heads)
    return folder


def _words(path, level):
    return [finding.message for finding in check(path) if finding.level == level]


def _read(folder):
    manifest = open_manifest(folder)
    return read_centre(manifest, manifest.centres[0].name)


def test_a_row_without_a_patient_has_the_name_of_its_patient_id(tmp_path):
    folder = _centre(tmp_path, [("",), ("p0",), ("p1",), ("",), ("",)], ids="AABBC")
    assert [scan.patient for scan in _read(folder)] == ["p0", "p0", "p1", "p1", "C-ID"]
    (told,) = [words for words in _words(folder, "note") if "PatientID" in words]
    assert told.endswith(
        "2 series without a patient in the table have the name that it gives others of their PatientID"
    )
    assert not any("PatientID" in words for words in _words(folder, "warning"))


def test_a_person_whom_the_table_names_in_one_row_alone_is_in_one_part(tmp_path):
    rows = [("", "train"), ("p0", "test"), ("p1", "train"), ("", "train")]
    folder = _centre(tmp_path, rows, "series,label,patient,split")
    with pytest.raises(UserError, match=r"line 3: patient p0 is in train and in test \(first in .*line 2\)"):
        _read(folder)


def test_two_names_for_one_patient_id_are_told(tmp_path):
    folder = _centre(tmp_path, [("p0",), ("p1",), ("p2",), ("P 2",)])
    (told,) = [words for words in _words(folder, "warning") if "PatientID" in words]
    assert "line 3: patient 'p1' has the PatientID of 'p0' (" in told and "line 2): if they are one person" in told
    assert _words(folder, "error") == []


def test_a_row_without_a_patient_beside_two_names_keeps_its_patient_id(tmp_path):
    folder = _centre(tmp_path, [("p0",), ("p1",), ("",), ("q",)], ids="AAAB")
    assert [scan.patient for scan in _read(folder)] == ["p0", "p1", "A-ID", "q"]


def test_two_names_for_one_patient_id_in_two_parts_are_told_with_the_parts(tmp_path):
    rows = [("p0", "train"), ("p1", "test"), ("p2", "test"), ("p3", "train")]
    folder = _centre(tmp_path, rows, "series,label,patient,split")
    (told,) = [words for words in _words(folder, "warning") if "PatientID" in words]
    assert "line 3: patient 'p1' in test has the PatientID of 'p0' in train (" in told
    assert "line 2) (and 1 more like it): if they are one person, call it the same" in told
    assert len(_read(folder)) == 4


@pytest.mark.parametrize("ids", ["AAAA", ["", "", "", ""], ["A", "", "A", ""]])
def test_one_value_that_anonymising_left_in_all_files_says_of_nobody_who_it_is(tmp_path, ids):
    rows = [("p0", "train"), ("p1", "test"), ("p2", "test"), ("p3", "train")]
    folder = _centre(tmp_path, rows, "series,label,patient,split", ids)
    assert _words(folder, "error") == []
    assert not any("has the PatientID of" in words for words in _words(folder, "warning"))
    assert [scan.patient for scan in _read(folder)] == ["p0", "p1", "p2", "p3"]
