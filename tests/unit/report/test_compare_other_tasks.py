"""Comparisons of tasks beside classification."""

import json

import pytest
from test_other_tasks import by_distance
from test_page import report
from test_terminal import cells, shown

from medpfl.core.errors import UserError
from medpfl.report.best_variant import advice
from medpfl.report.compare_table import comparison_markdown, comparison_note, comparison_rows, write_comparison
from medpfl.report.side_by_side import compare
from medpfl.report.terminal import comparison_table


@pytest.fixture
def compared(make_segmented, masks):
    """FedAvg with a mean Dice of 0.65, FedBN with 0.64 and a better worst site, and training alone."""
    fedbn = {"north": 0.72, "south": 0.64, "east": 0.52, "west": 0.68}
    local = {"north": 0.7, "south": 0.62, "east": 0.4, "west": 0.64}
    return [masks, make_segmented("fedbn", fedbn), make_segmented("local", local)]


def test_compared(compared, tmp_path):
    comparison = compare(compared)
    heads, rows = comparison_rows(comparison)
    assert heads[:7] == [
        "Algorithm",
        "Dice",
        "Worst site",
        "To local (points)",
        "Better than local",
        "Worst site's difference to local (points)",
        "Sites more than a point below local",
    ]
    assert rows[0][:7] == ["FedAvg", "0.650", "0.500", "+6.0", "3 of 4", "-2.0", "25 %"]
    assert rows[0][heads.index("HD95 (mm)")] == "7.0" and rows[0][heads.index("Volume error")] == "0.175"
    assert advice(comparison) == [
        "Against training alone FedAvg is best by the mean over sites (+6.0 points) and FedBN by the worst site (+2.0 "
        "points there; 0 % of sites are more than a point below).",
        "Should a site take part? One seed cannot tell; by it on average, with FedAvg. Three show how far seeds lie "
        "apart. The best of 2 by these same test cases will as a rule gain less on others.",
    ]
    assert "Dice, HD95 and volume error are means over sites" in comparison_note(comparison)
    found = json.loads(write_comparison(comparison, tmp_path)[0].read_text())
    group = found["groups"][0]
    assert "accuracy" not in json.dumps(found)
    assert group["measures"]["hd95"] == {"mean": pytest.approx(7.0), "sd": None}
    to_local = group["to_local"]["measures"]
    assert to_local.keys() == {"dice", "hd95", "volume_error"}
    # 2, -0.4, 2 and 1.2 mm nearer than alone, of which the mean is 1.2.
    assert to_local["hd95"]["mean"] == pytest.approx(1.2) and to_local["hd95"]["worst"]["mean"] == pytest.approx(-0.4)
    assert (to_local["hd95"]["better"], to_local["hd95"]["worse"], to_local["hd95"]["below"]) == (3, 1, 0.25)
    assert to_local["hd95"]["baseline"]["mean"] == pytest.approx(8.2)
    assert "accuracy" not in comparison_markdown(comparison)
    assert cells(shown(comparison_table(comparison, 80)), "FedAvg")[:3] == ["FedAvg", "0.650", "0.500"]


def test_the_page_of_a_comparison(compared, tmp_path):
    markup, page = report(tmp_path, *compared)
    assert "FedAvg has the highest mean Dice, 0.650 (0.500 at its worst site); local training reaches" in page.text
    assert "The dashed line is the test Dice of local training." in page.text
    assert "FedBN on organamnist, seed 0, Dice 0.640" in page.text
    assert "accuracy" not in markup.lower()


def test_compared_by_a_measure_of_which_less_is_better(compared, tmp_path):
    comparison = compare([by_distance(run) for run in compared])
    heads, rows = comparison_rows(comparison)
    assert heads[:4] == ["Algorithm", "HD95 (mm)", "Worst site", "To local (mm, + is better)"]
    assert rows[0][1:7] == ["7.0", "10.0", "+1.2", "3 of 4", "-0.4", "25 %"]
    assert heads[6] == "Sites worse than local"
    assert "FedAvg is best by the mean over sites (+1.2 mm of HD95, + is better) and FedBN by the worst" in " ".join(
        advice(comparison)
    )
    markup, page = report(tmp_path, *compared)
    assert (
        "FedAvg has the lowest mean HD95, 7.0 mm (10.0 mm at its worst site); local training reaches 8.2 mm"
        in page.text
    )
    assert 'class="n down">−0.4</td>' in markup


def test_classification_keeps_its_keys(five, make_run):
    local = {name: entry["accuracy"] for name, entry in five["reference"]["final"]["selected"]["sites"].items()}
    group = compare([five, make_run("local", local)])["groups"][0]
    assert group["accuracy"] == group["measures"]["accuracy"] and group["auroc"] == group["measures"]["auroc"]
    assert group["new_auroc"] == group["new"]["auroc"] and group["held_out_auroc"] == group["held_out"]["auroc"]
    assert group["to_local"]["baseline_accuracy"] == group["to_local"]["measures"]["accuracy"]["baseline"]
    assert group["to_local"]["measures"]["auroc"]["pairs"] == 5


def test_runs_of_different_tasks_are_not_compared(masks, make_run, tmp_path):
    other = make_run("fedavg", {"north": 0.9})
    with pytest.raises(
        UserError, match=r"one is of segmentation, the other of classification.*Compare runs of one task"
    ):
        compare([masks, other])
    _, page = report(tmp_path, masks, other)
    assert "cannot be compared" in page.text
    other["config"]["task"] = "segmentation"
    with pytest.raises(UserError, match="measures are dice, hd95, volume_error and accuracy, balanced_accuracy, auroc"):
        compare([masks, other])
