"""FedAP's statistics with differential privacy for every patient of the site, once.

Every input of a layer is standardised by what f itself knows of it: a batch norm's running mean and variance, or mean 0
and variance 1 where f keeps none. A patient's vector has, for each layer and channel, the mean of z and of
(z^2 - 1) / sqrt(2) over all of the patient's samples and positions; for a patient like f's own data each entry has a
root mean square of 1 at most. The vector of d entries over all layers is scaled to an L2 norm of ``statistics_clip`` *
sqrt(d) at most. One bound for all layers: a bound for each would add up to the same sensitivity, and layers with little
spread would waste theirs. No number in it comes from the site's data.

The vectors' sum over the n patients moves by at most twice the bound when one patient is replaced by another; n itself
is public. Gaussian noise is calibrated to that by the analytic Gaussian mechanism
(:func:`medpfl.core.differential_privacy.noise_multiplier`). What follows is post-processing: mean and variance from the
noisy moments, the variance at least :data:`LEAST_VARIANCE` of f's.

Unlike the exact statistics, each patient counts the same, whatever the number of samples.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import count
from math import sqrt

import numpy as np
import torch
from torch import Tensor, nn

from medpfl.algorithms.fedap.privacy import FEW_PATIENTS, LARGE_DELTA
from medpfl.core.differential_privacy import SENSITIVITY, least_patients, noise_multiplier
from medpfl.core.layers import evaluating
from medpfl.core.moments import by_channel, channels_of_input
from medpfl.core.noise import NoiseSource, clip_factor, noised, on_grid
from medpfl.core.parameters import StateError
from medpfl.core.settings import Value
from medpfl.core.site_data import SiteData

logger = logging.getLogger(__name__)

Scales = Mapping[str, tuple[Tensor, Tensor]]
"""By path: mean and variance by which each channel of the layer's input is standardised, float64 on the CPU."""

LEAST_VARIANCE = 1e-3
"""Noise may take a variance below zero: this share of f's own is the least that is sent."""


def private_statistics(
    model: nn.Module,
    layers: Mapping[str, nn.Module],
    data: SiteData,
    settings: Mapping[str, Value],
    source: NoiseSource,
) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean and variance of every channel of the layers' inputs over the training data, noised.

    Args:
        model: f.
        layers: modules of the model by path.
        data: its training part is used.
        settings: ``statistics_epsilon``, ``statistics_delta``, ``statistics_clip``.
        source: of the noise.

    Returns:
        By path: mean and variance, float64, shape (channels,), on the CPU.

    Raises:
        StateError: the site has too few patients for epsilon or delta.
    """
    owners = data.owners("train")
    logger.info("statistics with noise: %s", "each sample counts as a patient" if owners is None else "by patient")
    patients = data.samples("train") if owners is None else len(owners.unique())
    scales = scales_of(layers)
    return released(patient_vectors(model, layers, scales, data, owners), patients, scales, settings, source)


def released(
    vectors: Iterable[np.ndarray],
    patients: int,
    scales: Scales,
    settings: Mapping[str, Value],
    source: NoiseSource,
) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean and variance by path from the patients' vectors: clipped, summed, noised.

    Args:
        vectors: as :func:`patient_vectors` gives them.
        patients: how many.
        scales: of the layers.
        settings: ``statistics_epsilon``, ``statistics_delta``, ``statistics_clip``.
        source: of the noise.

    Raises:
        StateError: these are too few patients for epsilon or delta.
    """
    epsilon, delta, clip = (float(settings[f"statistics_{name}"]) for name in ("epsilon", "delta", "clip"))
    entries = 2 * sum(len(mean) for mean, _ in scales.values())
    _require_enough(patients, epsilon, delta, clip, entries)
    bound = clip * sqrt(entries)
    deviation = SENSITIVITY * bound * noise_multiplier(epsilon, delta)
    total = np.zeros(entries, np.int64)
    for vector in vectors:
        total += on_grid(clipped(vector, bound), deviation)
    return _moments(noised(total, deviation, source) / patients, scales)


def scales_of(layers: Mapping[str, nn.Module]) -> Scales:
    """What f itself knows of the layers' inputs; mean 0 and variance 1 where it knows nothing."""
    return {path: _scale(layer) for path, layer in layers.items()}


def _scale(layer: nn.Module) -> tuple[Tensor, Tensor]:
    if getattr(layer, "running_mean", None) is not None and layer.running_var is not None:
        return layer.running_mean.double().cpu(), layer.running_var.double().cpu().clamp(min=0) + layer.eps
    channels = channels_of_input(layer)
    return torch.zeros(channels, dtype=torch.float64), torch.ones(channels, dtype=torch.float64)


def clipped(vector: np.ndarray, bound: float) -> np.ndarray:
    """The vector, scaled to the bound's L2 norm if it is longer; without finite values it counts as zero."""
    if not np.isfinite(vector).all() or not np.isfinite(norm := float(np.linalg.norm(vector))):
        return np.zeros_like(vector)
    return vector * clip_factor(norm, bound)


def patient_vectors(
    model: nn.Module,
    layers: Mapping[str, nn.Module],
    scales: Scales,
    data: SiteData,
    owners: Tensor | None,
) -> Iterator[np.ndarray]:
    """Each patient's vector, float64, as soon as the last of the patient's samples is seen.

    The model sees one sample at a time, so that whatever it does in a batch, a sample is in one patient's vector alone.

    Args:
        model: its mode is restored.
        layers: modules of the model by path.
        scales: of the layers.
        data: its training part is used.
        owners: whose the samples are, (n,); None where each is a patient.
    """
    seen: list[tuple[str, Tensor]] = []
    whose = count() if owners is None else owners.tolist()
    last = {} if owners is None else {patient: i for i, patient in enumerate(whose)}
    unfinished: dict[int, np.ndarray] = {}
    with ExitStack() as undo, evaluating(model), torch.inference_mode():
        for path, layer in layers.items():
            handle = layer.register_forward_pre_hook(lambda _, inputs, p=path: seen.append((p, inputs[0])))
            undo.callback(handle.remove)
        samples = (one for x, _ in data.batches("train", 32) for one in x.split(1))
        for i, (sample, patient) in enumerate(zip(samples, whose, strict=owners is not None)):
            seen.clear()
            model(sample)
            sums = _sums(seen, layers, scales)
            unfinished[patient] = unfinished[patient] + sums if patient in unfinished else sums
            if last.get(patient, i) == i:
                n, first, second = unfinished.pop(patient)
                mean, square = (np.divide(s, n, out=np.zeros_like(s), where=n > 0) for s in (first, second))
                yield np.concatenate([mean, np.where(n > 0, (square - 1) / sqrt(2), 0)])


def _sums(seen: list[tuple[str, Tensor]], layers: Mapping[str, nn.Module], scales: Scales) -> np.ndarray:
    """Number of positions, sum of z and sum of z^2 for every channel of every layer, (3, channels of all layers)."""
    sums = {path: torch.zeros(3, len(mean), dtype=torch.float64) for path, (mean, _) in scales.items()}
    for path, x in seen:
        mean, variance = scales[path]
        flat = by_channel(layers[path], x.cpu())
        z = (flat - mean[:, None]) / variance.sqrt()[:, None]
        sums[path] += torch.stack([torch.full_like(mean, z.shape[1]), z.sum(1), z.square().sum(1)])
    return torch.cat(list(sums.values()), 1).numpy()


def _moments(mean: np.ndarray, scales: Scales) -> dict[str, tuple[Tensor, Tensor]]:
    first, second = torch.from_numpy(mean).chunk(2)
    sizes = [len(center) for center, _ in scales.values()]
    found = {}
    for (path, (center, spread)), a, b in zip(scales.items(), first.split(sizes), second.split(sizes), strict=True):
        variance = (1 + sqrt(2) * b - a.square()).clamp(min=LEAST_VARIANCE)
        found[path] = (center + spread.sqrt() * a, spread * variance)
    return found


def _require_enough(patients: int, epsilon: float, delta: float, clip: float, entries: int) -> None:
    # The texts leave the site: they say what is needed, and not how many patients there are.
    if delta * patients > 1:
        raise StateError(LARGE_DELTA(delta))
    if patients < (needed := least_patients(epsilon, delta, clip, entries)):
        raise StateError(FEW_PATIENTS(epsilon, needed))
