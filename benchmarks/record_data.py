"""Small data for ``record.py``, the same every time: an npz file, folders of pictures, NIfTI scans."""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np


def _pixels(rng: np.random.Generator, label: int, size: int, gain: float) -> np.ndarray:
    """A noisy uint8 picture with a bright square where the class says."""
    pixels = rng.normal(80 * gain, 20, (size, size))
    first = (label + 1) * size // 5
    pixels[first : first + size // 4, first : first + size // 4] += 90
    return pixels.clip(0, 255).astype(np.uint8)


def make_images(path: Path) -> None:
    """An npz file as MedMNIST's: 270 grey 28x28 images of three classes, of three hospitals."""
    rng = np.random.default_rng(1)
    arrays = {}
    for part, count in {"train": 150, "val": 60, "test": 60}.items():
        labels = np.arange(count) % 3
        sites = np.array(["a", "b", "c"])[(np.arange(count) // 3) % 3]
        images = [_pixels(rng, label, 28, {"a": 0.7, "b": 1.0, "c": 1.3}[s]) for label, s in zip(labels, sites)]  # noqa: B905
        arrays |= {f"{part}_images": np.stack(images), f"{part}_labels": labels[:, None], f"{part}_sites": sites}
    np.savez(path, **arrays)


def make_pictures(path: Path) -> None:
    """Folders of PNG files: three centres, two classes, twelve patients a class with two pictures each."""
    from PIL import Image

    rng = np.random.default_rng(2)
    for number, centre in enumerate(("east", "north", "south")):
        for label, name in enumerate(("glaucoma", "normal")):
            folder = path / centre / name
            folder.mkdir(parents=True)
            for patient in range(12):
                for side in ("left", "right"):
                    pixels = _pixels(rng, label, 40 + 4 * number, 0.8 + 0.2 * number)
                    rgb = np.stack([pixels, pixels // 2, 255 - pixels], axis=-1)
                    Image.fromarray(rgb).save(folder / f"{name[0]}{patient:02}_{side}.png")


def make_nifti(path: Path) -> None:
    """NIfTI scans: two centres of twelve scans each, two classes."""
    import nibabel

    rng = np.random.default_rng(3)
    for number, centre in enumerate(("north", "south")):
        (path / centre).mkdir(parents=True)
        rows = []
        for scan in range(12):
            voxels = rng.normal(-850 + 30 * number, 40, (32, 32, 10))
            voxels[8:24, 8:24] += 200 * (scan % 2)
            file = nibabel.Nifti1Image(voxels.astype(np.int16), np.diag([2.0, 2.0, 5.0, 1.0]))
            nibabel.save(file, path / centre / f"scan-{scan:02}.nii.gz")
            rows.append((f"scan-{scan:02}.nii.gz", ("clear", "dense")[scan % 2]))
        with open(path / centre / "labels.csv", "w", newline="") as file:
            csv.writer(file).writerows([("series", "label"), *rows])


FILES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "images": ("images.npz", make_images),
    "pictures": ("pictures", make_pictures),
    "nifti": ("nifti-ct", make_nifti),
}
"""Name of the file or folder, and how it is made, by what commands call it."""
