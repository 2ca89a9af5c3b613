"""Reports do not begin with a number that the split makes meaningless."""

import io

import numpy as np
import pytest
from accuracies import one_class_at
from rich.console import Console

from medpfl.report.compare_table import comparison_note
from medpfl.report.headline import headline, summary, taking_part
from medpfl.report.history import history_csv
from medpfl.report.measures import first, selecting
from medpfl.report.one_class import one_class_sites
from medpfl.report.page import write_report
from medpfl.report.side_by_side import compare
from medpfl.report.terminal import print_run
from medpfl.tasks import TASKS
from medpfl.tasks.measures import measures

LEAD = {
    "measure": "balanced_accuracy",
    "asked": False,
    "cases": 300,
    "one_sided": {"class": 1, "sites": 4, "of": 5},
    "lead": "balanced_accuracy",
}


def test_what_a_site_does_not_tell_is_nothing_about_its_classes(make_run):
    """With coarse measures classes of few patients count neither in the AUC nor in the balanced accuracy."""
    run = one_class_at(make_run("fedbn", {"a": 0.7, "b": 0.8, "c": 0.75}), "a", "b")
    assert one_class_sites(run) == ["a", "b"]
    for part in run["final"].values():
        part["sites"]["a"]["balanced_accuracy"] = None
    assert one_class_sites(run) == ["b"]


def test_a_model_that_breaks_on_a_case_does_not_make_a_sites_cases_one_class(make_run):
    """Of which there is no AUC either; what taking part does there must not go unsaid."""
    run = make_run("fedbn", {"a": 0.7, "b": 0.8, "c": 0.75})
    for part in run["final"].values():
        for site in ("a", "b"):
            part["sites"][site] |= measures(np.array([[np.nan] * 3, [0.8, 0.1, 0.1]]), np.array([1, 0]))
    assert one_class_sites(run) == []


def printed(run):
    stream = io.StringIO()
    print_run(run, Console(file=stream, width=200))
    return stream.getvalue()


def test_a_few_such_sites_are_named(five):
    one_class_at(five, "site-2")
    assert "is right in 91.4 of 100" in headline(five)
    assert summary(five).startswith("FedAP: 0.914 mean accuracy over 5 sites")
    assert "At 1 of 5 sites (site-2) all test cases are of one class: accuracy there says how often" in printed(five)


def test_one_site_is_one(make_run):
    run = one_class_at(make_run("fedavg", {"a": 0.7}), "a")
    assert "At 1 of 1 site (a) all test cases are of one class" in headline(run)
    assert "At 1 of 1 site (a) all test cases are of one class" in comparison_note(compare([run]))


def test_with_most_sites_such_no_accuracy_leads(five, tmp_path):
    one_class_at(five, "site-1", "site-2", "site-3")
    text = headline(five)
    assert text.startswith("At 3 of 5 sites (site-1, site-2, site-3) all test cases are of one class")
    # AUC 0.97 at site-4 and at site-5.
    assert text.endswith("AUC at the other 2 sites: 0.970.")
    assert "0.914" not in summary(five) and "0.970" in summary(five)
    page = write_report([five], tmp_path / "report.html").read_text()
    assert page.index("all test cases are of one class") < page.index("0.914")


def test_with_all_sites_such_no_number_leads(five):
    one_class_at(five, *five["final"]["selected"]["sites"])
    assert headline(five).endswith("can tell how well classes are told apart, and a mean accuracy says nothing of it.")


def test_nothing_is_said_of_what_helps_where_most_sites_cannot_tell(told):
    one_class_at(told, "site-1", "site-2", "site-3")
    assert taking_part(told).startswith("Whether taking part helps is not known. At 3 of 5 sites")
    assert printed(told).startswith("Whether taking part helps is not known.")


def test_balanced_accuracy_leads_where_one_class_is_large(five, make_run, tmp_path):
    five["selection"] = LEAD
    assert first(five).name == selecting(five).name == "balanced_accuracy"
    # 0.05 below the accuracies, whose mean is 0.914.
    assert summary(five).startswith("FedAP: 0.864 mean balanced accuracy over 5 sites, 0.023 below training alone")
    assert "balanced accuracy of 0.864" in headline(five)
    assert history_csv(five).splitlines()[0] == history_csv(make_run("fedap", {"a": 0.5})).splitlines()[0]
    assert write_report([five], tmp_path / "report.html").exists()


def test_one_seed_with_a_large_class_decides_for_a_comparison(make_run):
    sites = {"a": 0.9, "b": 0.8}
    plain = [make_run("fedavg", sites, seed=0), make_run("local", sites, seed=0)]
    uneven = [make_run("fedavg", sites, seed=1) | {"selection": LEAD}, make_run("local", sites, seed=1)]
    before, after = compare(plain), compare(plain + uneven)
    assert before["measures"][0]["name"] == "accuracy"
    assert after["measures"][0]["name"] == "balanced_accuracy"
    group = after["groups"][0]
    assert group["worst"]["mean"] == pytest.approx(0.75)  # 0.05 below the accuracy
    assert group["to_local"]["baseline_accuracy"]["mean"] == group["accuracy"]["mean"]


def test_a_loss_that_selects_is_drawn(five, tmp_path):
    five["selection"] = LEAD | {"measure": "loss", "lead": None, "one_sided": None, "cases": 12}
    for entry in five["rounds"]:
        for site in entry["sites"].values():
            site["validation_loss"] = 0.5 / entry["round"]
    assert "validation loss" in write_report([five], tmp_path / "report.html").read_text()
    assert "loss" not in TASKS["classification"].names
