"""Time of one round - training, mixing, validation - against a per-sample loop of the usual kind.

    python benchmarks/round_speed.py organamnist.npz

20 equal sites, LeNet-5, batch 32, half of each site's images to train, the other half to validate. The per-sample loop
is what most public federated-learning code does: a Dataset that turns one image at a time into a tensor, a DataLoader
that collates them, one site after another with all threads in each step, and torch's own pooling. Both do the same
arithmetic. Rounds of the two alternate, each of the per-sample loop in a fresh process, so that a drift of the
machine's speed touches both.
"""

import argparse
import itertools
import os
import platform
import statistics
import subprocess
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

from medpfl.config.run import make_config
from medpfl.core.memory import keep_freed_memory
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.server.rounds import ServerState
from medpfl.site.store import MemoryStore

STEP_FLOPS = 54e6  # LeNet-5, batch 32, forward and backward


class PerSample(Dataset):
    """One image at a time, as a float tensor in [-1, 1]."""

    def __init__(self, images, labels):
        self.images, self.labels = images.numpy(), labels.numpy()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        image = torch.from_numpy(self.images[i]).float().div(255)
        return image.sub(0.5).div(0.5), int(self.labels[i])


def per_sample_round(sites, models):
    """Training, FedAvg and evaluation of the mean model; seconds of training and of evaluation."""
    torch.set_num_threads(os.cpu_count())
    started = time.perf_counter()
    for site, model in zip(sites, models, strict=True):
        loader = DataLoader(PerSample(site.images["train"], site.labels["train"]), batch_size=32, shuffle=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    with torch.no_grad():
        for parameters in zip(*(m.parameters() for m in models), strict=True):
            mean = torch.stack(parameters).mean(0)
            for p in parameters:
                p.copy_(mean)
    trained = time.perf_counter()
    for site, model in zip(sites, models, strict=True):
        model.eval()
        right = 0
        with torch.no_grad():
            data = PerSample(site.images["validation"], site.labels["validation"])
            for x, y in DataLoader(data, batch_size=32):
                right += (model(x).argmax(1) == y).sum().item()
    return trained - started, time.perf_counter() - trained


def per_sample_process(data):
    """One :func:`per_sample_round` in a process without this package's settings of memory and threads."""
    done = subprocess.run([sys.executable, __file__, data, "--per-sample"], capture_output=True, text=True, check=True)
    return tuple(map(float, done.stdout.split()))


def our_rounds(federation, plan, sites, workers):
    """Seconds of every round of a run, each with training, mixing and the validation of the round before."""
    times = []

    def after_step(state: ServerState):
        times.append(time.perf_counter())

    run_in_process(plan, sites, federation.model, workers=workers, after_step=after_step)
    # Steps: prepare, rounds, validate, test. The first round has nothing to validate yet.
    return [b - a for a, b in itertools.pairwise(times[1:-2])]


def matmul_rate():
    """Floating-point operations a second in a large matrix product with all threads."""
    torch.set_num_threads(os.cpu_count())
    a, best = torch.randn(2048, 2048), 0.0
    for _ in range(5):
        started = time.perf_counter()
        a @ a
        best = max(best, 2 * 2048**3 / (time.perf_counter() - started))
    return best


def main():
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--per-sample", action="store_true", help="only time one round of the per-sample loop")
    arguments = parser.parse_args()
    config = make_config(
        algorithm="fedavg",
        data=arguments.data,
        partition="equal-dirichlet:0.1",
        fractions=(0.5, 0.5, 0),
        rounds=3,
    )
    federation = Federation.of(config)
    plan = federation.plan()
    sites = {name: federation.site(name, MemoryStore()) for name in config.site_names}
    data = [site.data for site in sites.values()]
    steps = sum(-(-d.samples("train") // 32) for d in data)
    if arguments.per_sample:
        models = [federation.model() for _ in data]
        for model in models:
            model.pool = torch.nn.MaxPool2d(2)
        print(*per_sample_round(data, models))
        return
    keep_freed_memory()
    rate = matmul_rate()
    reference, ours = [], []
    for _ in range(arguments.repeats):
        reference.append(per_sample_process(arguments.data))
        ours.append(statistics.median(our_rounds(federation, plan, sites, os.cpu_count())))
    pairs = [sum(r) / o for r, o in zip(reference, ours, strict=True)]
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    print(f"{steps} training steps and {sum(d.samples('validation') for d in data)} validated images a round")
    train, evaluate = (statistics.median(r[i] for r in reference) for i in (0, 1))
    print(f"per sample: {train:.2f} s training + {evaluate:.2f} s evaluation = {train + evaluate:.2f} s a round")
    print(f"medpfl:     {statistics.median(ours):.2f} s a round")
    print(f"ratio, pair by pair: min {min(pairs):.2f}, median {statistics.median(pairs):.2f}, max {max(pairs):.2f}")
    limit = steps * STEP_FLOPS / rate
    share = limit / min(ours)
    print(f"arithmetic limit of training: {limit:.2f} s at {rate / 1e9:.0f} GFLOP/s, {share:.0%} of it reached")


if __name__ == "__main__":
    main()
