"""What programs write otherwise than the standard's examples, and is understood nevertheless."""

import warnings

import numpy as np
import pytest
from draw_dicom import item, write_rtstruct, write_segmentation
from make_dicom import chest, write_series
from pydicom import dcmread
from pydicom.dataelem import RawDataElement
from test_structures import OBLIQUE, box, classes, made, points, series_of

from medpfl.data.kinds.scans.series import find_series
from medpfl.data.structures.convert import convert, find


@pytest.fixture
def ct(tmp_path):
    """A folder with a series, its number and its grid."""
    uid, grid = series_of(tmp_path / "in" / "ct")
    return tmp_path / "in", uid, grid


def changed(path, change):
    """The file, after a change of its data set."""
    dataset = dcmread(path)
    change(dataset)
    dataset.save_as(path)
    return path


def of_images(uids):
    """Has every line name these images."""

    def change(dataset):
        for roi in dataset.ROIContourSequence:
            for contour in roi.ContourSequence:
                contour.ContourImageSequence = [item(ReferencedSOPInstanceUID=uid) for uid in uids]

    return change


def images(root, uid):
    return [str(dcmread(path).SOPInstanceUID) for path in find_series(root)[uid].files]


@pytest.mark.parametrize("named", [[], ["1.2.3", "1.2.4"]])
def test_lines_that_name_images_are_of_their_series(ct, named):
    root, uid, grid = ct
    write_series(root / "other", chest(seed=1))
    path = write_rtstruct(root / "rs.dcm", named, {"GTV": [box(grid, 2, (2, 5), (2, 5))]})
    changed(path, of_images(images(root, uid)[2:3]))
    assert list(find(root).drawn) == [uid]
    changed(path, of_images([*images(root, uid)[2:3], "1.2.3"]))  # one that is not there may be of another series
    assert not find(root).drawn


def test_lines_on_images_of_two_series_are_of_none(ct):
    root, uid, grid = ct
    other = write_series(root / "other", chest(seed=1))
    path = write_rtstruct(root / "rs.dcm", [uid, other], {"GTV": [box(grid, 2, (2, 5), (2, 5))]})
    changed(path, of_images([images(root, uid)[2], images(root, other)[2]]))
    assert "names several" in find(root).wrong[0]


def test_a_segmentation_that_names_images_alone(ct):
    root, uid, grid = ct
    mask = np.zeros(grid.shape, bool)
    mask[3, 4:9, 6:11] = True

    def change(dataset):
        del dataset.ReferencedSeriesSequence
        of = item(SourceImageSequence=[item(ReferencedSOPInstanceUID=images(root / "ct", uid)[3])])
        dataset.PerFrameFunctionalGroupsSequence[0].DerivationImageSequence = [of]

    write_segmentation(root / "seg.dcm", find_series(root)[uid].files, {"GTV": mask}, change=change)
    assert np.array_equal(made(root, root.parent / "out")[1] > 0, mask)


def test_a_structure_that_a_template_names_and_nobody_drew_is_not_there(ct):
    root, uid, grid = ct
    write_rtstruct(root / "rs.dcm", uid, {"GTV": [box(grid, 2, (2, 5), (2, 5))], "GTV-2": [], "Heart": []})
    assert find(root).names() == {"GTV": 1}
    assert (made(root, root.parent / "out")[1] > 0).sum() == 16


def _again(name, **fields):
    return lambda dataset: dataset[name].value.append(item(**fields))


@pytest.mark.parametrize(
    "change",
    [
        _again("StructureSetROISequence", ROINumber=1, ROIName="Heart"),
        lambda dataset: dataset.ROIContourSequence.append(dataset.ROIContourSequence[0]),
    ],
)
def test_a_number_of_two_structures(ct, change):
    root, uid, grid = ct
    changed(write_rtstruct(root / "rs.dcm", uid, {"GTV": [box(grid, 2, (2, 5), (2, 5))]}), change)
    [words] = find(root).wrong
    assert words.endswith("not as DICOM has it: the number 1 has more than one structure")


def test_segments_of_one_name_in_one_object_are_one(ct):
    """As programs write several lesions."""
    root, uid, grid = ct
    one, two = np.zeros((2, *grid.shape), bool)
    one[1, 1, 1] = two[2, 2, 2] = True
    write_segmentation(
        root / "seg.dcm", find_series(root)[uid].files, {"GTV": one, "gtv": two},
        change=lambda dataset: setattr(dataset.SegmentSequence[1], "SegmentLabel", "GTV"),
    )  # fmt: skip
    found, mask, _ = made(root, root.parent / "out")
    assert np.array_equal(mask > 0, one | two)
    assert found.odd == [f"{root}/ct: 2 structures are called 'gtv': taken as one"]


def test_a_name_is_found_however_its_accents_are_written(ct):
    root, uid, grid = ct
    path = write_rtstruct(root / "rs.dcm", uid, {"x": [box(grid, 2, (2, 5), (2, 5))]})

    def change(dataset):
        dataset.SpecificCharacterSet = "ISO_IR 192"
        dataset.StructureSetROISequence[0].ROIName = "La\u0308sion "

    changed(path, change)
    assert convert(find(root), root.parent / "out", classes("tumour=L\u00e4sion")).volumes == 1


def test_what_dicom_does_not_allow_is_read_in_silence(ct):
    """Numbers of more than 16 characters, and a name that a terminal would obey."""
    root, uid, grid = ct
    path = write_rtstruct(root / "rs.dcm", uid, {"GTV\x1b[31m": [box(grid, 2, (2, 5), (2, 5))]})

    def change(dataset):
        contour = dataset.ROIContourSequence[0].ContourSequence[0]
        content = b"\\".join(f"{float(number):+.20f}".encode() for number in contour.ContourData)
        content += b" " * (len(content) % 2)
        tag = contour["ContourData"].tag
        contour[tag] = RawDataElement(tag, "DS", len(content), content, 0, False, True)

    changed(path, change)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (made(root, root.parent / "out")[1] > 0).sum() == 16


def traced(grid, at, *corners):
    """A line from centre to centre, in numbers as single precision has them."""
    return points(grid, [(at, *corner) for corner in corners]).astype(np.float32).astype(float).tolist()


@pytest.mark.parametrize("orientation", [(1, 0, 0, 0, 1, 0), OBLIQUE])
def test_lines_traced_of_a_mask_become_that_mask(tmp_path, orientation):
    """As OpenCV traces a mask: the outermost pixels' centres, around a hole those of the pixels that surround it."""
    root = tmp_path / "in"
    uid, grid = series_of(root / "ct", orientation=orientation)
    lines = [
        traced(grid, 2, (3, 3), (9, 3), (9, 9), (3, 9)),
        traced(grid, 2, (5, 6), (6, 5), (7, 6), (6, 7)),
        traced(grid, 3, (4, 4)),
        traced(grid, 4, (4, 4), (4, 7)),
        traced(grid, 4, (8, 4), (10, 6), (10, 8), (10, 6)),
        traced(grid, 5, (-3, 2), (-3, 4), (2, 4), (2, 2)),
    ]
    write_rtstruct(root / "rs.dcm", uid, {"GTV": lines})
    found, mask, _ = made(root, tmp_path / "out")
    expected = np.zeros(grid.shape, bool)
    expected[2, 3:10, 3:10] = True
    expected[2, 6, 6] = False
    expected[3, 4, 4] = expected[4, 4, 4:8] = expected[5, :3, 2:5] = True
    expected[4, [8, 9, 10, 10, 10], [4, 5, 6, 7, 8]] = True
    assert np.argwhere(mask > 0).tolist() == np.argwhere(expected).tolist()
    assert found.odd == [
        f"{root}/ct: 'GTV' has its lines from centre to centre of voxels, as traced of a mask: these are in it"
    ]


def test_lines_of_which_one_is_not_traced_are_taken_as_they_are(ct):
    root, uid, grid = ct
    write_rtstruct(
        root / "rs.dcm", uid,
        {"GTV": [traced(grid, 2, (3, 3), (6, 3), (6, 6), (3, 6)), traced(grid, 3, (3, 3), (6, 3), (6, 6), (4, 7))]},
    )  # fmt: skip
    assert convert(find(root), root.parent / "out", classes()).odd == []


@pytest.mark.parametrize("turn", ["rows", "both", "axes"])
def test_a_segmentation_whose_frames_have_been_turned(tmp_path, turn):
    """As programs write that keep a volume as NIfTI has it."""
    root = tmp_path / "in"
    uid, grid = series_of(root / "ct", orientation=OBLIQUE)
    mask = np.zeros(grid.shape, bool)
    mask[3, 4:9, 6:7] = mask[3, 4, 6:20] = True
    stored = {"rows": mask[:, ::-1], "both": mask[:, ::-1, ::-1], "axes": mask.transpose(0, 2, 1)}[turn]

    def change(dataset):
        shared, last = dataset.SharedFunctionalGroupsSequence[0], grid.shape[1:]
        row, column = np.split(np.array(shared.PlaneOrientationSequence[0].ImageOrientationPatient, float), 2)
        at = {"rows": (3, last[0] - 1, 0), "both": (3, last[0] - 1, last[1] - 1), "axes": (3, 0, 0)}[turn]
        axes = {"rows": (row, -column), "both": (-row, -column), "axes": (column, row)}[turn]
        shared.PlaneOrientationSequence[0].ImageOrientationPatient = np.concatenate(axes).round(9).tolist()
        if turn == "axes":
            shared.PixelMeasuresSequence[0].PixelSpacing = shared.PixelMeasuresSequence[0].PixelSpacing[::-1]
        position = points(grid, [at])[0].round(6).tolist()
        dataset.PerFrameFunctionalGroupsSequence[0].PlanePositionSequence[0].ImagePositionPatient = position

    write_segmentation(root / "seg.dcm", find_series(root)[uid].files, {"GTV": stored}, change=change)
    assert np.argwhere(made(root, tmp_path / "out")[1] > 0).tolist() == np.argwhere(mask).tolist()
