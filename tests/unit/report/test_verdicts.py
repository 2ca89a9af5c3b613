import io
import json

import pytest
from rich.console import Console
from test_page import report

from medpfl.report.best_variant import advice
from medpfl.report.compare_table import comparison_note, comparison_rows
from medpfl.report.headline import headline, taking_part
from medpfl.report.reading import load_results
from medpfl.report.side_by_side import compare
from medpfl.report.terminal import print_run
from medpfl.report.verdicts import gain_lines, gains_part, gains_table

SENTENCE = (
    "Taking part helps 1 of 4 sites, harms 1, and at 2 no difference was found (accuracy, 95 % intervals of the paired "
    "difference on each site's own test cases). On average a site gains -0.5 points (sites from -5.0 to +2.0). An "
    "interval that contains 0 means that no difference was found, not that there is none. 1 site uses nothing but the "
    "model trained alone. 1 further site told nothing, or had no test cases by which to tell."
)


def test_the_page_says_it_first(told, tmp_path):
    _, page = report(tmp_path, told)
    assert taking_part(told) == SENTENCE
    lead = page.text.index(SENTENCE)
    assert (
        page.text.index("seed 0")
        < lead
        < page.text.index("The model that a site uses, trained with FedAP, is right in")
    )
    assert "Taking part helps 1 of 5 sites" not in page.text
    assert page.text.count("not that there is none") == 2


def test_a_site_that_did_not_answer_is_a_further_one_also_where_the_data_name_none(told):
    told["data"]["sites"] = {}
    del told["final"]["selected"]["sites"]["site-5"]
    assert "further site" not in taking_part(told)
    assert taking_part(told | {"unanswered": ["site-5"]}) == SENTENCE


def test_who_uses_nothing_but_the_own_model_is_counted_among_those_of_whom_the_sentence_speaks(told):
    told["verdict"]["sites"]["site-5"] = {
        "alone_round": 1,
        "used": {"candidate": "as published", "round": 1, "weight": 0.0},
        "gain": None,
        "verdict": None,
    }
    assert taking_part(told) == SENTENCE


def test_every_sites_gain_with_its_interval_and_what_it_uses(told, tmp_path):
    markup, page = report(tmp_path, told)
    rows = [row[0] for row in page.rows]
    assert rows[1:5] == ["site-1", "site-4", "site-2", "site-3"]  # those that gain most first
    gain = "+2.0 [+0.5, +4.0]"
    assert page.rows[1] == ["site-1", "100", "gains", gain, gain, "–", "as published"]
    assert page.rows[2][2::4] == ["no difference found", "0.6 as published + 0.4 alone"]
    assert page.rows[4][3] == "−5.0 [−9.0, −1.2]"
    assert page.tags.count("svg") == 5
    assert "accuracy, points over training alone, with 95 % intervals. site-1: +2.0, +0.5 to +4.0; site-4" in markup


def test_a_model_does_not_differ_from_itself(told):
    row = next(row for row in gains_table(told).rows if row[0] == "site-2")
    assert row[2:] == ["the same model", "0.0 [0.0, 0.0]", "0.0 [0.0, 0.0]", "–", "alone"]


def test_a_comparison_counts_the_verdicts_against_each_sites_own_rival(told, make_run):
    sites = told["data"]["sites"]
    plain = make_run("fedavg", dict.fromkeys(sites, 0.9)) | {"data": told["data"]}
    comparison = compare([told, plain])
    heads, rows = comparison_rows(comparison)
    at = heads.index("To own rival (points)")
    assert heads[at + 1 : at + 4] == ["Gains", "No difference found", "Loses"]
    assert rows[0][at + 1 : at + 4] == ["1", "2", "1"] and rows[1][at : at + 4] == ["–"] * 4
    own = comparison["groups"][0]["to_own_rival"]
    assert own["verdicts"] == {"gains": 1, "no difference found": 2, "loses": 1}
    assert own["mean"] == comparison["groups"][0]["to_local"]["mean"]  # there is no other local training here
    assert "FedAP is judged by each site's own rival here." in advice(comparison)[1]
    assert "Own rival: the model that each site trains alone beside the run" in comparison_note(comparison)
    assert "Own rival" not in comparison_note(compare([plain]))


def test_the_terminal_begins_with_it_and_names_who_is_harmed(told):
    stream = io.StringIO()
    print_run(told, Console(file=stream, width=500))
    lines = stream.getvalue().splitlines()
    assert lines[:2] == [SENTENCE, "Harmed (points): site-3 -5.0 [-9.0, -1.2]"]
    assert lines[-1].startswith("FedAP: 0.914 mean accuracy")


def test_of_many_that_are_harmed_the_worst_are_named(told):
    lost = told["verdict"]["sites"].pop("site-3")
    for i in range(8):
        ends = {"difference": -0.1 - i / 100, "low": -0.3, "high": -0.01}
        told["verdict"]["sites"][f"h{i}"] = lost | {"gain": {"accuracy": ends}}
    line = gain_lines(told)[1]
    assert line.startswith("Harmed (points): h7 -17.0 [-30.0, -1.0], h6 ") and line.endswith(" and 3 more")


def test_results_without_a_verdict_are_shown_as_before(five, running, tmp_path):
    (tmp_path / "results.json").write_text(json.dumps(five))
    earlier = load_results(tmp_path)
    assert earlier["schema"] == 1
    _, page = report(tmp_path, earlier)
    assert "What taking part is worth" not in page.text and "no difference was found" not in page.text
    assert "Taking part helps 1 of 5 sites." in page.text
    for run in (five, running):
        assert gain_lines(run) == [] and list(gains_part(run)) == [] and taking_part(run) == ""


def test_no_test_cases_anywhere(told, tmp_path):
    for site in told["verdict"]["sites"].values():
        site |= {"gain": None, "verdict": None}
    told["verdict"]["counts"] = dict.fromkeys(told["verdict"]["counts"], 0)
    _, page = report(tmp_path, told)
    unknown = "Whether taking part helps is not known: no site "
    assert headline(told).startswith(
        f"{unknown}has test cases enough for an interval of the difference in its accuracy, or tells it."
    )
    del told["data"]["sites"]["site-5"], told["final"]["selected"]["sites"]["site-5"]
    assert headline(told).startswith(
        f"{unknown}has test cases enough for an interval of the difference in its accuracy."
    )
    assert page.rows[1] == ["site-1", "100", "–", "–", "as published"]


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a & b"])
def test_names_are_escaped(told, tmp_path, name):
    sites = told["verdict"]["sites"]
    sites[name] = sites.pop("site-1")
    markup, page = report(tmp_path, told)
    assert page.rows[1][0] == name and "<script" not in markup
