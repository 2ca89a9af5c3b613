"""Segmentation: sums over cases, their measures, losses and gains, by hand; and against MONAI's own metrics."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.metrics import DiceMetric
from torch import nn

from medpfl.core.errors import UserError
from medpfl.core.masked_data import Case, MaskedImages, MaskedVolumes
from medpfl.core.site_data import PARTS, looked_at_once
from medpfl.core.stopping import Abandoned, ends_when
from medpfl.models.blend import blended, restored
from medpfl.tasks import TASKS
from medpfl.tasks.evaluation import Cases
from medpfl.tasks.segmentation.judging import Judged, judge, predicted, surface_distances
from medpfl.tasks.segmentation.outlines import _picture

TASK = TASKS["segmentation"]


class Pixelwise(nn.Module):
    """Gives structure 1 the image's own value as its log-odds."""

    def __init__(self, gain: float = 10.0):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(gain))

    def forward(self, x):
        odds = x[:, :1] * self.scale
        return torch.cat([torch.zeros_like(odds), odds], 1)


def images_of(predicted, true, patients=None, spacing=None):
    """Pictures that :class:`Pixelwise` predicts as the first masks say; the second are the truth."""
    x = torch.as_tensor(predicted)[:, None].float() * 2 - 1
    y = torch.as_tensor(true).to(torch.uint8)
    numbers = {} if patients is None else {p: torch.tensor(patients) for p in PARTS}
    spacings = {} if spacing is None else {p: [spacing] * (1 + max(patients or [len(y) - 1])) for p in PARTS}
    return MaskedImages(dict.fromkeys(PARTS, x), dict.fromkeys(PARTS, y), numbers, spacings=spacings)


def test_a_case_by_hand():
    """Two slices of one patient: predicted 3 pixels, true 2, both 1: Dice 2 / 5, volume error 1 / 5."""
    predicted, true = torch.zeros(2, 4, 4), torch.zeros(2, 4, 4)
    predicted[0, 0, :3] = 1
    true[0, 0, 2], true[1, 3, 3] = 1, 1
    found = TASK.evaluate(Pixelwise(), images_of(predicted, true, [0, 0]), "test")
    assert found["n"] == 1
    assert found["dice"] == pytest.approx(0.4)
    assert found["volume_error"] == pytest.approx(0.2)
    assert found["dice_by_class"] == [pytest.approx(0.4)]
    assert found["dice_ci95"] is None and found["hd95"] is None  # one case, and no spacing is known


def test_copies_of_a_patients_volumes_narrow_no_interval():
    hit = np.array([[3.0], [5.0], [6.0], [9.0]])
    once, four = (Judged(h, 10 + 0 * h, 10 + 0 * h, h, 10 + 0 * h, h) for h in (hit, np.repeat(hit, 4, axis=0)))
    copied = TASK.figures(four, Cases("patient", np.repeat(np.arange(4), 4)))
    assert copied["dice"] == pytest.approx(0.575)
    assert copied["dice_ci95"] == pytest.approx(TASK.figures(once)["dice_ci95"])


def test_a_structure_that_a_case_has_not_is_none_of_its_loss():
    """Soft Dice of 2 * 4 / (6 + 10) = 1/2 for the one that there is; 0 where there is none."""
    true, overlap = np.array([[10.0, 0.0], [0.0, 0.0]]), np.array([[4.0, 0.0], [0.0, 0.0]])
    expected = np.full((2, 2), 6.0)
    found = Judged(overlap, expected, true, overlap, expected, np.full((2, 2), np.nan))
    assert TASK.losses(found) == pytest.approx([np.log(2), 0])


def test_masks_that_are_all_missed_tell_no_interval():
    true = torch.zeros(3, 4, 4)
    true[:, 0, 0] = 1
    found = TASK.evaluate(Pixelwise(), images_of(torch.zeros(3, 4, 4), true), "test")
    assert (found["dice"], found["dice_ci95"], found["dice_ci95_by"]) == (0, None, None)


def test_a_class_that_the_network_does_not_tell_is_refused():
    with pytest.raises(UserError, match="a mask has the class 2; the network tells 2 classes, 0 to 1"):
        TASK.evaluate(Pixelwise(), images_of(torch.zeros(1, 4, 4), torch.full((1, 4, 4), 2)), "test")


def test_a_structure_that_is_marked_nowhere_is_never_answered():
    """Of four cases three have structure 1 and two structure 2; then the last has a voxel marked as 1, wrongly."""
    none, true = np.zeros((4, 2)), np.array([[4, 0], [9, 2], [0, 5], [3, 0]])
    found = Judged(overlap=none, expected=none, true=true, hit=none, predicted=none, surface=none)
    assert TASK.never_answered(found) == {1: 3, 2: 2}
    marked = none.copy()
    marked[3, 0] = 1
    assert TASK.never_answered(replace(found, predicted=marked)) == {2: 2}


def test_a_case_without_the_structure_says_nothing_of_it():
    predicted, true = torch.zeros(2, 4, 4), torch.zeros(2, 4, 4)
    predicted[:, 0, 0] = 1
    true[1, 0, 0] = 1
    found = TASK.evaluate(Pixelwise(), images_of(predicted, true), "test")
    assert found["n"] == 2
    assert found["dice"] == 1.0
    empty = TASK.evaluate(Pixelwise(), images_of(predicted, torch.zeros(2, 4, 4)), "test")
    assert (empty["dice"], empty["volume_error"], empty["dice_by_class"]) == (None, None, [None])
    assert TASK.losses(judge(Pixelwise(), images_of(predicted, true), "test", surfaces=False)).shape == (2,)


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_dice_is_monais(seed):
    torch.manual_seed(seed)
    predicted, true = torch.rand(5, 6, 7) > 0.5, torch.rand(5, 6, 7) > 0.6
    mine = judge(Pixelwise(), images_of(predicted, true), "test", surfaces=False).dice[:, 0]
    theirs = DiceMetric()(predicted[:, None].float(), true[:, None].float())[:, 0].numpy()
    np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_distances_are_in_millimetres():
    """Two points 3 columns apart are 3 x 0.5 mm apart, 2 slices apart 2 x 4 mm; what was missed is the diagonal."""
    true, predicted = torch.zeros(3, 5, 6, 8, dtype=torch.bool), torch.zeros(3, 5, 6, 8, dtype=torch.bool)
    true[0, 2, 3, 1] = predicted[0, 2, 3, 4] = True
    true[1, 1, 1, 1] = predicted[1, 3, 1, 1] = True
    true[2, 0, 0, 0] = True
    found = surface_distances(predicted, true, (4.0, 1.0, 0.5))
    assert found[:2] == pytest.approx([1.5, 8.0])
    assert found[2] == pytest.approx(np.sqrt(20**2 + 6**2 + 4**2))
    nothing = surface_distances(predicted, torch.zeros_like(true), (4.0, 1.0, 0.5))
    assert np.isnan(nothing).all()


def test_distances_are_known_for_test_data_with_a_spacing():
    mask = torch.zeros(3, 8, 8)
    mask[:, 2:4, 2:4] = 1
    data = images_of(mask, mask.roll(1, 2), [0, 0, 1], spacing=(5.0, 2.0, 2.0))
    assert TASK.evaluate(Pixelwise(), data, "test")["hd95"] == pytest.approx(2.0)
    assert TASK.evaluate(Pixelwise(), data, "validation")["hd95"] is None


def test_an_output_that_is_not_finite_is_no_prediction():
    mask = torch.zeros(2, 4, 4)
    mask[:, 1] = 1
    model, data = Pixelwise(gain=float("nan")), images_of(mask, mask)
    found = TASK.evaluate(model, data, "test")
    assert (found["dice"], found["volume_error"]) == (0.0, 1.0)
    # A loss of 0 would choose this model before any other.
    assert TASK.losses(TASK.predict(model, data, "test")) == pytest.approx(-np.log(0.05))


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.floats(0.01, 0.99))
def test_losses_of_a_mix_are_those_of_the_two_networks_together(seed, weight):
    torch.manual_seed(seed)
    data = images_of(torch.rand(4, 5, 5), torch.rand(4, 5, 5) > 0.5)
    one, two = Pixelwise(gain=1.0), Pixelwise(gain=-2.0)
    both = restored(Pixelwise(), blended(one.state_dict(), two.state_dict(), weight))
    first, second, together = (judge(m, data, "validation", surfaces=False) for m in (one, two, both))
    np.testing.assert_allclose(TASK.mixed_losses(first, second, weight), TASK.losses(together), rtol=1e-4, atol=1e-5)
    assert TASK.mixed(first, second, weight) is None
    assert TASK.mixed(first, second, 1) is second


def test_a_volume_is_judged_whole_by_windows():
    torch.manual_seed(0)
    true = (torch.rand(9, 10, 11) > 0.5).to(torch.uint8)
    image = true[None].float() * 2 - 1
    data = MaskedVolumes(
        {p: [image] for p in PARTS}, {p: [true] for p in PARTS}, (4, 4, 4), spacings={"test": [(1.0, 1.0, 1.0)]}
    )
    found = TASK.evaluate(Pixelwise(), data, "test")
    assert (found["dice"], found["volume_error"], found["hd95"]) == (1.0, 0.0, 0.0)


VOLUMES = MaskedVolumes(
    {p: [torch.zeros(1, 4, 4, 4)] for p in PARTS},
    {p: [torch.zeros(4, 4, 4, dtype=torch.uint8)] for p in PARTS},
    (4, 4, 4),
)


def test_a_volume_smaller_than_a_window_lies_in_its_darkest_value():
    """As training pads it: the sum of a bright voxel's 27 neighbours is its own 1 and 26 times -1, and not 0."""
    sums = nn.Conv3d(1, 2, 3, padding=1, bias=False)
    with torch.no_grad():
        sums.weight.zero_()[1].fill_(0.1)
    volume = torch.full((1, 1, 2, 2, 2), -1.0)
    volume[0, 0, 0, 0, 0] = 1
    found = predicted(sums, Case(volume, torch.zeros(2, 2, 2, dtype=torch.uint8), None), (4, 4, 4))
    torch.testing.assert_close(found[1], torch.full((2, 2, 2), -2.5).sigmoid())


@pytest.mark.parametrize("data", [VOLUMES, images_of(np.ones((3, 4, 4)), np.ones((3, 4, 4)))])
def test_who_is_asked_to_stop_judges_no_further(data):
    stop = threading.Event()
    stop.set()
    with ends_when(stop), pytest.raises(Abandoned):
        judge(Pixelwise(), data, "test", surfaces=False)


def test_large_patches_are_looked_at_a_few_at_a_time():
    """As many as memory has room for: 256 patches of 96 voxels a side would be 54 GB of one layer's values."""
    volume = torch.zeros(1, 96, 96, 96, dtype=torch.uint8)
    masks = {p: [volume[0]] * 40 for p in PARTS}
    data = MaskedVolumes({p: [volume] * 40 for p in PARTS}, masks, (96, 96, 96))
    assert data.values_per_sample == 96**3
    assert looked_at_once(data) < 20 < looked_at_once(replace(data, window=(16, 16, 16)))
    tested = replace(data, images=data.images | {"train": []}, masks=masks | {"train": []})
    assert looked_at_once(tested) == looked_at_once(data)  # a centre that is held out


def judged(hits, predicted, true):
    columns = [np.array(c, dtype=float)[:, None] for c in (hits, predicted, true, hits, predicted)]
    return Judged(*columns, np.full((len(hits), 1), np.nan))


def test_what_is_gained_by_hand():
    """Dice 0.5 and 0.75 against 0.25 and 0.25: mean 0.375, half the interval 12.706 x 0.125."""
    new, old = judged([2, 3], [4, 4], [4, 4]), judged([1, 1], [4, 4], [4, 4])
    found = TASK.gained(new, old)
    assert found["dice"]["difference"] == pytest.approx(0.375)
    assert found["dice"]["low"] == pytest.approx(0.375 - 12.7062 * 0.125, abs=1e-4)
    assert found["hd95"] is None
    worse = TASK.gained(judged([2, 2], [8, 10], [4, 4]), judged([2, 2], [4, 4], [4, 4]))
    assert worse["volume_error"]["difference"] < 0  # more error is a loss


def test_an_interval_ends_where_a_measure_can_change_no_more():
    """Of two cases, of which the new model has one right and the old none, Student's reaches from -5.9 to 6.9."""
    right, wrong = judged([4, 0], [4, 4], [4, 4]), judged([0, 0], [4, 4], [4, 4])
    assert TASK.gained(right, wrong)["dice"]["high"] > 6
    for new, old, difference in ((right, wrong, 0.5), (wrong, right, -0.5)):
        found = TASK.compared(new, old)["dice"]
        assert found == {"difference": difference, "low": -1.0, "high": 1.0}
        assert TASK.compared(new, old).told(2)["dice"] == found


def test_the_loss_is_dice_and_cross_entropy():
    torch.manual_seed(0)
    output, labels = torch.randn(2, 3, 6, 6), torch.randint(3, (2, 6, 6), dtype=torch.uint8)
    p, t = output.softmax(1), nn.functional.one_hot(labels.long(), 3).movedim(-1, 1)
    overlap, both = (p * t).sum((0, 2, 3))[1:], (p + t).sum((0, 2, 3))[1:]
    dice = 1 - ((2 * overlap + 1e-5) / (both + 1e-5)).mean()
    assert TASK.loss(output, labels) == pytest.approx(float(dice + nn.functional.cross_entropy(output, labels.long())))


def test_networks_that_give_no_mask_are_refused():
    assert TASK.misfit((2, 3, 8, 8), (2, 1, 8, 8), 3) is None
    assert "a map of 3 classes" in TASK.misfit((2, 3), (2, 1, 8, 8), 3)
    assert "a map of 3 classes" in TASK.misfit((2, 2, 8, 8), (2, 1, 8, 8), 3)


def test_a_volume_of_one_slice_is_drawn():
    case = Case(torch.rand(1, 1, 1, 6, 8), torch.zeros(1, 6, 8, dtype=torch.uint8), None)
    assert _picture(case, torch.rand(2, 1, 6, 8)).startswith("data:image/png")


@pytest.mark.parametrize(("edge", "slices", "batches"), [(8, 70, [64, 6]), (1024, 10, [8, 2])])
def test_large_slices_are_predicted_a_few_at_a_time(edge, slices, batches):
    found = []

    class Counting(Pixelwise):
        def forward(self, x):
            found.append(len(x))
            return super().forward(x)

    images = torch.zeros(slices, 1, edge, edge)
    predicted(Counting().requires_grad_(False), Case(images, torch.zeros(slices, edge, edge), None), None)
    assert found == batches
