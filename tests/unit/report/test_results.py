import json
import math

import pytest

from medpfl.core.errors import UserError
from medpfl.core.measure import Measure
from medpfl.core.whole_file import write_text
from medpfl.report.reading import (
    class_names,
    class_titles,
    differences,
    load_results,
    local_reference,
    round_series,
    selected,
    worst_site,
)
from medpfl.report.sites_csv import sites_csv

ACCURACY = Measure("accuracy", "accuracy")


def write(folder, results):
    (folder / "results.json").write_text(json.dumps(results))
    return folder


def test_reads_a_run_folder_and_the_file_in_it(five, tmp_path):
    write(tmp_path, five)
    assert load_results(tmp_path) == five
    assert load_results(str(tmp_path / "results.json")) == five


def test_reads_null_wherever_it_is_allowed_and_unknown_keys(empty, tmp_path):
    assert load_results(write(tmp_path, empty)) == empty


def test_nan_in_the_file_becomes_null(five, tmp_path):
    five["final"]["selected"]["sites"]["site-1"]["auroc"] = math.nan
    assert load_results(write(tmp_path, five))["final"]["selected"]["sites"]["site-1"]["auroc"] is None


def test_a_running_run_is_read_only_on_request(running, tmp_path):
    write(tmp_path, running)
    with pytest.raises(UserError, match=r"results\.json.*has not ended \(2 of 6 rounds\)"):
        load_results(tmp_path)
    assert load_results(tmp_path, finished=False)["final"] is None


def broken(change):
    def apply(results):
        change(results)
        return json.dumps(results)

    return apply


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda results: "{ not json", "not JSON"),
        (lambda results: "", "not JSON"),
        (lambda results: "[1, 2]", "no 'schema'"),
        (lambda results: "{}", "no 'schema'"),
        (broken(lambda r: r.update(schema=4)), "schema 4.*reads schemas 1, 2 and 3"),
        (broken(lambda r: r.update(measures=[])), "'measures' is no list of measures"),
        (broken(lambda r: r.update(measures=[{"name": "dice"}])), "an entry of 'measures' lacks 'name' or 'title'"),
        (broken(lambda r: r.update(measures=[{"name": "", "title": "", "better": 1}])), "neither higher nor lower"),
        (broken(lambda r: r.pop("config")), "'config' is missing"),
        (broken(lambda r: r.update(rounds={})), "'rounds' is missing or is not a list"),
        (broken(lambda r: r["data"].pop("sites")), r"'data\.sites' is missing"),
        (broken(lambda r: r["rounds"].append({})), "an entry of 'rounds'"),
        (broken(lambda r: r["final"].pop("last")), r"'final\.last' lacks"),
        (broken(lambda r: r["final"].update(selected=3)), r"'final\.selected' lacks"),
        (broken(lambda r: r["reference"]["final"]["selected"].pop("mean")), r"'reference\.final\.selected' lacks"),
    ],
)
def test_broken_files_are_named_in_one_message(five, tmp_path, make, message):
    file = tmp_path / "results.json"
    file.write_text(make(five))
    with pytest.raises(UserError, match=message) as caught:
        load_results(tmp_path)
    assert str(file) in str(caught.value)


def test_missing_and_binary_files(tmp_path):
    with pytest.raises(UserError, match=r"nowhere.*no such file"):
        load_results(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"results\.json: no such file"):
        load_results(tmp_path)
    (tmp_path / "results.json").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(UserError, match="not a text file"):
        load_results(tmp_path)


def test_the_table_of_sites_also_of_files_that_do_not_say_their_measures(five):
    run = {key: value for key, value in five.items() if key != "measures"}
    head, *lines = sites_csv([("local", run)]).splitlines()
    assert head.startswith("run,seed,site,n,accuracy,balanced_accuracy,auroc")
    assert len(lines) == len(run["final"]["selected"]["sites"])


def test_differences_take_the_sites_that_both_have(five):
    local = local_reference(five)
    del local["sites"]["site-2"]
    local["sites"]["site-4"]["accuracy"] = None
    change = differences(selected(five), local, ACCURACY)
    assert change == pytest.approx({"site-1": -0.02, "site-3": -0.05, "site-5": -0.055})


def test_worst_site_and_nothing_measured(five, empty):
    assert worst_site(selected(five), ACCURACY) == ("site-3", 0.87)
    assert worst_site(selected(empty), ACCURACY) is None


def test_classes_in_numerical_then_alphabetical_order(five):
    five["data"]["sites"]["site-1"]["classes"] = {"10": 1, "9": 1, "lung": 1, "bladder": 1}
    assert class_names(five) == ["0", "1", "2", "3", "9", "10", "bladder", "lung"]


@pytest.mark.parametrize(
    ("keys", "names", "titles"),
    [
        (["0", "2"], ["heart", "liver", "lung"], ["heart", "lung"]),
        (["heart", "lung"], ["heart", "liver", "lung"], ["heart", "lung"]),
        (["2", "4"], ["2", "4", "8", "16", "32"], ["2", "4"]),  # names that look like numbers
        (["0", "3"], ["heart", "liver"], ["0", "3"]),
        (["0", "1"], [], ["0", "1"]),
    ],
)
def test_classes_have_the_names_that_the_data_give_them(make_run, keys, names, titles):
    run = make_run("fedavg", {"a": 0.9})
    run["data"] |= {"classes": names, "sites": {"a": {"classes": dict.fromkeys(keys, 5)}}}
    assert class_titles(run) == dict(zip(keys, titles, strict=True))


def test_round_series_leaves_out_what_was_not_measured(five):
    five["rounds"][0]["sites"]["site-1"]["validation"] = None
    for site in five["rounds"][1]["sites"].values():
        site["validation"] = {"accuracy": None, "auroc": None}
    series = round_series(five, "validation", "accuracy")
    assert [(n, len(values)) for n, values in series] == [(1, 4), (3, 5), (4, 5), (5, 5), (6, 5)]


def test_write_text_replaces_the_file_and_leaves_nothing_else(tmp_path):
    file = tmp_path / "new" / "page.html"
    write_text(file, "one")
    write_text(file, "two")
    assert file.read_text() == "two"
    assert list(file.parent.iterdir()) == [file]


def test_a_folder_in_the_place_of_a_file_is_named_as_it_was_given(tmp_path):
    with pytest.raises(IsADirectoryError) as said:
        write_text(tmp_path, "one")
    assert (said.value.filename, list(tmp_path.iterdir())) == (str(tmp_path), [])


def test_write_text_keeps_the_old_file_when_writing_fails(tmp_path):
    file = write_text(tmp_path / "page.html", "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(file, "\ud800")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]
