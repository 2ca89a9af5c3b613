"""Folders of pictures that cannot be used, and what a user reads of them."""

import os
import re
import shutil
import unicodedata

import numpy as np
import pytest
from pictures import CENTRES, CLASSES, EACH, config, paint

from medpfl.bundle.pictures import LoadPictured
from medpfl.cli.options import Options
from medpfl.core.errors import UserError
from medpfl.data.check import check
from medpfl.data.kinds.folders.layout import read_layout
from medpfl.data.kinds.folders.picture_file import Reading, read_picture, upright
from medpfl.data.kinds.masks.pair import Pair
from medpfl.data.kinds.masks.picture_pair import read_mask
from medpfl.data.kinds.masks.reading import Reading as MaskReading
from medpfl.data.sites import open_source


@pytest.mark.parametrize("content", [b"", b"not a picture", None])
def test_a_broken_picture_is_named(fundus, content):
    file = fundus / "south" / "normal" / "n1_left.jpg"
    file.write_bytes(file.read_bytes()[:400] if content is None else content)
    with pytest.raises(UserError, match=r"south/normal/n1_left.jpg: cannot be read \(.*\); repair it or take it out"):
        open_source(config(fundus)).prepare()
    assert ["n1_left.jpg" in f.message for f in check(fundus) if f.level == "error"] == [True]


def test_the_same_file_at_two_sites_is_told(fundus, caplog):
    shutil.copy(fundus / "north" / "normal" / "n0_left.png", fundus / "west" / "glaucoma" / "copy.png")
    open_source(config(fundus)).prepare()
    said = (
        "n0_left.png and .*copy.png have the same content: training and test may share them; 1 of them in two classes"
    )
    assert re.search(said, caplog.text)
    assert any("have the same content" in f.message for f in check(fundus) if f.level == "warning")
    shutil.copy(fundus / "north" / "normal" / "n1_left.png", fundus / "west" / "glaucoma" / "other.png")
    assert any("have the same content (and 1 more pair): " in f.message for f in check(fundus))


def _move(fundus, old, new):
    (fundus / new).parent.mkdir(parents=True, exist_ok=True)
    (fundus / old).rename(fundus / new)


SPOILED = {
    "stray": lambda f: _move(f, "north/normal/n0_left.png", "north/n0_left.png"),
    "loose": lambda f: _move(f, "north/normal/n0_left.png", "n0_left.png"),
    "empty": lambda f: (f / "east").mkdir(),
    "case": lambda f: _move(f, "north/normal", "north/Normal"),
    "parts": lambda f: [_move(f, "north", "train"), _move(f, "south", "test"), shutil.rmtree(f / "west")],
    "inside": lambda f: (
        [_move(f, "north", "a"), shutil.rmtree(f / "south"), shutil.rmtree(f / "west")]
        + [_move(f, f"a/{c}", f"a/{part}/{c}") for c, part in zip(CLASSES, ("train", "test"), strict=True)]
    ),
    "code": lambda f: [_move(f, f"{c}/normal", f"{c}/$os.abort()") for c in CENTRES],
    "escape": lambda f: [_move(f, f"{c}/normal", f"{c}/n\x1b[2Jormal") for c in CENTRES],
    "single": lambda f: [shutil.rmtree(f / c / "normal") for c in CENTRES],
    "apart": lambda f: [_move(f, f"{c}/{k}", f"{c}/{c}-{k}") for c in CENTRES for k in CLASSES],
}


@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        (
            "stray",
            r"north/n0_left.png lies directly in a sub-folder, north/glaucoma/g0_left.png one deeper: ",
        ),
        ("loose", "fundus: n0_left.png lies in no class folder"),
        ("empty", "fundus: east: no picture is in it, and every sub-folder is a centre"),
        ("case", "class folders north/Normal and south/normal differ in case or spaces alone: call them the same"),
        ("parts", "fundus: test, train are parts, not centres: put a class's pictures of all parts into one folder"),
        ("inside", "fundus: test, train are parts, not classes"),
        ("code", r"fundus: classes\[0\]: '\$os.abort\(\)' begins with '\$', which MONAI's bundles take for code"),
        ("escape", r"fundus: classes\[1\]: 'n\\x1b\[2Jormal' has line breaks or other characters that are not printed"),
        ("single", "fundus: 'glaucoma' is the only class folder; two are needed"),
        ("apart", "no class folder is in two of the centres north, south, west: .*name the classes with --data-arg"),
    ],
)
def test_a_folder_that_cannot_be_used(fundus, spoiled, message):
    SPOILED[spoiled](fundus)
    with pytest.raises(UserError, match=message):
        Options(data=str(fundus)).config("fedavg")
    (found,) = check(fundus)
    assert found.level == "error"


def test_names_of_classes_tell_a_stray_picture_from_a_class(fundus):
    SPOILED["stray"](fundus)
    with pytest.raises(UserError, match=r"north/n0_left.png lies beside the class folders of north: move it into one"):
        read_layout(fundus, CLASSES)
    _move(fundus / "south", "normal/n0_left.jpg", "normal/left/n0.jpg")
    assert len(read_layout(fundus / "south", CLASSES).centres["south"]) == 2 * EACH


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sites": 2}, "--sites 2: .*fundus has 3 centres to train at"),
        (
            {"sites": 2, "names": ("west", "south")},
            "--sites west,south: .*fundus has 3 centres to train at; --held-out north keeps the others out of training",
        ),
        ({"names": ("west", "nroth", "south")}, "--sites west,nroth,south: .*fundus has no centre 'nroth': there are"),
        ({"held_out": "east"}, "--held-out east: .* has the centres north, south, west"),
        ({"official": True}, "--official: .* come without parts; leave it out"),
        ({"pooling": "attention"}, "--pooling attention is over a scan's slices"),
        ({"data_args": {"sizes": 3}}, "--data-arg sizes: .*there are size, fit, channels, patient, train_counts, clas"),
        ({"data_args": {"fit": "zoom"}}, "--data-arg fit: Input should be 'crop', 'pad' or 'stretch'"),
        ({"data_args": {"patient": "^[^_]+_"}}, "--data-arg patient: .* has no group in parentheses"),
        ({"data_args": {"patient": "(["}}, "--data-arg patient: .* is no regular expression"),
        ({"data_args": {"patient": "^n(.)"}}, r"north/glaucoma/g0_left.png: --data-arg patient=.* finds no patient"),
        ({"data_args": {"classes": ["ill", "normal"]}}, r"north/glaucoma: 'glaucoma' is none of the classes ill, norm"),
        ({"data_args": {"classes": "a"}}, '--data-arg classes: "a" is no list'),
    ],
)
def test_what_does_not_fit_is_said(fundus, fields, message):
    with pytest.raises(UserError, match=message):
        source = open_source(config(fundus, **fields))
        source.model_arguments()
        source.prepare()


def test_a_partition_and_a_file_are_refused(fundus):
    with pytest.raises(UserError, match=r"--partition iid: divides one centre, and .* has 3: north, south, west"):
        Options(data=str(fundus), partition="iid").config("fedavg")
    with pytest.raises(UserError, match=r"n0_left.png: a picture; give a folder with one for each centre"):
        open_source(config(fundus / "north" / "normal" / "n0_left.png"))


def test_a_patient_with_pictures_at_two_centres_is_a_warning(fundus, caplog):
    own = {"patient": "^(.+)_"}
    for file in sorted((fundus / "west").rglob("*.*")):
        file.rename(file.with_name(f"w{file.name}"))
    found = [f.message for f in check(fundus, own) if "same person" in f.message]
    assert found == ["patient g0 (and 5 more like it) is in north and in south: is it the same person?"]
    assert not [f for f in check(fundus) if "same person" in f.message]
    open_source(config(fundus, data_args=own)).prepare()
    assert "patient g0 (and 5 more like it) is in north and in south" in caplog.text


def test_webp_is_read_and_heic_is_not_lost_without_a_word(fundus, caplog):
    paint(fundus / "north" / "normal" / "n7_left.webp", (90, 90, 90), 99)
    (fundus / "north" / "normal" / "n8_left.heic").write_bytes(b"ftypheic")
    told = [(f.level, f.message) for f in check(fundus)]
    assert ("ok", "north: 13 pictures: glaucoma 6, normal 7") in told
    (warning,) = [text for level, text in told if level == "warning" and "heic" in text]
    assert warning.startswith("1 picture is not read (.heic), ") and "n8_left.heic first" in warning
    open_source(config(fundus)).prepare()
    assert "1 picture is not read (.heic)" in caplog.text


@pytest.mark.parametrize(("ending", "form"), [("jfif", "JPEG"), ("jpe", "JPEG"), ("jp2", "JPEG2000"), ("ppm", "PPM")])
def test_pictures_of_less_common_names_are_read(fundus, ending, form):
    picture = paint(fundus / "north" / "normal" / f"n7_left.{ending}", (90, 60, 30), 99, format=form)
    assert ("ok", "north: 13 pictures: glaucoma 6, normal 7") in [(f.level, f.message) for f in check(fundus)]
    mean = read_picture(picture, Reading(size=8)).mean(axis=(1, 2))
    assert np.abs(mean - (90, 60, 30)).max() < 8


def test_a_grey_map_is_read_by_the_range_that_it_says(tmp_path):
    """As mammograms have them: 12 bits are brought to 8."""
    file = tmp_path / "m.pgm"
    file.write_bytes(b"P5\n2 2\n4095\n" + np.array([0, 1000, 2000, 4095], ">u2").tobytes())
    assert np.asarray(upright(file, "L")).tolist() == [[0, 62], [125, 255]]  # 255 x 1000 / 4095 = 62.3 and 124.5


def test_pictures_of_formats_that_are_not_read_are_told(fundus):
    paint(fundus / "north" / "normal" / "n7_left.gif", (90, 90, 90), 99)
    assert any(f.level == "warning" and "1 picture is not read (.gif)" in f.message for f in check(fundus))


@pytest.mark.parametrize("where", ["", "north"])
def test_a_table_whose_name_has_capitals_is_not_passed_over(fundus, where):
    (fundus / where / "Labels.CSV").write_text("picture,label\nn0_left.png,1\n")
    (finding,) = check(fundus)
    assert finding.message == f"{fundus / where / 'Labels.CSV'}: call it labels.csv, so that it is read"


def test_a_pipe_among_pictures_is_none_of_them(fundus):
    os.mkfifo(fundus / "north" / "normal" / "n9_left.png")
    assert "north: 12 pictures: glaucoma 6, normal 6" in [f.message for f in check(fundus)]


def test_class_folders_whose_accents_are_written_in_two_ways_are_one_class(fundus):
    for centre, form in (("north", "NFC"), ("south", "NFD")):
        (fundus / centre / "glaucoma").rename(fundus / centre / unicodedata.normalize(form, "Grüner Star"))
    (fundus / "west" / "glaucoma").rename(fundus / "west" / "Grüner Star")
    layout = read_layout(fundus)
    assert layout.classes == (unicodedata.normalize("NFC", "Grüner Star"), "normal")
    assert [sum(p.label == 0 for p in pictures) for pictures in layout.centres.values()] == [6, 6, 6]


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.mark.parametrize("name", ["scan.png", "scan.jfif", "scan.pgm"])
def test_what_a_picture_holds_is_opened_as_a_picture_alone(tmp_path, monkeypatch, name):
    """By itself Pillow takes a file for what it begins as, and has Ghostscript run a PostScript file's programs."""
    ran = tmp_path / "ran"
    (tmp_path / "gs").write_text(f"#!/bin/sh\necho 10.0\ntouch {ran}\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    file = tmp_path / name
    file.write_bytes(POSTSCRIPT)
    reads = [
        lambda: read_picture(file, Reading(size=32)),
        lambda: LoadPictured("image", 1, 64)({"image": file}),
        lambda: read_mask(Pair("a", "p", "c", "i", file, file), MaskReading(size=32), 2),
    ]
    for read in reads:
        with pytest.raises(UserError, match=re.escape(str(file))):
            read()
    assert not ran.exists()
