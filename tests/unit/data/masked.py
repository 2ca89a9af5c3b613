"""Images with masks that tests make."""

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from medpfl.config.run import make_config
from medpfl.data.sites import open_source

CPU = torch.device("cpu")
TINY = {"rounds": 1, "local_epochs": 1, "settings": {"batch_size": 4}, "device": "cpu"}


def draw(seed, size=(40, 40)) -> tuple[np.ndarray, np.ndarray]:
    """A dark picture (H, W, 3) with a bright rectangle, and where that is."""
    rng = np.random.default_rng(seed)
    height, width = size
    mask = np.zeros(size, dtype=np.uint8)
    top, left = rng.integers(2, height // 2), rng.integers(2, width // 2)
    mask[top : top + height // 3, left : left + width // 3] = 1
    return (rng.integers(0, 60, (*size, 3)) + 180 * mask[..., None]).astype(np.uint8), mask


def write_picture(image: Path, mask: Path, seed, size=(40, 40)) -> None:
    for file in (image, mask):
        file.parent.mkdir(parents=True, exist_ok=True)
    pixels, inside = draw(seed, size)
    Image.fromarray(pixels).save(image)
    Image.fromarray(inside * np.uint8(255)).save(mask)


def write_slices(root: Path, sites=("north", "south"), patients=5, slices=3) -> Path:
    """``SITE/PATIENT/NN.png`` with ``NN_mask.png``; numbers beyond nine, so that their order is not that of text."""
    for k, site in enumerate(sites):
        for patient in range(patients):
            for number in range(8, 8 + slices):
                folder = root / site / f"{site[0]}{patient}"
                seed = 1000 * k + patient * 10 + number
                write_picture(folder / f"{number}.png", folder / f"{number}_mask.png", seed)
    return root


def write_siblings(root: Path) -> Path:
    """``SITE/images/NAME.png`` and ``SITE/masks/NAME_mask.png``."""
    for k, site in enumerate("ab"):
        for i in range(6):
            write_picture(
                root / site / "images" / f"p{i // 2}_{i % 2}.png",
                root / site / "masks" / f"p{i // 2}_{i % 2}_mask.png",
                100 * k + i,
            )
    return root


def volume(seed, shape=(20, 24, 10), low=0.0) -> tuple[np.ndarray, np.ndarray]:
    """(X, Y, Z) values with a bright block, and where that is."""
    rng = np.random.default_rng(seed)
    mask = np.zeros(shape, dtype=np.uint8)
    start = [int(rng.integers(1, n // 2)) for n in shape]
    mask[tuple(slice(s, s + n // 3) for s, n in zip(start, shape, strict=True))] = 1
    return (low + 100 * rng.random(shape) + 500.0 * mask).astype(np.float32), mask


def save_nifti(file: Path, values: np.ndarray, spacing=(1.0, 1.0, 3.0), affine=None) -> Path:
    import nibabel

    file.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(values, np.diag([*spacing, 1.0]) if affine is None else affine), file)
    return file


def write_volumes(root: Path, sites=("ge", "siemens"), cases=4, low=0.0) -> Path:
    """``SITE/CASE/image.nii.gz`` with ``mask.nii.gz``, sizes different."""
    for k, site in enumerate(sites):
        for case in range(cases):
            values, mask = volume(10 * k + case, (20 + 2 * case, 24, 10 + case), low)
            folder = root / site / f"STS_{10 * k + case:03d}"
            save_nifti(folder / "image.nii.gz", values)
            save_nifti(folder / "mask.nii.gz", mask)
    return root


def write_datalist(file: Path, **lists) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(lists))
    return file


def config(data, **fields):
    defaults = {
        "algorithm": "fedavg",
        "sites": 2,
        "fractions": (0.6, 0.0, 0.4),
        "partition": "natural",
        "task": "segmentation",
    } | TINY
    return make_config(data=str(data), **(defaults | fields))


SMALL = {"patch": [4, 8, 8]}


def opened(data, **fields):
    """The source of a run of small volumes."""
    return open_source(config(data, **({"data_args": SMALL} | fields)))
