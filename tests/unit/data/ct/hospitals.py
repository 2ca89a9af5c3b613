"""A cohort of small centres on disk, with every fault that a user may meet, to be checked and run."""

import json
from pathlib import Path

import nibabel
import numpy as np
from make_dicom import chest, write_series


def write_centre(folder: Path, patients: int = 6, seed: int = 0) -> list[str]:
    """One DICOM series a patient in a folder of its own, and the table; classes 0 and 1 in turn. Returns the UIDs."""
    uids = []
    for number in range(patients):
        volume = chest(seed=seed + number)
        volume[volume < -800] -= 100 * (number % 2)  # the class shows in the lungs
        uids.append(write_series(folder / f"p{number}", volume, patient=f"{folder.name}-patient-{number}"))
    write_table(folder, [(uid, number % 2) for number, uid in enumerate(uids)])
    return uids


def write_table(folder: Path, rows: list[tuple], heads: str = "series,label") -> None:
    (folder / "labels.csv").write_text("\n".join([heads, *(",".join(map(str, row)) for row in rows)]) + "\n")


def write_cohort(root: Path, centres: int = 3) -> Path:
    for number in range(centres):
        write_centre(root / f"centre-{number + 1}", seed=10 * number)
    return root


def truncated(root: Path) -> str:
    file = sorted((root / "centre-1" / "p0").iterdir())[4]
    file.write_bytes(file.read_bytes()[:-200])
    return "cut short|truncated|short"


def missing_slice(root: Path) -> str:
    sorted((root / "centre-1" / "p0").iterdir())[4].unlink()
    return "missing"


def mr(root: Path) -> str:
    def to_mr(_, dataset):
        dataset.Modality = "MR"

    folder = root / "centre-1"
    uid = write_series(folder / "mr", chest(), patient="another", change=to_mr)
    table = folder / "labels.csv"
    table.write_text(table.read_text() + f"{uid},1\n")
    return "MR"


def two_splits(root: Path) -> str:
    folder = root / "centre-1"
    uids = [row.split(",")[0] for row in (folder / "labels.csv").read_text().splitlines()[1:]]
    parts = ["train", "test", "train", "test", "validation", "train"]
    rows = [
        (uid, k % 2, "same" if k < 2 else f"p{k}", part) for k, (uid, part) in enumerate(zip(uids, parts, strict=True))
    ]
    write_table(folder, rows, "series,label,patient,split")
    return "patient same is in train and in test"


def unknown_label(root: Path) -> str:
    manifest = {
        "schema": 1,
        "name": "ct",
        "classes": ["healthy", "ill"],
        "centres": [
            {"name": f"centre-{n}", "kind": "dicom", "folder": f"centre-{n}", "labels": f"centre-{n}/labels.csv"}
            for n in (1, 2, 3)
        ],
    }
    (root / "manifest.json").write_text(json.dumps(manifest))
    table = root / "centre-1" / "labels.csv"
    table.write_text(table.read_text().replace(",1\n", ",7\n", 1))
    return "label '7'"


def missing_file(root: Path) -> str:
    folder = root / "centre-4"
    folder.mkdir()
    items = [{"image": f"{n}.nii.gz", "label": n % 2, "patient": f"n{n}"} for n in range(4)]
    for item in items[1:]:
        nibabel.save(nibabel.Nifti1Image(np.transpose(chest()), np.diag([1.0, 1.0, 2.0, 1.0])), folder / item["image"])
    (folder / "datalist.json").write_text(json.dumps({"training": items}))
    return "0.nii.gz"


FAULTS = (truncated, missing_slice, mr, two_splits, unknown_label, missing_file)
"""Each spoils a cohort of three centres and returns what must be said about it."""
