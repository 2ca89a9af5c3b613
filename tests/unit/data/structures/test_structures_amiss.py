"""What is wrong with drawn structures is said with the file, and none of it becomes a mask."""

from pathlib import Path

import numpy as np
import pytest
from draw_dicom import item, write_rtstruct, write_segmentation
from make_dicom import chest, write_series
from test_structures import box, classes, points, series_of

from medpfl.core.errors import UserError
from medpfl.data.kinds.scans.series import find_series
from medpfl.data.structures.convert import convert, find


@pytest.fixture
def ct(tmp_path):
    """A folder with a series, its number and its grid."""
    uid, grid = series_of(tmp_path / "in" / "ct")
    return tmp_path / "in", uid, grid


def said(root, out="out"):
    """Why nothing is made."""
    with pytest.raises(UserError) as caught:
        convert(find(root), root.parent / out, classes())
    assert not (root.parent / out).exists()
    return str(caught.value)


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (2.5, "'GTV' has a line that lies in no slice of the series: it is drawn on another one"),
        (12, "'GTV' has a line beyond the first or last slice of the series: slices are missing"),
        (-1, "'GTV' has a line beyond the first or last slice of the series: slices are missing"),
    ],
)
def test_a_line_that_lies_in_no_slice(ct, at, words):
    root, uid, grid = ct
    write_rtstruct(root / "rs.dcm", uid, {"GTV": [box(grid, 2, (2, 5), (2, 5)), box(grid, at, (2, 5), (2, 5))]})
    assert f"rs.dcm: {words}" in said(root)


def test_a_line_across_slices(ct):
    root, uid, grid = ct
    write_rtstruct(root / "rs.dcm", uid, {"GTV": [points(grid, [(1, 2, 2), (2, 2, 9), (3, 9, 9)]).tolist()]})
    assert "lies in no slice" in said(root)


@pytest.mark.parametrize("geometric", ["POINT", "OPEN_PLANAR", ""])
def test_what_has_no_inside(ct, geometric):
    root, uid, grid = ct
    write_rtstruct(root / "rs.dcm", uid, {"GTV": [box(grid, 2, (2, 5), (2, 5))]}, geometric=geometric)
    assert "rs.dcm: 'GTV' has no closed line in any slice" in said(root)


def test_a_structure_between_the_centres_of_voxels(ct):
    root, uid, grid = ct
    corners = [(2, 3.2, 3.2), (2, 3.2, 3.8), (2, 3.8, 3.8)]
    write_rtstruct(root / "rs.dcm", uid, {"GTV": [points(grid, corners).tolist()]})
    assert "tumour: what is drawn has no voxel's centre in it" in said(root)


def test_one_structure_in_two_objects(ct):
    root, uid, grid = ct
    for name in ("rs1.dcm", "rs2.dcm"):
        write_rtstruct(root / name, uid, {"GTV": [box(grid, 2, (2, 5), (2, 5))]})
    words = "'gtv' is drawn on it more than once (rs1.dcm of 20200102, rs2.dcm of 20200102): take away what"
    assert words in said(root)


@pytest.mark.parametrize(
    ("series", "words"),
    [
        ([], "a RT structure set that does not say which series it is drawn on, or names several"),
        (["1.2.3", "1.2.4"], "a RT structure set that does not say which series it is drawn on, or names several"),
        (["1.2.3"], "the series that this RT structure set is drawn on is not there (1.2.3)"),
    ],
)
def test_an_object_of_no_series_here(ct, series, words):
    root, _, grid = ct
    write_rtstruct(root / "rs.dcm", series, {"GTV": [box(grid, 2, (2, 5), (2, 5))]})
    assert find(root).wrong == [f"{root}/rs.dcm: {words}"]
    assert "no series has tumour drawn on it" in said(root)


def test_an_object_on_a_series_that_is_no_volume(tmp_path):
    root = tmp_path / "in"
    uid, grid = series_of(root / "ct")
    write_rtstruct(root / "rs.dcm", uid, {"GTV": [box(grid, 2, (2, 5), (2, 5))]})
    (root / "ct" / "005.dcm").unlink()
    [words] = find(root).wrong
    assert words.startswith(f"{root}/rs.dcm: {root}/ct: 1 slice seems to be missing")


def test_another_patients_object(ct):
    root, uid, grid = ct
    write_rtstruct(root / "rs.dcm", uid, {"GTV": [box(grid, 2, (2, 5), (2, 5))]}, patient="P2")
    assert find(root).wrong == [f"{root}/rs.dcm: drawn on a series of another patient, {root}/ct"]


def test_an_object_that_is_cut_short(ct):
    root, uid, grid = ct
    file = write_rtstruct(root / "rs.dcm", uid, {"GTV": [box(grid, at, (2, 5), (2, 5)) for at in range(12)]})
    file.write_bytes(file.read_bytes()[:-200])
    assert "rs.dcm" in find(root).wrong[0]
    assert "no series has tumour drawn on it" in said(root)


def test_an_object_without_preamble_is_named(ct):
    """As older planning systems export."""
    root, uid, grid = ct
    file = write_rtstruct(root / "rs.dcm", uid, {"GTV": [box(grid, 2, (2, 5), (2, 5))]})
    content = file.read_bytes()
    file.write_bytes(content[content.index(b"\x08\x00\x16\x00") :])
    [words] = find(root).wrong
    assert words.startswith(f"{file}: RT Structure Set Storage without preamble")
    assert words.endswith("export it again as a DICOM file (Part 10)")


def test_an_object_without_structures(ct):
    root, uid, _ = ct
    write_rtstruct(root / "rs.dcm", uid, {})
    assert find(root).wrong == [f"{root}/rs.dcm: a RT structure set without structures"]


def test_a_folder_without_any(ct):
    with pytest.raises(UserError, match="no DICOM RT structure set and no segmentation in it"):
        find(ct[0])


def _moved(mm):
    def change(dataset):
        for frame in dataset.PerFrameFunctionalGroupsSequence:
            position = frame.PlanePositionSequence[0].ImagePositionPatient
            frame.PlanePositionSequence[0].ImagePositionPatient = [
                float(a + b) for a, b in zip(position, mm, strict=True)
            ]

    return change


def _turned(dataset):
    shared = dataset.SharedFunctionalGroupsSequence[0]
    shared.PlaneOrientationSequence[0].ImageOrientationPatient = [0, 1, 0, 1, 0, 0]


def _coarser(dataset):
    dataset.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].PixelSpacing = [1.6, 1.4]


def _unplaced(dataset):
    del dataset.PerFrameFunctionalGroupsSequence[0].PlanePositionSequence


def _cut(dataset):
    dataset.PixelData = dataset.PixelData[:40]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_moved((0.3, 0, 0)), "its frame 1 does not lie on the voxels of its series"),
        (_moved((0, 0, 1.2)), "its frame 1 does not lie on the voxels of its series"),
        (_moved((0, 0, 2.5 * 11)), "its frame 1 does not lie on the voxels of its series"),
        (_moved((7, 0, 0)), "its frame 1 does not lie on the voxels of its series"),
        (_moved((-7, 0, 0)), "its frame 1 does not lie on the voxels of its series"),
        (_turned, "its frame 1 does not lie on the voxels of its series"),
        (_coarser, "its frame 1 does not lie on the voxels of its series"),
        (_unplaced, "its frame 1 has no PlanePositionSequence"),
        (_cut, "its pixels cannot be decoded"),
    ],
)
def test_a_segmentation_on_another_grid(ct, change, words):
    root, uid, grid = ct
    mask = np.zeros(grid.shape, bool)
    mask[3, 4:9, 6:11] = True
    files = find_series(root)[uid].files
    write_segmentation(root / "seg.dcm", files, {"GTV": mask}, change=change)
    assert f"seg.dcm: {words}" in said(root)


def test_a_segmentation_moved_by_less_than_rounding_takes_away(ct):
    root, uid, grid = ct
    mask = np.zeros(grid.shape, bool)
    mask[3, 4:9, 6:11] = True
    write_segmentation(root / "seg.dcm", find_series(root)[uid].files, {"GTV": mask}, change=_moved((0.01, -0.01, 0.1)))
    assert convert(find(root), root.parent / "out", classes()).volumes == 1


def test_a_segmentation_of_which_a_segment_has_no_frame(ct):
    root, uid, grid = ct
    mask = np.zeros(grid.shape, bool)
    mask[3, 4:9, 6:11] = True
    write_segmentation(
        root / "seg.dcm", find_series(root)[uid].files, {"Heart": mask},
        change=lambda d: d.SegmentSequence.append(item(SegmentNumber=2, SegmentLabel="GTV")),
    )  # fmt: skip
    assert "tumour: what is drawn has no voxel's centre in it" in said(root)


def test_a_stack_of_two_series_has_what_is_drawn_on_each(tmp_path):
    """What is drawn on one is not taken for the other's."""
    root = tmp_path / "in"
    uid, grid = series_of(root / "a")
    write_series(root / "b", chest(seed=1))
    write_rtstruct(root / "rs.dcm", uid, {"GTV": [box(grid, 2, (2, 5), (2, 5))]})
    cohort = find(root)
    assert (len(cohort.series), list(cohort.drawn)) == (2, [uid])
    assert convert(cohort, tmp_path / "out", classes()).volumes == 1


def test_an_empty_folder_stays_the_one_that_it_is(ct, tmp_path, monkeypatch):
    """The current one, a link, or one that is mounted."""
    root, uid, grid = ct
    write_rtstruct(root / "rs.dcm", uid, {"GTV": [box(grid, 2, (2, 5), (2, 5))]})
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    monkeypatch.chdir(tmp_path / "here")
    for out in (Path(), tmp_path / "link"):
        number = out.stat().st_ino
        assert convert(find(root), out, classes()).volumes == 1
        assert out.stat().st_ino == number
        assert sorted(place.name for place in out.iterdir()) == ["images", "masks"]


@pytest.mark.parametrize(("there", "at"), [(False, 0), (True, 0), (True, 1)])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_after_a_stop_nothing_is_there(ct, monkeypatch, there, at, error):
    root, uid, grid = ct
    write_rtstruct(root / "rs.dcm", uid, {"GTV": [box(grid, 2, (2, 5), (2, 5))]})
    out, moves, move = root.parent / "out", [], Path.replace
    if there:
        out.mkdir()

    def stop(path, target):
        moves.append(target)
        if len(moves) > at:
            raise error
        return move(path, target)

    monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises(error):
        convert(find(root), out, classes())
    assert sorted(root.parent.iterdir()) == [root, out][: 1 + there]
    assert not there or not list(out.iterdir())
