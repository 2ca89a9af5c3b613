"""Names of files."""

import os

import pytest

from medpfl.core.seeding import derive_seed
from medpfl.data import files
from medpfl.data.files import files_below, is_special, nifti_stem
from medpfl.data.kinds.folders.layout import read_layout
from medpfl.data.kinds.scans.manifest import holds_scans


@pytest.mark.parametrize(
    ("name", "stem"),
    [("P001.nii.gz", "P001"), ("P1.NII.GZ", "P1"), ("a.b.Nii", "a.b"), ("x.gz", "x.gz"), ("nii.gz.nii", "nii.gz")],
)
def test_what_tells_the_format_goes_and_no_more(name, stem):
    assert nifti_stem(name) == stem


def test_files_come_folder_by_folder_once_and_without_a_look_at_each(tmp_path, monkeypatch):
    for name in ("b.png", "a.png", "z/c.png", "m/d.png", ".hidden/e.png", ".f.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "m" / "up").symlink_to(tmp_path)
    (tmp_path / "m" / "link.png").symlink_to(tmp_path / "a.png")
    (tmp_path / "m" / "gone.png").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "m" / "pipe.png")
    asked = []
    monkeypatch.setattr(files, "is_special", lambda path: asked.append(path.name) or is_special(path))
    found = [str(path.relative_to(tmp_path)) for path in files_below(tmp_path)]
    assert found == ["a.png", "b.png", "m/d.png", "m/gone.png", "m/link.png", "z/c.png"]
    assert asked == ["gone.png", "pipe.png"]


@pytest.mark.parametrize("folder", ["@eaDir", "#recycle", "$RECYCLE.BIN", "__MACOSX", "lost+found"])
def test_what_a_storage_keeps_beside_a_users_files_is_none_of_them(fundus, folder):
    for picture in files_below(fundus):
        preview = picture.parent / folder / picture.name / "preview.jpg"
        preview.parent.mkdir(parents=True)
        preview.write_bytes(picture.read_bytes())
    deleted = fundus / folder / "glaucoma" / "deleted.png"
    deleted.parent.mkdir(parents=True)
    deleted.write_bytes(picture.read_bytes())
    (fundus / folder / "labels.csv").write_text("series,label\na,0\nb,1\n")
    found = read_layout(fundus, ["glaucoma", "normal"])
    assert {one.file.parent.parent.parent for own in found.centres.values() for one in own} == {fundus}
    assert not holds_scans(fundus)


def test_a_name_that_is_no_utf8_is_a_files_name(tmp_path):
    (tmp_path / os.fsdecode(b"Pr\xfcfung.txt")).touch()
    (path,) = files_below(tmp_path)
    assert derive_seed(0, path.name) != derive_seed(0, "Pr\u00fcfung.txt")
