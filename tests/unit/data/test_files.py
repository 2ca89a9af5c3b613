"""Names of files."""

import os

import pytest

from medpfl.core.seeding import derive_seed
from medpfl.data import files
from medpfl.data.files import files_below, is_special, nifti_stem


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


def test_a_name_that_is_no_utf8_is_a_files_name(tmp_path):
    (tmp_path / os.fsdecode(b"Pr\xfcfung.txt")).touch()
    (path,) = files_below(tmp_path)
    assert derive_seed(0, path.name) != derive_seed(0, "Pr\u00fcfung.txt")
