"""From series and what is drawn on them to volumes with masks that training reads."""

from pathlib import Path

import nibabel
import numpy as np
import pytest
from draw_dicom import write_rtstruct, write_segmentation
from make_dicom import SPACING, chest, write_series
from pydicom import dcmread
from pydicom.data import get_testdata_file
from typer.testing import CliRunner

from medpfl.cli.main import app
from medpfl.core.errors import UserError
from medpfl.data.check import check
from medpfl.data.kinds.scans.series import find_series
from medpfl.data.phantom.cohort import make_phantom
from medpfl.data.structures.convert import Class, convert, find
from medpfl.data.structures.grid import Grid
from medpfl.data.structures.objects import read_drawn
from medpfl.data.structures.segmentation import segments_mask

START = (-10.0, -20.0, -100.0)
OBLIQUE = (0.8, 0.6, 0, 0, 0, -1)


def command(*arguments):
    """What a command says; an error is the only thing."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exception is None or isinstance(done.exception, UserError), done.exception
    return str(done.exception or done.output)


def classes(*texts):
    return [Class.parse(text) for text in texts or ("tumour=GTV*",)]


def points(grid, indices):
    """Millimetres of slice, row and column; what :meth:`Grid.indices` takes back."""
    return grid.origin + np.asarray(indices, float) @ grid.steps


def box(grid, at, rows, columns):
    """A line around pixels of a slice, half a pixel outside of their centres."""
    (r0, r1), (c0, c1) = rows, columns
    corners = [(r0 - 0.5, c0 - 0.5), (r0 - 0.5, c1 + 0.5), (r1 + 0.5, c1 + 0.5), (r1 + 0.5, c0 - 0.5)]
    return points(grid, [(at, r, c) for r, c in corners]).tolist()


def series_of(folder, **options):
    """A series, and its grid."""
    uid = write_series(folder, chest(), **options)
    return uid, Grid.of(find_series(folder)[uid])


def made(root, out, *texts):
    """What was made, the mask and the image of the only series."""
    found = convert(find(root), out, classes(*texts))
    [image], [mask] = ([nibabel.load(file) for file in (out / kind).rglob("*.nii.gz")] for kind in ("images", "masks"))
    assert np.array_equal(image.affine, mask.affine)
    return found, np.asarray(mask.dataobj).transpose(2, 1, 0), image


@pytest.mark.parametrize("orientation", [(1, 0, 0, 0, 1, 0), (-1, 0, 0, 0, -1, 0), (1, 0, 0, 0, 0, -1), OBLIQUE])
def test_voxels_lie_where_pydicoms_positions_say(tmp_path, orientation):
    uid, grid = series_of(tmp_path, orientation=orientation)
    for at, path in enumerate(find_series(tmp_path)[uid].files):
        assert grid.indices([dcmread(path).ImagePositionPatient])[0] == pytest.approx([at, 0, 0], abs=1e-5)
    row, column = np.split(np.array(orientation, float), 2)
    aside = grid.origin + 3 * SPACING[0] * column + 5 * SPACING[1] * row
    assert grid.indices([aside])[0] == pytest.approx([0, 3, 5], abs=1e-9)


@pytest.mark.parametrize("orientation", [(1, 0, 0, 0, 1, 0), (1, 0, 0, 0, 0, -1), OBLIQUE])
def test_lines_become_the_voxels_that_they_are_drawn_around(tmp_path, orientation):
    uid, grid = series_of(tmp_path / "in" / "ct", orientation=orientation)
    lines = [box(grid, at, (3, 9), (4, 20)) for at in (2, 3, 4)]
    write_rtstruct(tmp_path / "in" / "rs.dcm", uid, {"GTV-1": lines, "Heart": [box(grid, 0, (0, 1), (0, 1))]})
    found, mask, image = made(tmp_path / "in", tmp_path / "out")
    assert (found.volumes, found.left_out, found.odd) == (1, [], [])
    expected = np.zeros(grid.shape, np.uint8)
    expected[2:5, 3:10, 4:21] = 1
    assert np.array_equal(mask, expected)
    # NIfTI's axes run to the right and to the front, DICOM's to the left and to the back.
    at = (image.affine @ [4, 3, 2, 1])[:3] * (-1, -1, 1)
    assert at == pytest.approx(points(grid, [(2, 3, 4)])[0], abs=1e-4)
    assert np.array_equal(np.asarray(image.dataobj).transpose(2, 1, 0), chest()[:, :, :])


def test_what_lies_where_is_as_simpleitk_has_it(tmp_path):
    sitk = pytest.importorskip("SimpleITK")
    uid, grid = series_of(tmp_path / "in" / "ct", orientation=OBLIQUE)
    write_rtstruct(tmp_path / "in" / "rs.dcm", uid, {"GTV": [box(grid, 5, (8, 8), (11, 11))]})
    made(tmp_path / "in", tmp_path / "out")
    files = [str(path) for path in find_series(tmp_path / "in")[uid].files]
    theirs, ours, mask = (
        sitk.ReadImage(what)
        for what in (files, *(str(tmp_path / "out" / kind / "P1" / "series_1.nii.gz") for kind in ("images", "masks")))
    )
    assert np.array_equal(sitk.GetArrayFromImage(theirs), sitk.GetArrayFromImage(ours))
    [[at, row, column]] = np.argwhere(sitk.GetArrayFromImage(mask)).tolist()
    there = [image.TransformIndexToPhysicalPoint((column, row, at)) for image in (theirs, mask)]
    assert there[0] == pytest.approx(there[1], abs=1e-3)
    assert there[0] == pytest.approx(points(grid, [(5, 8, 11)])[0], abs=1e-3)


@pytest.mark.parametrize(("modality", "padding"), [("CT", -1024), ("MR", 0)])
def test_what_the_scanner_did_not_measure_is_air_in_ct_and_nothing_in_mr(tmp_path, modality, padding):
    def padded(number, dataset):
        dataset.Modality, dataset.PixelPaddingValue = modality, -2000
        stored = np.frombuffer(dataset.PixelData, "<i2").copy()
        stored[: number + 1] = -2000
        dataset.PixelData = stored.tobytes()

    uid, grid = series_of(tmp_path / "in" / "ct", change=padded)
    write_rtstruct(tmp_path / "in" / "rs.dcm", uid, {"GTV": [box(grid, 2, (4, 6), (4, 6))]})
    _, _, image = made(tmp_path / "in", tmp_path / "out")
    values = np.asarray(image.dataobj).transpose(2, 1, 0)
    for number in range(12):
        assert (values[number, 0, : number + 1] == padding).all()
        assert np.array_equal(values[number, 1:], chest()[number, 1:])


def test_a_hole_and_two_structures_of_one_class(tmp_path):
    uid, grid = series_of(tmp_path / "in" / "ct")
    ring = [box(grid, 2, (2, 12), (2, 12)), box(grid, 2, (5, 8), (5, 8))]
    over = [box(grid, 2, (6, 7), (6, 30)), box(grid, 6, (1, 1), (1, 1))]
    write_rtstruct(tmp_path / "in" / "rs.dcm", uid, {"gtv a": ring, "GTV b": over})
    found, mask, _ = made(tmp_path / "in", tmp_path / "out")
    expected = np.zeros(grid.shape, bool)
    expected[2, 2:13, 2:13] = True
    expected[2, 5:9, 5:9] = False
    expected[2, 6:8, 6:31] = expected[6, 1, 1] = True  # two structures do not cut holes into each other
    assert np.array_equal(mask > 0, expected)
    assert found.odd == [
        f"{tmp_path / 'in' / 'ct'}: 'GTV b' is drawn in 2 slices and not in 3 between them: not there",
    ]


def test_the_later_class_stands_where_two_overlap(tmp_path):
    uid, grid = series_of(tmp_path / "in" / "ct")
    structures = {"GTV": [box(grid, 2, (4, 6), (4, 6))], "PTV": [box(grid, 2, (2, 8), (2, 8))]}
    write_rtstruct(tmp_path / "in" / "rs.dcm", uid, structures)
    found, mask, _ = made(tmp_path / "in", tmp_path / "out", "target=PTV", "tumour=gtv")
    assert np.bincount(mask.ravel(), minlength=3)[1:].tolist() == [49 - 9, 9]
    assert found.odd == [f"{tmp_path / 'in' / 'ct'}: tumour covers 9 voxels of target"]


@pytest.mark.parametrize("kind", ["BINARY", "FRACTIONAL", "LABELMAP"])
@pytest.mark.parametrize("cut", [(0, 0), (3, 2)])
def test_segments_become_masks(tmp_path, kind, cut):
    uid, grid = series_of(tmp_path / "in" / "ct", orientation=OBLIQUE)
    tumour, other = np.zeros((2, *grid.shape))
    tumour[3:5, 4:9, 6:11], other[1, 20:, 20:] = 1, 1
    write_segmentation(
        tmp_path / "in" / "seg.dcm", find_series(tmp_path / "in")[uid].files, {"Lung": other, "GTV": tumour},
        kind=kind, cut=cut,
    )  # fmt: skip
    _, mask, _ = made(tmp_path / "in", tmp_path / "out", "lung=lung*", "tumour=gtv")
    assert np.array_equal(mask, other.astype(np.uint8) + 2 * tumour.astype(np.uint8))


def test_a_segmentation_of_another_maker():
    """pydicom's own example, of one frame: a liver, packed in bits."""
    path = get_testdata_file("liver_1frame.dcm", download=False)
    drawn = read_drawn(Path(path))
    assert (drawn.kind, drawn.patient, drawn.structures) == ("segmentation", "99000", {1: "Liver"})
    dataset = dcmread(path)
    frame, shared = dataset.PerFrameFunctionalGroupsSequence[0], dataset.SharedFunctionalGroupsSequence[0]
    row, column = np.split(np.array(shared.PlaneOrientationSequence[0].ImageOrientationPatient, float), 2)
    between_rows, between_columns = shared.PixelMeasuresSequence[0].PixelSpacing
    origin = np.array(frame.PlanePositionSequence[0].ImagePositionPatient, float) - 2 * np.cross(row, column)
    grid = Grid((4, 512, 512), origin, np.stack([np.cross(row, column), column * between_rows, row * between_columns]))
    mask = segments_mask(dataset, {1}, grid)
    assert np.array_equal(mask[2], dataset.pixel_array > 0)
    assert mask.sum() == (dataset.pixel_array > 0).sum() > 10_000
    assert not segments_mask(dataset, {2}, grid).any()


def test_of_a_fractional_segment_half_and_more_is_in_it(tmp_path):
    uid, grid = series_of(tmp_path / "in" / "ct")
    share = np.zeros(grid.shape)
    share[2, 0, :4] = 0.25, 0.495, 0.5, 1
    files = find_series(tmp_path / "in")[uid].files
    write_segmentation(tmp_path / "in" / "seg.dcm", files, {"GTV": share}, kind="FRACTIONAL")
    _, mask, _ = made(tmp_path / "in", tmp_path / "out")
    assert np.argwhere(mask).tolist() == [[2, 0, 2], [2, 0, 3]]


def test_structures_of_several_objects_are_put_together(tmp_path):
    uid, grid = series_of(tmp_path / "in" / "ct")
    one, two = np.zeros((2, *grid.shape))
    one[1, 1, 1] = two[2, 2, 2] = 1
    files = find_series(tmp_path / "in")[uid].files
    for name, mask in {"GTV": one, "Heart": two}.items():
        write_segmentation(tmp_path / "in" / f"{name}.dcm", files, {name: mask})
    _, mask, _ = made(tmp_path / "in", tmp_path / "out", "heart=heart", "tumour=gtv")
    assert (mask[2, 2, 2], mask[1, 1, 1], int((mask > 0).sum())) == (1, 2, 2)


def test_what_was_made_is_what_a_run_reads_by_patient(tmp_path):
    for number, patient in enumerate(["P 1", "P/1", "p_1", "P 1", ""]):
        folder = tmp_path / "north" / f"s{number}"
        uid, grid = series_of(folder, patient=patient)
        lines = {"GTV": [box(grid, at, (4, 20), (4, 20)) for at in range(2, 9)]}
        write_rtstruct(folder / "rs.dcm", uid, lines, patient=patient)
    out = tmp_path / "hospitals" / "north"
    assert convert(find(tmp_path / "north"), out, classes()).volumes == 5
    made = [
        f"{patient}/series_{n}.nii.gz" for patient, n in (("P_1", 1), ("P_1", 2), ("P_1_2", 1), ("p_1_3", 1), ("s4", 1))
    ]
    for kind in ("images", "masks"):
        assert sorted(str(file.relative_to(out / kind)) for file in (out / kind).rglob("*.nii.gz")) == made
    arguments = {"classes": "background,tumour"}
    for data in (out, out.parent):  # one hospital's own folder, and hospitals side by side
        words = "\n".join(f.message for f in check(str(data), arguments))
        assert not [f for f in check(str(data), arguments) if f.level == "error"], words
        assert "4 patients" in words


def test_it_lists_what_is_drawn(tmp_path):
    for n, names in enumerate([("GTV", "Heart"), ("GTV",), ("gtv",)]):
        uid, grid = series_of(tmp_path / f"s{n}", patient=f"P{n}")
        write_rtstruct(
            tmp_path / f"s{n}" / "rs.dcm",
            uid,
            {name: [box(grid, 1, (2, 3), (2, 3))] for name in names},
            patient=f"P{n}",
        )
    assert find(tmp_path).names() == {"GTV": 2, "Heart": 1, "gtv": 1}


def test_nothing_is_written_where_nothing_can_be(tmp_path):
    uid, grid = series_of(tmp_path / "in" / "ct")
    write_rtstruct(tmp_path / "in" / "rs.dcm", uid, {"Heart": [box(grid, 1, (2, 3), (2, 3))]})
    with pytest.raises(
        UserError, match=r"no series has tumour drawn on it: .*ct: nothing is .* called gtv\*: it has Heart"
    ):
        convert(find(tmp_path / "in"), tmp_path / "out", classes())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]


def test_a_patient_who_lacks_a_class_is_left_out_by_name(tmp_path):
    for n, name in enumerate(["GTV", "Heart"]):
        uid, grid = series_of(tmp_path / "in" / f"s{n}", patient=f"P{n}")
        write_rtstruct(
            tmp_path / "in" / f"s{n}" / "rs.dcm", uid, {name: [box(grid, 1, (2, 3), (2, 3))]}, patient=f"P{n}"
        )
    found = convert(find(tmp_path / "in"), tmp_path / "out", classes())
    assert found.volumes == 1
    assert found.left_out == [f"{tmp_path}/in/s1: nothing is drawn on it that is called gtv*: it has Heart"]
    assert sorted(p.name for p in (tmp_path / "out" / "masks").iterdir()) == ["P0"]


def test_a_folder_with_something_in_it_is_left_as_it_is(tmp_path):
    uid, grid = series_of(tmp_path / "in" / "ct")
    write_rtstruct(tmp_path / "in" / "rs.dcm", uid, {"GTV": [box(grid, 1, (2, 3), (2, 3))]})
    (tmp_path / "out").mkdir()
    assert convert(find(tmp_path / "in"), tmp_path / "out", classes()).volumes == 1  # an empty one is taken
    with pytest.raises(UserError, match="has something in it; give a new or empty folder"):
        convert(find(tmp_path / "in"), tmp_path / "out", classes())


@pytest.mark.parametrize("text", ["", "GTV", "=GTV", "tumour=", "tumour= , "])
def test_what_is_no_class(text):
    with pytest.raises(UserError, match="give CLASS=NAME,NAME"):
        Class.parse(text)


def test_the_command_lists_and_writes(tmp_path):
    for n, names in enumerate([("GTV-1", "Heart"), ("GTV",)]):
        uid, grid = series_of(tmp_path / "in" / f"s{n}", patient=f"P{n}")
        lines = {name: [box(grid, 1, (2, 3), (2, 3))] for name in names}
        write_rtstruct(tmp_path / "in" / f"s{n}" / "rs.dcm", uid, lines, patient=f"P{n}")
    write_rtstruct(tmp_path / "in" / "lost.dcm", "1.2.3", {"GTV": [box(grid, 1, (2, 3), (2, 3))]})
    lost = f"not used: {tmp_path}/in/lost.dcm: the series that this RT structure set is drawn on is not there (1.2.3)"
    shown = command("data", "masks", tmp_path / "in")
    assert [line.split() for line in shown.splitlines() if line != lost] == [
        ["structure", "series"], ["GTV", "1"], ["GTV-1", "1"], ["Heart", "1"]
    ]  # fmt: skip
    out = tmp_path / "out"
    shown = command(
        "data", "masks", tmp_path / "in", "--structure", "heart=heart", "--structure", "x=gtv*", "--out", out
    )
    assert shown.splitlines() == [
        lost,
        f"left out: {tmp_path}/in/s1: nothing is drawn on it that is called heart: it has GTV",
        f"{tmp_path}/in/s0: x covers 4 voxels of heart",
        f"{out}: 1 of 2; medpfl data check {out} --data-arg classes=background,heart,x",
    ]
    for lacking in (["--out", tmp_path / "else"], ["--structure", "x=gtv"]):
        assert "the two go together" in command("data", "masks", tmp_path / "in", *lacking)
    assert "2 DICOM objects with structures" not in command("data", "inventory", tmp_path / "in" / "s0")
    assert "3 DICOM objects with structures (RT structure set, segmentation): `medpfl data masks`" in command(
        "data", "inventory", tmp_path / "in"
    )


@pytest.mark.slow
def test_the_phantoms_masks_come_back_as_they_were(tmp_path):
    """Its scans as DICOM, with its masks as segmentation objects, are its scans and masks as NIfTI, voxel by voxel."""
    make_phantom(tmp_path / "dicom", patients=12, matrix=32)
    make_phantom(tmp_path / "nifti", patients=12, matrix=32, masks=True)
    for series in find_series(tmp_path / "dicom").values():
        truth = np.asarray(nibabel.load(_of_phantom(tmp_path, series.patient, "_mask")).dataobj).transpose(2, 1, 0)
        masks = {"Lung": truth == 1, "Emphysema": truth == 2} if (truth == 2).any() else {"Lung": truth == 1}
        write_segmentation(series.folder / "seg.dcm", series.files, masks, patient=series.patient)
    found = convert(find(tmp_path / "dicom"), tmp_path / "out", classes("lung=lung", "emphysema=emphysema"))
    assert found.volumes >= 1
    assert found.volumes + len(found.left_out) == 12
    for patient in sorted(folder.name for folder in (tmp_path / "out" / "images").iterdir()):
        for kind, mark in {"images": "", "masks": "_mask"}.items():
            ours = nibabel.load(tmp_path / "out" / kind / patient / "series_1.nii.gz")
            theirs = nibabel.load(_of_phantom(tmp_path, patient, mark))
            assert ours.affine == pytest.approx(theirs.affine, abs=1e-3)
            one, other = np.asarray(ours.dataobj), np.asarray(theirs.dataobj)
            measured = one > -1024 if kind == "images" else one >= 0  # but where the scanner declares padding
            assert np.array_equal(one[measured], other[measured])
            assert measured.mean() > 0.5


def _of_phantom(root, patient, mark):
    [file] = (root / "nifti").rglob(f"{patient}{mark}.nii.gz")
    return file
