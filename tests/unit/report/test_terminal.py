import io
import re

import pytest
from rich.console import Console

from medpfl.errors import UserError
from medpfl.report.compare import compare, comparison_rows
from medpfl.report.terminal import comparison_table, print_run, run_table


def shown(renderable, width=80, color=None):
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=color, force_terminal=color is not None).print(renderable)
    return stream.getvalue()


def cells(text, start):
    return next(line.split() for line in text.splitlines() if line.strip().startswith(start))


def test_every_site_has_its_line_in_80_columns(five):
    text = shown(run_table(five))
    assert "FedAP, organamnist, dirichlet:0.1, lenet5; round 5 of 6" in text
    expected = ["site-3", "100", "0.870", "0.820", "0.930", "[0.910,", "0.950]", "3", "of", "4", "-5.0"]
    assert cells(text, "site-3") == expected
    assert cells(text, "mean") == ["mean", "0.914", "0.864", "0.972", "-2.3"]
    # Deviations of 0.914: 0.016, 0.036, -0.044, -0.004, -0.004; their squares sum to 0.00352, over 4 0.00088.
    assert cells(text, "± sd")[:4] == ["±", "sd", "±", "0.030"]
    assert cells(text, "worst") == ["worst", "0.870", "0.820", "0.930", "-5.5"]
    assert cells(text, "site  ")[:4] == ["site", "n", "test", "accuracy"]
    assert ["site", "site-3", "site-3", "site-3", "site-5"] in [line.split() for line in text.splitlines()]


def test_differences_are_coloured_by_sign(five):
    text = shown(run_table(five), color="standard")
    assert re.search(r"\x1b\[32m *\+1\.0", text)
    assert re.search(r"\x1b\[31m *-5\.0", text)


def test_print_run_ends_with_plain_words(five):
    stream = io.StringIO()
    print_run(five, Console(file=stream, width=120))
    assert stream.getvalue().splitlines()[-1] == (
        "FedAP: 0.914 mean accuracy over 5 sites, 0.023 below local training (worst site site-3 0.870)"
    )


def test_print_run_adds_the_notes(five):
    five["notes"] = ["The model f was [pretrained] on pooled data."]
    stream = io.StringIO()
    print_run(five, Console(file=stream, width=120))
    assert stream.getvalue().splitlines()[-1] == five["notes"][0]


def test_numbers_of_ct_data_are_of_patients(five):
    five["data"]["preprocessing"] = {"size": 224}
    lines = [line.split() for line in shown(run_table(five)).splitlines()]
    assert any(line[:2] == ["patients", "balanced"] for line in lines)
    assert any(line[:2] == ["site", "test"] for line in lines)
    assert cells(shown(run_table(five)), "site-3")[:3] == ["site-3", "100", "0.870"]


def test_no_difference_column_without_or_for_local_training(make_run):
    assert "to local" not in shown(run_table(make_run("fedap", {"a": 0.9})))
    assert "to local" not in shown(run_table(make_run("local", {"a": 0.9}, {"a": 0.9})))


def test_many_sites_show_the_ten_worst(make_run):
    accuracy = {f"site-{i}": 0.5 + i / 100 for i in range(40)}
    text = shown(run_table(make_run("fedap", accuracy, accuracy)))
    assert "the 10 sites with the lowest accuracy, of 40" in text
    assert cells(text, "site-9")[2] == "0.590"
    assert "site-10" not in text
    assert cells(text, "mean")[1] == "0.695"


def test_nulls_and_markup_in_names(empty, make_run):
    assert cells(shown(run_table(empty)), "a ") == ["a", "100", "–", "–", "–", "–"]
    assert "[b]x[/b] " in shown(run_table(make_run("fedap", {"[b]x[/b]": 0.9}, {"[b]x[/b]": 0.8})))


def test_a_running_run_has_no_table(running):
    with pytest.raises(UserError, match="has not ended"):
        run_table(running)


def test_comparison(twenty):
    text = shown(comparison_table(compare(twenty), 80))
    assert cells(text, "Local training")[:4] == ["Local", "training", "0.942", "0.904"]
    assert len(cells(text, "FedAP")) == len(["name", "acc", "worst", "local", "n", "of", "m", "avg", "auc", "round"])
    assert "one seed (0)" in " ".join(text.split())


@pytest.fixture
def eight(make_run):
    """Local training and FedAvg of two networks and four variants with long labels; with AUC at held-out centres."""
    groups = [(name, {"model": model}) for name in ("local", "fedavg") for model in ("vit-tiny", "resnet32")]
    groups += [
        ("vit-heads", {"model": "vit-tiny", "settings": {"p": p, "consistency": c}}) for p in (0.2, 0.4) for c in (0, 2)
    ]
    runs = []
    for index, (algorithm, config) in enumerate(groups):
        for seed in range(3):
            accuracy = {f"site-{i}": 0.8 + 0.01 * i - 0.013 * index + 0.011 * seed * (i - 2) for i in range(5)}
            run = make_run(algorithm, accuracy, seed=seed, **config)
            auroc = 0.9 + 0.01 * seed
            run["new"] = {"models": 5, "pooled": {"auroc": auroc}, "held_out": {"north": {"auroc": auroc - 0.1}}}
            runs.append(run)
    return compare(runs)


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_every_number_that_is_shown_is_whole(eight, width):
    heads, rows = comparison_rows(eight)
    assert "ViT heads (vit-tiny, consistency=0, p=0.2)" in [row[0] for row in rows]
    table = comparison_table(eight, width)
    names = [column.header for column in table.columns]
    lines = shown(table, width=width).splitlines()
    assert not any("…" in line or len(line) > width for line in lines)
    rule = next(i for i, line in enumerate(lines) if set(line.strip()) == {"─"})
    # Each column's text, from where it stands: all its cells, one below the other.
    end = 0
    for column in table.columns:
        start, end = end + (2 if end else 0), end + (2 if end else 0) + column.width
        found = "".join(line[start:end].strip() for line in lines[rule + 1 :])
        expected = "".join(row[heads.index(column.header)] for row in rows)
        assert found.replace(" ", "").startswith(expected.replace(" ", "")), column.header
    text = " ".join(" ".join(lines).split())
    left = [head for head in heads if head not in names]
    assert ("Only in comparison.md: " + ", ".join(left) + "." in text) == bool(left)


def test_the_head_over_short_labels_is_whole(make_run):
    table = comparison_table(compare([make_run("fedap", {"a": 0.9})]), 80)
    assert "Algorithm" in shown(table)


def test_the_columns_that_matter_most_come_first(eight):
    shown_at = {width: [column.header for column in comparison_table(eight, width).columns] for width in (40, 80, 200)}
    assert shown_at[40] == ["Algorithm", "Accuracy", "Worst site", "AUC"]
    assert {"Worst site", "To local (points)", "New AUC", "Held-out AUC", "Better than local"} < set(shown_at[80])
    assert shown_at[200] == comparison_rows(eight)[0]
