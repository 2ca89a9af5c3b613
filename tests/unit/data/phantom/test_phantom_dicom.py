"""The files: valid CT images for every reader, and plainly no patient's."""

import numpy as np
import pydicom
import pytest
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian

from medpfl.data.phantom.six_centres import CENTRES

NEEDED = """
    ImageType SOPClassUID SOPInstanceUID Modality Manufacturer PatientName PatientID StudyInstanceUID SeriesInstanceUID
    FrameOfReferenceUID InstanceNumber ImagePositionPatient ImageOrientationPatient SliceThickness SamplesPerPixel
    PhotometricInterpretation Rows Columns PixelSpacing BitsAllocated BitsStored HighBit PixelRepresentation
    RescaleIntercept RescaleSlope RescaleType KVP PatientPosition StudyDate StudyTime PixelData
"""
MAY_BE_EMPTY = "PatientBirthDate PatientSex ReferringPhysicianName StudyID AccessionNumber PositionReferenceIndicator"


def first_series(cohort, centre):
    folder = sorted(path for path in (cohort / centre.name).iterdir() if path.is_dir())[0]
    return folder, [pydicom.dcmread(path) for path in sorted(folder.glob("*.dcm"))]


@pytest.mark.parametrize("centre", CENTRES, ids=lambda centre: centre.name)
def test_series_is_valid_ct(cohort, centre):
    folder, images = first_series(cohort, centre)
    for image in images:
        assert image.file_meta.TransferSyntaxUID == ExplicitVRLittleEndian
        assert image.file_meta.MediaStorageSOPClassUID == image.SOPClassUID == CTImageStorage
        assert image.file_meta.MediaStorageSOPInstanceUID == image.SOPInstanceUID
        assert all(image.get(name) not in (None, "") for name in NEEDED.split())
        assert all(name in image for name in MAY_BE_EMPTY.split())
        assert image.SOPInstanceUID.is_valid
        assert (image.SliceThickness, image.SpacingBetweenSlices) == (centre.thickness, centre.increment)
        assert image.PixelSpacing == [round(centre.field_of_view / 48, 6)] * 2
        assert image.ConvolutionKernel == centre.kernel.name
    assert len({image.SOPInstanceUID for image in images}) == len(images)
    assert {image.PatientID for image in images} == {folder.name}
    for name in ("StudyInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID"):
        assert len({image[name].value for image in images}) == 1
    heights = np.array([image.ImagePositionPatient[2] for image in images])
    assert np.diff(heights) == pytest.approx(centre.increment if centre.feet_first else -centre.increment)


def test_all_say_phantom_and_none_a_person(cohort):
    uids = []
    for path in sorted(cohort.rglob("*.dcm")):
        image = pydicom.dcmread(path, stop_before_pixels=True)
        assert str(image.PatientName).startswith("PHANTOM^")
        assert image.PatientID.startswith("PHANTOM-")
        assert image.Manufacturer == image.InstitutionName == "medpfl phantom"
        assert image.StudyDescription.startswith("PHANTOM") and image.SeriesDescription.startswith("PHANTOM")
        assert "No patient" in image.ImageComments
        assert (image.PatientBirthDate, image.PatientSex, image.QualityControlSubject) == ("", "O", "YES")
        assert {image[name].value for name in ("StudyDate", "SeriesDate", "ContentDate")} == {"20000101"}
        uids.append(image.SOPInstanceUID)
    assert len(set(uids)) == len(uids)


@pytest.mark.parametrize("centre", CENTRES, ids=lambda centre: centre.name)
def test_numbers_mean_hu_and_padding_is_told(cohort, centre):
    _, images = first_series(cohort, centre)
    image = images[len(images) // 2]
    stored = image.pixel_array
    hu = stored * image.RescaleSlope + image.RescaleIntercept
    corner = hu[0, 0]
    if centre.padding is None:
        assert "PixelPaddingValue" not in image
        assert corner == pytest.approx(-1000, abs=6 * centre.noise + 20)
    else:
        assert image["PixelPaddingValue"].VR == "SS"
        assert stored[0, 0] == image.PixelPaddingValue == centre.padding
        hu = hu[stored != centre.padding]
    assert hu.min() >= -1024
    # Liver and heart make the middle; bone is above.
    assert np.percentile(hu, 99) > 100


def test_monai_reads_it(cohort):
    from monai.data import PydicomReader

    centre = CENTRES[4]
    folder, images = first_series(cohort, centre)
    reader = PydicomReader()
    volume, meta = reader.get_data(reader.read(str(folder)))
    assert volume.shape == (48, 48, len(images))
    assert np.abs(np.diag(meta["affine"]))[:3] == pytest.approx([7.5, 7.5, 3.0])
    ours = np.stack([image.pixel_array for image in images], axis=-1) + float(images[0].RescaleIntercept)
    assert sorted(volume.mean(axis=(0, 1))) == pytest.approx(sorted(ours.mean(axis=(0, 1))))


def test_simpleitk_reads_it(cohort):
    sitk = pytest.importorskip("SimpleITK")
    for centre in CENTRES:
        folder, images = first_series(cohort, centre)
        reader = sitk.ImageSeriesReader()
        reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(folder)))
        volume = reader.Execute()
        pixel = centre.field_of_view / 48
        assert volume.GetSize() == (48, 48, len(images))
        assert volume.GetSpacing() == pytest.approx((pixel, pixel, centre.increment), abs=1e-4)
