"""Every method of a comparison against every other, and the table for a paper."""

from statistics import stdev

import pytest
from accuracies import FEDAP, FEDAVG, LOCAL

from medpfl.report.compare_table import comparison_markdown
from medpfl.report.every_pair import pair_rows
from medpfl.report.latex import escaped, latex_table
from medpfl.report.side_by_side import compare


@pytest.fixture
def comparison(make_run):
    methods = (("fedap", FEDAP), ("local", LOCAL), ("fedavg", FEDAVG))
    return compare([make_run(name, by[seed], LOCAL[seed], seed=seed) for name, by in methods for seed in (0, 1)])


def test_ranks_and_differences_by_hand(comparison):
    # At a: FedAP, local, FedAvg in both seeds. At b: local, FedAP, FedAvg in seed 0, FedAP first in seed 1.
    ranks = {group["label"]: group["rank"] for group in comparison["groups"]}
    assert ranks["FedAP"] == pytest.approx({"mean": 1.25, "sd": stdev([1.5, 1.0])})
    assert ranks["Local training"] == pytest.approx({"mean": 1.75, "sd": stdev([1.5, 2.0])})
    assert ranks["FedAvg"] == {"mean": 3.0, "sd": 0.0}
    heads, rows = pair_rows(comparison)
    assert heads == ["Algorithm", "Mean rank", "over FedAP", "over Local training", "over FedAvg"]
    # FedAP over local: 0 and +2 points; over FedAvg +20 and +21; local over FedAvg +20 (20, 20) and +19 (16, 22).
    assert rows == [
        ["FedAP", "1.25 ± 0.35", "–", "+1.0 ± 1.4 (3 of 4)", "+20.5 ± 0.7 (4 of 4)"],
        ["Local training", "1.75 ± 0.35", "-1.0 ± 1.4 (1 of 4)", "–", "+19.5 ± 0.7 (4 of 4)"],
        ["FedAvg", "3.00 ± 0.00", "-20.5 ± 0.7 (0 of 4)", "-19.5 ± 0.7 (0 of 4)", "–"],
    ]


def test_equals_share_a_rank_and_are_better_nowhere(make_run):
    same = [make_run(name, {"a": 0.9, "b": 0.8}, LOCAL[0], seed=0) for name in ("fedap", "fedavg")]
    comparison = compare([*same, make_run("local", {"a": 0.9, "b": 0.7}, LOCAL[0], seed=0)])
    assert [group["rank"]["mean"] for group in comparison["groups"]] == [1.75, 1.75, 2.5]
    assert pair_rows(comparison)[1][0][2:] == ["–", "0.0 (0 of 2)", "+5.0 (1 of 2)"]


def test_two_methods_need_no_second_table(comparison, make_run):
    two = compare([make_run(name, FEDAP[0], LOCAL[0], seed=0) for name in ("fedap", "local")])
    assert pair_rows(two) == ([], [])
    assert "Mean rank" not in comparison_markdown(two)
    assert "Mean rank" in comparison_markdown(comparison)


def test_latex_has_the_best_of_each_column_in_bold(comparison):
    lines = latex_table(comparison).splitlines()
    assert lines[0] == r"\begin{tabular}{lrrrrrrr}"
    cells = [line.removesuffix(r" \\").split(" & ") for line in lines[2:7] if "&" in line]
    table = {row[0]: dict(zip(cells[0][1:], row[1:], strict=True)) for row in cells[1:]}
    assert table["FedAP"]["Accuracy"] == r"$\mathbf{0.865 \pm 0.021}$"
    assert table["FedAvg"]["Accuracy"] == r"$0.660 \pm 0.014$"
    assert table["FedAP"]["To local (points)"] == r"$\mathbf{+1.0 \pm 1.4}$"
    assert table["Local training"]["To local (points)"] == "--"
    assert table["FedAP"]["Mean rank"] == r"$\mathbf{1.25 \pm 0.35}$"
    assert table["FedAP"]["Worst site"] == r"$\mathbf{0.820 \pm 0.057}$"
    assert table["Local training"]["Worst site"] == r"$\mathbf{0.820 \pm 0.028}$"


def test_latex_says_below_what_the_figures_are(comparison):
    below = latex_table(comparison).split(r"\end{tabular}")[1]
    assert "%" not in below.replace(r"\%", "")  # a comment would be printed by nobody
    text = " ".join(below.split())
    assert text.startswith(r"\smallskip {\footnotesize organamnist, partition dirichlet:0.1, model")
    assert r"$\pm$ standard deviation over seeds" in text and "Mean rank: of the methods at each site" in text


def test_latex_explains_no_column_that_it_has_not(make_run):
    runs = [make_run(name, by[0], LOCAL[0]) for name, by in (("fedap", FEDAP), ("local", LOCAL), ("fedavg", FEDAVG))]
    runs.append(make_run("fedavg", FEDAVG[1], LOCAL[0], settings={"lr": 0.1}))
    for run in runs:
        run["new"] = {"models": 2, "pooled": {"accuracy": 0.7, "auroc": 0.8, "n": 9}, "held_out": {}}
    whole, latex = (found(compare(runs)) for found in (comparison_markdown, latex_table))
    for words in ("'better' counts those pairs", "To FedAvg: to ", "New accuracy and AUC: the average prediction"):
        assert words in whole and words not in " ".join(latex.split()), words
    assert "the worst site's is a seed's lowest" in latex.replace("\n", " ")


def test_latex_has_no_best_of_one(make_run):
    text = latex_table(compare([make_run("fedap", FEDAP[0]), make_run("local", LOCAL[0])]))
    head, row = (next(line for line in text.splitlines() if line.startswith(name)) for name in ("Algorithm", "FedAP"))
    cells = dict(zip(head.split(" & "), row.split(" & "), strict=True))
    assert cells["To local (points)"] == "$0.0$" and cells["Accuracy"].startswith(r"$\mathbf")


def test_latex_escapes_names():
    assert escaped("a_b:lr=1%&x^2") == r"a\_b:lr=1\%\&x\textasciicircum{}2"
