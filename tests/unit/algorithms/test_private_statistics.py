import logging
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from medpfl.algorithms.fedap.private_statistics import clipped, patient_vectors, private_statistics, released, scales_of
from medpfl.algorithms.fedap.statistics import statistics_under
from medpfl.core.declarations import Nothing
from medpfl.core.layers import batch_norm_layers
from medpfl.core.moments import input_statistics, training_inputs
from medpfl.core.noise import STEPS, on_grid
from medpfl.core.parameters import ParameterSplit, StateError
from medpfl.core.site_data import ImageTensors
from medpfl.site.noise import noise_source
from medpfl.site.words import listed

CONFIG = tiny.config("fedap", settings={"statistics_epsilon": 3})
SECRET = bytes(range(32))


def source(secret=SECRET):
    return noise_source(CONFIG, "site-1", "statistics", 0, secret)


def of(epsilon=3.0, delta=1e-5, clip=1.0):
    return {"statistics_epsilon": epsilon, "statistics_delta": delta, "statistics_clip": clip}


def pretrained():
    torch.manual_seed(1)
    model = tiny.Net()
    model.norm.running_mean.normal_()
    model.norm.running_var.uniform_(0.5, 2)
    return model


def vectors(model, data):
    layers = batch_norm_layers(model)
    return list(patient_vectors(model, layers, scales_of(layers), data, data.owners("train")))


def test_a_patients_vector_by_hand():
    # One channel, f's mean 1 and variance 4: samples 3 and 5 are z = 1 and 2 of one patient, 1 is z = 0 of another.
    layer = nn.BatchNorm1d(1, eps=1e-12)
    layer.running_mean.fill_(1), layer.running_var.fill_(4)
    images = {"train": torch.tensor([[3.0], [1.0], [5.0]])}
    data = ImageTensors(images, {"train": torch.zeros(3)}, persons={"train": torch.tensor([7, 4, 7])})
    found = list(patient_vectors(layer, {"": layer}, scales_of({"": layer}), data, data.owners("train")))
    root = 2**0.5
    assert np.allclose(found, [[0, -1 / root], [1.5, (2.5 - 1) / root]])


def test_positions_are_averaged():
    layer = nn.BatchNorm2d(2, eps=1e-12)
    images = {"train": torch.tensor([[[[1.0, 3.0]], [[0.0, 2.0]]]])}
    data = ImageTensors(images, {"train": torch.zeros(1)})
    (found,) = patient_vectors(layer, {"": layer}, scales_of({"": layer}), data, None)
    assert np.allclose(found, [2, 1, (5 - 1) / 2**0.5, (2 - 1) / 2**0.5])


def test_the_models_mode_and_hooks_are_as_before():
    model = pretrained().train()
    vectors(model, tiny.images())
    assert model.training
    assert not model.norm._forward_pre_hooks


@settings(max_examples=60)
@given(st.data())
def test_replacing_a_patient_moves_the_sum_by_twice_the_bound_at_most(data):
    patients = data.draw(st.integers(1, 5))
    owners = torch.tensor(sorted(data.draw(st.lists(st.integers(0, patients - 1), min_size=1, max_size=8))))
    seed, bound = data.draw(st.integers(0, 10**6)), data.draw(st.floats(0.01, 20))
    size = data.draw(st.sampled_from([1.0, 1e3, 1e30, float("inf"), float("nan")]))
    changed = data.draw(st.sampled_from(owners.tolist()))
    images = torch.randn(len(owners), 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    other = torch.where((owners == changed)[:, None, None, None], size * images.flip(0), images)
    model, deviation = pretrained(), bound / 3
    sums = []
    for x in (images, other):
        site = ImageTensors({"train": x}, {"train": owners}, persons={"train": owners})
        sums.append(sum(on_grid(clipped(v, bound), deviation) for v in vectors(model, site)))
    moved = np.linalg.norm((sums[0] - sums[1]).astype(float)) * deviation / STEPS
    assert moved <= 2 * bound


def test_a_patient_with_two_labels_is_one():
    # Predictions are by patient and label; a patient in two vectors would weigh twice the bound.
    data = tiny.images(train=4)
    data.patients = {"train": torch.tensor([0, 0, 1, 1])}
    assert len(vectors(pretrained(), data)) == 2
    assert len(vectors(pretrained(), replace(data, persons={"train": torch.tensor([5, 5, 5, 5])}))) == 1


def test_near_the_exact_statistics_where_noise_is_little():
    data, model = tiny.images(train=400), pretrained()
    layers = batch_norm_layers(model)
    ((mean, variance),) = private_statistics(model, layers, data, of(epsilon=1e6, clip=4), source()).values()
    ((exact_mean, exact_variance),) = input_statistics(model, layers, training_inputs(data)).values()
    assert torch.allclose(mean, exact_mean, atol=1e-3)
    assert torch.allclose(variance, exact_variance, atol=2e-3)
    assert mean.dtype == variance.dtype == torch.float64


def test_the_noise_has_the_calibrated_size():
    scales = {"": (torch.zeros(8, dtype=torch.float64), torch.ones(8, dtype=torch.float64))}
    n, found = 1000, []
    for k in range(200):
        noise = noise_source(CONFIG, f"site-{k}", "statistics", 0, SECRET)
        found.append(released([], n, scales, of(epsilon=1, clip=1.5), noise)[""][0])
    # The bound is 1.5 * sqrt(16), moved by twice that, times 3.7306: by hand.
    assert torch.stack(found).std() == pytest.approx(2 * 1.5 * 4 * 3.7306 / n, rel=0.07)


def test_variances_stay_positive_and_finite():
    data, model = tiny.images(train=60), pretrained()
    for k in range(20):
        noise = noise_source(CONFIG, f"site-{k}", "statistics", 0, SECRET)
        ((mean, variance),) = private_statistics(model, batch_norm_layers(model), data, of(3), noise).values()
        assert torch.isfinite(mean).all()
        assert (variance > 0).all()


def test_one_patient_can_be_computed_from_exact_statistics_and_not_from_private_ones():
    # The attack: statistics of a site with and without one patient; n * mean - (n - 1) * mean is the patient.
    model, n = pretrained(), 200
    split = ParameterSplit(model, Nothing())
    whole = tiny.images(train=n)
    images = {part: x[: n - 1] if part == "train" else x for part, x in whole.images.items()}
    less = ImageTensors(images, {part: y[: n - 1] if part == "train" else y for part, y in whole.labels.items()})
    with torch.no_grad():
        target = model.fc1(next(whole.batches("train", n))[0].flatten(1)[-1]).double()

    def attacked(settings):
        with_it = statistics_under("batch-norm", model, split, whole, settings, source())["norm/mean"]
        without = statistics_under("batch-norm", model, split, less, settings, source())["norm/mean"]
        return (n * with_it - (n - 1) * without - target).abs().max()

    assert attacked({}) < 1e-3
    assert attacked(of(3)) > 1


def test_asked_again_it_says_the_same():
    model = pretrained()
    layers = batch_norm_layers(model)
    data = tiny.images(train=80)
    answers = [private_statistics(model, layers, data, of(3), source())["norm"][0] for _ in range(3)]
    assert answers[0].equal(answers[1])
    assert answers[0].equal(answers[2])
    other = private_statistics(model, layers, data, of(3), source(SECRET[::-1]))["norm"][0]
    assert not answers[0].equal(other)


def test_too_few_patients_are_refused_without_saying_how_many():
    # 12 entries: 2 * sqrt(12) * 3.7306 = 25.8.
    model = pretrained()
    with pytest.raises(StateError) as error:
        private_statistics(model, batch_norm_layers(model), tiny.images(train=25), of(1), source())
    said = "the site has too few patients for statistics_epsilon 1: below 26 the noise is larger than what it hides"
    assert said in str(error.value)
    assert listed(str(error.value), ()) == str(error.value)
    assert "25 " not in str(error.value)
    private_statistics(model, batch_norm_layers(model), tiny.images(train=26), of(1), source())
    with pytest.raises(StateError, match="more than one in the number of the site's patients") as error:
        private_statistics(model, batch_norm_layers(model), tiny.images(train=30), of(5, delta=0.05), source())
    assert listed(str(error.value), ()) == str(error.value)


def test_who_counts_as_a_patient_is_in_the_sites_log(caplog):
    data, model = tiny.images(train=40), pretrained()
    with caplog.at_level(logging.INFO):
        private_statistics(model, batch_norm_layers(model), data, of(3), source())
        assert "each sample counts as a patient" in caplog.text
        data = replace(data, persons={"train": torch.arange(40) // 2})
        private_statistics(model, batch_norm_layers(model), data, of(3), source())
        assert "by patient" in caplog.text


def test_without_running_moments_inputs_are_taken_as_they_are():
    layer = nn.Linear(3, 2)
    ((mean, variance),) = scales_of({"": layer}).values()
    assert (mean.tolist(), variance.tolist()) == ([0, 0, 0], [1, 1, 1])
    loose = nn.BatchNorm1d(2, track_running_stats=False)
    assert scales_of({"": loose})[""][1].tolist() == [1, 1]


class Unused(tiny.Net):
    """With a batch norm that no image meets."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.BatchNorm1d(2)


def test_a_layer_that_no_image_meets_is_0_in_a_patients_vector_and_takes_nothing_from_the_others():
    torch.manual_seed(1)
    model = Unused()
    found, alone = np.array(vectors(model, tiny.images())), np.array(vectors(_without(model), tiny.images()))
    first, second = np.split(found, 2, axis=1)
    assert np.allclose(np.hstack([first[:, :6], second[:, :6]]), alone)
    assert not first[:, 6:].any() and not second[:, 6:].any()


def _without(model):
    other = tiny.Net()
    other.load_state_dict(model.state_dict(), strict=False)
    return other
