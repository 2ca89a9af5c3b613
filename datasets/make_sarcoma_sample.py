"""Cuts the embedded sample with masks out of the sarcoma MR volumes.

    python datasets/make_sarcoma_sample.py sarcoma-mr

The folder has VENDOR/CASE/image.nii.gz with mask.nii.gz. Of every case the sample has at most 16 evenly spaced slices,
from some below the tumour to some above, in pixels of 2 mm, 96 × 96 of them around the tumour's middle; intensities are
from the case's 1st to its 99th percentile. The same input gives the same images; the file is written to the package,
custom/medpfl/data/sample/sarcoma-mr-sample.npz.
"""

import argparse
from math import ceil
from pathlib import Path

import numpy as np
import torch

from medpfl.data.kinds.masks.layout import read_folder
from medpfl.data.kinds.masks.reading import Reading
from medpfl.data.kinds.masks.volume_pair import Volume, read_volume_pair
from medpfl.data.kinds.npz.npz_file import file_md5

TARGET = Path(__file__).parents[1] / "custom" / "medpfl" / "data" / "sample" / "sarcoma-mr-sample.npz"
READING = Reading(dims=3, spacing=(0, 2, 2), normalise="percentile")
EDGE, SLICES = 96, 16


def cut(volume: Volume) -> tuple[np.ndarray, np.ndarray, float]:
    """Images (k, 96, 96) uint8, their masks, and the mm from one to the next."""
    image, mask = volume.image[0].float(), volume.mask
    low, high = (int(mask.flatten(1).any(1).nonzero()[end]) for end in (0, -1))
    beside = max(2, (high - low + 1) // 5)
    seen = (image.flatten(1).std(1) > 0.1).nonzero().flatten()  # volumes were turned: at their ends some are black
    low, high = max(low - beside, int(seen[0])), min(high + beside, int(seen[-1]))
    step = ceil((high - low + 1) / SLICES)
    rows = [axis_window(mask.any(0).any(1)), axis_window(mask.any(0).any(0))]
    chosen = slice(low, high + 1, step)
    pixels = placed(((image[chosen] + 1) * 127.5).round().to(torch.uint8), rows)
    classes = placed(mask[chosen], rows)
    assert classes.sum() == mask[chosen].sum(), "a part of the tumour would be cut off"
    return pixels.numpy(), classes.numpy(), step * volume.spacing[0]


def axis_window(inside: torch.Tensor) -> tuple[int, int, int]:
    """Where the 96 pixels begin in the slice, where they end, and how many are black before."""
    length, places = len(inside), inside.nonzero().flatten()
    if length <= EDGE:
        return 0, length, (EDGE - length) // 2
    middle = int(places[0] + places[-1]) // 2
    start = min(max(middle - EDGE // 2, 0), length - EDGE)
    return start, start + EDGE, 0


def placed(slices: torch.Tensor, windows: list[tuple[int, int, int]]) -> torch.Tensor:
    """Slices (k, H, W) as (k, 96, 96)."""
    (top, bottom, above), (left, right, before) = windows
    made = torch.zeros(len(slices), EDGE, EDGE, dtype=torch.uint8)
    made[:, above : above + bottom - top, before : before + right - left] = slices[:, top:bottom, left:right]
    return made


def main() -> None:
    """Reads the volumes and writes the sample."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the folder of the three vendors")
    images, masks, patients, sites, spacing = [], [], [], [], []
    for vendor, pairs in read_folder(parser.parse_args().folder, READING).centres.items():
        for pair in pairs:
            volume = read_volume_pair(pair, READING, 2)
            pixels, classes, step = cut(volume)
            images.append(pixels)
            masks.append(classes)
            patients += [pair.patient] * len(pixels)
            sites += [vendor] * len(pixels)
            spacing += [(round(step, 3), *volume.spacing[1:])] * len(pixels)
    np.savez_compressed(
        TARGET,
        train_images=np.concatenate(images),
        train_masks=np.concatenate(masks),
        train_patients=np.array(patients),
        train_sites=np.array(sites),
        train_spacing=np.array(spacing, dtype=np.float32),
        classes=np.array(["background", "tumour"]),
    )
    print(f"{TARGET}: {len(patients)} slices, {TARGET.stat().st_size:,} bytes, MD5 {file_md5(TARGET)}")


if __name__ == "__main__":
    main()
