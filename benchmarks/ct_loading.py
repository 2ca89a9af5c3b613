"""How long a CT epoch waits for its data once the scans are in the cache.

    medpfl data phantom phantom
    python benchmarks/ct_loading.py phantom

Per site of the cohort: reading it the first time (DICOM decoded, slices cached), reading it again (from the cache),
one epoch of batches without training, and one epoch of training of vit-tiny. Times are summed over the sites.
"""

import os
import sys
import tempfile
from time import perf_counter

import torch

from medpfl.config.run import make_config
from medpfl.core.seeding import generator
from medpfl.data.kinds.scans.manifest import open_manifest
from medpfl.data.sites import open_source
from medpfl.models import build_model
from medpfl.training.loop import train_epochs


def measure(data: str, size: int, slices: int) -> None:
    """Prints the times for one preprocessing."""
    sites = len(open_manifest(data).centres)
    settings = {"size": size, "slices": slices}
    config = make_config(algorithm="vit-heads", data=data, data_args=settings, sites=sites, device="cpu")
    device = torch.device("cpu")
    times = dict.fromkeys(("first", "again", "batches", "epoch"), 0.0)
    number = 0
    for name in config.site_names:
        for what in ("first", "again"):
            started = perf_counter()
            site = open_source(config).site(name, device)
            times[what] += perf_counter() - started
        number += site.samples("train")
        started = perf_counter()
        for _ in site.training_batches(config.all_settings["batch_size"], generator(0)):
            pass
        times["batches"] += perf_counter() - started
        model = build_model("vit-tiny", in_channels=1, num_classes=2, image_size=size)
        started = perf_counter()
        train_epochs(model, site, config.all_settings, 1, generator(0))
        times["epoch"] += perf_counter() - started
    print(
        f"{size} pixels, {slices} slices a scan, {sites} sites, {number} training slices: "
        f"first read {times['first']:.1f} s, cached read {times['again']:.2f} s, "
        f"batches of an epoch {times['batches']:.3f} s, epoch {times['epoch']:.2f} s: "
        f"{times['batches'] / times['epoch']:.1%} of an epoch is loading"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache  # an empty one, so that the first read is one
        for size, slices in ((32, 8), (64, 16)):
            measure(sys.argv[1], size, slices)
