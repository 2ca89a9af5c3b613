"""What the answer rests on: by what each method is judged, and the tests, by hand."""

import io
import json
import re

import pytest
from accuracies import FEDAP, FEDAVG, LOCAL, fine_tuned
from rich.console import Console
from scipy.stats import ttest_1samp
from test_best_variant import blended

from medpfl.report.best_variant import advice
from medpfl.report.compare_table import comparison_markdown, write_comparison
from medpfl.report.judged import judged_rows, t_test
from medpfl.report.page import write_report
from medpfl.report.side_by_side import compare
from medpfl.report.terminal import comparison_table


@pytest.fixture
def runs(make_run):
    methods = {"local": LOCAL, "fedavg": FEDAVG, "fedap": FEDAP}
    return [make_run(name, by_seed[s], seed=s) for name, by_seed in methods.items() for s in (0, 1)]


def test_a_t_test_over_seeds_is_scipys(runs):
    """FedAP gains 0 and 0.02 on average, and -0.02 and 0.02 at its worst site."""
    local, fedavg, fedap = compare(runs)["groups"]
    assert local["judged"] is None
    assert (fedap["judged"]["by"], fedap["judged"]["seeds"]) == ("Local training", 2)
    assert fedap["judged"]["reaches"] == pytest.approx(0.855)
    assert fedap["judged"]["tests"]["mean"] == pytest.approx({"t": 1, "df": 1, "p": 0.25})
    assert fedap["judged"]["tests"]["worst"] == pytest.approx({"t": 0, "df": 1, "p": 0.5}, abs=1e-9)
    same = ttest_1samp([-0.2, -0.19], 0, alternative="greater")
    assert fedavg["judged"]["tests"]["mean"] == pytest.approx({"t": same.statistic, "df": 1, "p": same.pvalue})


@pytest.mark.parametrize("over", [{"mean": 0.1, "sd": None}, {"mean": 0.1, "sd": 0}, {"mean": None, "sd": None}])
def test_seeds_that_do_not_lie_apart_tell_no_p(over):
    assert t_test(over, 3) == {"t": None, "df": None, "p": None}


def test_every_number_of_the_answer_stands_in_a_table(make_run, tmp_path):
    """Also those over another method's own rival, to which the columns of the first table say nothing."""
    runs = []
    for seed, up in enumerate((0, 0.01, -0.01)):
        runs.append(make_run("local", {"a": 0.8, "b": 0.7}, seed=seed))
        runs.append(make_run("fedavg", {"a": 0.83 + up, "b": 0.72 - up}, seed=seed))
        runs.append(blended(make_run, {"a": 0.9 + up, "b": 0.84 + 2 * up}, 0.82, seed=seed))
    comparison = compare(runs)
    told = " ".join(advice(comparison))
    assert "FedAvg is judged by FedBlend's own rival" in told
    cells = comparison_markdown(comparison).split("**Against training alone**")[1].split("\n\n")[1]
    for number in (found := re.findall(r"[+-][\d.]+ points|\d+ %|\(accuracy [\d.]+", told)):
        assert number.removesuffix(" points").removeprefix("(accuracy ") in cells
    assert "(accuracy 0.820" in found
    heads, rows = judged_rows(comparison)
    assert heads[:5] == ["Algorithm", "Judged by", "Alone: Accuracy", "Gain (points)", "t (df)"]
    assert [row[:2] for row in rows] == [["FedAvg", "FedBlend's own rival"], ["FedBlend", "its own rival"]]
    write_comparison(comparison, tmp_path)
    kept = json.loads((tmp_path / "comparison.json").read_text())["groups"][2]["judged"]
    assert kept["tests"]["mean"]["df"] == 2 and 0 < kept["tests"]["mean"]["p"] < 1


def test_no_p_is_printed_as_0_or_1(make_run):
    """The statistic is 0.1 √3 / 0.001 = 173, and -173, with two degrees of freedom."""
    up = (0.1, 0.101, 0.099)
    for gains, said in ((up, "< 0.001"), ([-gain for gain in up], "> 0.999")):
        runs = []
        for seed, gain in enumerate(gains):
            runs.append(make_run("local", {"a": 0.8, "b": 0.8}, seed=seed))
            runs.append(make_run("fedavg", {"a": 0.8 + gain, "b": 0.8 + gain}, seed=seed))
        assert judged_rows(compare(runs))[1][0][5] == said


def test_the_terminal_says_where_they_are(runs):
    stream = io.StringIO()
    Console(file=stream, width=80).print(comparison_table(compare(runs), 80))
    assert "against training alone" in " ".join(stream.getvalue().split()).partition("Only in comparison.md:")[2]


def test_the_page_has_them(runs, tmp_path):
    page = write_report(runs, tmp_path / "report.html").read_text()
    assert "Against training alone" in page and "What the answer rests on" in page and ">1.00 (1)<" in page


def test_what_the_answer_leaves_out_has_no_row(make_run):
    longer, local = fine_tuned(make_run, 5) | {"further": "5 epochs"}, make_run("local", LOCAL[0])
    comparison = compare([longer, local])
    assert "cannot be told: FedAvg" in " ".join(advice(comparison))
    assert judged_rows(comparison)[1] == [] and "Against training alone**" not in comparison_markdown(comparison)
