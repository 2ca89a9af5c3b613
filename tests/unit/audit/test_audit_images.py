import stat

import pytest
import torch

from medpfl.audit.images import recovered, write_pairs


def pictures(count, seed=0):
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def test_brightness_and_contrast_do_not_count_and_each_picture_counts_once():
    train = pictures(5)
    found = recovered(torch.cat([3 * train[:2] - 1, train[:1]]), {"train": train})
    assert (found.exact, found.recognisable, found.of, found.candidates) == (2, 2, 5, 3)
    assert found.psnr > 60


def test_what_is_no_nearer_than_somebody_elses_is_not_recognisable():
    train = pictures(3)
    near = train + 0.5 * pictures(3, seed=1)
    images = {"train": train, "test": train + 0.3 * pictures(3, seed=2)}
    assert recovered(near, {"train": train}).recognisable == 3
    assert recovered(near, images).recognisable == 0


@pytest.mark.parametrize("made", [torch.zeros(0), torch.full((2, 1, 8, 8), torch.nan), torch.zeros(2, 1, 8, 8)])
def test_nothing_and_no_numbers_and_no_contrast_are_no_images(made):
    assert recovered(made, {"train": pictures(3)}).recognisable == 0


def test_pictures_are_the_owners_alone(tmp_path):
    train = pictures(3)
    write_pairs([(image, image) for image in train], tmp_path / "imprint.png")
    assert stat.S_IMODE((tmp_path / "imprint.png").stat().st_mode) == 0o600
