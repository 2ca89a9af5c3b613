"""How long the inventory and the deep check of many series take, and how much memory.

    python benchmarks/inventory_scale.py 250 500 1000     # --deep: the deep check alone; --headers: the headers alone

For each number a folder of that many synthetic CT series (20 slices of 128×128, 5 mm apart, each of its own noise) is
written, and read in a process of its own: headers, a slice of each for copies (all have one shape), thumbnails, and the
check that decodes everything.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import perf_counter, process_time
from typing import TypeVar

import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

SLICES, EDGE = 20, 128
T = TypeVar("T")


def write(folder: Path, count: int) -> None:
    """Series of a body with two lungs, one in a folder, and their table."""
    y, x = np.mgrid[:EDGE, :EDGE] / EDGE
    body = np.where(((x - 0.5) / 0.42) ** 2 + ((y - 0.5) / 0.36) ** 2 < 1, 40, -1000)
    for centre in (0.32, 0.68):
        body[((x - centre) / 0.13) ** 2 + ((y - 0.5) / 0.24) ** 2 < 1] = -850
    for number in range(count):
        image = _image(number)
        place = folder / f"s{number:05d}"
        place.mkdir(parents=True)
        noise = np.random.default_rng(number).integers(-20, 20, (SLICES, EDGE, EDGE))
        for k, values in enumerate((body + noise).astype("<i2")):
            image.SOPInstanceUID = image.file_meta.MediaStorageSOPInstanceUID = generate_uid()
            image.InstanceNumber, image.ImagePositionPatient = k + 1, [0, 0, 5.0 * k]
            image.PixelData = (values + 1024).tobytes()
            image.save_as(place / f"{k:03d}.dcm", enforce_file_format=True)
    rows = [f"s{number:05d},{number % 2}" for number in range(count)]
    (folder / "labels.csv").write_text("\n".join(["series,label", *rows]) + "\n")


def _image(number: int) -> Dataset:
    image = Dataset()
    image.file_meta = FileMetaDataset()
    image.file_meta.MediaStorageSOPClassUID = image.SOPClassUID = CTImageStorage
    image.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    image.SeriesInstanceUID, image.PatientID, image.Modality = generate_uid(), f"P{number}", "CT"
    image.ImageOrientationPatient, image.PixelSpacing, image.SliceThickness = [1, 0, 0, 0, 1, 0], [2.5, 2.5], 5
    image.Rows, image.Columns, image.SamplesPerPixel, image.PhotometricInterpretation = EDGE, EDGE, 1, "MONOCHROME2"
    image.BitsAllocated = image.BitsStored = 16
    image.HighBit, image.PixelRepresentation, image.RescaleSlope, image.RescaleIntercept = 15, 1, 1, -1024
    return image


def measure(folder: Path, alone: str) -> None:
    """Prints seconds on the clock and of the processor, and the largest memory so far, of each pass or of one alone."""
    from medpfl.data.check import check_deep
    from medpfl.data.kinds.scans.inventory import take_inventory
    from medpfl.data.kinds.scans.inventory_copies import with_copies
    from medpfl.data.kinds.scans.inventory_drawn import with_thumbnails

    def timed(what: str, work: Callable[[], T]) -> T:
        clock, processor = perf_counter(), process_time()
        made = work()
        seconds = f"{perf_counter() - clock:.1f} s ({process_time() - processor:.1f} s of the processor)"
        print(f"{what} {seconds}, {getrusage(RUSAGE_SELF).ru_maxrss / 1024:.0f} MB", end="; ", flush=True)
        return made

    if alone != "--deep":
        inventory = timed("headers", lambda: take_inventory(folder))
        print(f"{len(inventory.found)} series", end="; ")
    if alone == "--headers":
        print()
        return
    if not alone:
        copies = timed("copies", lambda: with_copies(inventory))
        print(f"{len(copies.copies)} found", end="; ")
        timed("thumbnails", lambda: with_thumbnails(inventory))
    found = timed("deep check", lambda: check_deep(folder, folder.parent / "page.html"))
    print(next(f.message for f in found if "lung crop" in f.message))


if __name__ == "__main__":
    alone = next((word for word in sys.argv if word in ("--deep", "--headers")), "")
    if sys.argv[1:2] == ["--folder"]:
        measure(Path(sys.argv[2]), alone)
    else:
        for count in map(int, filter(str.isdecimal, sys.argv[1:])):
            with tempfile.TemporaryDirectory() as place:
                write(Path(place) / "cohort", count)
                environment = os.environ | {"XDG_CACHE_HOME": f"{place}/cache"}
                command = [sys.executable, __file__, "--folder", f"{place}/cohort", *filter(None, [alone])]
                subprocess.run(command, env=environment, check=True)
