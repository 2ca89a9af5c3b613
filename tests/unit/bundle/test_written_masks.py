"""Where a bundle writes the masks of what it segments."""

from types import SimpleNamespace

import pytest

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
