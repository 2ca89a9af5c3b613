"""What stands beside each other is of the same sites, against what it says, and what is unequal is told."""

import re

import pytest
from accuracies import blended, one_class_at

from medpfl.core.errors import UserError
from medpfl.report.best_variant import advice
from medpfl.report.compare_table import comparison_markdown, comparison_note, comparison_rows
from medpfl.report.judged import TITLE
from medpfl.report.page import write_report
from medpfl.report.page_comparison import comparison_section
from medpfl.report.page_sweep import sweep_section
from medpfl.report.pairing import grouped
from medpfl.report.side_by_side import compare
from medpfl.report.sweep import Sweeping, sweep_note, swept


def three(make_run, local, other, name="fedavg", **changes):
    """Local training and a method with the same accuracies in three seeds."""
    sites = ("a", "b", "c")
    runs = [("local", local, {}), (name, other, changes)]
    return [
        make_run(n, dict(zip(sites, of, strict=True)), seed=seed, **more) for seed in range(3) for n, of, more in runs
    ]


def lead(runs, tmp_path):
    page = write_report(runs, tmp_path / "report.html").read_text()
    return re.search(r'<p class="lead">(.*?)</p>', page, re.DOTALL)[1]


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ({"data_args": {"fold": 0}}, {"data_args": {"fold": 1}}, "fold, by which parts are made: 0 and 1"),
        ({"data_args": {"fold": 0}}, {}, "fold, by which parts are made: 0 and nothing"),
        ({}, {"data_args": {"patient": "^(.)"}}, r"patient, by which parts are made: nothing and \^\(\.\)"),
        ({"official": False}, {"official": True}, "official, by which parts are made: nothing and True"),
    ],
)
def test_as_many_other_cases_are_no_pairs(make_run, one, other, words):
    """Two folds of a list have other test patients, and each site as many."""
    runs = [make_run(name, {"a": 0.5, "b": 0.6}, **said) for name, said in (("local", one), ("fedavg", other))]
    with pytest.raises(UserError, match=words):
        compare(runs)
    alike = [make_run(name, {"a": 0.5, "b": 0.6}, **one) for name in ("local", "fedavg")]
    assert len(compare(alike)["groups"]) == 2


def test_what_subtraction_leaves_of_nothing_is_no_gain(make_run):
    """+5, -5 and 0 points: 0.45 - 0.4 is less in floating point than 0.6 - 0.55."""
    comparison = compare(three(make_run, (0.40, 0.60, 0.40), (0.45, 0.55, 0.40)))
    [gain] = [group["to_local"] for group in comparison["groups"] if group["to_local"]]
    assert (gain["mean"], gain["sd"], gain["worst"]) == (0, 0, {"mean": -0.05, "sd": 0})
    assert (gain["better"], gain["worse"]) == (3, 3)
    assert "Should a site take part? By these figures not" in " ".join(advice(comparison))


def without(run, site):
    for part in run["final"].values():
        del part["sites"][site]
        for name in part["mean"]:
            values = [of[name] for of in part["sites"].values()]
            part["mean"][name] = sum(values) / len(values)
    return run | {"unanswered": [site], "failures": [{"round": 6, "site": site, "reason": "no answer in time"}]}


def test_means_are_over_the_sites_that_all_have_a_test_of(make_run, tmp_path):
    """Else the method that the hardest site did not answer is the best, with the same models."""
    accuracy = {"a": 0.45, "b": 0.2, "c": 0.3}
    runs = [make_run("local", accuracy), without(make_run("fedavg", accuracy), "b"), make_run("fedbn", accuracy)]
    comparison = compare(runs)
    assert [group["measures"]["accuracy"]["mean"] for group in comparison["groups"]] == [pytest.approx(0.375)] * 3
    assert [group["worst"]["mean"] for group in comparison["groups"]] == [0.3] * 3
    assert comparison["lacking"] == {"FedAvg": ["b"]}
    said = "Means are over the sites that all have a test of: FedAvg has no test of b."
    assert said in comparison_note(comparison) and said in write_report(runs, tmp_path / "r.html").read_text()
    assert "Means are over the sites that all" not in comparison_note(compare(runs[::2]))


def test_what_sites_reach_alone_is_over_the_same_sites_too(make_run):
    """FedBlend gains 30 points at the site that FedAvg has no test of, and loses 3 at each other."""
    runs = []
    for seed in range(2):
        run = blended(make_run, {"a": 0.5, "b": 0.5, "c": 0.8}, 0.53, seed=seed)
        run["reference"]["final"]["selected"]["sites"]["c"]["accuracy"] = 0.5
        runs += [run, without(make_run("fedavg", {"a": 0.4, "b": 0.4, "c": 0.4}, seed=seed), "c")]
    comparison = compare(runs)
    [fedblend, _] = comparison["groups"]
    assert fedblend["to_own_rival"]["mean"] == pytest.approx(-0.03) and fedblend["to_own_rival"]["pairs"] == 4
    assert fedblend["to_own_rival"]["reaches"] == pytest.approx(0.53)
    assert fedblend["judged"]["mean"] == pytest.approx(-0.03)
    assert sum(fedblend["to_own_rival"]["verdicts"].values()) == 4
    assert "Should a site take part? By these figures not" in " ".join(advice(comparison))
    late = [runs[0], make_run("fedavg", {"a": 0.4, "b": 0.4, "c": 0.4}), *runs[2:]]
    assert compare(late)["lacking"] == {"FedAvg": ["c in seed 1"]}


def test_where_most_sites_have_one_class_no_accuracy_leads_a_comparison(make_run, tmp_path):
    runs = [one_class_at(run, "a", "b") for run in three(make_run, (0.4, 0.4, 0.4), (0.8, 0.8, 0.8))]
    told = "At 2 of 3 sites (a, b) all test cases are of one class: accuracy there says how often that class is said"
    answer = "Should a site take part? No accuracy tells that here: at most sites all test cases are of one class."
    assert advice(compare(runs)) == [answer]
    assert lead(runs, tmp_path) == answer
    table = comparison_markdown(compare(runs))
    assert table.count(told) == 1 and TITLE not in table
    few = compare([one_class_at(run, "a") for run in three(make_run, (0.4, 0.4, 0.4), (0.8, 0.8, 0.8))])
    assert "By these figures yes" in " ".join(advice(few))
    assert "At 1 of 3 sites (a) all test cases are of one class" in comparison_note(few)


def test_where_seeds_differ_in_that_sites_of_all_seeds_are_counted(make_run):
    runs = three(make_run, (0.4, 0.4, 0.4), (0.8, 0.8, 0.8))
    for seed, site in enumerate("ab"):
        one_class_at(runs[2 * seed], site)
        one_class_at(runs[2 * seed + 1], site)
    comparison = compare(runs)
    assert "By these figures yes" in " ".join(advice(comparison))
    assert "At 2 of 9 sites of all seeds (a in seed 0, b in seed 1) all test cases" in comparison_note(comparison)


def figures(runs):
    return " ".join(str(part.note) for part in comparison_section(compare(runs), grouped(runs)).parts)


def test_each_run_beside_its_own_rival_is_told_with_what_that_reaches(make_run):
    """No line is drawn where there are two, and the one that has the method's steps is no shorter training."""
    plain = make_run("fedavg", {"a": 0.5, "b": 0.5}, local={"a": 0.3, "b": 0.3})
    runs = [plain, blended(make_run, {"a": 0.86, "b": 0.86}, 0.84)]
    note = comparison_note(compare(runs))
    assert "trained alone beside the run (0.300 beside FedAvg, 0.840 beside FedBlend)." in note
    assert "Trained further" not in note
    assert "dashed line" not in figures(runs)
    nothing_beside = [make_run("fedavg", {"a": 0.5, "b": 0.5})]
    assert "dashed line" not in figures(nothing_beside)
    same = [plain, make_run("fedbn", {"a": 0.5, "b": 0.5}, local={"a": 0.3, "b": 0.3})]
    assert "trained alone beside the run (0.300)." in comparison_note(compare(same))
    assert "the dashed line the mean of each run's own rival" in figures(same)


def test_to_which_fedavg_is_told_where_there_are_two(make_run):
    longer = {"settings": {"finetune_steps": 20}}
    runs = [
        make_run(name, {"a": a, "b": a}, **more)
        for name, a, more in (("fedavg", 0.4, {"settings": {"finetune_steps": 0}}), ("fedavg", 0.5, longer),
                              ("fedbn", 0.6, longer), ("local", 0.3, {"settings": {"finetune_steps": 0}}))
    ]  # fmt: skip
    note = comparison_note(compare(runs))
    assert (
        "To FedAvg: FedBN (finetune_steps=20) to FedAvg (finetune_steps=20), Local training to FedAvg, the run of it "
        "that is set most alike." in note
    )
    assert "To FedAvg" not in comparison_note(compare([runs[0], *runs[2:]]))
    plain = make_run("fedprox", {"a": 0.4, "b": 0.4}, settings={"finetune_steps": 0})
    assert "To FedAvg: to FedAvg, the run" in comparison_note(compare([runs[0], runs[1], plain]))
    alone = make_run("local", {"a": 0.35, "b": 0.35}, **longer)
    both = comparison_note(compare([*runs, alone]))
    assert (
        "To local: FedAvg to Local training, FedAvg (finetune_steps=20) and FedBN (finetune_steps=20) to Local "
        "training (finetune_steps=20), runs in which each site trains alone." in both
    )


def test_a_sweep_tells_unequal_effort_too(make_run):
    """Of FedRep's epochs of the personal part, and of steps at the end that local training beside it has not."""

    def run(name, accuracy, steps, **more):
        return make_run(name, {"a": accuracy, "b": accuracy}, settings={"finetune_steps": steps}) | more

    at_each = [
        {0: [run("local", 0.3, 0)], 1: [run("fedavg", 0.3, 0)], 2: [run("fedrep", 0.3, 0, each_round="10 epochs")]},
        {0: [run("local", 0.3, 0)], 1: [run("fedavg", 0.9, 50, further="50 steps")],
         2: [run("fedrep", 0.3, 50, each_round="10 epochs", further="50 steps")]},
    ]  # fmt: skip
    methods = [("Local training", "local"), ("FedAvg", "fedavg"), ("FedRep", "fedrep")]
    for k, runs in enumerate(at_each):
        for of in runs.values():
            of[0]["environment"] = of[0]["environment"] | {"medpfl": "0.2", "medpfl_sha256": f"{k}" * 64}
    found = swept(Sweeping(("finetune_steps",), ((0,), (50,))), methods, at_each)
    note = sweep_note(found)
    assert "not as long: FedAvg at finetune_steps=50 by 50 steps, FedRep at finetune_steps=50 by 50 steps." in note
    assert "beside the local epochs, which local training is not: FedRep 10 epochs." in note
    assert "Runs were made with 2 states of medpfl's own code (0.2 000000000000, 0.2 111111111111)" in note
    for runs in at_each:
        for of in runs.values():
            one_class_at(of[0], "a", "b")
    found = swept(Sweeping(("finetune_steps",), ((0,), (50,))), methods, at_each)
    assert sweep_section(found).lead == (
        "At most sites all test cases are of one class at finetune_steps=0, finetune_steps=50: no accuracy is told of "
        "these. One seed: small differences may be chance."
    )
    assert sweep_note(found).count("At 2 of 2 sites (a, b) all test cases are of one class") == 1


def test_a_swept_value_where_most_sites_have_one_class_leaves_the_others_to_be_told(make_run):
    at_each = [{0: [make_run("fedavg", {"a": accuracy, "b": accuracy})]} for accuracy in (0.9, 0.5, 0.6)]
    one_class_at(at_each[0][0][0], "a", "b")
    found = swept(Sweeping(("partition",), (("x",), ("y",), ("z",))), [("FedAvg", "fedavg")], at_each)
    lead = sweep_section(found).lead
    assert "FedAvg: from 0.500 at partition=y to 0.600 at partition=z." in lead
    assert "of one class at partition=x: no accuracy is told of these." in lead
    assert "partition=x: At 2 of 2 sites (a, b)" in sweep_note(found)


def test_a_share_that_is_neither_none_nor_all_is_not_told_as_such(make_run):
    values = {f"s{k}": 0.5 for k in range(240)}
    runs = [make_run("local", values), make_run("fedavg", values | {"s7": 0.3})]
    row = next(row for row in comparison_rows(compare(runs))[1] if row[0] == "FedAvg")
    assert "< 1 %" in row and "0 %" not in row
