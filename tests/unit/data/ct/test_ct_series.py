import re
import shutil
from itertools import accumulate

import pydicom
import pytest
from make_dicom import chest, write_series
from pydicom.uid import RLELossless

from medpfl.core.errors import UserError
from medpfl.data.kinds.scans.series import find_series, read_folder


def _only(folder):
    (series,) = find_series(folder).values()
    return series


def _levels(series):
    return [problem.level for problem in series.problems]


def test_a_good_series_has_no_problems(tmp_path):
    uid = write_series(tmp_path / "s", chest(), patient="P7")
    (tmp_path / "s" / "notes.txt").write_text("taken on Monday")
    found = read_folder(tmp_path)
    series = found.series[uid]
    assert series.problems == () and series.usable and found.strays == ()
    assert [(file.path.name, file.what, file.reason) for file in found.rest] == [("notes.txt", "other", "a text file")]
    assert series.spacing == (0.8, 0.7, 2.5) and series.thickness == 2.5 and series.matrix == (32, 32)
    assert (series.uid, series.patient, series.modality, series.folder) == (uid, "P7", "CT", tmp_path / "s")
    assert (series.manufacturer, series.kernel) == ("ACME", "B30f")
    assert [file.name for file in series.files] == [f"{n:03d}.dcm" for n in range(12)]


@pytest.mark.filterwarnings("ignore:Invalid value for VR CS")
@pytest.mark.parametrize("said", ["ct", "Ct", "mr"])
def test_a_modality_in_small_letters_is_the_same(tmp_path, said):
    write_series(tmp_path / "s", chest(), change=_set(Modality=said))
    series = _only(tmp_path / "s")
    assert series.usable and series.modality == said.upper()


def test_two_series_of_a_patient_in_one_folder_are_told_apart(tmp_path):
    names = ["a{}", "b{}"]
    uids = {write_series(tmp_path, chest(), names=name.format) for name in names}
    assert set(find_series(tmp_path)) == uids and all(s.usable for s in find_series(tmp_path).values())


def _set(**values):
    return lambda n, dataset: [setattr(dataset, name, value) for name, value in values.items()]


def _on(number, **values):
    return lambda n, dataset: _set(**values)(n, dataset) if n == number else None


def _moved(*offsets):
    def change(n, dataset):
        x, y, z = dataset.ImagePositionPatient
        if n == 6:
            dataset.ImagePositionPatient = [x + offsets[0], y + offsets[1], z + offsets[2]]

    return change


def _as_text(keyword, value):
    """With another type (VR) than the standard's, so that pydicom makes no numbers of it."""
    return lambda n, d: d.add_new(keyword, "SH", value)


@pytest.mark.parametrize(
    "change, words",
    [
        (_set(Modality="PT"), "modality PT, not CT or MR"),
        (_set(NumberOfFrames=1, SOPClassUID="1.2.840.10008.5.1.4.1.1.2.1"), "Enhanced CT"),
        (lambda n, d: _set(NumberOfFrames=4, PixelData=d.PixelData * 4)(n, d), "a multi-frame file"),
        (_set(ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"]), "localizer"),
        (_on(3, ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"]), r"among its slices \(1 of 12 files, 003.dcm first\)"),
        (_as_text("RescaleSlope", "1,0"), r"000.dcm: has the RescaleSlope 1,0 \(and 11 more\)"),
        (_on(3, PixelSpacing=[0.5, 0.5]), r"mixed pixel spacings .*0.8×0.7 in 000.dcm, 0.5×0.5 in 003.dcm"),
        (_on(3, ImageOrientationPatient=[0, 1, 0, 1, 0, 0]), "mixed orientations"),
        (_on(3, Rows=16, Columns=64), "mixed matrix sizes .*32×32 in 000.dcm, 16×64 in 003.dcm"),
        (_set(ImageOrientationPatient=[1, 0, 0, 1, 0, 0]), "not two axes"),
        (_on(3, PatientID="P9"), "slices of 2 patients"),
        (
            _moved(0, 0, -2.5),
            r"1 slice position is there twice .*-87.50 and -87.50 mm \(instance numbers 6 and 7\), \S+ and \S+",
        ),
        (_moved(0, 0, 0.6), "uneven slice distances, 2.5 mm mostly"),
        (_moved(5, 0, 0), "shifted against each other by up to 5.0 mm"),
        (lambda n, d: d.pop("ImagePositionPatient") if n == 2 else 0, "002.dcm has no ImagePositionPatient"),
        (lambda n, d: d.pop("PixelSpacing"), r"no PixelSpacing of 2 numbers \(nor have 11 more\)"),
        (_on(1, PixelSpacing=[0.8, 0.7, 2.5]), "001.dcm has no PixelSpacing of 2 numbers"),
        (_as_text("PixelSpacing", ["0.8", "0.7"]), "000.dcm has no PixelSpacing of 2 numbers"),
        (_as_text("PixelSpacing", "87"), "000.dcm has no PixelSpacing of 2 numbers"),
        (lambda n, d: d.pop("PixelData") if n == 2 else 0, "002.dcm: has no pixels"),
        (_on(5, SamplesPerPixel=3), "005.dcm: a picture with 3 colours"),
        (
            _set(PixelPaddingValue=[-2000, 0]),
            r"000.dcm: has the PixelPaddingValue \[-2000, 0\], where one number is due",
        ),
    ],
)
def test_what_makes_no_volume_is_an_error_in_words(tmp_path, change, words):
    write_series(tmp_path / "s", chest(), change=change)
    series = _only(tmp_path)
    assert not series.usable
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(series.problems[0].message)
    assert str(tmp_path / "s") in series.problems[0].message


@pytest.mark.parametrize(
    ("keyword", "value"), [("SliceThickness", "2,5"), ("SliceThickness", ["2.5", "2.5"]), ("InstanceNumber", "I7")]
)
def test_what_a_volume_does_not_need_may_be_no_number(tmp_path, keyword, value):
    write_series(tmp_path / "s", chest(), change=_as_text(keyword, value))
    series = _only(tmp_path)
    assert series.usable and [file.name for file in series.files] == [f"{n:03d}.dcm" for n in range(12)]
    assert series.thickness == (None if keyword == "SliceThickness" else 2.5)


def test_missing_slices_are_counted_and_located(tmp_path):
    write_series(tmp_path / "s", chest())
    for gone in (4, 8, 9):
        (tmp_path / "s" / f"{gone:03d}.dcm").unlink()
    (problem,) = _only(tmp_path).problems
    assert problem.level == "error" and "3 slices seem to be missing" in problem.message
    assert "between -92.50 and -87.50 mm (instance numbers 4 and 6)" in problem.message
    assert "between -82.50 and -75.00 mm (instance numbers 8 and 11)" in problem.message


def test_a_copied_folder_is_named(tmp_path):
    write_series(tmp_path / "s", chest())
    shutil.copytree(tmp_path / "s", tmp_path / "s copy")
    message = _only(tmp_path).problems[0].message
    assert f"in {tmp_path / 's'} and in {tmp_path / 's copy'}: is one a copy of the other?" in message


def test_a_single_slice_is_no_volume(tmp_path):
    write_series(tmp_path / "s", chest(slices=1))
    assert "a single slice" in _only(tmp_path).problems[0].message


def _at(positions):
    return lambda n, d: setattr(d, "ImagePositionPatient", [-10, -20, float(positions[n])])


@pytest.mark.parametrize(
    "steps, words",
    [
        (
            [4] * 6 + [7] * 5,
            r"4 mm mostly and 7 mm for 5 steps, the first between 24.00 and 31.00 mm .*: two protocols in",
        ),
        ([4] * 5 + [7] * 6, "7 mm mostly and 4 mm for 5 steps"),
        ([4] * 7 + [8] * 4, "8 mm for 4 steps.*: two protocols in one series, or slices left out there"),
        ([4] * 7 + [12] + [4] * 3, "2 slices seem to be missing: between 28.00 and 40.00 mm"),
        ([4] * 7 + [7] + [4] * 3, "uneven slice distances"),
    ],
)
def test_a_change_of_protocol_is_no_gap(tmp_path, steps, words):
    positions = [0, *accumulate(steps)]
    write_series(tmp_path / "s", chest(), change=_at(positions), spacing=(0.8, 0.7, 4))
    (problem,) = _only(tmp_path).problems
    assert problem.level == "error" and re.search(words, problem.message)


@pytest.mark.parametrize(
    "change, words",
    [
        (_set(PixelSpacing=[800, 700]), "voxels of 800×700×2.5 mm; 0.02 to 50 mm are read"),
        (_set(PixelSpacing=[0.0008, 0.0007]), "voxels of 0.0008×0.0007×2.5 mm; 0.02"),
        (_set(SeriesInstanceUID=""), None),
    ],
)
def test_units_that_cannot_be_millimetres(tmp_path, change, words):
    write_series(tmp_path / "s", chest(), change=change)
    if words:
        assert words in _only(tmp_path).problems[0].message
    else:
        assert "SeriesInstanceUID is blank" in read_folder(tmp_path).reasons(tmp_path)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"tilt": 12}, "tilted by 12.0 degrees"),
        ({"change": _moved(0, 0, 0.2)}, "slice distances vary from 2.3 to 2.7 mm"),
        ({"orientation": (1, 0, 0, 0, 0, -1)}, "not axial"),
        ({"change": lambda n, d: d.pop("RescaleSlope")}, "12 slices lack rescale slope or intercept"),
        ({"change": _set(RescaleType="MGML")}, "unit 'MGML', not HU"),
        ({"intercept": 0, "change": _set(PixelPaddingValue=0)}, "(PixelPaddingValue) of 0 HU in 000.dcm, which a p"),
        (
            {"change": _set(PixelPaddingValue=-976, PixelPaddingRangeLimit=25)},
            "padding (PixelPaddingValue) of -2000 to -999 HU in 000.dcm, which a patient has too",
        ),
    ],
)
def test_what_is_odd_is_a_warning(tmp_path, options, words):
    write_series(tmp_path / "s", chest(), **options)
    series = _only(tmp_path)
    assert _levels(series) == ["warning"] and words in series.problems[0].message and series.usable


@pytest.mark.parametrize(("intercept", "padding"), [(-1024, 0), (-1000, 0), (0, -2000), (0, 4095)])
def test_padding_beside_a_patients_values_is_no_fault(tmp_path, intercept, padding):
    write_series(tmp_path / "s", chest(), intercept=intercept, change=_set(PixelPaddingValue=padding))
    assert _only(tmp_path).problems == ()


def test_positions_rounded_to_a_tenth_of_a_millimetre_are_no_fault(tmp_path):
    def rounded(n, dataset):
        dataset.ImagePositionPatient = [round(float(p), 1) for p in dataset.ImagePositionPatient]

    write_series(tmp_path / "s", chest(slices=30), spacing=(0.7, 0.7, 0.625), change=rounded)
    assert _only(tmp_path).usable


@pytest.mark.parametrize("tilt, levels", [(0.5, []), (1.5, ["warning"])])
def test_a_gantry_that_is_hardly_tilted_is_straight(tmp_path, tilt, levels):
    write_series(tmp_path / "s", chest(), tilt=tilt)
    assert _levels(_only(tmp_path)) == levels


def _cut(path, keep):
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])


def test_a_truncated_file_is_named_with_what_is_left(tmp_path):
    write_series(tmp_path / "s", chest())
    _cut(tmp_path / "s" / "007.dcm", 0.8)
    message = _only(tmp_path).problems[0].message
    assert "007.dcm: cut short: " in message and "of 2,048 bytes" in message


def test_a_truncated_compressed_file_is_named(tmp_path):
    write_series(tmp_path / "s", chest())
    for file in (tmp_path / "s").iterdir():
        dataset = pydicom.dcmread(file)
        dataset.compress(RLELossless)
        dataset.save_as(file)
    assert _only(tmp_path).problems == ()
    _cut(tmp_path / "s" / "007.dcm", 0.9)
    assert "007.dcm: cut short within its pixels" in _only(tmp_path).problems[0].message


def test_pixels_that_no_decoder_here_can_read_are_refused_at_once(tmp_path):
    def relabel(n, dataset):
        dataset.PixelData = pydicom.encaps.encapsulate([dataset.PixelData])
        dataset["PixelData"].is_undefined_length = True
        dataset.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.4.100"

    write_series(tmp_path / "s", chest(), change=relabel)
    assert "compressed as MPEG2" in _only(tmp_path).problems[0].message


DAMAGED = b"\0" * 128 + b"DICM" + b"\xff" * 40


@pytest.mark.parametrize("content", [b"", DAMAGED, b"\1\2\3" * 99])
def test_what_may_be_a_slice_spoils_the_only_series_that_it_lies_with(tmp_path, content):
    write_series(tmp_path / "s", chest())
    write_series(tmp_path / "other", chest())
    (tmp_path / "s" / "012.dcm").write_bytes(content)
    found = read_folder(tmp_path)
    assert found.strays == () and [file.what for file in found.rest] == ["lost"]
    assert sorted(s.usable for s in found.series.values()) == [False, True]


def _bare(modality_class, **values):
    """A data set without preamble and file meta information."""
    dataset = pydicom.Dataset()
    dataset.SOPClassUID, dataset.SOPInstanceUID = modality_class, "1.2.3"
    for name, value in values.items():
        setattr(dataset, name, value)
    stream = pydicom.filebase.DicomBytesIO()
    stream.is_little_endian, stream.is_implicit_VR = True, True
    pydicom.filewriter.write_dataset(stream, dataset)
    return stream.getvalue()


BARE_IMAGE = _bare("1.2.840.10008.5.1.4.1.1.2", SeriesInstanceUID="1.2.9", Rows=8, Columns=8)


@pytest.mark.parametrize(
    "content, what, words",
    [
        (b"", "lost", "0 bytes"),
        (DAMAGED, "lost", "cut short in its header"),
        (b"series,label\n", "stray", "a text file"),
        ("größe;éà\n".encode() * 400, "stray", "a text file"),
        (b"\x89PNG\r\n", "stray", "a PNG picture"),
        (BARE_IMAGE, "lost", "without preamble"),
        (_bare("1.2.840.10008.5.1.4.1.1.481.3"), "other", "RT Structure Set Storage without preamble"),
    ],
)
def test_a_bad_file_in_a_flat_export_spoils_itself_alone(tmp_path, content, what, words):
    for name in ("a{}.dcm", "b{}.dcm"):
        write_series(tmp_path, chest(), names=name.format)
    (tmp_path / "c.dcm").write_bytes(content)
    found = read_folder(tmp_path)
    assert len(found.series) == 2 and all(series.problems == () for series in found.series.values())
    (bad,) = found.rest
    assert bad.what == what and words in bad.reason
    assert list(found.strays) == ([] if what == "other" else [bad])


def test_a_damaged_slice_of_a_flat_export_spoils_the_series_that_it_names(tmp_path):
    uids = [write_series(tmp_path, chest(), names=name.format) for name in ("a{}.dcm", "b{}.dcm")]
    file = tmp_path / "b11.dcm"
    content = file.read_bytes()
    at = content.index(b"\x28\x00\x02\x00")  # behind the series' UID, before the pixels
    file.write_bytes(content[:at] + b"\x28\x00\x02\x00XX\xff\xff")
    found = read_folder(tmp_path)
    assert [found.series[uid].usable for uid in uids] == [True, False] and found.strays == ()
    assert str(file) in found.series[uids[1]].problems[0].message


def test_an_empty_file_without_an_ending_is_suspected_where_slices_have_none(tmp_path):
    write_series(tmp_path, chest(), names="IM{:03d}".format)
    (tmp_path / "IM012").touch()
    assert not _only(tmp_path).usable
    (tmp_path / "IM012").rename(tmp_path / "README.txt")
    assert _only(tmp_path).usable


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning:pydicom")
def test_a_file_cut_short_anywhere_is_an_error(tmp_path):
    write_series(tmp_path / "s", chest())
    whole = (tmp_path / "s" / "011.dcm").read_bytes()
    for length in range(0, len(whole), 29):
        (tmp_path / "s" / "011.dcm").write_bytes(whole[:length])
        assert not any(series.usable for series in find_series(tmp_path).values()), length


def test_reports_and_hidden_files_are_ignored(tmp_path):
    write_series(tmp_path / "s", chest())

    def report(n, dataset):
        for name in ("Rows", "Columns", "PixelData"):
            dataset.pop(name)
        dataset.Modality = "SR"
        dataset.SOPClassUID = "1.2.840.10008.5.1.4.1.1.88.11"

    write_series(tmp_path / "s", chest(slices=1), names="report.dcm".format, change=report)
    shutil.copy(tmp_path / "s" / "003.dcm", tmp_path / "s" / ".003.dcm")
    assert [file.what for file in read_folder(tmp_path).rest] == ["other"] and _only(tmp_path).usable


def test_no_folder_is_a_clear_error(tmp_path):
    with pytest.raises(UserError, match="there is no such folder"):
        find_series(tmp_path / "nothing")


def test_gaps_between_thin_slices_are_noted(tmp_path):
    write_series(tmp_path / "s", chest(), change=_set(SliceThickness=1.25))
    (problem,) = _only(tmp_path).problems
    assert problem.level == "note" and "slices 1.25 mm thick lie 2.5 mm apart" in problem.message
