"""Reports of tasks beside classification: by their own measures, each in its own unit and direction."""

import csv
import io
import json

import pytest
from rich.console import Console
from test_page import report
from test_terminal import cells, joined_of, printed, shown

from medpfl.core.measure import Measure
from medpfl.report.compare_table import comparison_rows
from medpfl.report.headline import headline, summary
from medpfl.report.history import history_csv
from medpfl.report.reading import load_results, worst_site
from medpfl.report.run_table import run_table
from medpfl.report.side_by_side import compare
from medpfl.report.terminal import print_run
from medpfl.report.verdicts import gain_lines, gains_table
from medpfl.report.words import further
from medpfl.tasks import TASKS

DICE, HD95, VOLUME = TASKS["segmentation"].measures
KAPPA = TASKS["ordinal"].measures[0]
ERROR = Measure("error", "error", most=float("inf"), better="lower")


@pytest.mark.parametrize(
    ("measure", "value", "text"),
    [
        (DICE, 0.63449, "0.634"),
        (HD95, 4.26, "4.3 mm"),
        (KAPPA, -0.1, "-0.100"),
        (ERROR, 0.1234, "0.123"),
        (ERROR, 12.34, "12.3"),
        (ERROR, 123.4, "123"),
        (ERROR, 1234.5, "1234"),
        (ERROR, 0.0, "0"),
        (ERROR, 0.00001234, "1.23e-05"),
    ],
)
def test_a_value_has_the_digits_that_matter(measure, value, text):
    assert measure.said(value) == text


@pytest.mark.parametrize(
    ("measure", "better", "worse", "told", "level"),
    [
        (DICE, 0.7, 0.65, "5.0 points", "0.0 points"),
        (HD95, 3.0, 4.2, "1.2 mm", "0.0 mm"),
        (VOLUME, 0.1, 0.123, "2.3 points", "0.0 points"),
        (KAPPA, 0.5, 0.45, "0.050", "0.000"),
        (ERROR, 0.5, 0.75, "0.250", "0"),
    ],
)
def test_a_gain_is_above_0_whichever_way_is_better(measure, better, worse, told, level):
    assert measure.told(measure.gain(better, worse)) == f"+{told}"
    assert measure.told(measure.gain(worse, better)) == f"-{told}"
    assert measure.told(measure.gain(better, better)) == level


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_what_results_say_of_measures_is_read_back(task):
    said = json.loads(json.dumps(task.described(), allow_nan=False))
    for measure, found in zip(task.measures, said, strict=True):
        assert Measure.read({"of": "a later version", **found}) == measure._replace(selects=True)
        assert measure.what.startswith(measure.title) and not measure.what.endswith(".")


def test_the_worst_site_is_the_highest_where_less_is_better(masks):
    tested = masks["final"]["selected"]
    assert worst_site(tested, DICE) == ("east", 0.5)
    assert worst_site(tested, HD95) == ("east", 10.0)


def test_headlines_for_a_clinician(masks, findings, grades):
    assert headline(masks) == (
        "The masks of a site's own model, trained with FedAvg, overlap the true ones with a mean Dice of 0.650 "
        "(average of 4 sites; lowest at east with 0.500). That is 6.0 percentage points better than if each site "
        "trains alone. Taking part helps 3 of 4 sites."
    )
    assert headline(findings) == (
        "A site's own model, trained with FedBN, gives a case with a finding a higher probability than a case without "
        "it in 85.0 of 100 such pairs (average of 2 sites; lowest at b with 80.0). That is 5.0 more than if each site "
        "trains alone. Taking part helps 2 of 2 sites."
    )
    assert headline(grades) == (
        "The grades of a site's own model, trained with FedBN, agree with the true ones with a mean quadratic kappa of "
        "0.200 (average of 2 sites; lowest at b with -0.100)."
    )


def by_distance(run):
    """The same run with the distance as its first measure."""
    run["measures"].insert(0, run["measures"].pop(1))
    return run


def test_a_first_measure_of_which_less_is_better(masks):
    run = by_distance(masks)
    # Dice of 0.65 is 7.0 mm, of 0.59 is 8.2 mm; at south 0.4 mm are lost.
    assert headline(run) == (
        "A site's own model, trained with FedAvg, reaches a mean HD95 of 7.0 mm (average of 4 sites; highest at east "
        "with 10.0 mm). That is 1.2 mm better than if each site trains alone. Taking part helps 3 of 4 sites."
    )
    assert summary(run) == (
        "FedAvg: 7.0 mm mean HD95 over 4 sites, 1.2 mm better than training alone (worst site east 10.0 mm)"
    )
    text = shown(run_table(run, 100), width=100)
    assert cells(text, "south")[-1] == "-0.4" and cells(text, "north")[-1] == "+2.0"
    assert "(mm," in text and "+ is" in text
    run["final"] = run["reference"]["final"]
    assert ", level with training alone" in summary(run)


def test_the_terminals_table(masks):
    text = shown(run_table(masks))
    assert max(map(len, text.splitlines())) <= 80
    assert cells(text, "site ")[:3] == ["site", "test", "Dice"] and "patients" in text
    assert cells(text, "north") == ["north", "40", "0.800", "[0.750,", "0.850]", "4.0", "0.100", "+10.0"]
    assert cells(text, "mean") == ["mean", "0.650", "7.0", "0.175", "+6.0"]
    assert cells(text, "± sd") == ["±", "sd", "±", "0.129", "±", "2.6", "±", "0.065"]
    assert cells(text, "worst") == ["worst", "0.500", "10.0", "0.250", "-2.0"]
    assert ["site", "east", "east", "east", "south"] in [line.split() for line in text.splitlines()]
    assert "(mm)" in text and "classes" not in text


def test_of_many_sites_the_worst_have_a_row(make_segmented):
    run = by_distance(make_segmented("fedavg", {f"site-{i}": 0.5 + i / 100 for i in range(40)}))
    text = shown(run_table(run))
    assert "the 10 sites with the highest HD95, of 40" in text
    assert "site-9" in text and "site-10" not in text


@pytest.mark.parametrize("which", ["masks", "findings", "grades"])
def test_the_page_says_nothing_of_accuracy_that_is_not_the_tasks(which, request, tmp_path):
    run = request.getfixturevalue(which)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.json").write_text(json.dumps(run))
    markup, page = report(tmp_path, load_results(tmp_path / "run"))
    own = {title for m in run["measures"] for title in (m["title"], m["what"]) if "accuracy" in title.lower()}
    for title in sorted(own, key=len, reverse=True):
        markup = markup.replace(title, "").replace(title[0].upper() + title[1:], "")
    assert "accuracy" not in markup.lower().replace("balanced acc.", "")
    assert page.tags.count("svg") == 4


def test_the_page_of_masks(masks, tmp_path):
    masks["data"]["sites"]["north"]["test"] = 134  # slices, of 40 patients
    markup, page = report(tmp_path, masks)
    heads = [
        "Site",
        "Train",
        "Test patients",
        "Dice [95 % CI]",
        "HD95 (mm)",
        "Volume error",
        "Alone: Dice",
        "To alone (points)",
    ]
    assert page.rows[0] == heads
    assert page.row("north")[2:] == ["40", "0.800 [0.750, 0.850]", "4.0", "0.100", "0.700", "+10.0"]
    assert page.row("Mean ± sd")[3:] == ["0.650 ± 0.129", "7.0 ± 2.6", "0.175 ± 0.065", "0.590", "+6.0"]
    assert page.row("Worst site")[3:6] == ["0.500 (east)", "10.0 (east)", "0.250 (east)"]
    assert page.row("Worst site")[6:] == ["0.400 (east)", "−2.0 (south)"]
    assert 'class="n down">−2.0</td>' in markup
    assert "Dice is twice the overlap" in page.text and "HD95 is the distance" in page.text
    assert (
        "volume error is the difference" in page.text and "Differences are in percentage points of Dice." in page.text
    )
    assert "validation Dice" in page.text and "Dashed: test Dice of sites that train alone." in page.text
    # Each structure by its name; the background is none.
    assert ["Site", "liver", "tumour"] in page.rows
    assert ["north", "0.900", "0.700"] in page.rows


@pytest.mark.parametrize(("cases", "head"), [(80, "Test patients"), (90, "Test")])
def test_cases_of_masks_are_patients_where_each_has_one(masks, tmp_path, cases, head):
    masks["data"]["sites"]["north"] |= {"test": 134, "cases": cases, "patients": 80}
    used = {"candidate": "as published", "round": 1, "weight": 1.0}
    site = {"alone_round": 1, "used": used, "gain": {"dice": gain(0.1, 0.0, 0.2)}, "verdict": "no difference found"}
    counts = {"gains": 0, "no difference found": 1, "loses": 0}
    masks["verdict"] = {"measure": "dice", "use": "received", "counts": counts, "sites": {"north": site}}
    heads = [row for row in report(tmp_path, masks)[1].rows if row[0] == "Site"]
    assert [heads[0][1], heads[1][2]] == [head, head]


def test_the_page_of_several_labels(findings, tmp_path):
    _, page = report(tmp_path, findings)
    assert page.rows[0][3:] == ["AUC [95 % CI]", "Accuracy of labels", "Alone: AUC", "To alone (points)"]
    assert page.row("a")[3:] == ["0.900", "0.800", "0.820", "+8.0"]
    assert ["Site", "1", "2", "3"] in page.rows and ["a", "0.950", "0.850", "–"] in page.rows


def test_the_course_is_of_the_measure_that_selects(five, tmp_path):
    five["config"]["select_by"] = "auroc"
    _, page = report(tmp_path, five)
    assert "validation AUC" in page.text and "Dashed: test AUC" in page.text


def test_further_measures_have_a_table_of_their_own(five, tmp_path):
    five |= {"schema": 3, "measures": TASKS["classification"].described()}
    without, _ = report(tmp_path, five)
    assert "Further measures" not in without
    for entry in five["final"]["selected"]["sites"].values():
        entry |= {"brier": 0.2, "ece": None, "intervals": {"brier": [0.1, 0.3]}}
    five["final"]["selected"]["mean"]["brier"] = 0.2
    _, page = report(tmp_path, five)
    assert page.rows[0][3:6] == ["Accuracy", "Balanced acc.", "AUC [95 % CI]"]
    assert ["Site", "Brier score [95 % CI]"] in page.rows and ["site-1", "0.200 [0.100, 0.300]"] in page.rows
    assert "Brier score is the mean squared distance" in page.text
    assert "ensitivity" not in page.text  # which no site has, as without validation cases
    assert "No interval stands" not in page.text
    five["final"]["selected"]["sites"]["site-1"]["f1"] = 0.5
    _, page = report(tmp_path, five)
    assert "No interval stands where drawing patients again cannot tell it: of fewer than 6, in all" in page.text
    assert "and where every draw gives the same." in page.text


def test_history_has_the_tasks_measures(masks, findings):
    rows = list(csv.DictReader(io.StringIO(history_csv(masks))))
    assert list(rows[0])[3:6] == ["validation_dice", "validation_hd95", "validation_volume_error"]
    assert float(rows[0]["validation_dice"]) == masks["rounds"][0]["sites"]["north"]["validation"]["dice"]
    assert rows[0]["validation_hd95"] == ""
    assert history_csv(findings).startswith("round,site,train_loss,validation_auroc,validation_accuracy,sent_bytes,")


def gain(difference, low, high):
    return {"difference": difference, "low": low, "high": high}


@pytest.fixture
def told_masks(masks):
    """North gains, south loses, east and west tell nothing."""
    used = {"candidate": "as published", "round": 5, "weight": 1.0}
    north = {"dice": gain(0.1, 0.02, 0.18), "hd95": gain(2.04, -0.5, 4.6), "volume_error": None}
    south = {"dice": gain(-0.02, -0.03, -0.01), "hd95": gain(-0.4, -1, 0.2), "volume_error": None}
    sites = {
        "north": {"alone_round": 4, "used": used, "gain": north, "verdict": "gains"},
        "south": {"alone_round": 4, "used": used, "gain": south, "verdict": "loses"},
    }
    counts = {"gains": 1, "no difference found": 0, "loses": 1}
    return masks | {"verdict": {"measure": "dice", "use": "received", "counts": counts, "sites": sites}}


def test_what_taking_part_is_worth(told_masks, tmp_path):
    lines = gain_lines(told_masks)
    assert lines[0].startswith("Taking part helps 1 of 2 sites, harms 1, and at 0 no difference was found (Dice, 95 %")
    assert "On average a site gains +4.0 points (sites from -2.0 to +10.0)." in lines[0]
    assert lines[1] == "Harmed (points): south -2.0 [-3.0, -1.0]"
    table = gains_table(told_masks)
    assert table.heads[3:6] == ["Dice [95 % CI]", "HD95 (mm) [95 % CI]", "Volume error [95 % CI]"]
    assert table.rows[0][2:6] == ["gains", "+10.0 [+2.0, +18.0]", "+2.0 [−0.5, +4.6]", "–"]
    _, page = report(tmp_path, told_masks)
    assert "on the same test cases: above 0 is better. Dice in percentage points, HD95 in mm" in page.text
    assert "The masks of the model that a site uses, trained with FedAvg, overlap" in page.text
    told_masks["verdict"]["measure"] = "hd95"
    _, page = report(tmp_path, told_masks)
    assert "On average a site gains +0.8 mm (sites from -0.4 to +2.0)." in page.text
    assert gain_lines(told_masks)[1] == "Harmed (mm): south -0.4 [-1.0, +0.2]"


def test_joined_sites(masks):
    joined = joined_of(north=25, south=400) | {"measures": masks["measures"]}
    for each in (*joined["sites"].values(), joined["mean"]):
        for which in ("received", "adapted", "alone"):
            each[which] = {"n": 400, "dice": 0.7 if which == "adapted" else 0.65}
    text = printed(joined)
    assert cells(text, "south") == ["south", "400", "0.650", "0.700", "0.650", "3", "of", "5"]
    assert "Adapted against alone, mean Dice: +5.0 points" in text and "accuracy" not in text


def test_forgetting_and_the_sites_models_together(masks, findings, tmp_path):
    now, then = ({"dice": d, "hd95": 20 * (1 - d)} for d in (0.6, 0.5))
    sites = {name: {"own": {"before": then, "after": now}, "others": {"before": now, "after": then}} for name in masks}
    masks["forgetting"] = {"round": 7, "sites": sites, "mean": next(iter(sites.values()))}
    assert further(masks) == [
        "Forgetting: one more round of local training changes Dice on the other sites' data from 0.600 to 0.500 (-10.0 "
        "points), on the site's own from 0.500 to 0.600 (+10.0 points)."
    ]
    assert "from 8.0 mm to 10.0 mm (-2.0 mm, + is better)" in further(by_distance(masks))[0]
    markup, _ = report(tmp_path, masks)
    assert "Others&#39; change (mm, + is better)" in markup
    findings["new"] = {"models": 2, "pooled": {"auroc": 0.9, "auroc_ci95": [0.8, 0.95]}, "held_out": {}}
    assert further(findings) == ["The average of 2 sites' models on all sites' test data: AUC 0.900 [0.800, 0.950]."]
    heads, rows = comparison_rows(compare([findings]))
    assert rows[0][heads.index("New AUC")] == "0.900"


def test_nothing_measured(masks, tmp_path):
    for part in masks["final"].values():
        for entry in part["sites"].values():
            entry |= dict.fromkeys(("dice", "dice_ci95", "dice_by_class", "hd95", "volume_error"))
        for key in ("mean", "std"):
            part[key] = dict.fromkeys(part[key])
    masks["reference"] = None
    _, page = report(tmp_path, masks)
    assert "FedAvg has finished, but no site could measure its Dice." in page.text
    assert summary(masks) == "FedAvg: no Dice was measured"
    stream = io.StringIO()
    print_run(masks, Console(file=stream, width=80))
    assert cells(stream.getvalue(), "north") == ["north", "40", "–", "–", "–"]
    report(tmp_path, masks, masks | {"algorithm": "fedbn"})
