"""Data that no partition makes: sites whose images look different, hospitals' chest X-rays, and slices of patients.

Functions as ``--data regimes_data:NAME`` takes them; they need the files beside them.
"""

import os
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import conv2d

import medpfl

DATA = Path(os.environ.get("MEDPFL_BENCHMARK_DATA", "."))
"""The folder of data sets."""
PARTS = ("train", "validation", "test")


@cache
def _organs() -> tuple[np.ndarray, np.ndarray]:
    with np.load(DATA / "organamnist.npz") as file:
        images = np.concatenate([file[f"{part}_images"] for part in ("train", "val", "test")])
        labels = np.concatenate([file[f"{part}_labels"] for part in ("train", "val", "test")])
    return images, labels.ravel()


def shifted(site: str, seed: int, sites: int = 20, shares: tuple[float, ...] = (0.5, 0.1, 0.4)) -> medpfl.ImageTensors:
    """OrganAMNIST divided at random, each site with a grey-level curve, a blur and noise of its own.

    Labels are distributed alike at all sites: feature shift without label shift.
    """
    images, labels = _organs()
    number = int(site.rpartition("-")[2]) - 1
    own = np.array_split(np.random.default_rng(seed).permutation(len(labels)), sites)[number]
    rng = np.random.default_rng((seed, number))
    x = torch.from_numpy(images[own]).float()[:, None] / 255
    x = x ** float(np.exp(rng.uniform(-0.9, 0.9)))
    if rng.random() < 0.5:
        x = 1 - x
    width = float(rng.uniform(0.1, 1.2))
    taps = torch.exp(-0.5 * (torch.arange(-3, 4) / width) ** 2)
    taps = taps / taps.sum()
    x = conv2d(conv2d(x, taps.view(1, 1, 7, 1), padding=(3, 0)), taps.view(1, 1, 1, 7), padding=(0, 3))
    noise = torch.Generator().manual_seed(int(rng.integers(2**31)))
    x = x + float(rng.uniform(0, 0.1)) * torch.randn(x.shape, generator=noise)
    pixels = (x.clamp(0, 1) * 255).round().to(torch.uint8)
    return _divided(pixels, torch.from_numpy(labels[own].astype(np.int64)), seed, shares)


def chest(site: str, seed: int, size: int = 64) -> medpfl.ImageTensors:
    """Tuberculosis or not on chest X-rays of the site's hospital, ``montgomery`` or ``shenzhen``."""
    from PIL import Image

    files = sorted((DATA / "chest-xray" / site / "cxr").glob("*.png"))
    pixels = [np.asarray(Image.open(file).convert("L").resize((size, size), Image.Resampling.BOX)) for file in files]
    labels = torch.tensor([int(file.stem.endswith("_1")) for file in files])
    return _divided(torch.from_numpy(np.stack(pixels))[:, None], labels, seed, (0.5, 0.1, 0.4))


def brain_slices(site: str, seed: int) -> medpfl.ImageTensors:
    """Tumour or not in each MR slice of the hospital's patients, 32 pixels."""
    return _by_patient(_brain(site), seed)


def sarcoma_slices(site: str, seed: int) -> medpfl.ImageTensors:
    """The same of the vendor's sarcoma patients."""
    return _by_patient(_sarcoma(site), seed)


@cache
def _brain(site: str) -> tuple[np.ndarray, ...]:
    from PIL import Image

    slices = []
    for number, patient in enumerate(sorted((DATA / "brain-mri" / site).iterdir())):
        for file in sorted(f for f in patient.glob("[0-9]*.png") if not f.stem.endswith("_mask")):
            image = Image.open(file).convert("RGB").resize((32, 32), Image.Resampling.BOX)
            mask = np.asarray(Image.open(file.with_name(f"{file.stem}_mask.png")))
            slices.append((np.asarray(image).transpose(2, 0, 1), int(mask.any()), number))
    return tuple(map(np.array, zip(*slices, strict=True)))


@cache
def _sarcoma(site: str) -> tuple[np.ndarray, ...]:
    import nibabel
    from PIL import Image

    slices = []
    for number, patient in enumerate(sorted((DATA / "sarcoma-mr" / site).iterdir())):
        volume = np.asarray(nibabel.load(patient / "image.nii.gz").dataobj, dtype=np.float32)
        mask = np.asarray(nibabel.load(patient / "mask.nii.gz").dataobj) > 0
        low, high = np.percentile(volume, [1, 99.5])
        grey = (np.clip((volume - low) / (high - low + 1e-6), 0, 1) * 255).astype(np.uint8)
        for z in range(volume.shape[2]):
            image = Image.fromarray(grey[:, :, z]).resize((32, 32), Image.Resampling.BOX)
            slices.append((np.asarray(image)[None], int(mask[:, :, z].any()), number))
    return tuple(map(np.array, zip(*slices, strict=True)))


def _by_patient(slices: tuple[np.ndarray, ...], seed: int) -> medpfl.ImageTensors:
    """Half of the patients train, a tenth and one at least validates."""
    pixels, labels, patients = slices
    count = int(patients.max()) + 1
    order = np.random.default_rng(seed).permutation(count)
    ends = np.round(np.cumsum((0.5, 0.1, 0.4)) * count).astype(int)
    ends[1] = max(ends[1], ends[0] + 1)
    chosen = {
        part: np.flatnonzero(np.isin(patients, order[a:b]))
        for part, a, b in zip(PARTS, (0, *ends[:-1]), ends, strict=True)
    }
    of = [
        {part: torch.from_numpy(np.ascontiguousarray(values[own])) for part, own in chosen.items()}
        for values in (pixels, labels.astype(np.int64), patients.astype(np.int64))
    ]
    return medpfl.ImageTensors(images=of[0], labels=of[1], persons=of[2])


def _divided(pixels: torch.Tensor, labels: torch.Tensor, seed: int, shares: tuple[float, ...]) -> medpfl.ImageTensors:
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    ends = np.round(np.cumsum(shares) * len(labels)).astype(int)
    chosen = dict(zip(PARTS, (order[a:b] for a, b in zip((0, *ends[:-1]), ends, strict=True)), strict=True))
    return medpfl.ImageTensors(
        images={part: pixels[of] for part, of in chosen.items()},
        labels={part: labels[of] for part, of in chosen.items()},
    )
