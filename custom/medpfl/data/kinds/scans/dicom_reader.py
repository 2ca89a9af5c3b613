"""MONAI's DICOM reader, put right where a CT or MR series needs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from monai.data import PydicomReader
from monai.utils import ensure_tuple
from pydicom import Dataset, dcmread

from medpfl.core.errors import UserError, first_line
from medpfl.data.kinds.scans.dicom_header import more_decoders, padding_range
from medpfl.data.kinds.scans.preprocessing import AIR


class SeriesReader(PydicomReader):
    """Reads the files of one series as one volume, rescaled: of CT in HU.

    MONAI's own reader rescales every slice by its own slope and intercept and builds the right affine (LPS to RAS,
    steps from the first to the last position). Three things it does otherwise than a series needs: a list of files
    becomes channels instead of a stack; slices are ordered by instance number, which is not their order in space for
    every scanner, and those without a number are dropped; padding outside the scanner's circle is rescaled as if it
    were tissue.

    Args:
        padding: the value that it is given.
    """

    def __init__(self, padding: float = AIR):
        super().__init__()
        self.padding = padding

    def read(self, data: Any, **kwargs: Any) -> Sequence[Dataset]:
        """Files of a series, in any order, to data sets ordered along the slices' normal.

        Raises:
            UserError: a file cannot be read, or lacks its position.
        """
        named = [(str(name), _read(str(name))) for name in ensure_tuple(data)]
        row, column = np.split(np.array(named[0][1].ImageOrientationPatient, dtype=float), 2)
        normal = np.cross(row, column)
        named.sort(key=lambda pair: float(np.array(pair[1].ImagePositionPatient, dtype=float) @ normal))
        # The base class stacks by instance number, so the numbers are made to be the order in space.
        for number, (_, dataset) in enumerate(named, start=1):
            dataset.InstanceNumber = number
        self.has_series = True
        self.filenames = [[name for name, _ in named]]
        return [dataset for _, dataset in named]

    def _get_array_data(self, img: Dataset, filename: Any) -> np.ndarray:
        try:
            _ = img.pixel_array  # MONAI asks whether it has one, which would lose the reason why it has none
            values = np.asarray(super()._get_array_data(img, filename), dtype=np.float32)
            padding = padding_of(img)
        except Exception as error:  # Decoders raise whatever they like on damaged pixels.
            raise UserError(f"{filename}: its pixels cannot be decoded: {_reason(error, img)}") from None
        if padding is not None:
            values[padding] = self.padding
        # Decoded now; a volume's encoded bytes need not stay in memory beside it.
        del img.PixelData
        return values


def padding_of(img: Dataset) -> np.ndarray | None:
    """Pixels that the scanner declares to be no measurement, from PixelPaddingValue and PixelPaddingRangeLimit."""
    if (found := padding_range(img)) is None:
        return None
    low, high = found
    stored = img.pixel_array
    return (stored >= low) & (stored <= high)


def _read(name: str) -> Dataset:
    try:
        dataset = dcmread(name)
    except Exception as error:
        raise UserError(f"{name}: cannot be read as DICOM: {first_line(error)}") from None
    if "ImagePositionPatient" not in dataset or "ImageOrientationPatient" not in dataset:
        raise UserError(f"{name}: has no slice position and orientation")
    return dataset


def _reason(error: Exception, img: Dataset) -> str:
    """In one line; of compressed pixels pydicom lists behind a heading what each decoder said."""
    heading, *decoders = map(str.strip, str(error).splitlines() or [type(error).__name__])
    said = "; ".join(decoders) if heading.endswith(":") and decoders else heading
    remedy = more_decoders(img.file_meta.get("TransferSyntaxUID", ""))
    return f"{said}. Other decoders may help: {remedy}" if remedy else said
