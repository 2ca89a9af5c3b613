"""Pictures with labels, patients and parts from a table; a class that is called NA."""

from pathlib import Path

import pytest
import torch
from pictures import CPU, config, paint

from medpfl.cli.options import Options
from medpfl.core.errors import UserError
from medpfl.core.site_data import PARTS
from medpfl.data.arguments import named_classes
from medpfl.data.check import check
from medpfl.data.kinds.folders.layout import read_layout
from medpfl.data.kinds.registry import kind_of
from medpfl.data.kinds.scans.label_table import Columns, read_rows
from medpfl.data.sites import open_source
from medpfl.runs.experiment import run_experiment


def write_table(folder, rows, head="picture,label,patient", files=True):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "labels.csv").write_text("\n".join([head, *rows]) + "\n")
    for number, row in enumerate(rows):
        if files:
            paint(folder / row.split(",")[0].strip('"'), (200, 20 * number, 60), number)
    return folder


ROWS = [f"x/{n}.png,{'NA' if n % 2 else 'AMD'},p{n // 2}" for n in range(8)]


def test_one_folder_with_a_table_is_a_centre(tmp_path):
    root = write_table(tmp_path / "eyes", [row.replace("NA", "no") for row in ROWS])
    assert kind_of(str(root), {}).name == "folders"
    layout = read_layout(root)
    assert (layout.classes, list(layout.centres), layout.people) == (("AMD", "no"), ["eyes"], True)
    found = {picture.id: (picture.label, picture.patient, picture.split) for picture in layout.centres["eyes"]}
    assert found["x/3.png"] == (1, "p1", None) and len(found) == 8


@pytest.mark.parametrize("given", ["relative", "link"])
def test_absolute_paths_are_those_of_the_folder_by_whatever_name_it_is_given(tmp_path, monkeypatch, given):
    rows = [f"{tmp_path}/eyes/{row.replace('NA', 'no')}" for row in ROWS]
    write_table(tmp_path / "eyes", rows)
    (tmp_path / "link").symlink_to(tmp_path / "eyes")
    monkeypatch.chdir(tmp_path)
    (pictures,) = read_layout(Path("eyes") if given == "relative" else tmp_path / "link").centres.values()
    assert {picture.id for picture in pictures} == {f"x/{n}.png" for n in range(8)}


def test_centres_each_with_a_table_and_its_own_parts(tmp_path):
    rows = [f"{n}.png,{n % 2},{('train', 'validation', 'test')[n // 2]}" for n in range(6)]
    for centre in ("north", "south"):
        write_table(tmp_path / "eyes" / centre, rows, head="Picture;Label;split".replace(";", ","))
    source = open_source(config(tmp_path / "eyes", sites=2))
    parts = {part: [picture.id for picture in found] for part, found in source._parts("south").items()}
    assert parts == {"train": ["0.png", "1.png"], "validation": ["2.png", "3.png"], "test": ["4.png", "5.png"]}
    assert source.layout.classes == ("0", "1") and not source.layout.people
    told = [finding.message for finding in check(tmp_path / "eyes")]
    assert "north: by the table: train 2, validation 2, test 2" in told
    assert not any("default split" in text for text in told)


def test_check_says_where_one_centre_or_one_row_does_not_say_whose_pictures_are(tmp_path):
    write_table(tmp_path / "eyes" / "north", [f"{n}.png,{n % 2},p{n // 2}" for n in range(8)])
    write_table(tmp_path / "eyes" / "south", [f"{n}.png,{n % 2}" for n in range(8)], head="picture,label")
    write_table(tmp_path / "eyes" / "west", [f"{n}.png,{n % 2},{'' if n == 3 else n}" for n in range(8)])
    told = [f.message for f in check(tmp_path / "eyes") if "have no patient" in f.message]
    assert [text.split(",")[0] for text in told] == [
        "south: 8 of them have no patient",
        "west: 1 of them have no patient",
    ]
    assert all(text.endswith("each counts as its own") for text in told)


def test_grades_with_the_decimals_of_a_spreadsheet_are_refused_by_their_line(tmp_path):
    root = write_table(tmp_path / "eyes", [f"{n}.png;{n % 2},0" for n in range(4)], "picture;label", files=False)
    (told,) = [f.message for f in check(root) if f.level == "error"]
    assert "line 2: label '0,0': write 0, without decimals" in told and "3 more like it" in told


def test_a_class_may_be_called_na_if_it_is_named(tmp_path):
    root = write_table(tmp_path / "eyes", ROWS)
    with pytest.raises(UserError, match=r"line 3: label 'NA' is no class: .*name the classes .*3 more like it"):
        read_layout(root)
    named = read_layout(root, ("AMD", "NA"))
    assert sum(picture.label for picture in named.centres["eyes"]) == 4
    assert not [f for f in check(root, {"classes": ["AMD", "NA"]}) if f.level == "error"]
    assert len(read_rows(root / "labels.csv", Columns("picture", classes=("NA", "AMD"))).rows) == 8
    assert len(read_rows(root / "labels.csv", Columns("picture", classes=("na", "AMD"))).rows) == 4  # as it is written


def test_the_patients_of_a_table_go_before_the_names_of_files(tmp_path):
    root = write_table(tmp_path / "eyes", ["a_1.png,x,p1", "a_2.png,y,", "b_1.png,x,p1"])
    people = [picture.patient for picture in read_layout(root, patient="^([^_]+)_").centres["eyes"]]
    assert people == ["p1", "a", "p1"]


def test_pictures_in_no_row_are_counted(tmp_path):
    root = write_table(tmp_path / "eyes", [row.replace("NA", "no") for row in ROWS])
    paint(root / "left over.png", (1, 2, 3), 99)
    (words,) = [f.message for f in check(root) if "in no row" in f.message]
    assert words.startswith("1 pictures are in no row of a table and are not read") and "left over.png" in words
    assert "1 other file in the folder, not read" in [f.message for f in check(root)]  # and not the table, which is


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("gone.png,no,p9", "line 10: gone.png: there is no such file"),
        (r"sub\gone.png,no,p9", r"line 10: sub\\gone\.png: there is no such file in .*: write / in paths, not"),
        ("../other.png,no,p9", r"line 10: \.\./other\.png lies outside of"),
        ("x/0.png,no,p9", r"line 10: x/0\.png is there a second time"),
        ("x/9.png,,p9", "line 10: label is empty"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path, row, words):
    root = write_table(tmp_path / "eyes", [r.replace("NA", "no") for r in ROWS])
    paint(tmp_path / "other.png", (1, 2, 3), 98)
    with open(root / "labels.csv", "a") as table:
        table.write(row + "\n")
    with pytest.raises(UserError, match=words):
        read_layout(root)
    assert any(f.level == "error" and "line 10" in f.message for f in check(root))


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        ("one/8", "one/8.png"),  # without its ending
        ("9.png", "two/9.png"),  # without its folder
        ("9", "two/9.png"),
        ("ONE/8.PNG", "one/8.png"),  # in other case
        (r"two\9.png", "two/9.png"),
        ("8.png", None),  # there are two
        ("10.png", None),
        ("labels", None),  # no picture
    ],
)
def test_a_row_that_names_a_file_otherwise_is_told_which_may_be_meant(tmp_path, named, meant):
    root = write_table(tmp_path / "eyes", [r.replace("NA", "no") for r in ROWS])
    for number, file in enumerate(("one/8.png", "two/8.png", "two/9.png")):
        paint(root / file, (number, 90, 9), number)
    with open(root / "labels.csv", "a") as table:
        table.write(f"{named},no,p9\n")
    with pytest.raises(UserError, match=r"line 10: .*there is no such file in .*eyes") as refused:
        read_layout(root)
    assert str(refused.value).partition("; ")[2] == (f"is {meant} meant?" if meant else "")


def test_a_label_beside_the_jobs_classes_is_named(tmp_path):
    root = write_table(tmp_path / "eyes", ROWS)
    with pytest.raises(UserError, match=r"line 2: label 'AMD' is neither a class \(NA, dry\) nor its number"):
        read_layout(root, ("NA", "dry"))


FINDINGS = ["", "effusion", "nodule|effusion", "nodule", "effusion | nodule", "", "nodule", "effusion"] * 2
SEVERAL = [f"{n}.png,{labels},p{n // 2}" for n, labels in enumerate(FINDINGS)]


def test_several_labels_a_picture_are_a_task_of_their_own(tmp_path):
    root = write_table(tmp_path / "chest", SEVERAL, head="picture,labels,patient")
    layout = read_layout(root)
    assert layout.several and layout.classes == ("effusion", "nodule")
    assert [p.labels for p in sorted(layout.centres["chest"], key=lambda p: int(p.id[:-4]))[:4]] == [
        (0, 0), (1, 0), (1, 1), (0, 1)
    ]  # fmt: skip
    assert layout.counts(layout.centres["chest"]) == [8, 8]
    asked = Options(data=str(root), sites="2", partition="iid").config("fedavg")
    assert asked.task == "multi-label" and asked.learned.labels == "labels"
    with pytest.raises(UserError, match=r"--task classification: .* has several labels an image"):
        Options(data=str(root), sites="2", partition="iid", task="classification").config("fedavg")
    assert any("labels, several a picture: effusion, nodule" in f.message for f in check(root))


def test_a_centres_division_does_not_hang_on_other_centres(tmp_path):
    """Of several labels the rarest divides: the rarest at the centre, which alone is at a hospital."""
    write_table(tmp_path / "one" / "north", SEVERAL, head="picture,labels,patient")
    for centre, rows in (("north", SEVERAL), ("south", [f"{n}.png,nodule,p{n}" for n in range(40)])):
        write_table(tmp_path / "two" / centre, rows, head="picture,labels,patient")
    alone, among = (read_layout(tmp_path / root).centres["north"] for root in ("one", "two"))
    assert [(p.id, p.label) for p in alone] == [(p.id, p.label) for p in among]


def test_labels_of_a_picture_may_be_unknown(tmp_path):
    rows = ["0.png,1,0", "1.png,,1", "2.png,0,NA", "3.png,0,0"]
    root = write_table(tmp_path / "chest", rows, head="picture,label: effusion,label: nodule")
    layout = read_layout(root)
    assert [p.labels for p in layout.centres["chest"]] == [(1, 0), (-1, 1), (0, -1), (0, 0)]
    words = [f.message for f in check(root)]
    assert "chest: 4 pictures: effusion 1 of 3 known, nodule 1 of 3 known; 2 pictures with none of them" in words
    data = open_source(config(root, sites=1, task="multi-label")).site("site-1", CPU)
    assert sorted(label for part in PARTS for label in data.labels[part].flatten().tolist()) == [
        -1,
        -1,
        0,
        0,
        0,
        0,
        1,
        1,
    ]


def test_several_labels_are_learned_by_patient(tmp_path):
    root = write_table(tmp_path / "chest", SEVERAL, head="picture,labels,patient")
    run = config(root, sites=2, partition="iid", task="multi-label", alone="no")
    source = open_source(run)
    sites = [source.site(name, CPU) for name in run.site_names]
    labels = torch.cat([site.labels[part] for site in sites for part in PARTS])
    assert labels.shape == (16, 2) and labels.sum(0).tolist() == [8, 8]
    results = run_experiment(run, tmp_path / "run", env="inprocess")
    assert results["status"] == "finished" and results["config"]["task"] == "multi-label"
    assert "judged_classes" not in results["data"]["sites"]["site-1"]
    with pytest.raises(UserError, match="has several labels an image; it is for multi-label"):
        open_source(config(root, sites=2, partition="iid")).prepare()


@pytest.mark.parametrize(
    ("labels", "words"), [("nodule|NA", "label 'NA' is no class"), ("nodule|mass", "label 'mass' is neither a class")]
)
def test_of_several_labels_each_must_be_one(tmp_path, labels, words):
    root = write_table(tmp_path / "chest", [*SEVERAL, f"x.png,{labels},p9"], head="picture,labels,patient")
    with pytest.raises(UserError, match=words):
        read_layout(root, ("effusion", "nodule"))


def test_tables_of_one_kind_alone(tmp_path):
    write_table(tmp_path / "chest" / "a", SEVERAL, head="picture,labels,patient")
    write_table(tmp_path / "chest" / "b", ["1.png,nodule,p", "2.png,effusion,q"])
    with pytest.raises(UserError, match=r"says several labels a row, .* a class: all must have one form"):
        read_layout(tmp_path / "chest")


@pytest.mark.parametrize(
    ("again", "words"),
    [("sub/../{first}", "is the same picture as"), ("x" * 5000 + ".png", "is no path of a picture")],
)
def test_a_picture_is_one_row_and_a_path(tmp_path, again, words):
    root = write_table(tmp_path / "chest", SEVERAL, head="picture,labels,patient")
    table = next(root.rglob("labels.csv"))
    (table.parent / "sub").mkdir()
    first = table.read_text().splitlines()[1].split(",")[0]
    with table.open("a") as lines:
        lines.write(f"{again.format(first=first)},nodule,other\n")
    with pytest.raises(UserError, match=words):
        open_source(config(root, sites=2, partition="iid", task="multi-label")).prepare()


def test_classes_have_a_number_that_tables_of_them_can_have():
    with pytest.raises(UserError, match="1,001 names; 1,000 is the most"):
        named_classes({"classes": [f"c{i}" for i in range(1001)]})


def test_a_patient_in_two_parts_is_one_error_among_what_else_is_found(tmp_path):
    rows = [f"x/{n}.png,{'no' if n % 2 else 'AMD'},p{n // 2},{'test' if n == 3 else 'train'}" for n in range(8)]
    for centre in ("east", "west"):
        write_table(tmp_path / "eyes" / centre, rows, "picture,label,patient,split")
    found = check(tmp_path / "eyes")
    errors = [f.message for f in found if f.level == "error"]
    assert [message.partition(":")[0] for message in errors] == ["east", "west"]
    assert "patient p1 is in test and train (x/3.png and x/2.png): all that is of one patient" in errors[0]
    assert sum("8 pictures of 4 patients" in f.message for f in found) == 2
