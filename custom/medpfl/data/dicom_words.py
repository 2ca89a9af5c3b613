"""Words of a DICOM header as all that read one take them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from medpfl.data.files import composed

if TYPE_CHECKING:
    from pydicom.dataset import Dataset


def modality(dataset: Dataset) -> str:
    """In capitals, as the standard has it and not every program writes it; empty if it is not said."""
    return str(dataset.get("Modality") or "").strip().upper()


def patient_id(dataset: Dataset) -> str:
    """Empty if it is not said."""
    return composed(str(dataset.get("PatientID") or "").strip())
