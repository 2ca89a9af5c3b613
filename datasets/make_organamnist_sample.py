"""Cuts the embedded sample out of the official OrganAMNIST file.

    python datasets/make_organamnist_sample.py organamnist.npz

The sample keeps MedMNIST's keys, its official parts and, in each part, the share of every class. The same input gives
the same images; the file is written to the package, custom/medpfl/data/sample/organamnist-sample.npz.
"""

import argparse
from pathlib import Path

import numpy as np

from medpfl.core.seeding import derive_seed
from medpfl.data.kinds.npz.catalog import SAMPLE_IMAGES
from medpfl.data.kinds.npz.medmnist import official_md5
from medpfl.data.kinds.npz.npz_file import file_md5, load

TARGET = Path(__file__).parents[1] / "custom" / "medpfl" / "data" / "sample" / "organamnist-sample.npz"


def proportional(counts: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers that sum to ``total`` in the proportions of ``counts``, by largest remainder."""
    exact = counts / counts.sum() * total
    sizes = np.floor(exact).astype(int)
    largest = np.argsort(sizes - exact, kind="stable")[: total - sizes.sum()]
    sizes[largest] += 1
    return sizes


def main() -> None:
    """Reads the official file and writes the sample."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("official", type=Path, help="the official organamnist.npz, 28×28")
    official = load(parser.parse_args().official)
    if official.md5 != official_md5("organamnist"):
        raise SystemExit(f"{official.source} is not the official file: its MD5 is {official.md5}")
    strata, stratum = np.unique(official.split * official.n_classes + official.labels, return_inverse=True)
    sizes = proportional(np.bincount(stratum), SAMPLE_IMAGES)
    rng = np.random.default_rng(derive_seed(0, "organamnist-sample"))
    chosen = np.concatenate(
        [rng.choice(np.flatnonzero(stratum == k), sizes[k], replace=False) for k in range(len(strata))]
    )
    chosen.sort()
    arrays = {}
    for code, part in enumerate(("train", "val", "test")):
        indices = chosen[official.split[chosen] == code]
        arrays[f"{part}_images"] = official.images[indices]
        arrays[f"{part}_labels"] = official.labels[indices, None].astype(np.uint8)
    np.savez_compressed(TARGET, **arrays)
    print(f"{TARGET}: {len(chosen)} images, {TARGET.stat().st_size:,} bytes, MD5 {file_md5(TARGET)}")


if __name__ == "__main__":
    main()
