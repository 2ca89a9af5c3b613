"""How many values a job makes of a site's data, before any image is decoded: each number is worked out by hand."""

import shutil

import numpy as np
import pytest
import torch
from masked import SMALL, config, opened, save_nifti, volume, write_siblings, write_volumes
from pictures import CENTRES, write_centres
from recordings import recording, write_recording, write_series
from test_own_images import job

from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.core.site_data import PARTS
from medpfl.data.kinds.folders import picture_cache
from medpfl.data.kinds.masks import cache
from medpfl.data.kinds.npz import npz_file
from medpfl.data.kinds.npz.site_file import OwnImages
from medpfl.data.kinds.series.pamap2_kind import CLASSES
from medpfl.data.sites import open_source
from medpfl.data.source import number_of_values

CPU = torch.device("cpu")


def never(*arguments, **more):
    raise AssertionError("it was decoded")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def made(source, name="site-1"):
    """Numbers in a site's images, all parts together."""
    images = source.site(name, CPU).images
    return sum(image.numel() for part in PARTS for image in images[part])


def judging(pixels, classes=2):
    """What a case with masks adds: five numbers for each of its pixels and classes."""
    return 5 * pixels * classes


def asked(data, sites=1, **fields):
    """The source of a run."""
    return open_source(
        make_config(**{"algorithm": "fedavg", "data": str(data), "partition": "natural", "sites": sites} | fields)
    )


def pictures(root, **data_args):
    return asked(root, 3, data_args=data_args)


def test_of_pictures(tmp_path, monkeypatch):
    root = write_centres(tmp_path / "eyes")  # 2 classes x 3 patients x 2 eyes at each centre
    assert number_of_values(pictures(root, size=32, channels="grey"), "site-1") == 12 * 32 * 32
    source = pictures(root, size=16)
    assert number_of_values(source, "site-1") == 12 * 3 * 16 * 16 == made(source)
    few = asked(root, 3, train_fraction=0.5)
    assert number_of_values(few, "site-1") == 12 * 3 * 64 * 64 > made(few)  # those of no part are decoded too
    monkeypatch.setattr(picture_cache, "read_picture", never)
    assert number_of_values(pictures(root, size=1024), "site-1") == 12 * 3 * 1024 * 1024


def test_of_pictures_with_masks(tmp_path, monkeypatch):
    root = write_siblings(tmp_path / "skin")  # 6 at each of two sites
    source = open_source(config(root, data_args={"size": 16}))
    assert made(source) == 6 * 3 * 16 * 16
    assert number_of_values(source, "site-1") == made(source) + judging(16 * 16)
    monkeypatch.setattr(cache, "read_pair", never)
    grey = open_source(config(root, data_args={"size": 1024, "channels": "grey"}))
    assert number_of_values(grey, "site-1") == 6 * 1024 * 1024 + judging(1024 * 1024)


def test_of_one_centres_pictures_that_a_partition_divides_all_are_decoded(tmp_path):
    """However many sites a job divides them over."""
    root = write_centres(tmp_path / "eyes")
    for centre in list(CENTRES)[1:]:
        shutil.rmtree(root / centre)
    divided = asked(root, 3, partition="iid", data_args={"size": 16})
    assert number_of_values(divided, "site-1") == 12 * 3 * 16 * 16 > made(divided)
    masked = write_siblings(tmp_path / "skin")
    shutil.rmtree(masked / "b")
    parts = open_source(config(masked, sites=2, partition="iid", data_args={"size": 16}))
    whole = number_of_values(parts, "site-1") - judging(16 * 16)
    assert whole == 6 * 3 * 16 * 16 > made(parts)


def test_of_volumes_it_is_by_their_headers(tmp_path, monkeypatch):
    root = write_volumes(tmp_path / "mr", cases=2)  # 20 x 24 x 10 and 22 x 24 x 11 voxels of 1 x 1 x 3 mm
    whole = opened(root)
    assert made(whole) == 24 * (20 * 10 + 22 * 11)
    assert number_of_values(whole, "site-1") == made(whole) + judging(24 * 22 * 11)
    # 10 slices over 9 x 3 mm, every 2 mm: 14.5, an even number; 11 over 30 mm: 16. Rows: 23 mm every 0.5: 47.
    finer = opened(root, data_args=SMALL | {"spacing": [2, 0.5, 0]})
    assert made(finer) == 47 * (20 * 14 + 22 * 16)
    assert number_of_values(finer, "site-1") == made(finer) + judging(47 * 22 * 16)
    slices = open_source(config(root, data_args={"dims": 2, "size": 32}))
    assert made(slices) == (10 + 11) * 32 * 32
    assert number_of_values(slices, "site-1") == made(slices) + judging(11 * 32 * 32)
    monkeypatch.setattr(cache, "_volume", never)
    finest = opened(root, data_args=SMALL | {"spacing": [0.1, 0.1, 0.1]})
    assert number_of_values(finest, "site-1") == 231 * (191 * 271 + 211 * 301) + judging(231 * 211 * 301)
    many = opened(root, data_args=SMALL | {"classes": [f"c{k}" for k in range(200)]})
    assert number_of_values(many, "site-1") == made(whole) + judging(24 * 22 * 11, 200)


def test_of_sheared_volumes(tmp_path):
    """Right angles take more room: each of 24 rows of 1 mm begins 0.9 mm further left than the one before."""
    values, mask = volume(0, (20, 24, 10))
    leaning = np.array([[1, 0.9, 0, 0], [0, 1, 0, 0], [0, 0, 3.0, 0], [0, 0, 0, 1]])
    for case in "ab":
        save_nifti(tmp_path / "a" / case / "image.nii.gz", values, affine=leaning)
        save_nifti(tmp_path / "a" / case / "mask.nii.gz", mask, affine=leaning)
    source = opened(tmp_path / "a", sites=1, data_args=SMALL | {"spacing": [0, 1, 1]})
    # 19 + 23 x 0.9 mm of columns, every mm: 40.7, so 41 of 20; the slices stay.
    assert made(source) == 2 * 10 * 24 * 41
    assert number_of_values(source, "site-1") == made(source) + judging(10 * 24 * 41)


def test_of_volumes_of_several_channels_that_lie_otherwise(tmp_path):
    values, mask = volume(0, (20, 24, 10))
    turned = np.array([[0, 0, 2.0, 0], [1, 0, 0, 0], [0, 3, 0, 0], [0, 0, 0, 1]])  # x is front to back, y up, z left
    for case in "ab":
        several = np.stack([values, values], -1)
        save_nifti(tmp_path / "a" / case / "image.nii.gz", several, affine=turned)
        save_nifti(tmp_path / "a" / case / "mask.nii.gz", mask, affine=turned)
    args = SMALL | {"channels": 2, "spacing": [1, 0, 4]}
    source = opened(tmp_path / "a", sites=1, data_args=args)
    # 24 slices over 69 mm, every mm: 70; 20 rows; 10 columns over 18 mm, every 4 mm: 5.5, an even number.
    assert made(source) == 2 * 2 * 70 * 20 * 6
    assert number_of_values(source, "site-1") == made(source) + judging(70 * 20 * 6)


def test_of_images_in_one_file(write, monkeypatch):
    file = write()  # 30, 9 and 12 images of 8 x 8
    source = open_source(job(), file)
    assert number_of_values(source, "north") == 51 * 8 * 8 == made(source, "north")
    divided = asked("organamnist-sample", 2, partition="iid", data_args={"pad": 32})
    assert number_of_values(divided, "site-1") == 3800 * 32 * 32  # each site reads the whole set
    monkeypatch.setattr(npz_file, "_read", never)
    larger = open_source(job("bloodmnist", data_args={"pad": 1024}), file)
    assert number_of_values(larger, "north") == 51 * 3 * 1024 * 1024
    with pytest.raises(UserError, match="each site has a file of its own"):
        number_of_values(OwnImages(job()), "north")


def test_of_series(tmp_path):
    file = write_series(tmp_path / "beats.npz")  # 60 windows of 3 channels and 40 samples
    source = asked(file, 2, partition="iid")
    assert number_of_values(source, "site-1") == 60 * 3 * 40 == sum(made(source, f"site-{k}") for k in (1, 2))


@pytest.mark.parametrize(
    ("length", "step", "stretch", "most", "there"),
    [(100, 50, 0, 13, 12), (100, 300, 100, 7, 6), (100, 1, 0, 601, 502), (701, 1, 0, 0, 0)],
)
def test_of_recordings_that_are_cut_into_windows_that_overlap(tmp_path, length, step, stretch, most, there):
    """700 rows as one run: a window begins every 50 up to 600, or, where stretches are shorter than a step, every 100.

    There are two runs of 350: with windows every 50 up to 250 in each, six; three stretches; 251.
    """
    write_recording(tmp_path / "Protocol" / "subject101.dat", recording([(1, 350), (2, 350)]))
    args = {"length": length, "step": step, "stretch": stretch, "classes": list(CLASSES)}
    source = asked(tmp_path, data_args=args)
    assert number_of_values(source, "site-1") == most * 27 * length
    if there:
        assert len(source.data) == there


def test_of_recordings_without_classes_no_window_is_cut_and_a_blank_line_ends_no_count(tmp_path, monkeypatch):
    file = tmp_path / "Protocol" / "subject101.dat"
    write_recording(file, recording([(1, 350), (2, 350)]))
    file.write_text(file.read_text() + "\n\n")
    monkeypatch.setattr("medpfl.data.kinds.series.pamap2_kind.read_pamap2", never)
    source = asked(tmp_path, data_args={"length": 100, "step": 50, "stretch": 0})
    assert number_of_values(source, "site-1") == 13 * 27 * 100


def test_of_what_a_source_does_not_say_nothing_is_known():
    assert number_of_values(object(), "site-1") is None
