"""Where a bundle writes what it says of images, and what it calls them."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import nibabel
import numpy as np
import pytest

from medpfl.bundle.answered import PROBLEM
from medpfl.bundle.inference import Classification, items
from medpfl.bundle.masks import Segmentation
from medpfl.core.errors import UserError


def segmentation(folder, *names):
    kind = {True: "volume", False: "picture"}
    items = [{"image": str(folder / "in" / n), "name": n, "kind": kind[".nii" in n]} for n in names]
    return Segmentation(None, SimpleNamespace(data=items), ["none", "lesion"], None, "pad", {}, str(folder / "out"))


@pytest.mark.parametrize("names", [("scan.png", "scan.jpg"), ("v.nii", "v.nii.gz")])
def test_two_images_with_one_mask_are_refused(tmp_path, names):
    with pytest.raises(UserError, match=rf"{names[0]} and .*{names[1]} would have one mask"):
        segmentation(tmp_path, *names)._require_no_overwriting()


def test_images_of_other_folders_have_masks_of_their_own(tmp_path):
    segmentation(tmp_path, "a/scan.png", "b/scan.png", "c/v.nii")._require_no_overwriting()


@pytest.mark.parametrize("place", ["", "manual", "reader-2/manual"])
@pytest.mark.parametrize("name", ["a.nii.gz", "b.png"])
def test_no_file_of_the_images_folder_is_overwritten_wherever_in_it_it_lies(tmp_path, place, name):
    masks = segmentation(tmp_path, name)
    masks._require_no_overwriting()
    masks.output_path = str(tmp_path / "in" / place)
    there = masks._file(masks.dataset.data[0], tmp_path / "in" / name)
    there.parent.mkdir(parents=True)
    there.touch()
    with pytest.raises(UserError, match=f"{there.name} is there already, in the images' own folder or below"):
        masks._require_no_overwriting()


@pytest.mark.parametrize(
    ("place", "said"), [("here", "a folder; give a JSON file in it"), ("file/x.json", "file of that")]
)
def test_a_place_where_nothing_can_be_written_is_refused_before_anything_is_predicted(tmp_path, place, said):
    (tmp_path / "here").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=rf"--output_path .*{place}: .*{said}"):
        Classification(None, None, ["a", "b"], True, {}, str(tmp_path / place)).run()
    masks = segmentation(tmp_path)
    masks.output_path = str(tmp_path / "file")
    with pytest.raises(UserError, match=r"--output_path .*file: the folder .* cannot be made: there is a file of that"):
        masks.run()


def test_only_results_are_replaced_by_results(tmp_path):
    torn = SimpleNamespace(data=[{"name": "torn.png", PROBLEM: "torn.png: is torn"}])

    def results_are_to_be_at(name):
        Classification(None, torn, ["a", "b"], True, {}, str(tmp_path / name)).run()

    others = {"scan.nii": b"\x5c\x01", "list.json": b'{"model": {}}', "torn.json": b'{"model": {}, "res', "empty": b""}
    for name, content in others.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=f"--output_path .*{name}: is there already, and holds no results of a"):
            results_are_to_be_at(name)
        assert (tmp_path / name).read_bytes() == content
    (tmp_path / "ours").write_text(json.dumps({"model": {}, "results": []}))
    for name in ("ours", "new"):
        with pytest.raises(UserError, match=r"^torn\.png: is torn$"):
            results_are_to_be_at(name)


@pytest.mark.parametrize("kind", ["scan", "volume"])
def test_scans_of_one_name_in_several_folders_are_told_apart(tmp_path, kind):
    for patient in ("p1", "p2"):
        (tmp_path / patient).mkdir()
        nibabel.save(nibabel.Nifti1Image(np.zeros((16, 16, 8), np.int16), np.eye(4)), tmp_path / patient / "ct.nii.gz")
    assert [item["name"] for item in items(tmp_path, kind)] == ["p1/ct.nii.gz", "p2/ct.nii.gz"]
    assert [item["name"] for item in items(tmp_path / "p2" / "ct.nii.gz", kind)] == ["ct.nii.gz"]


def test_a_folder_inside_that_cannot_be_read_is_named_beside_what_can(tmp_path, monkeypatch):
    """As the lost+found of a mounted disk: its name says nothing of what is in it."""
    for place in ("a.nii.gz", "closed/b.nii.gz"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        nibabel.save(nibabel.Nifti1Image(np.zeros((16, 16, 8), np.int16), np.eye(4)), tmp_path / place)
    listed = os.scandir

    def scandir(path):
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = items(tmp_path, "volume", masks=True)
    assert [(item["name"], item.get("problem")) for item in found] == [
        ("a.nii.gz", None),
        ("closed", f"{tmp_path / 'closed'}: cannot be read: Permission denied"),
    ]
    Segmentation(None, SimpleNamespace(data=found), ["none", "lesion"], None, "pad", {}, "")._require_no_overwriting()
