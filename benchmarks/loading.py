"""How long an epoch waits for its data once they have been read.

    medpfl data phantom phantom
    python benchmarks/loading.py phantom size=32 slices=8
    python benchmarks/loading.py brain-mri size=64

Per site of a folder with centres: reading it the first time (decoded, kept where its kind keeps a cache), reading it
again, one epoch of batches without training, and one epoch of training: of vit-tiny for scans, of a UNet for masks.
Times are summed over the sites.
"""

import os
import sys
import tempfile
from time import perf_counter

import torch

from medpfl.config.run import make_config
from medpfl.core.seeding import generator
from medpfl.data.kinds.registry import kind_of
from medpfl.data.sites import fixed_sites, open_source
from medpfl.engine.federation import Federation
from medpfl.training.loop import plain_objective, train_epochs

NETWORKS = {
    "masks": {"task": "segmentation", "model": "unet", "model_args": {"channels": [8, 16, 32, 64]}},
    "scans": {"model": "vit-tiny", "model_args": {"patch_size": 8}},
}


def measure(data: str, data_args: dict[str, int]) -> None:
    """Prints the times."""
    named = {"data": data, "data_args": data_args, "partition": "natural"}
    network = NETWORKS[kind_of(data, data_args).name]
    config = make_config(algorithm="fedavg", sites=fixed_sites(data, "natural", data_args), **named, **network)
    times, number, device = dict.fromkeys(("first", "again", "batches", "epoch"), 0.0), 0, torch.device("cpu")
    model = Federation.of(config).model()
    for name in config.site_names:
        for what in ("first", "again"):
            started = perf_counter()
            site = open_source(config).site(name, device)
            times[what] += perf_counter() - started
        number += site.samples("train")
        started = perf_counter()
        for _ in site.training_batches(config.trainer.batch_size, generator(0)):
            pass
        times["batches"] += perf_counter() - started
        objective = plain_objective(model, config.trainer.loss(config.learned.loss, site))
        started = perf_counter()
        train_epochs(model, site, config.trainer, 1, generator(0), objective)
        times["epoch"] += perf_counter() - started
    print(
        f"{data}, {data_args}, {config.sites} sites, {number} training images: first read {times['first']:.1f} s, "
        f"again {times['again']:.2f} s, batches of an epoch {times['batches']:.3f} s, epoch {times['epoch']:.2f} s: "
        f"{times['batches'] / times['epoch']:.1%} of an epoch is loading"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache  # an empty one, so that the first read is one
        measure(sys.argv[1], {name: int(value) for name, _, value in (a.partition("=") for a in sys.argv[2:])})
