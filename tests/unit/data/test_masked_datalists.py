"""Images with masks named by a datalist: parts, sites, patients, and what is refused."""

import re
import unicodedata

import pytest
from masked import CPU, SMALL, opened, save_nifti, volume, write_datalist, write_picture, write_volumes

from medpfl.core.errors import UserError
from medpfl.core.site_data import PARTS
from medpfl.data.check import check
from medpfl.data.kinds.masks.datalist import read_datalist
from medpfl.data.kinds.masks.layout import read_folder
from medpfl.data.kinds.masks.mask_kind import MaskKind
from medpfl.data.kinds.masks.reading import Reading
from medpfl.data.kinds.registry import kind_of


def test_a_datalist_names_images_sites_and_parts(home):
    root = write_volumes(home / "files", sites=("a",), cases=6)
    entries = [
        {"image": f"files/a/STS_00{k}/image.nii.gz", "label": f"files/a/STS_00{k}/mask.nii.gz", "patient": f"p{k}"}
        for k in range(6)
    ]
    two = [entry | {"site": "xy"[k % 2], "fold": k // 2} for k, entry in enumerate(entries)]
    labels = {"0": "background", "1": "tumour"}
    file = write_datalist(home / "list.json", training=two, test=["files/a/none.nii.gz"], labels=labels)
    assert isinstance(kind_of(str(file), {}), MaskKind)
    source = opened(file)
    assert source.classes == ("background", "tumour") and list(source.layout.centres) == ["x", "y"]
    data = source.site("site-2", CPU)
    assert [data.samples(part) for part in PARTS] == [2, 0, 1] or [data.samples(part) for part in PARTS] == [1, 0, 2]
    numbers = [entry | {"site": k % 2, "patient": k // 4} for k, entry in enumerate(entries)]
    counted = opened(write_datalist(home / "numbers.json", training=numbers)).layout.centres
    assert [[pair.patient for pair in pairs] for pairs in counted.values()] == [["0", "0", "1"]] * 2
    folded = opened(file, data_args=SMALL | {"fold": 2})._parts("x")
    assert [pair.patient for pair in folded["test"]] == ["p4"] and len(folded["train"]) == 2
    given = write_datalist(root / "dataset.json", training=entries[:3], validation=entries[3:4], test=entries[4:])
    given.write_text(given.read_text().replace("files/", ""))
    parts = opened(root, sites=1)._parts("files")
    assert {part: [pair.patient for pair in pairs] for part, pairs in parts.items()} == {
        "train": ["p0", "p1", "p2"],
        "validation": ["p3"],
        "test": ["p4", "p5"],
    }


def test_files_called_alike_in_a_datalist_are_of_several_patients(home):
    write_picture(home / "train" / "001.png", home / "train" / "001_m.png", 1)
    write_picture(home / "test" / "001.png", home / "test" / "001_m.png", 2)
    write_picture(home / "train" / "002.png", home / "train" / "002_m.png", 3)
    names = ("train/001", "test/001", "train/002")
    entries = {name: {"image": f"{name}.png", "label": f"{name}_m.png"} for name in names}
    lists = {"training": [entries["train/001"], entries["train/002"]], "test": [entries["test/001"]]}
    layout = read_datalist(write_datalist(home / "list.json", **lists), Reading())
    [pairs] = layout.centres.values()
    assert [pair.patient for pair in pairs] == ["train/001", "002", "test/001"]
    assert [pair.split for pair in pairs] == ["train", "train", "test"]
    write_picture(home / "later" / "002.png", home / "later" / "002_m.png", 4)
    visits = [entries["train/002"], {"image": "later/002.png", "label": "later/002_m.png"}]
    [pairs] = read_datalist(write_datalist(home / "visits.json", training=visits), Reading()).centres.values()
    assert [pair.patient for pair in pairs] == ["002", "002"]  # one person's visits stay together
    for entry, name in zip(visits, ("Mu\u0308ller ", "M\u00fcller"), strict=True):
        entry["patient"] = name
    [pairs] = read_datalist(write_datalist(home / "names.json", training=visits), Reading()).centres.values()
    assert {pair.patient for pair in pairs} == {"M\u00fcller"}


@pytest.mark.parametrize("nobody", [float("nan"), "NaN", "NA", "", " - ", None])
def test_nobody_is_no_patient_of_several_images(home, nobody):
    """All of them would be one case, and a program that writes a table as JSON has NaN in an empty cell."""
    for k in range(3):
        write_picture(home / f"{k}.png", home / f"{k}_m.png", k)
    entries = [{"image": f"{k}.png", "label": f"{k}_m.png", "patient": nobody if k else "p0"} for k in range(3)]
    file = write_datalist(home / "list.json", training=entries)
    [pairs] = read_datalist(file, Reading()).centres.values()
    assert [(pair.patient, pair.case, pair.said) for pair in pairs] == [
        ("p0", "p0", True),
        ("1", "1.png", False),
        ("2", "2.png", False),
    ]
    [pairs] = read_datalist(file, Reading(patient="([0-9])")).centres.values()
    assert [pair.patient for pair in pairs] == ["p0", "1", "2"]


@pytest.mark.parametrize(
    ("lists", "words"),
    [
        ({"training": [{"image": "a.nii", "label": "b.nii"}] * 2}, r"training\[1\]: a\.nii is listed twice"),
        (
            {"training": [{"image": "a.nii", "label": "b.nii"}, {"image": "c.nii"}]},
            r"training\[1\]: label: the path of one",
        ),
        (
            {"training": [{"image": "a.nii", "label": "b.nii"}, {"image": "c.png", "label": "d.png"}]},
            "some images are NIfTI",
        ),
        (
            {"training": [{"image": "a.nii", "label": "b.nii"}], "labels": {"0": "background", "1": "lesion #2"}},
            r"list\.json: labels\[1\]: 'lesion #2' has '#'",
        ),
        ({"training": [{"image": "a.nii", "label": "b.nii"}]}, r"fold=3: .* has no entry of that fold"),
        (
            {"training": [{"image": "a.nii", "label": "b.nii"}], "Test": [{"image": "c.nii", "label": "d.nii"}]},
            r"list\.json: 'Test' lists images with masks: call it one of training, validation, test, testing",
        ),
        (
            {"training": [{"image": "a.nii", "label": "b.nii"}], "validation": [{"image": "c.nii"}]},
            r"validation\[0\]: label: the path of one",
        ),
    ],
)
def test_a_datalist_that_is_wrong_is_refused(home, lists, words):
    with pytest.raises(UserError, match=words):
        opened(
            write_datalist(home / "list.json", **lists), data_args=SMALL | {"fold": 3} if "fold" in words else SMALL
        ).prepare()


@pytest.mark.parametrize(
    ("name", "words"),
    [("gone.png", r"gone\.png: there is no such file$"), ("a\\b.png", "file: write / in paths, not .$")],
)
@pytest.mark.parametrize("key", ["image", "label"])
def test_a_picture_that_is_not_there_is_said_to_be_so(home, key, name, words):
    write_picture(home / "1.png", home / "1_mask.png", 0)
    file = write_datalist(home / "list.json", training=[{"image": "1.png", "label": "1_mask.png"} | {key: name}])
    assert [bool(re.search(words, f.message)) for f in check(str(file)) if f.level == "error"] == [True]


def test_accents_in_a_datalist_may_be_written_otherwise_than_its_files(home):
    composed, apart = (unicodedata.normalize(form, "Müller") for form in ("NFC", "NFD"))
    write_picture(home / apart / "1.png", home / apart / "1_mask.png", 0)
    entry = {"image": f"{composed}/1.png", "label": f"{composed}/1_mask.png"}
    assert not [f for f in check(str(write_datalist(home / "list.json", training=[entry]))) if f.level == "error"]


def test_files_called_alike_at_two_sites_and_in_several_folds_are_of_several_patients(home):
    entries = []
    for k, site in enumerate("AB"):
        for number in range(4):
            values, mask = volume(10 * k + number)
            names = {"image": f"{site}/00{number}.nii.gz", "label": f"{site}/00{number}_m.nii.gz"}
            save_nifti(home / names["image"], values)
            save_nifti(home / names["label"], mask)
            entries.append(names | {"site": site, "fold": ((0, 1), ("0", "1.0"))[k][(k + number) % 2]})
    source = opened(write_datalist(home / "list.json", training=entries), data_args=SMALL | {"fold": 0})
    source.prepare()
    assert {site: [p.id for p in source._parts(site)["test"]] for site in "AB"} == {
        "A": ["A/000.nii.gz", "A/002.nii.gz"],
        "B": ["B/001.nii.gz", "B/003.nii.gz"],
    }
    assert {pair.patient for pair in source.layout.centres["A"]} == {"000", "001", "002", "003"}
    [pairs] = read_datalist(
        write_datalist(home / "one.json", training=[entry | {"site": "A"} for entry in entries]), Reading(fold=0)
    ).centres.values()
    assert {pair.patient for pair in pairs if pair.split == "test"} == {"A/000", "B/001", "A/002", "B/003"}


def test_a_test_of_whatever_name_is_kept_and_its_images_without_masks_are_counted(home):
    entries = [{"image": f"{k}.nii.gz", "label": f"{k}_m.nii.gz"} for k in range(5)]
    lists = {"training": entries[:3], "testing": entries[3:4], "test": [*entries[4:], {"image": "5.nii.gz"}, "6.nii"]}
    other = {
        "labels": ["background", "tumour"],
        "modality": {"0": "CT"},
        "tags": [{"image": "1.nii.gz", "label": 3}],
        "numTest": 3,
    }
    layout = read_datalist(write_datalist(home / "list.json", **lists, **other), Reading())
    [pairs] = layout.centres.values()
    assert [pair.split for pair in pairs] == ["train"] * 3 + ["test"] * 2 and layout.unlabelled == 2
    unlabelled = {"training": entries, "testing": [{"image": ["5.nii.gz", "6.nii.gz"], "label": None}]}
    [pairs] = read_datalist(write_datalist(home / "list.json", **unlabelled), Reading()).centres.values()
    assert {pair.split for pair in pairs} == {None}  # a test without masks leaves the parts to be drawn


def test_decathlon_folders_leave_unlabelled_test_images_out(home):
    for k in range(3):
        values, mask = volume(k)
        save_nifti(home / "task" / "imagesTr" / f"t{k}_0000.nii.gz", values)
        save_nifti(home / "task" / "labelsTr" / f"t{k}.nii.gz", mask)
    save_nifti(home / "task" / "imagesTs" / "t9_0000.nii.gz", values)
    layout = read_folder(home / "task", Reading())
    assert len(layout.centres["task"]) == 3 and layout.unlabelled == 1
