import io
import json
from statistics import stdev

import pytest
from accuracies import FEDAP, FEDAVG, LOCAL
from rich.console import Console

from medpfl.core.errors import UserError
from medpfl.report.compare_table import (
    comparison_markdown,
    comparison_note,
    comparison_rows,
    notes_of,
    write_comparison,
)
from medpfl.report.page import write_report
from medpfl.report.pairing import grouped
from medpfl.report.side_by_side import compare
from medpfl.report.terminal import comparison_table


@pytest.fixture
def runs(make_run):
    return [
        make_run(algorithm, by_seed[seed], LOCAL[seed], seed=seed)
        for algorithm, by_seed in (("fedap", FEDAP), ("local", LOCAL), ("fedavg", FEDAVG))
        for seed in (0, 1)
    ]


def by_label(comparison):
    return {group["label"]: group for group in comparison["groups"]}


def test_hand_computed_numbers(runs):
    comparison = compare(runs)
    assert [group["label"] for group in comparison["groups"]] == ["FedAP", "Local training", "FedAvg"]
    assert comparison["seeds"] == [0, 1]
    fedap = by_label(comparison)["FedAP"]
    # Means over sites 0.85 and 0.88.
    assert fedap["accuracy"] == pytest.approx({"mean": 0.865, "sd": 0.03 / 2**0.5})
    assert fedap["balanced_accuracy"]["mean"] == pytest.approx(0.815)
    assert fedap["worst"] == pytest.approx({"mean": 0.82, "sd": 0.08 / 2**0.5})
    assert fedap["sites"] == pytest.approx({"a": 0.91, "b": 0.82})
    assert fedap["by_seed"] == pytest.approx({"0": 0.85, "1": 0.88})
    # To local: seed 0 +2 and -2 points (mean 0), seed 1 +2 and +2 (mean 2).
    local = fedap["to_local"]
    assert local["mean"] == pytest.approx(0.01)
    assert local["sd"] == pytest.approx(stdev([0, 0.02]))
    assert (local["better"], local["worse"], local["pairs"]) == (3, 1, 4)
    assert local["baseline_accuracy"]["mean"] == pytest.approx(0.855)
    # The worst site: -2 points (b) and +2 points.
    assert local["worst"] == pytest.approx({"mean": 0.0, "sd": stdev([-0.02, 0.02])}, abs=1e-12)
    assert local["below"] == 1 / 4
    # To FedAvg: seed 0 +22 and +18 (mean 20), seed 1 +18 and +24 (mean 21).
    fedavg = fedap["to_fedavg"]
    assert fedavg["mean"] == pytest.approx(0.205)
    assert fedavg["sd"] == pytest.approx(stdev([0.20, 0.21]))
    assert (fedavg["better"], fedavg["pairs"]) == (4, 4)
    assert fedap["selected_round"] == {"mean": 5.0, "sd": 0.0}
    assert fedap["seconds"]["mean"] == 31.5
    assert fedap["sent_bytes_per_site_round"]["mean"] == 240_000
    assert fedap["received_bytes_per_site_round"]["mean"] == 250_000


def test_baselines_are_not_compared_with_themselves(runs):
    groups = by_label(compare(runs))
    assert groups["Local training"]["to_local"] is None
    assert groups["Local training"]["to_fedavg"]["mean"] == pytest.approx(0.195)
    assert groups["FedAvg"]["to_fedavg"] is None
    assert groups["FedAvg"]["to_local"]["mean"] == pytest.approx(-0.195)


def test_the_reference_stands_in_for_a_local_run(runs):
    comparison = compare([run for run in runs if run["algorithm"] != "local"])
    fedap = by_label(comparison)["FedAP"]
    assert fedap["to_local"]["mean"] == pytest.approx(0.01)
    assert (
        "To local: to each run's own rival here, the model that each site trained alone beside the run (0.855 ± 0.007)."
        in (comparison_note(comparison))
    )


def test_no_local_training_and_no_fedavg(make_run):
    comparison = compare([make_run("fedap", FEDAP[0]), make_run("fedbn", FEDAVG[0])])
    assert all(group["to_local"] is None and group["to_fedavg"] is None for group in comparison["groups"])
    heads, rows = comparison_rows(comparison)
    assert "To FedAvg (points)" not in heads
    assert rows[0][heads.index("To local (points)")] == "–"


def test_groups_of_one_algorithm_are_named_by_what_differs(make_run):
    runs = [
        make_run("fedavg", FEDAVG[0], rounds=6),
        make_run("fedavg", LOCAL[0], rounds=12),
        make_run("fedap", FEDAP[0], rounds=12, settings={"lambda": 0.5}),
        make_run("fedap", FEDAVG[0], rounds=12, settings={"lambda": 0.8}),
    ]
    comparison = compare(runs)
    groups = by_label(comparison)
    assert list(groups) == ["FedAvg (rounds=6)", "FedAvg (rounds=12)", "FedAP", "FedAP (lambda=0.8)"]
    # The FedAvg with as many rounds is the fair one.
    assert groups["FedAP"]["to_fedavg"]["baseline"] == "FedAvg (rounds=12)"
    assert "Rounds differ: FedAvg (rounds=6) 6, " in comparison_note(comparison)
    assert "sites, 12 rounds of 1 local epoch, " in comparison_note(compare(runs[1:]))


def test_a_mechanism_that_only_one_takes_up_names_it(make_run):
    settings = [{"lr": 0.1}, {"lr": 0.1, "finetune_epochs": 5}, {"lr": 0.1, "alpha": 0.5, "adaptive": 1}]
    comparison = compare([make_run("fedavg", FEDAVG[0], settings=own) for own in settings])
    labels = [group["label"] for group in comparison["groups"]]
    assert labels == ["FedAvg", "FedAvg (finetune_epochs=5)", "FedAvg (alpha=0.5)"]


def test_where_and_when_a_run_was_made_does_not_split_a_group(make_run):
    runs = [make_run("fedap", FEDAP[s], seed=s, out=f"runs/{s}", device="cpu", experiment=f"e{s}") for s in (0, 1)]
    assert len(compare(runs)["groups"]) == 1


def test_fedblend_of_an_earlier_version_is_the_same_method(make_run):
    """It said ``batch-norm``, of networks that have some."""
    earlier, now = (make_run("fedblend", FEDAP[seed], seed=seed) for seed in (0, 1))
    earlier["choices"]["personal"] = "batch-norm"
    assert list(by_label(compare([earlier, now]))) == ["FedBlend"]
    asked = make_run("fedblend", FEDAP[1], personal="batch-norm")
    asked["choices"]["personal"] = "batch-norm"
    assert list(by_label(compare([earlier, asked]))) == ["FedBlend", "FedBlend (personal=batch-norm)"]


def test_one_seed_has_no_spread(make_run):
    comparison = compare([make_run("fedap", FEDAP[0], LOCAL[0])])
    assert comparison["groups"][0]["accuracy"]["sd"] is None
    assert "One seed shows no spread" in comparison_note(comparison)


def test_nothing_measured(empty):
    comparison = compare([empty])
    assert comparison["groups"][0]["accuracy"] == {"mean": None, "sd": None}
    assert comparison_rows(comparison)[1] == [["FedAvg", *["–"] * 11]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["data"].update(name="bloodmnist"), "data organamnist and bloodmnist"),
        (lambda r: r["data"].update(md5="ffff"), "checksum of the data 0123abcd and ffff"),
        (lambda r: r["data"].update(partition="iid"), "partition dirichlet:0.1 and iid"),
        (lambda r: r["data"]["sites"].pop("b"), "number of sites 2 and 1"),
        (lambda r: r["data"].update(sites={"a": {}, "c": {}}), "sites a, b and a, c"),
        (lambda r: r["config"].update(seed=7), "seeds 0 and 7"),
        (lambda r: r["data"]["sites"]["b"].update(test=1), r"split \(test at b: \d+ and 1\)"),
        (lambda r: r["data"]["sites"]["a"].update(classes={"0": 1}), r"split \(classes at a: "),
        # Of several differences the first is named.
        (lambda r: (r["data"].update(name="x"), r["config"].update(seed=7)), "data organamnist and x"),
    ],
)
def test_runs_that_cannot_be_paired(make_run, change, message):
    other = make_run("fedavg", FEDAVG[0])
    change(other)
    with pytest.raises(UserError, match=message):
        compare([make_run("fedap", FEDAP[0]), other])


def test_sites_that_only_they_know_are_those_with_a_test(make_run):
    run = make_run("fedavg", FEDAVG[0])
    run["data"]["sites"] = {}
    comparison = compare([run])
    assert comparison["data"]["sites"] == ["a", "b"] and set(comparison["groups"][0]["sites"]) == {"a", "b"}
    assert " 2 sites, " in comparison_note(comparison)
    assert " 1 site, " in comparison_note(compare([make_run("fedavg", {"a": 0.7})]))


def test_unequal_seeds_duplicates_unfinished_and_nothing(runs, running):
    with pytest.raises(UserError, match="seeds 0, 1 and 0"):
        compare(runs[:3])
    with pytest.raises(UserError, match=r"fedap \(seed 0\) is there twice"):
        compare([runs[0], runs[0]])
    with pytest.raises(UserError, match=r"fedap \(seed 0\) has not ended"):
        compare([running])
    with pytest.raises(UserError, match="at least one run"):
        compare([])


def test_markdown(runs):
    lines = comparison_markdown(compare(runs)).splitlines()
    assert lines[0].startswith(
        "| Algorithm | Accuracy | Worst site | To local (points) | Better than local | "
        "Worst site's difference to local (points) | Sites more than a point below local |"
    )
    assert lines[1].startswith("| --- | ---: |")
    assert lines[2].startswith(
        "| FedAP | 0.865 ± 0.021 | 0.820 | +1.0 ± 1.4 | 3 of 4 | 0.0 ± 2.8 | 25 % | +20.5 ± 0.7 | 4 of 4 |"
    )
    assert lines[2].endswith("| 5 | 31.5 | 240 kB / 250 kB |")
    assert lines[3].startswith("| Local training | 0.855 ± 0.007 | 0.820 | – | – | – | – | +19.5 ± 0.7 |")
    assert len({line.count("|") for line in lines[:5]}) == 1
    assert "Should a site take part? That cannot be told: with FedAP sites gain on average over seeds" in lines[6]


def test_notes_stand_once_with_the_methods_that_have_them(runs):
    """A note that differs in its numbers alone is the first seed's; sites' names are no numbers."""
    both = "no test of all sites' models together: it takes 200,000 predictions"
    notes = {
        ("fedap", 0): ["f was pretrained on pooled images", both, "site-1 was absent", "site-2 was absent"],
        ("fedap", 1): ["f was pretrained on pooled images", both],
        ("fedavg", 0): ["epsilon 1.5 at a", both],
        ("fedavg", 1): ["epsilon 2.5 at a", both, "No test data at b"],
    }
    runs = [run | {"notes": notes.get((run["algorithm"], run["config"]["seed"]), [])} for run in runs]
    said = [
        "FedAP: f was pretrained on pooled images",
        f"FedAP, FedAvg: {both}",
        "FedAP, in seed 0: site-1 was absent",
        "FedAP, in seed 0: site-2 was absent",
        "FedAvg, in seed 0 and alike in 1: epsilon 1.5 at a",
        "FedAvg, in seed 1: No test data at b",
    ]
    comparison = compare(runs)
    assert by_label(comparison)["FedAvg"]["notes"][-1] == {"seed": 1, "alike": [], "text": "No test data at b"}
    assert notes_of(comparison) == said
    below = comparison_markdown(comparison).split("\n\n**")[0].rstrip().split("\n\n")
    assert below[-6:] == said
    stream = io.StringIO()
    Console(file=stream, width=200).print(comparison_table(comparison, 200))
    assert all(line in stream.getvalue() for line in said)


def test_markdown_escapes_what_would_break_the_table(make_run):
    runs = [make_run("fedap", FEDAP[0], name=name) for name in ("x|y", "<b>")]
    lines = comparison_markdown(compare(runs)).splitlines()
    assert "x\\|y" in lines[2]
    assert "&lt;b>" in lines[3]


def test_written_files(runs, tmp_path):
    comparison = compare(runs)
    paths = write_comparison(comparison, tmp_path / "out")
    assert [path.name for path in paths] == ["comparison.json", "comparison.md"]
    assert json.loads(paths[0].read_text()) == comparison
    assert paths[1].read_text() == comparison_markdown(comparison)


def test_a_point_below_is_not_more_than_a_point(make_run):
    runs = [make_run("fedap", {"a": 0.79, "b": 0.789}), make_run("local", {"a": 0.8, "b": 0.8})]
    assert compare(runs)["groups"][0]["to_local"]["below"] == 0.5


def test_how_long_a_server_waited_does_not_tell_runs_apart(make_run):
    waits = {"timeout": 5.0, "grace": 60.0, "min_sites": 1, "device": "cpu"}
    runs = [make_run("fedavg", FEDAVG[0]), make_run("fedavg", FEDAVG[1], seed=1, **waits)]
    assert {label: list(by_seed) for label, by_seed in grouped(runs).items()} == {"FedAvg": [0, 1]}
    two = [make_run("fedavg", FEDAVG[0], grace=grace) for grace in (1.0, 600.0)]
    assert list(grouped(two)) == ["FedAvg (grace=1.0)", "FedAvg (grace=600.0)"]
    more = make_run("fedavg", FEDAVG[1], seed=1, grace=1.0)
    found = grouped([*two, more])  # of one group, though the other has no such seed
    assert {label: list(by_seed) for label, by_seed in found.items()} == {
        "FedAvg (grace=1.0)": [0, 1],
        "FedAvg (grace=600.0)": [0],
    }
    with pytest.raises(UserError, match="is there twice with the same settings"):
        grouped([two[0], two[0]])


def test_each_network_is_beside_its_own_local_training(make_run, tmp_path):
    """The best method's, not the first one's; and no dashed line, which would be one network's."""
    values = (("local", "lenet5", 0.5), ("fedavg", "lenet5", 0.6), ("local", "fcn-1d", 0.8), ("fedavg", "fcn-1d", 0.81))
    runs = [make_run(name, {"a": a, "b": a}, model=model) for name, model, a in values]
    text = write_report(runs, tmp_path / "report.html").read_text()
    assert "mean accuracy, 0.810 (0.810 at its worst site); local training (fcn-1d) reaches 0.800" in text
    assert "the dashed line the mean of local training" not in text


def test_what_stands_for_local_training_is_called_what_it_is(make_run, tmp_path):
    """The model that each site trained alone beside a run is no run of local training, and is not called one."""
    runs = [make_run("fedap", FEDAP[0], LOCAL[0]), make_run("fedavg", FEDAVG[0], LOCAL[0])]
    text = write_report(runs, tmp_path / "report.html").read_text().lower()
    assert "; its own rival reaches 0.85" in text
    assert "the dashed line the mean of each run&#39;s own rival" in text and "local training" not in text
    runs.append(make_run("local", LOCAL[0]))
    text = write_report(runs, tmp_path / "report.html").read_text()
    assert "the dashed line the mean of local training" in text
    assert "To local: to Local training, a run in which each site trains alone." in text


def test_local_variants_alone_beat_no_method(make_run, tmp_path):
    runs = [make_run("local", {"a": a, "b": a}, settings={"lr": lr}) for lr, a in ((0.1, 0.7), (0.2, 0.8))]
    text = write_report(runs, tmp_path / "report.html").read_text()
    assert "has the highest mean accuracy, 0.800" in text and "no federated method does better" not in text


def test_the_note_speaks_of_no_column_that_is_not_there(make_run):
    run = make_run("fedap", FEDAP[0]) | {
        "new": {"models": 2, "pooled": {"accuracy": 0.7, "auroc": 0.8, "n": 9}, "held_out": {}}
    }
    assert "held-out" not in comparison_note(compare([run, make_run("local", LOCAL[0])]))


def test_runs_of_several_states_of_the_package_are_said(runs):
    first, *rest = [run | {"environment": run["environment"] | {"medpfl": "0.1.0"}} for run in runs]
    assert compare([first, *rest])["code"] == []  # of before, which do not say
    rest = [run | {"environment": run["environment"] | {"medpfl_sha256": "b" * 64}} for run in rest]
    assert "states of medpfl's own code" not in comparison_note(compare(rest[-2:]))  # of one state
    assert "(0.1.0 not recorded, 0.1.0 bbbbbbbbbbbb)" in comparison_note(compare([first, *rest]))
    first["environment"] |= {"medpfl_sha256": "a" * 64}
    assert "Runs were made with 2 states of medpfl's own code (0.1.0 aaaaaaaaaaaa, 0.1.0 bbbbbbbbbbbb)" in (
        comparison_note(compare([first, *rest]))
    )


def test_runs_of_several_states_of_a_methods_file_are_said(runs):
    first, *rest = [run | {"environment": run["environment"] | {"code": {"mine": "c" * 64}}} for run in runs]
    assert compare([first, *rest])["code_of_others"] == {"mine": ["c" * 12]}
    assert "states of mine" not in comparison_note(compare([first, *rest]))
    first["environment"] |= {"code": {"mine": "d" * 64, "other": "e" * 64}}
    assert "Runs were made with 2 states of mine (dddddddddddd, cccccccccccc): part of a difference" in (
        comparison_note(compare([first, *rest]))
    )
