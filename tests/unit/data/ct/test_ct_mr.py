"""MR volumes, DICOM series and NIfTI files, as slices and whole: what they become, and what is refused."""

import numpy as np
import pytest
import torch
from make_dicom import chest, write_nifti, write_series

from medpfl.bundle.inference import items
from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.data.check import check, check_deep
from medpfl.data.kinds.scans.preprocessing import Preprocessing, pipeline
from medpfl.data.kinds.scans.series import find_series
from medpfl.data.kinds.scans.values import fingerprint, odd_values
from medpfl.data.sites import open_source

MR_IMAGE = "1.2.840.10008.5.1.4.1.1.4"
SMALL = {"size": 16, "spacing": [0, 0, 0], "normalise": "percentile"}


def brain(seed=0, slices=10, rows=24, columns=20):
    """(slices, rows, columns) int16: nothing around a head, which has a bright dot in front, right and low."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:rows, :columns]
    head = ((x / columns - 0.5) / 0.4) ** 2 + ((y / rows - 0.5) / 0.42) ** 2 < 1
    volume = np.where(head, rng.integers(200, 400, (slices, rows, columns)), 0)
    volume[1:4, 4:8, 6:10] = 900
    return volume.astype(np.int16)


def as_mr(number, dataset):
    """Of a CT slice: no unit, no kernel."""
    dataset.Modality = "MR"
    dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID = MR_IMAGE
    del dataset.RescaleSlope, dataset.RescaleIntercept, dataset.ConvolutionKernel


def write_mr(folder, volume=None, change=None, **options):
    def both(number, dataset):
        as_mr(number, dataset)
        if change:
            change(number, dataset)

    return write_series(folder, brain() if volume is None else volume, intercept=0, change=both, **options)


def read(path, **said):
    files = sorted(map(str, path.iterdir())) if path.is_dir() else [str(path)]
    how = Preprocessing(**SMALL | {"slices": 4} | said)
    return pipeline(how)({"image": files, "kind": "dicom" if path.is_dir() else "nifti"})["image"].float()


@pytest.mark.parametrize("how", ["percentile", "zscore"])
@pytest.mark.parametrize("depth", [0, 6])
def test_a_series_and_its_nifti_file_are_the_same_and_lie_as_ct_does(tmp_path, how, depth):
    write_mr(tmp_path / "s")
    nifti = write_nifti(tmp_path / "a.nii.gz", brain(), axcodes="SPR")
    series, file = (read(path, normalise=how, depth=depth) for path in (tmp_path / "s", nifti))
    assert series.shape == (depth or 4, 1, 16, 16) and torch.allclose(series, file, atol=2e-3)
    at, _, row, column = np.unravel_index(int(series.argmax()), series.shape)
    assert at <= len(series) // 3 and row < 6 and column < 8  # low, in front, and on the screen's left
    corners = series[:, 0, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert (corners == (-1 if how == "percentile" else 0)).all()  # as what is zero, within the image and beyond it
    if how == "percentile":
        assert series.min() == -1 and series.max() <= 1
    else:
        assert -4 < series.min() < -0.5 and series.max() > 1


def test_normalising_is_of_the_volume_and_not_of_the_slices_chosen(tmp_path):
    """The dot is in slices that are not among those two; the others keep their distance from it."""
    write_mr(tmp_path / "s")
    few, many = read(tmp_path / "s", slices=2), read(tmp_path / "s", slices=10)
    assert torch.equal(few, many[[2, 7]])


def test_padding_counts_as_nothing_there(tmp_path):
    """The values are mirrored by rescaling, so that air as CT has it would be brighter than all."""
    volume = brain()
    write_mr(tmp_path / "plain", volume)
    write_mr(tmp_path / "padded", np.where(volume, volume, -30), lambda n, d: setattr(d, "PixelPaddingValue", -30))
    assert torch.equal(read(tmp_path / "plain"), read(tmp_path / "padded"))


def test_sagittal_slices_make_the_same_volume(tmp_path):
    volume = brain()
    write_mr(tmp_path / "axial", volume, spacing=(1, 1, 1))
    # Slices from right to left, of rows from the head down and columns from front to back.
    sagittal = volume.transpose(2, 0, 1)[:, ::-1]
    axes = (0, 1, 0, 0, 0, -1)
    write_mr(tmp_path / "sagittal", sagittal[::-1], spacing=(1, 1, 1), orientation=axes, start=(9, -20, -91))
    (found,) = find_series(tmp_path / "sagittal").values()
    assert found.usable and found.modality == "MR" and "not axial slices" in found.problems[0].message
    assert torch.equal(read(tmp_path / "axial", depth=5), read(tmp_path / "sagittal", depth=5))


def echoes(number, dataset):
    dataset.ImagePositionPatient = [0, 0, 3.0 * (number // 2)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (echoes, "5 slice positions are there twice (two phases in one series?)"),
        (lambda n, d: setattr(d, "ImagePositionPatient", [0, 0, 3.0 * n + 3 * (n > 4)]), "1 slice seems to be missing"),
        (lambda n, d: setattr(d, "SOPClassUID", MR_IMAGE + ".1"), "(Enhanced MR); one file a slice is needed"),
        (lambda n, d: setattr(d, "Modality", "PT"), "modality PT, not CT or MR"),
        (lambda n, d: setattr(d, "Modality", "MR" if n else "CT"), "CT and MR in one series"),
    ],
)
def test_what_makes_no_volume_is_refused_as_of_ct(tmp_path, change, words):
    write_mr(tmp_path, change=change)
    (found,) = find_series(tmp_path).values()
    assert not found.usable and words in found.problems[0].message


def test_values_of_mr():
    values = brain().astype(np.float32)
    assert odd_values(values, "MR") == [] and odd_values(values / 1000, "MR") == []
    assert "every voxel has the value 7" in odd_values(np.full((8, 8, 3), 7.0), "MR")[0].message
    assert "its values are those of CT" in odd_values(chest(), "MR")[0].message
    values[0, 0, 0] = np.nan
    (finding,) = odd_values(values, "MR")
    assert finding.level == "warning" and "taken as the least value" in finding.message
    small, other = brain(1) / 1000, brain(2) / 1000
    assert fingerprint(small, "MR") == fingerprint(small.transpose(2, 1, 0)[::-1], "MR") != fingerprint(other, "MR")


def test_what_is_no_number_becomes_the_least(tmp_path):
    volume = brain().astype(np.float32) + 5
    odd = volume.copy()
    volume[:, :2], odd[:, 0], odd[:, 1] = 5, np.nan, np.inf
    paths = [write_nifti(tmp_path / f"{name}.nii", of) for name, of in (("a", volume), ("b", odd))]
    assert torch.equal(*(read(path) for path in paths))


def test_lungs_are_not_looked_for():
    assert not Preprocessing(normalise="zscore").lung_crop and Preprocessing().lung_crop
    with pytest.raises(ValueError, match="lungs are found by HU, which MR"):
        Preprocessing(normalise="zscore", lung_crop=True)


@pytest.fixture
def cohort(tmp_path, monkeypatch):
    """Two centres of four patients, one with DICOM series, one with NIfTI files, and a CT series that no row names."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "brains"
    for number in range(4):
        write_mr(root / "north" / f"s{number}", brain(number), patient=f"N{number}")
        write_nifti(root / "south" / f"S{number}.nii.gz", brain(10 + number))
    write_series(root / "north" / "ct", chest(), patient="N0")
    for name, end in (("north/s", ""), ("south/S", ".nii.gz")):
        folder, stem = name.split("/")
        rows = [f"{stem}{number}{end},{'ab'[number % 2]}" for number in range(4)]
        (root / folder / "labels.csv").write_text("\n".join(["series,label", *rows]) + "\n")
    return root


def job(data, **said):
    fields = {"algorithm": "fedavg", "sites": 2, "fractions": (0.5, 0, 0.5), "partition": "natural", "device": "cpu"}
    return make_config(data=str(data), data_args=SMALL | {"slices": 4} | said, **fields)


@pytest.mark.parametrize("depth", [0, 6])
def test_a_table_of_mr_is_classified_by_slices_and_whole(cohort, depth):
    source = open_source(job(cohort, depth=depth))
    source.prepare()
    assert source.model_arguments()["image_size"] == ((depth, 16, 16) if depth else 16)
    for name in ("site-1", "site-2"):
        data = source.site(name, torch.device("cpu"))
        assert data.images["train"].shape == ((2, 1, depth, 16, 16) if depth else (8, 1, 16, 16))
        assert data.labels["train"].unique().tolist() == [0, 1]
    assert source.describe()["preprocessing"]["normalise"] == "percentile"
    assert source.in_words().startswith("each site's own MR scans")


def test_the_check_knows_what_it_is_asked_for(cohort, tmp_path):
    found, deep = check(cohort, SMALL), check_deep(cohort, tmp_path / "page.html", SMALL)
    assert any("series of other modalities in the folder, not used: CT 1" in f.message for f in found)
    assert [
        f.message for f in found if f.level == "note" and f.message.startswith("south: 4 NIfTI files have no patient")
    ]
    assert not any("NIfTI files have no patient" in f.message for f in found if f.message.startswith("north"))
    odd = {f.message for f in (*found, *deep) if f.level in ("error", "warning")}
    lacking = "patients and no validation case by the default split (0.5/0.1/0.4)"
    assert {message.split(": rounds")[0].split(" ", 2)[2] for message in odd} == {lacking}
    assert {message.split(":")[0] for message in odd} == {"north", "south"} and len(odd) == 2
    words = [f.message for f in check(cohort)]
    told = "s0: modality MR, not CT: a run with --data-arg normalise=percentile or zscore reads MR"
    assert any(told in w for w in words)
    assert any("S0.nii.gz: values from 0 to " in w and "normalise=percentile or zscore" in w for w in words)
    table = cohort / "north" / "labels.csv"
    table.write_text(table.read_text() + "ct,a\n")
    with pytest.raises(UserError, match="ct: modality CT, not MR: without --data-arg normalise CT is read"):
        open_source(job(cohort)).prepare()


def test_a_model_of_one_modality_takes_no_series_of_the_other(cohort):
    north = cohort / "north"
    assert [item["kind"] for item in items(north / "s0", "scan", modality="MR")] == ["dicom"]
    for folder, other in (("s0", "CT"), ("ct", "MR")):
        [item] = items(north / folder, "scan", modality=other)
        assert item["problem"].endswith(f"; the model takes {other}")
