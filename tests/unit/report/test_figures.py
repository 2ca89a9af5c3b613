import math
import re
from itertools import pairwise

import pytest

from medpfl.core.measure import Measure
from medpfl.report.charts import Curve, interval_plot, line_chart, strip_plot
from medpfl.report.grids import mixing_caption, mixing_heat_map, partition_plot
from medpfl.report.svg import round_ticks, text_width, tick_label, ticks

ACCURACY = Measure("accuracy", "accuracy")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.12, 0.97, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.91, 0.95, [0.91, 0.92, 0.93, 0.94, 0.95]),
        (0, 50, [0, 10, 20, 30, 40, 50]),
    ],
)
def test_ticks_are_round_numbers_around_the_data(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 1e-9, 1e9])
def test_ticks_of_one_value(value):
    values = ticks(value, value)
    assert values[0] < values[-1]
    assert values[0] <= value <= values[-1]


def test_what_rounding_leaves_of_nothing_is_drawn():
    assert "<svg" in line_chart("kappa", [Curve("a", [(0, 0.0), (1, -7e-17)])])


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (2.3, 8.4e9, ["0", "2e9", "4e9", "6e9", "8e9", "1.0e10"]),  # of a loss that runs away
        (2e-6, 9e-6, ["2e-6", "3e-6", "4e-6", "5e-6", "6e-6", "7e-6", "8e-6", "9e-6"]),
        (0.0, 1e5, ["0", "20000", "40000", "60000", "80000", "100000"]),
        (0.71, 0.78, ["0.71", "0.72", "0.73", "0.74", "0.75", "0.76", "0.77", "0.78"]),
    ],
)
def test_labels_of_an_axis_fit_into_its_margin(low, high, labels):
    """A longer one would lose its beginning, and 2000000000 looks like 0000."""
    values = ticks(low, high)
    assert [tick_label(value, values) for value in values] == labels
    assert max(len(tick_label(value, values)) for value in values) <= 6


def test_round_ticks_start_at_the_first_round():
    assert round_ticks(1, 6) == [1, 2, 3, 4, 5, 6]
    assert round_ticks(1, 20) == [1, 4, 6, 8, 10, 12, 14, 16, 18, 20]
    assert round_ticks(3, 3) == [3]


def test_the_area_of_a_dot_is_proportional_to_the_number_of_images():
    markup = partition_plot({"a": {"0": 100, "1": 25}, "b": {"1": 0}}, {"0": "heart", "1": "liver"})
    radii = [float(radius) for radius in re.findall(r'<circle[^>]* r="([\d.]+)"', markup)]
    assert len(radii) == 2
    assert (radii[0] / radii[1]) ** 2 == pytest.approx(4, rel=0.05)
    assert "<title>a, class liver: 25</title>" in markup


def test_the_diagonal_does_not_take_part_in_the_colours():
    matrix = [[0.9, 0.06, 0.04], [0.05, 0.9, 0.05], [0.04, 0.06, 0.9]]
    markup = mixing_heat_map(["a", "b", "c"], matrix)
    shades = {
        float(opacity): path.count("M")
        for opacity, path in re.findall(r'class="heat" fill-opacity="([\d.]+)" d="(\S*? [^"]*)"', markup)[:3]
    }
    assert shades == {0.05: 2, 0.5: 2, 0.95: 2}
    assert re.search(r'class="diagonal" d="([^"]*)"', markup)[1].count("M") == 3
    assert ">.900</text>" in markup
    assert mixing_caption(matrix).endswith("0.900. The colours cover only the other weights, 0.040 to 0.060.")


def test_uniform_weights_have_one_shade():
    matrix = [[0.5 if i == j else 0.5 / 3 + 1e-12 * i for j in range(4)] for i in range(4)]
    assert markup_shades(mixing_heat_map(list("abcd"), matrix)) == 1


def test_one_round_is_told_once():
    assert "a: 0.500 in round 1." in line_chart("accuracy", [Curve("a", [(1, 0.5)])])
    assert "a: 0.500 in round 1, 0.700 in round 3." in line_chart("accuracy", [Curve("a", [(1, 0.5), (3, 0.7)])])


def test_one_site():
    assert "Mixing matrix of 1 site. Own weight 1.000." in mixing_heat_map(["a"], [[1.0]])
    plot = partition_plot({"a": {"0": 1, "1": 1}}, {"0": "0", "1": "1"})
    title = re.search(r'<text x="([\d.]+)"[^>]*>site \(largest dot: 1\)</text>', plot)
    width = float(re.search(r'viewBox="0 0 (\d+) ', plot)[1])
    room = text_width("site (largest dot: 1)") / 2 - 0.1
    assert room <= float(title[1]) <= width - room  # else its beginning or end is cut off
    assert "Images of 2 classes at 1 site. A site holds 2 of them;" in plot
    assert "A site holds 1 to 2 of them;" in partition_plot(
        {"a": {"0": 1, "1": 1}, "b": {"0": 1}}, {"0": "0", "1": "1"}
    )
    assert "<svg" in strip_plot("accuracy", [("FedAP", {"a": 0.5})])


def markup_shades(markup):
    return markup.count('class="heat"')


def test_one_round_is_a_dot_within_the_plot():
    markup = line_chart(
        "accuracy", [Curve("mean", [(1, 0.5)], [(1, 0.4, 0.6)])], ("local training", 0.5), ("selected", 1)
    )
    assert "<circle" in markup
    assert "nan" not in markup


def test_labels_of_curves_that_end_together_do_not_overlap():
    curves = [Curve(f"method {i}", [(1, 0.1), (9, 0.9)]) for i in range(11)]
    markup = line_chart("accuracy", curves, share=True)
    heights = sorted(float(y) for y in re.findall(r'y="([\d.]+)" class="t\d"', markup))
    assert len(heights) == 11
    assert all(b - a >= 13.9 for a, b in pairwise(heights))
    assert heights[0] > 0
    assert heights[-1] < 280


def test_descriptions_hold_the_numbers():
    markup = line_chart("accuracy", [Curve("FedAP", [(1, 0.5), (4, 0.75)])], ("local training", 0.8))
    assert 'aria-label="accuracy by round. FedAP: 0.500 in round 1, 0.750 in round 4. local training: 0.800."' in markup
    strip = strip_plot("test accuracy", [("FedAP", {"a": 0.5, "b": 0.7})])
    assert "FedAP: 0.500 to 0.700, mean 0.600" in strip
    assert not math.isnan(float(re.search(r'cx="([\d.]+)"', strip)[1]))


def test_intervals_lie_around_their_dots_and_zero_is_in_the_plot():
    rows = [("north", 0.04, 0.01, 0.07), ("south", 0.02, 0.02, 0.02), ("<i>", 0.03, 0.012, 0.05)]
    markup = interval_plot("accuracy, points", rows, ACCURACY)
    zero = float(re.search(r'class="level" d="M([\d.]+) ', markup)[1])
    lines = [list(map(float, ends)) for ends in re.findall(r'class="interval" d="M([\d.]+) [\d.]+L([\d.]+) ', markup)]
    dots = [float(x) for x in re.findall(r'cx="([\d.]+)"', markup)]
    assert all(zero < low <= at <= high for at, (low, high) in zip(dots, lines, strict=True))
    assert dots[0] - zero == pytest.approx(2 * (dots[1] - zero), abs=0.2)
    assert "north: +4.0, +1.0 to +7.0; south: +2.0, +2.0 to +2.0" in markup and "<i>" not in markup
    assert "<svg" in interval_plot("accuracy, points", [("a", 0.0, 0.0, 0.0)], ACCURACY)
