import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from medpfl.core.errors import UserError
from medpfl.report.page import write_report


class Page(HTMLParser):
    """Checks that tags are balanced and collects tables and texts."""

    def __init__(self, markup):
        super().__init__()
        self.open, self.tags, self.rows, self.attributes, self.words = [], [], [], [], []
        self.feed(markup)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data
        elif self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def row(self, first):
        return next(row for row in self.rows if row and row[0] == first)


def report(tmp_path, *runs):
    file = write_report(list(runs), tmp_path / "report.html")
    markup = file.read_text(encoding="utf-8")
    return markup, Page(markup)


def test_one_run(five, tmp_path):
    five["failures"] = [{"round": 3, "site": "site-2", "reason": "no answer within 300 s"}]
    five["notes"] = ["f was pretrained on pooled data"]
    markup, page = report(tmp_path, five)
    assert "right in 91.4 of 100 test cases" in page.text
    sizes = five["data"]["sites"]["site-3"]
    expected = [
        "site-3",
        str(sizes["train"]),
        "100",
        "0.870",
        "0.820",
        "0.930 [0.910, 0.950]",
        "3 of 4",
        "0.920",
        "−5.0",
    ]
    assert page.row("site-3") == expected
    assert page.row("site-2")[-1] == "+1.0"
    assert page.row("Mean ± sd")[3:] == ["0.914 ± 0.030", "0.864 ± 0.030", "0.972 ± 0.027", "", "0.937", "−2.3"]
    assert page.row("Worst site")[3] == "0.870 (site-3)"
    assert page.row("Worst site")[-2:] == ["0.910 (site-4)", "−5.5 (site-5)"]
    assert "At the last round (6): mean accuracy 0.904, worst 0.860 (site-3)." in page.text
    assert page.row("3") == ["3", "site-2", "no answer within 300 s"]
    assert "f was pretrained on pooled data" in page.text
    assert page.row("Sent by the sites, in all") == ["Sent by the sites, in all", "7.2 MB"]
    assert ["environment", "nvflare", "2.9.0"] in page.rows
    assert ["setting", "lambda", "0.5"] in page.rows
    assert page.tags.count("svg") == 4
    assert "training alone 0.937" in page.text and "local training" not in page.text.lower()
    assert "Alone: the model that each site trained alone beside the run, its own rival." in page.text
    assert markup.count('class="level"') == 1


def test_accessible(five, twenty, tmp_path):
    for runs in ([five], twenty[:3]):
        markup, page = report(tmp_path, *runs)
        assert '<html lang="en">' in markup
        assert "prefers-color-scheme:dark" in markup
        assert "@media print" in markup
        pictures = re.findall(r"<svg[^>]*>", markup)
        assert pictures
        assert all('role="img"' in tag and re.search(r'aria-label="[^"]{20,}"', tag) for tag in pictures)
        assert page.tags.count("caption") == page.tags.count("table") == page.tags.count("thead")
        assert 'scope="col"' in markup
        assert 'scope="row"' in markup


def test_cells_of_words_keep_room_for_a_word(five, tmp_path):
    """On a phone a table scrolls; without it a cell that may break anywhere is as wide as some letters."""
    markup, _ = report(tmp_path, five)
    assert "td{overflow-wrap:anywhere}\ntd:not(.n){min-width:8em}" in markup


def test_a_page_is_made_without_torch():
    code = "import sys, medpfl.report.page; print([m for m in ('torch', 'scipy', 'monai') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_nothing_is_fetched_from_elsewhere(twenty, tmp_path):
    markup, page = report(tmp_path, *twenty)
    assert not re.search(r"https?:|//[a-z]|url\(|@import|<script|<link|<img|<iframe", markup)
    assert not [value for name, value in page.attributes if name in ("src", "href", "xlink:href")]
    # Nor could it be: a browser keeps to this even where results.json holds an address for a picture.
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'; img-src data:") in page.attributes


def test_everything_from_results_is_escaped(make_run, tmp_path):
    evil = '<script>alert("1")</script>&\'"'
    runs = []
    for algorithm in ("fedap", evil):
        run = make_run(algorithm, {evil: 0.9, "b": 0.8}, {evil: 0.8, "b": 0.8}, **{evil: evil})
        run["failures"] = [{"round": evil, "site": evil, "reason": evil}]
        run["notes"] = [evil]
        run["environment"][evil] = {evil: evil}
        run["data"] |= {"name": evil, "partition": evil}
        run["config"]["model"] = evil
        for site in run["data"]["sites"].values():
            site["classes"] = {evil: 3}
        runs.append(run)
    for chosen in (runs, runs[:1]):
        markup, page = report(tmp_path, *chosen)
        assert "<script" not in markup
        assert "script" not in page.tags
        assert evil in page.row(evil)


def test_small_for_twenty_sites_and_nine_runs(twenty, tmp_path):
    markup, page = report(tmp_path, *twenty)
    assert len(markup.encode()) < 1_000_000
    assert page.tags.count("details") == 9
    assert page.row("FedAvg")[:3] == ["FedAvg", "0.887", "0.836"]
    assert "Local training has the highest mean accuracy, 0.942" in page.text
    # One comparison of sites, two courses, the partition once, and for each run two courses and its matrix.
    assert page.tags.count("svg") == 4 + 9 * 3


def test_a_hundred_sites(make_run, tmp_path):
    accuracy = {f"site-{i}": 0.5 + i / 250 for i in range(100)}
    markup, _ = report(tmp_path, make_run("fedap", accuracy, accuracy))
    assert len(markup.encode()) < 1_000_000


def test_nulls_everywhere(empty, tmp_path):
    _, page = report(tmp_path, empty)
    assert "no site could measure its accuracy" in page.text
    assert page.row("a")[3:] == ["–"] * 4
    assert "This run has no validation accuracy. This run has no training loss." in page.text
    assert "svg" not in page.tags
    assert "None" not in page.text
    report(tmp_path, empty, empty | {"algorithm": "fedbn"})


def test_what_share_of_the_sites_trains_is_told_where_it_is_not_all(make_run, tmp_path):
    every, some = (make_run("fedavg", {"a": 0.9, "b": 0.8}, participation=share) for share in (1.0, 0.5))
    for record in some["rounds"]:
        record["following"] = ["b"]
    assert "6 rounds of 1 local epoch, seed 0" in report(tmp_path, every)[1].text
    assert "6 rounds of 1 local epoch, participation 0.5, seed 0" in report(tmp_path, some)[1].text


def test_a_running_run(running, tmp_path):
    _, page = report(tmp_path, running)
    assert "still running: 2 of 6 rounds" in page.text
    assert page.tags.count("svg") == 4


def test_local_training_is_not_compared_with_itself(make_run, tmp_path):
    _, page = report(tmp_path, make_run("local", {"a": 0.9, "b": 0.8}, {"a": 0.9, "b": 0.8}))
    assert "To alone (points)" not in page.rows[0]


def test_seeds_share_a_row_and_each_has_its_partition(make_run, tmp_path):
    runs = [make_run(name, {"a": 0.9, "b": 0.8}, seed=seed) for name in ("fedap", "fedbn") for seed in (0, 1)]
    _, page = report(tmp_path, *runs)
    assert [row[0] for row in page.rows[:3]] == ["Algorithm", "FedAP", "FedBN"]
    assert page.text.count("The area of a dot is proportional") == 2
    assert "Seed 1. " in page.text


def test_runs_that_cannot_be_compared_are_shown_one_by_one(make_run, running, tmp_path):
    _, page = report(tmp_path, make_run("fedap", {"a": 0.9}), running)
    assert "without a comparison. fedap (seed 0) has not ended" in page.text
    assert page.tags.count("details") == 2


def test_a_warning_says_why_runs_are_not_compared(make_run, masks, medpfl, tmp_path, caplog):
    runs = {"a": make_run("fedap", {"a": 0.9}), "b": masks, "c": make_run("fedbn", {"a": 0.9})}
    for name, run in runs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps(run))
    assert medpfl("report", "a", "c", "--out", "mix.html", cwd=tmp_path).stdout == "Report: mix.html\n"
    assert not caplog.messages
    assert medpfl("report", "a", "b", "--out", "mix.html", cwd=tmp_path).stdout == "Report: mix.html\n"
    (said,) = caplog.messages
    begun = "The runs are shown one by one, without a comparison. fedap (seed 0) on organamnist and fedavg (seed 0) on "
    assert said.startswith(begun)
    assert "one is of classification, the other of segmentation" in said


def test_no_runs(tmp_path):
    with pytest.raises(UserError, match="at least one run"):
        write_report([], tmp_path / "report.html")


def test_settings_of_one_algorithm_are_told_apart(make_run, tmp_path):
    runs = [make_run("fedap", {"a": 0.9, "b": 0.8}, **{"lambda": value}) for value in (0.5, 0.8)]
    _, page = report(tmp_path, *runs)
    assert "1 algorithm on organamnist" in page.text
    assert page.row("FedAP (lambda=0.8)")[1] == "0.850"
    assert "FedAP (lambda=0.8) on organamnist, seed 0, accuracy 0.850" in page.text


def test_a_round_is_called_chosen_only_where_there_were_validation_data(five, tmp_path):
    _, page = report(tmp_path, five)
    assert "Test data at round 5, chosen on validation data." in page.text
    _, page = report(tmp_path, five | {"choices": {"use": "blend"}})
    words = "; each site chose among its models, the last round's and the one that it trained alone. At the last round"
    assert words in page.text
    for entry in five["rounds"]:
        for site in entry["sites"].values():
            site["validation"] = None
    _, page = report(tmp_path, five)
    assert "Test data at round 5. At the last round" in page.text
    _, page = report(tmp_path, five | {"choices": {"use": "blend"}})
    assert "; without validation cases no site could choose among its models. At the last round" in page.text
    for site in five["data"]["sites"].values():
        site["validation"] = 12  # and none of them told how it did on these
    _, page = report(tmp_path, five | {"choices": {"use": "blend"}})
    assert words in page.text


def test_what_the_sites_hold_is_unknown(running, tmp_path):
    running["data"]["sites"] = {}
    _, page = report(tmp_path, running)
    assert "did not record what the sites hold" in page.text
