"""Tables that can be read in two ways: refused, and not read in one of them."""

import pytest
from make_dicom import chest, write_nifti
from pictures import paint

from medpfl.core.errors import UserError
from medpfl.data.check import check
from medpfl.data.kinds.scans.label_classes import class_number
from medpfl.data.kinds.scans.label_table import Columns, read_rows
from medpfl.data.kinds.scans.unread_columns import unread_columns


@pytest.fixture
def rows(tmp_path):
    def read(text):
        (tmp_path / "labels.csv").write_text(text)
        return read_rows(tmp_path / "labels.csv", Columns("picture"))

    return read


@pytest.mark.parametrize(
    ("classes", "label", "number"),
    [
        (("1", "2", "3", "4"), "1", 0),
        (("1", "2", "3", "4"), "0", None),
        (("01", "02", "03"), "1", None),
        (("0", "1", "2"), "2", 2),
        (("0", "1", "2"), "3", None),
        (("normal", "glaucoma"), "1", 1),
        (("normal", "glaucoma"), "2", None),
    ],
)
def test_where_a_class_is_called_by_a_number_a_label_is_a_name(classes, label, number):
    assert class_number(label, classes) == number


def test_a_label_that_is_none_of_the_grades_is_named(rows):
    (row,) = rows("picture,label\na.png,0\n").rows
    with pytest.raises(UserError, match=r"line 2: label '0' is neither a class \(1, 2, 3\) nor its number"):
        row.target(("1", "2", "3"))


@pytest.mark.parametrize("name", ["patient", "split"])
def test_two_columns_of_one_name(rows, name):
    with pytest.raises(UserError, match=f"two columns are called '{name}'"):
        rows(f"picture,label,{name},{name}\na.png,x,train,test\n")


@pytest.mark.parametrize("cell", ["NA", "nan", "-", "n/a", ""])
def test_a_patient_whom_nobody_knows_is_no_person(rows, cell):
    assert rows(f"picture,label,patient\na.png,x,{cell}\n").rows[0].patient is None


def test_a_label_that_is_said_by_name_and_by_number(rows):
    (row,) = rows("picture,label: x,label: 0\na.png,1,0\n").rows
    with pytest.raises(UserError, match="'x' and '0' are one label: say it once"):
        row.target(("x", "y"))


@pytest.mark.parametrize("head", ["label", "labels"])
@pytest.mark.parametrize(("cell", "write"), [("1,0", "1"), ("0.0", "0"), ("10,00", "10")])
def test_decimals_of_a_spreadsheet_make_no_class(rows, head, cell, write):
    found = rows(f"picture;{head}\na.png;{cell}\nb.png;2\n")
    assert [row.named for row in found.rows] == [["2"]] and found.refused == ["a.png"]
    (told,) = found.problems
    said = f"line 2: label '{cell}': write {write}, without decimals, which programs give to numbers; if a class is"
    assert said in told


@pytest.mark.parametrize("cell", ["1,000", "2.000", "1.5"])
def test_thousands_and_parts_are_no_spreadsheets_decimals(rows, cell):
    assert not rows(f"picture;label\na.png;{cell}\n").problems


@pytest.mark.parametrize("cell", ["-1,0", "-1.0"])
def test_a_number_below_0_is_no_class_with_decimals_either(rows, cell):
    assert f"label '{cell}' is no class: give one" in rows(f"picture;label\na.png;{cell}\n").problems[0]


def test_decimals_are_a_classs_where_it_is_named(tmp_path):
    (tmp_path / "labels.csv").write_text("picture,label\na.png,1.0\nb.png,1.5\n")
    found = read_rows(tmp_path / "labels.csv", Columns("picture", ("1.0", "1.5")))
    assert [row.label for row in found.rows] == ["1.0", "1.5"] and not found.problems


@pytest.mark.parametrize(("cell", "hint"), [("1,0", ", write 1"), ("-1,0", ", write -1"), ("2,0", None)])
def test_decimals_in_the_column_of_a_label(rows, cell, hint):
    (told,) = rows(f"picture;label: x\na.png;{cell}\n").problems
    assert f"line 2: label: x is '{cell}'; right are 1 (there)" in told
    assert told.endswith(f"its decimals are a spreadsheet's{hint}" if hint else "(not known)")


@pytest.mark.parametrize("name", ["patient_id", "PatientID", "Subject", "MRN", "Patient-No"])
def test_a_column_that_may_say_whose_a_row_is_is_told(tmp_path, name):
    assert unread(tmp_path, f"series,label,{name},Age") == [
        ("warning", f"the column '{name}' is not read: call it patient if it says whose each row is"),
        ("note", "columns that are not read: Age"),
    ]


@pytest.mark.parametrize("name", ["Set", "part", "fold", "dataset", "subset"])
def test_a_column_that_may_say_the_part_is_told(tmp_path, name):
    told = f"the column '{name}' is not read: call it split if it says train, validation or test"
    assert unread(tmp_path, f"series;label;patient;{name}") == [("warning", told)]


def test_columns_that_are_read_or_drafted_are_not_told(tmp_path):
    assert unread(tmp_path, 'Series,label: Set,patient,split,description,reason,"') == []
    assert unread(tmp_path, "series,label,patient,split,patient_id,set") == [
        ("note", "columns that are not read: patient_id, set")
    ]
    ((_, told),) = unread(tmp_path, ",".join(["series", "label", *(f"x{n}" for n in range(12))]))
    assert told.endswith("x8, x9 and 2 more")


def unread(folder, head):
    table = folder / "labels.csv"
    table.write_text(head + "\n")
    found = unread_columns(table, "series")
    assert all(finding.message.startswith(f"{table}: ") for finding in found)
    return [(finding.level, finding.message.removeprefix(f"{table}: ")) for finding in found]


@pytest.mark.parametrize("what", ["series", "picture"])
def test_a_check_tells_columns_that_are_not_read(tmp_path, what):
    for n in range(4):
        if what == "series":
            write_nifti(tmp_path / "ct" / f"{n}.nii", chest(seed=n))
        else:
            paint(tmp_path / "ct" / f"{n}.png", (90, 90, 90), n)
    end = "nii" if what == "series" else "png"
    rows = [f"{n}.{end},{'ab'[n % 2]},p{n},60" for n in range(4)]
    (tmp_path / "ct" / "labels.csv").write_text("\n".join([f"{what},label,PatientID,Age", *rows]) + "\n")
    told = [(finding.level, finding.message) for finding in check(tmp_path / "ct")]
    assert any(level == "warning" and "the column 'PatientID' is not read: call it patient" in m for level, m in told)
    assert any(level == "note" and m.endswith("columns that are not read: Age") for level, m in told)
