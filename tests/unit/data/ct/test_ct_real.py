"""Real CT, compared with another reading of the same files."""

from pathlib import Path

import nibabel as nib
import numpy as np
import pydicom
import pytest
import torch
from make_dicom import write_nifti
from scipy import ndimage

from medpfl.data.kinds.scans.inventory import take_inventory
from medpfl.data.kinds.scans.lung import find_lungs
from medpfl.data.kinds.scans.preprocessing import Preprocessing, pipeline
from medpfl.data.kinds.scans.series import find_series
from medpfl.data.kinds.scans.transforms import LoadScand

MR = Path(__file__).parents[5] / "shared" / "data" / "sarcoma-mr"


def _volume(folder):
    (series,) = find_series(folder).values()
    assert series.problems == ()
    return LoadScand("image")({"image": [str(f) for f in series.files], "kind": "dicom"})["image"], series


@pytest.mark.slow
def test_voxels_and_spacing_are_those_of_simpleitk(lidc):
    sitk = pytest.importorskip("SimpleITK")
    for folder in lidc:
        ours, series = _volume(folder)
        reader = sitk.ImageSeriesReader()
        reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(folder)))
        other = reader.Execute()
        array = sitk.GetArrayFromImage(other).transpose(2, 1, 0)
        # What lies outside the scanner's circle is far below air in two of the files; the pipeline raises it to air.
        assert np.array_equal(ours.numpy().clip(min=-1024), array.clip(min=-1024))
        assert ours.pixdim.tolist() == pytest.approx(other.GetSpacing(), abs=1e-4)
        assert (ours.affine[:3, 3] * torch.tensor([-1, -1, 1])).tolist() == pytest.approx(other.GetOrigin(), abs=1e-4)
        directions = np.diag([-1, -1, 1]) @ (ours.affine[:3, :3] / ours.pixdim).numpy()
        np.testing.assert_allclose(directions, np.reshape(other.GetDirection(), (3, 3)), atol=1e-6)
        assert series.thickness in (1.25, 2.5)


@pytest.mark.slow
def test_nifti_volumes_are_those_of_nibabel_and_simpleitk():
    sitk = pytest.importorskip("SimpleITK")
    files = sorted(MR.glob("*/*/image.nii.gz"))
    if not files:
        pytest.skip("real MR: put sarcoma-mr beside the clone as ../shared/data/sarcoma-mr")
    for file in files:
        ours, plain = LoadScand("image")({"image": [str(file)], "kind": "nifti"})["image"], nib.load(file)
        other = sitk.ReadImage(str(file))
        assert np.array_equal(ours.numpy(), np.asarray(plain.dataobj, dtype=np.float32))
        assert np.array_equal(ours.numpy(), sitk.GetArrayFromImage(other).T.astype(np.float32))
        np.testing.assert_allclose(ours.affine, plain.affine, atol=1e-6)
        assert ours.pixdim.tolist() == pytest.approx(other.GetSpacing(), abs=1e-4)


@pytest.mark.slow
def test_the_libraries_own_volumes_are_those_of_nibabel_and_simpleitk():
    sitk = pytest.importorskip("SimpleITK")
    compared = 0
    for library in (pydicom, nib):
        for one in filter(lambda one: one.volume, take_inventory(Path(library.__file__).parent).found):
            files = [str(file) for file in one.files]
            ours = LoadScand("image")({"image": files, "kind": one.form.lower()})["image"]
            other = sitk.ReadImage(files if one.form == "DICOM" else files[0])
            expected = sitk.GetArrayFromImage(other).T.astype(np.float32).reshape(ours.shape)
            assert np.array_equal(np.nan_to_num(ours.numpy()), expected)  # NaN is 0 to SimpleITK
            assert ours.pixdim.tolist() == pytest.approx(other.GetSpacing()[:3], abs=1e-4)
            if one.form == "NIfTI":
                plain = np.asarray(nib.load(files[0]).dataobj, dtype=np.float32).reshape(ours.shape)
                assert np.array_equal(ours.numpy(), plain, equal_nan=True)
            compared += 1
    assert compared >= 5


def test_voxels_are_those_of_a_plain_reading(lidc):
    for folder in lidc:
        ours, _ = _volume(folder)
        slices = sorted((pydicom.dcmread(f) for f in folder.iterdir()), key=lambda d: float(d.ImagePositionPatient[2]))
        plain = np.stack([d.pixel_array * float(d.RescaleSlope) + float(d.RescaleIntercept) for d in slices], -1)
        plain[plain < -1024] = -1024
        assert np.array_equal(ours.numpy().clip(min=-1024), plain.transpose(1, 0, 2))


def test_air_lung_and_soft_tissue_have_their_hu(lidc):
    for folder in lidc:
        ours, _ = _volume(folder)
        hu = ndimage.uniform_filter(ours.numpy(), (5, 5, 1))[..., ours.shape[2] // 2]
        (x0, x1), (y0, y1), _ = find_lungs(ours.numpy(), ours.pixdim.tolist()).box
        assert 200 < (x1 - x0) * ours.pixdim[0] < 400 and 120 < (y1 - y0) * ours.pixdim[1] < 300
        front = hu[250:260, 2:30]
        assert np.median(front[front > -1020]) == pytest.approx(-1000, abs=30)
        box = hu[x0:x1, y0:y1]
        assert np.median(box[(box > -970) & (box < -600)]) == pytest.approx(-850, abs=60)
        assert np.median(box[(box > 0) & (box < 100)]) == pytest.approx(40, abs=25)


def test_the_same_scan_as_nifti_gives_the_same_slices(lidc, tmp_path):
    folder = lidc[0]
    ours, series = _volume(folder)
    start = (-float(ours.affine[0, 3]), -float(ours.affine[1, 3]), float(ours.affine[2, 3]))
    path = write_nifti(
        tmp_path / "x.nii",
        ours.numpy().astype(np.int16).transpose(2, 1, 0),
        spacing=series.spacing,
        start=start,
        axcodes="RAS",
    )
    steps = pipeline(Preprocessing())
    dicom = steps({"image": [str(f) for f in series.files], "kind": "dicom"})["image"]
    nifti = steps({"image": [str(path)], "kind": "nifti"})["image"]
    assert dicom.shape == (8, 1, 64, 64)
    torch.testing.assert_close(nifti, dicom, rtol=0, atol=1e-3)
