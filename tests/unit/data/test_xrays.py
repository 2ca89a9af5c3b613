"""DICOM X-ray images as pictures: values by hand, real files, patients, what is refused."""

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pydicom.data
import pytest
from monai.bundle import ConfigWorkflow
from pictures import config
from pydicom import dcmread
from pydicom.pixels import apply_modality_lut, apply_voi_lut
from xrays import voi_lut, write_hospital, write_xray

from medpfl.bundle.inference import items
from medpfl.bundle.pictures import ReadPictured
from medpfl.core.errors import UserError
from medpfl.data.check import check
from medpfl.data.kinds.folders.layout import read_layout
from medpfl.data.kinds.folders.picture_file import Reading, picture_size, read_picture
from medpfl.data.kinds.folders.xray import is_dicom, person, xray
from medpfl.data.kinds.registry import kind_of
from medpfl.data.sites import open_source
from medpfl.runs.experiment import run_experiment

INSTALLED = Path(pydicom.data.__file__).parent / "test_files"
REAL = [INSTALLED / "dicomdirtests" / "77654033" / place for place in ("CR1/6154", "CR2/6247", "CR3/6278")]


def grey(file):
    return np.asarray(xray(file)).tolist()


def test_without_a_window_the_bits_stored_are_the_range(tmp_path):
    file = write_xray(tmp_path / "a.dcm", [[0, 1000], [2048, 4095]])
    assert grey(file) == [[0, 62], [128, 255]]  # 255 x 1000 / 4095 = 62.3; 127.5 is rounded to the even number
    assert picture_size(file) == (2, 2)


@pytest.mark.filterwarnings("ignore:Invalid value for VR CS")
def test_a_modality_in_small_letters_is_the_same(tmp_path):
    assert grey(write_xray(tmp_path / "a.dcm", [[0, 4095]], Modality="dx")) == [[0, 255]]


def test_monochrome1_is_turned_over(tmp_path):
    file = write_xray(tmp_path / "a.dcm", [[0, 1000, 4095]], PhotometricInterpretation="MONOCHROME1")
    assert grey(file) == [[255, 193, 0]]


@pytest.mark.parametrize(("photometric", "padding"), [("MONOCHROME1", 0), ("MONOCHROME2", 4095)])
def test_padding_is_black(tmp_path, photometric, padding):
    more = {"PhotometricInterpretation": photometric, "PixelPaddingValue": padding}
    file = write_xray(tmp_path / "a.dcm", [[padding, 2048, 1000]], **more)
    first, second, _ = np.ravel(grey(file))
    assert first == 0 and second in (127, 128)


def test_the_window_is_used(tmp_path):
    # PS3.3 C.11.2.1.2.1 with centre 1000.5 and width 1001: from 500 to 1500, (x - 1000) / 1000 + 0.5.
    file = write_xray(tmp_path / "a.dcm", [[0, 500, 800, 1500, 4000]], WindowCenter=1000.5, WindowWidth=1001)
    assert grey(file) == [[0, 0, round(255 * 0.3), 255, 255]]


def test_rescaling_comes_before_the_window(tmp_path):
    fields = {"RescaleSlope": 2, "RescaleIntercept": -1000, "WindowCenter": 1000.5, "WindowWidth": 1001}
    file = write_xray(tmp_path / "a.dcm", [[750, 900, 1250]], **fields)  # 500, 800 and 1500 after it
    assert grey(file) == [[0, round(255 * 0.3), 255]]


def test_a_negative_slope_turns_an_image_over_with_a_window_too(tmp_path):
    """Stored 0 is 4095 and bright; the window spans the whole range and so changes nothing."""
    values, fields = [[0, 1000, 2000, 3000, 4095]], {"RescaleSlope": -1, "RescaleIntercept": 4095}
    plain = grey(write_xray(tmp_path / "plain.dcm", values, **fields))
    assert plain == [[255, 193, 130, 68, 0]]
    windowed = grey(write_xray(tmp_path / "windowed.dcm", values, **fields, WindowCenter=2048, WindowWidth=4096))
    assert np.abs(np.subtract(plain, windowed)).max() <= 1


def test_a_voi_lut_is_used_before_a_window(tmp_path):
    fields = {"VOILUTSequence": voi_lut([0, 1023, 204, 511], 10), "WindowCenter": 2, "WindowWidth": 2}
    file = write_xray(tmp_path / "a.dcm", [[0, 1, 2, 3, 9]], **fields)
    assert grey(file) == [[0, 255, round(255 * 204 / 1023), 127, 127]]  # beyond the table its last entry


@pytest.mark.parametrize("file", REAL, ids=lambda file: file.name)
def test_real_images_are_what_pydicom_makes_of_them(file):
    dataset = dcmread(file)
    assert dataset.Modality == "CR" and dataset.PhotometricInterpretation == "MONOCHROME1" and dataset.BitsStored == 12
    shown = apply_voi_lut(apply_modality_lut(dataset.pixel_array, dataset), dataset)
    slope, intercept = float(dataset.get("RescaleSlope", 1)), float(dataset.get("RescaleIntercept", 0))
    expected = 255 * (1 - (shown - intercept) / (4095 * slope))
    assert np.abs(np.asarray(xray(file)) - expected).max() <= 0.5 + 1e-6
    assert person(file) == dataset.PatientID
    assert read_picture(file, Reading(size=8, channels="grey")).shape == (1, 8, 8)


def test_patients_are_the_headers_and_stay_together(tmp_path):
    root = write_hospital(tmp_path / "thorax")
    assert kind_of(str(root), {}).name == "folders"
    layout = read_layout(root)
    assert layout.people and layout.classes == ("healthy", "ill") and list(layout.centres) == ["north", "south"]
    assert len(layout.centres["north"]) == 24
    parts = open_source(config(root, sites=2))._parts("north")
    owners = [{picture.patient for picture in part} for part in parts.values()]
    assert sum(map(len, owners)) == len(set().union(*owners)) == 12
    found = check(root)
    assert not [f for f in found if f.level == "error"]
    assert any("24 pictures of 12 patients: healthy 12, ill 12" in f.message for f in found)


def test_a_centre_whose_patients_have_lost_their_ids_is_told(tmp_path):
    root = write_hospital(tmp_path / "thorax")
    said = "north: all pictures are of one patient: has PatientID been removed? a table can name the patients"
    assert said not in [f.message for f in check(root)]
    for file in sorted((root / "north").rglob("*")):
        if file.is_file():
            dataset = dcmread(file)
            dataset.PatientID = "ANONYMOUS"
            dataset.save_as(file)
    found = [(f.level, f.message) for f in check(root)]
    assert ("warning", said) in found
    assert ("ok", "north: 24 pictures of 1 patient: healthy 12, ill 12") in found
    assert not [message for _, message in found if message.startswith("south: all pictures")]


def test_an_image_without_a_patient_in_the_table_has_the_name_of_its_patient_id_there(tmp_path):
    """Else one person would be two, by the table's name and by the PatientID."""
    rows = ["picture,label,patient"]
    for number, (ident, patient) in enumerate([("A", "p0"), ("A", ""), ("B", "p1"), ("B", "p2"), ("C", "")]):
        write_xray(tmp_path / f"{number}.dcm", np.full((8, 8), 100 + number), patient=ident)
        rows.append(f"{number}.dcm,{'ill' if number % 2 else 'healthy'},{patient}")
    (tmp_path / "labels.csv").write_text("\n".join(rows) + "\n")
    (centre,) = read_layout(tmp_path).centres.values()
    assert [picture.patient for picture in centre] == ["p0", "p0", "p1", "p2", "C"]
    (told,) = [f.message for f in check(tmp_path) if "has the PatientID of" in f.message]
    assert "line 5: patient 'p2' has the PatientID of 'p1' (" in told and "if they are one person, call it" in told


def test_a_run_learns_and_no_patient_leaves(tmp_path):
    root = write_hospital(tmp_path / "thorax")
    run = config(root, sites=2, data_args={"channels": "grey"}, rounds=2)
    results = run_experiment(run, tmp_path / "run", env="inprocess")
    assert results["data"]["sites"]["site-1"]["patients"] == 12
    seen = [f for f in (tmp_path / "run").rglob("*") if f.is_file() and b"secret-" in f.read_bytes()]
    assert seen == []
    model = sorted((tmp_path / "run" / "state").glob("site-1/selected"))[0]
    some = sorted((root / "north" / "ill").glob("*"))[:2]
    (tmp_path / "new").mkdir()
    for file in (*some, some[0].parent / "._hidden"):
        (tmp_path / "new" / file.name).write_bytes(some[0].read_bytes())
    made = ConfigWorkflow(
        config_file=str(model / "bundle" / "configs" / "inference.json"), workflow_type="inference",
        bundle_root=str(model / "bundle"), input_path=str(tmp_path / "new"),
    )  # fmt: skip
    made.initialize()
    answers = made.parser.get_parsed_content("evaluator").run()
    assert [answer["name"] for answer in answers["results"]] == [file.name for file in some]
    assert "left_out" not in answers


def test_a_bundle_passes_over_what_training_does(tmp_path):
    """Reports and a medium's index are no images, and a pipe would be waited for."""
    write_xray(tmp_path / "cd" / "IMG" / "IM1", np.arange(480).reshape(24, 20))
    for place in ("cd/IMG/SR1", "cd/PR1"):
        report = dcmread(write_xray(tmp_path / place, [[1]], SOPClassUID="1.2.840.10008.5.1.4.1.1.88.11"))
        for image in ("Rows", "Columns", "PixelData"):
            delattr(report, image)
        report.save_as(tmp_path / place)
    shutil.copy(INSTALLED / "dicomdirtests" / "DICOMDIR", tmp_path / "cd")
    os.mkfifo(tmp_path / "cd" / "IMG" / "pipe")
    assert [item["name"] for item in items(tmp_path / "cd" / "IMG", "picture")] == ["IM1"]
    with pytest.raises(UserError, match=r"its pictures lie in folders inside it: give one of those, e\.g\. .*IMG$"):
        items(tmp_path / "cd", "picture")
    assert person(tmp_path / "cd" / "DICOMDIR") is None  # so that training takes it for no picture either


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"Modality": "CT"}, "a DICOM image of modality CT; pictures are X-ray images (CR, DX, IO, MG, PX, RG)"),
        ({"PresentationIntentType": "FOR PROCESSING"}, "raw values of the detector (FOR PROCESSING)"),
        ({"NumberOfFrames": 3}, "3 frames; one image a file is needed"),
        ({"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB"}, "a picture of 3 colours (RGB), no X-ray image"),
        ({"RescaleSlope": 0, "RescaleIntercept": 5}, "values from 5 to 5: its bits or its rescaling are wrong"),
        ({"PixelData": b"\0\0"}, "its pixels cannot be decoded: "),
    ],
)
def test_what_is_no_such_image_is_named(tmp_path, fields, words):
    root = write_hospital(tmp_path / "thorax")
    bad = write_xray(root / "south" / "ill" / "bad.dcm", np.full((24, 20), 7), **fields)
    with pytest.raises(UserError, match=f"^{re.escape(str(bad))}: cannot be read .{re.escape(words)}"):
        read_picture(bad, Reading())
    assert any(f.level == "error" and words in f.message and str(bad) in f.message for f in check(root))


@pytest.mark.parametrize("modality", ["US", "OT", ""])
def test_another_image_that_is_the_first_is_named_too(tmp_path, modality):
    root = write_hospital(tmp_path / "thorax")
    first = write_xray(root / "north" / "healthy" / "a.dcm", np.full((24, 20), 7), Modality=modality)
    said = [f.message for f in check(root) if f.level == "error"]
    assert [
        f"{first}: cannot be read (a DICOM image of modality {modality or 'unknown'};" in line for line in said
    ] == [True]


def test_what_has_no_image_is_counted_and_who_has_no_id_too(tmp_path):
    root = write_hospital(tmp_path / "thorax")
    report = write_xray(root / "south" / "ill" / "sr.dcm", [[1]], SOPClassUID="1.2.840.10008.5.1.4.1.1.88.11")
    dataset = dcmread(report)
    for name in ("Rows", "Columns", "PixelData"):
        delattr(dataset, name)
    dataset.save_as(report)
    write_xray(root / "south" / "ill" / "who.dcm", np.arange(480).reshape(24, 20), patient="")
    warned = [f.message for f in check(root) if f.level == "warning"]
    assert any(w.startswith("1 DICOM files have no image and are not read") and "sr.dcm" in w for w in warned)
    assert any("1 DICOM images say no PatientID" in w and "who.dcm" in w for w in warned)


@pytest.mark.parametrize(
    "fields",
    [{"bits": 16}, {"bits": 16, "PhotometricInterpretation": "MONOCHROME1"}, {"WindowCenter": 0, "WindowWidth": 20000}],
)
def test_check_and_bundle_say_where_a_header_leaves_hardly_anything_to_be_seen(tmp_path, caplog, fields):
    root = write_hospital(tmp_path / "thorax")
    values = np.linspace(0, 4095, 480, dtype=int).reshape(24, 20)
    flat = write_xray(root / "south" / "ill" / "flat.dcm", values, patient="else", **fields)
    said = "values within 64 of 255, so that hardly anything is seen: does the header declare more bits, or another "
    warned = [f.message for f in check(root) if f.level == "warning" and "64 of 255" in f.message]
    assert [words.startswith(f"south: 1 DICOM image, {flat} first: {said}") for words in warned] == [True]
    ReadPictured("image")({"image": str(flat)})
    assert [record.getMessage().startswith(f"{flat}: {said}") for record in caplog.records] == [True]


def test_copies_are_found_though_the_header_was_changed(tmp_path):
    root = write_hospital(tmp_path / "thorax")
    image = root / "north" / "healthy" / "healthy1pa.dcm"
    dataset = dcmread(image)
    dataset.PatientID, dataset.PatientName = "anonymised anew", "a much longer name than there was before"
    dataset.save_as(root / "south" / "ill" / "copy.dcm")
    (copy,) = [f.message for f in check(root) if "have the same content" in f.message]
    assert "healthy1pa.dcm" in copy and "copy.dcm" in copy and "1 of them in two classes" in copy


def test_scans_stay_scans(tmp_path):
    write_xray(tmp_path / "ct" / "a.dcm", [[1]], Modality="CT")
    write_xray(tmp_path / "ct" / "b.dcm", [[1]])
    assert kind_of(str(tmp_path / "ct"), {}).name == "scans"


def test_mutated_files_are_pictures_or_named(tmp_path):
    whole = REAL[0].read_bytes()
    rng, named = np.random.default_rng(0), 0
    for number in range(150):
        bytes_ = bytearray(whole[: rng.integers(1, len(whole))] if number % 3 == 0 else whole)
        for place in rng.integers(0, len(bytes_), 1 + number % 7):
            bytes_[place] = rng.integers(256)
        file = tmp_path / "odd.dcm"
        file.write_bytes(bytes_)
        person(file)
        try:
            assert read_picture(file, Reading(size=8)).shape == (3, 8, 8)
        except UserError as error:
            named += str(file) in str(error)
    assert named > 30


def test_no_file_of_pydicoms_ends_in_an_error_of_another_kind():
    read, refused = [], 0
    for file in sorted(Path(pydicom.data.__file__).parent.rglob("*")):
        if not file.is_file() or not is_dicom(file):
            continue
        person(file)
        try:
            read_picture(file, Reading(size=8))
            read.append(file.name)
        except UserError as error:
            refused += str(file) in str(error)
    assert read == ["6154", "6247", "6278"] and refused > 90
