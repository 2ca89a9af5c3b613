"""What differential privacy of FedAP's statistics does to W and to accuracy.

    python benchmarks/statistics_privacy.py organamnist.npz w          # rank correlation of W with and without noise
    python benchmarks/statistics_privacy.py organamnist.npz accuracy --share 0.2   # FedAP with it, without, and uniform

20 sites, LeNet-5 with batch norm, f pretrained as by default; each image stands for a patient, since OrganAMNIST does
not say whose they are. Every seed has a partition, an f and noise of its own.
"""

import argparse
import os
from dataclasses import replace
from statistics import mean, stdev

import numpy as np
import torch
from scipy.stats import spearmanr

from medpfl.algorithms.fedap.privacy import StatisticsPrivacy
from medpfl.algorithms.fedap.private_statistics import patient_vectors, released, scales_of
from medpfl.algorithms.fedap.similarity import similarity_weights, wasserstein_distances
from medpfl.config.run import make_config
from medpfl.core.layers import batch_norm_layers
from medpfl.core.memory import keep_freed_memory
from medpfl.core.moments import input_statistics, training_inputs
from medpfl.core.settings import defaults
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.engine.results import build_results
from medpfl.site.noise import noise_source
from medpfl.site.store import MemoryStore

EPSILONS = (10, 3, 1)


def config_of(data, alpha, seed, train_fraction, **fields):
    """A run of 20 sites and 20 rounds."""
    fields = {
        "data": data,
        "partition": f"equal-dirichlet:{alpha}",
        "seed": seed,
        "train_fraction": train_fraction,
    } | fields
    return make_config(algorithm="fedap", sites=20, rounds=20, device="cpu", **fields)


def off_diagonal(statistics):
    """W's entries off the diagonal, from the sites' statistics by path."""
    layers = [{path: tuple(t.numpy() for t in pair) for path, pair in site.items()} for site in statistics]
    weights = similarity_weights(wasserstein_distances(layers), 0.5)
    return weights[~np.eye(len(weights), dtype=bool)]


def correlations(config, f):
    """Spearman's of W's entries off the diagonal with W without noise, by epsilon; and the range of patients a site."""
    federation = Federation.of(config)
    model = federation.model()
    model.load_state_dict(f)
    layers = batch_norm_layers(model)
    scales = scales_of(layers)
    sites = {name: federation.source.site(name, federation.device) for name in config.site_names}
    exact = off_diagonal([input_statistics(model, layers, training_inputs(site)) for site in sites.values()])
    vectors = {name: list(patient_vectors(model, layers, scales, site, None)) for name, site in sites.items()}
    found = {}
    for epsilon in EPSILONS:
        settings = defaults(StatisticsPrivacy) | {"statistics_epsilon": epsilon}
        noisy = [
            released(v, len(v), scales, settings, noise_source(config, name, "statistics", 0, None))
            for name, v in vectors.items()
        ]
        found[epsilon] = spearmanr(exact, off_diagonal(noisy)).statistic
    return found, [len(v) for v in vectors.values()]


def accuracy(config, pretrained=None):
    """Mean accuracy over sites at the selected round, and f."""
    federation = Federation.of(config)
    plan = federation.plan(pretraining=pretrained is None)
    if pretrained is not None:
        plan = replace(plan, pretrained=pretrained)
    f = plan.pretrained
    sites = {name: federation.site(name, MemoryStore()) for name in config.site_names}
    state = run_in_process(plan, sites, federation.model, workers=os.cpu_count())
    results = build_results(plan, state, env="inprocess", data={}, seconds={})
    return results["final"]["selected"]["mean"]["accuracy"], f


def show(name, values):
    """One line: mean, standard deviation over seeds, each seed."""
    spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
    each = ", ".join(f"{v:.3f}" for v in values)
    print(f"{name}: {mean(values):.3f}{spread} ({each})", flush=True)


def of_w(data, seeds, alpha, share):
    """Rank correlations."""
    configs = [config_of(data, alpha, seed, share) for seed in seeds]
    found = [correlations(config, Federation.of(config).plan().pretrained) for config in configs]
    print(f"{min(min(n) for _, n in found)} to {max(max(n) for _, n in found)} patients a site")
    for epsilon in EPSILONS:
        show(f"epsilon {epsilon}", [by[epsilon] for by, _ in found])


def of_accuracy(data, seeds, alpha, share):
    """FedAP."""
    variants = {"no noise": {}}
    variants |= {f"epsilon {e}": {"settings": {"statistics_epsilon": e}} for e in EPSILONS}
    variants |= {"equal weights": {"mixing": "uniform"}}
    found = {name: [] for name in variants}
    for seed in seeds:
        f = None
        for name, fields in variants.items():
            uniform = "mixing" in fields
            got, made = accuracy(config_of(data, alpha, seed, share, **fields), None if uniform else f)
            f = f or made
            found[name].append(got)
            print(f"seed {seed}, {name}: {got:.4f}", flush=True)
    for name, values in found.items():
        show(name, values)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("what", choices=["w", "accuracy"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--alpha", default="0.1")
    parser.add_argument("--share", type=float, default=1.0, help="of each site's training images")
    given = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    {"w": of_w, "accuracy": of_accuracy}[given.what](given.data, given.seeds, given.alpha, given.share)
