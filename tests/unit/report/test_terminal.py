import inspect
import io
import re

import pytest
from rich.console import Console

from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.engine.progress import Progress
from medpfl.report.compare_table import comparison_rows
from medpfl.report.progress import progress, progress_of
from medpfl.report.run_table import run_table
from medpfl.report.side_by_side import compare
from medpfl.report.terminal import comparison_table, print_run
from medpfl.report.terminal_joined import print_joined
from medpfl.tasks import TASKS


def shown(renderable, width=80, color=None):
    stream = io.StringIO()
    colored = color is not None
    Console(file=stream, width=width, color_system=color, force_terminal=colored, no_color=not colored).print(
        renderable
    )
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
        "FedAP: 0.914 mean accuracy over 5 sites, 0.023 below training alone (worst site site-3 0.870)"
    )


def test_print_run_adds_the_notes(five):
    five["notes"] = ["The model f was [pretrained] on pooled data."]
    stream = io.StringIO()
    print_run(five, Console(file=stream, width=120))
    assert stream.getvalue().splitlines()[-1] == five["notes"][0]


def test_a_terminal_obeys_nothing_of_what_sites_wrote(five):
    five["notes"] = ["site-2: \x1b]0;title\x07 \x1b[2Jgone [red]x[/red]"]
    five["data"]["name"] = "set\x1b[8m"
    five["data"]["sites"][next(iter(five["data"]["sites"]))]["centre"] = "no\x9b31mrth"
    stream = io.StringIO()
    print_run(five, Console(file=stream, width=300, force_terminal=False))
    text = stream.getvalue()
    assert not [c for c in text if not (c.isprintable() or c == "\n")]
    assert r"site-2: \x1b]0;title\x07 \x1b[2Jgone [red]x[/red]" in text
    assert r"set\x1b[8m" in text and r"no\x9b31mrth" in text


def test_numbers_of_ct_data_are_of_patients(five):
    five["data"]["preprocessing"] = {"size": 224}
    for site in five["data"]["sites"].values():
        site["test"] = 60  # patients, some with scans of two classes
    assert "patients" not in shown(run_table(five)) and "n test" in shown(run_table(five))
    for site in five["data"]["sites"].values():
        site["test"] = 100
    lines = [line.split() for line in shown(run_table(five)).splitlines()]
    assert any(line[:2] == ["patients", "balanced"] for line in lines)
    assert any(line[:2] == ["site", "test"] for line in lines)
    assert cells(shown(run_table(five)), "site-3")[:3] == ["site-3", "100", "0.870"]


def test_no_difference_column_without_or_for_local_training(make_run):
    assert "to alone" not in shown(run_table(make_run("fedap", {"a": 0.9})))
    assert "to alone" not in shown(run_table(make_run("local", {"a": 0.9}, {"a": 0.9})))


def test_many_sites_show_the_ten_worst(make_run):
    accuracy = {f"site-{i}": 0.5 + i / 100 for i in range(40)}
    text = shown(run_table(make_run("fedap", accuracy, accuracy)))
    assert "the 10 sites with the lowest accuracy, of 40" in text
    assert cells(text, "site-9")[2] == "0.590"
    assert "site-10" not in text
    assert cells(text, "mean")[1] == "0.695"


LONG = ("north-university-hospital", "south-clinic", "saint-elsewhere-medical-center-2")


def site_column(lines, width):
    """What stands in the first column, the pieces of a name put together again."""
    return "".join(line[1 : 1 + width].strip() for line in lines if line.startswith(" "))


def test_long_names_are_whole_and_broken_where_they_can_be(make_run):
    accuracy = {name: 0.8 + 0.03 * i for i, name in enumerate(LONG)}
    lines = shown(run_table(make_run("fedap", accuracy, dict.fromkeys(LONG, 0.9)))).splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    found = site_column(lines, 15)
    assert all(name in found for name in LONG)
    assert cells("\n".join(lines), "north-")[:4] == ["north-", "100", "0.800", "0.750"]
    assert cells("\n".join(lines), "hospital") == ["hospital"]
    text = " ".join(" ".join(lines).split())
    assert "worst in accuracy, balanced accuracy, AUC, to alone: north-university-hospital" in text
    assert "alone: the model that the site trained alone beside the run" in text


def test_wide_terminals_break_no_name(make_run):
    accuracy = dict.fromkeys(LONG, 0.8)
    text = shown(run_table(make_run("fedap", accuracy, accuracy), 120), width=120)
    assert cells(text, LONG[2])[:6] == [LONG[2], "100", "0.800", "0.750", "0.860", "[0.840,"]


def joined_of(**tested):
    """A report on joined sites with so many test samples each."""
    measured = {"accuracy": 0.8, "auroc": 0.9}
    ways = ("received", "adapted", "alone")
    own = {"epoch": 3, "samples": {"train": 90, "validation": 20}}
    return {
        "run": {"algorithm": "fedap", "rounds": 20, "sites": 5},
        "epochs": 5,
        "sites": {name: {**own, **{w: measured | {"n": n} for w in ways}} for name, n in tested.items()},
        "mean": dict.fromkeys(ways, measured),
        "rules": {"shared": {"what": "a", "why": "b"}, "personal": []},
    }


def printed(joined):
    stream = io.StringIO()
    print_joined(joined, Console(file=stream, width=80))
    return stream.getvalue()


def test_joined_sites_with_long_names():
    text = printed(joined_of(**dict.fromkeys(LONG, 400)))
    assert "…" not in text
    assert all(name in site_column(text.splitlines(), 11) for name in LONG)
    assert cells(text, "clinic") == ["clinic"]
    assert cells(text, "south-")[:2] == ["south-", "400"]


def test_joined_sites_with_few_test_samples_are_named():
    text = printed(joined_of(north=25, south=400))
    assert cells(text, "north")[:2] == ["north", "25"]
    # 0.5 / sqrt(25) is 0.1.
    assert "caution: north 25; with 25 the standard error of an accuracy is up to 10 points." in text
    assert "caution" not in printed(joined_of(north=100, south=400))


def test_joined_sites_without_validation_samples_are_named():
    joined = joined_of(north=400, south=400)
    assert "No validation" not in printed(joined)
    joined["sites"]["south"]["samples"] = {"train": 90, "validation": 0}
    assert "none told: south. Without any the last epoch is kept.\n" in printed(joined)
    joined["mean"]["used"] = joined["mean"]["alone"]
    assert "the last epoch is kept, and a site uses the model that it trained alone.\n" in printed(joined)


def test_adapted_and_alone_are_compared_at_the_sites_that_tell_of_both():
    joined = joined_of(north=400, south=400)
    joined["sites"]["north"]["adapted"]["accuracy"] = 0.9
    joined["sites"]["south"]["adapted"] = {"accuracy": 0.5, "auroc": 0.5, "n": 400}
    joined["sites"]["south"]["alone"] = None
    joined["mean"]["adapted"] = {"accuracy": 0.7, "auroc": 0.7}
    text = " ".join(printed(joined).split())
    assert "Adapted against alone, mean accuracy: +10.0 points, over the 1 of 2 sites that tell of both" in text


@pytest.mark.parametrize("width", [80, 100])
def test_what_a_joined_site_uses_fits_into_the_line(width):
    joined = joined_of(north=400)
    for of in (*joined["sites"].values(), joined["mean"]):
        of["used"] = {"accuracy": 0.85, "auroc": 0.95, "n": 400}
    stream = io.StringIO()
    print_joined(joined, Console(file=stream, width=width))
    text = stream.getvalue()
    figures = ["0.800", "0.800", "0.800", "0.850"]
    others = ["0.900", "0.900", "0.900", "0.950"] if width == 100 else []
    assert cells(text, "north") == ["north", "400", *figures, *others, "3", "of", "5"]
    assert ("Only in join.json: AUC." in text) == (width == 80)
    told = "Used against alone, mean accuracy: +5.0 points. Alone is 5 epochs at most from the run's first model"
    assert told in " ".join(text.split())


def with_escapes(value):
    """Results in which every text ends with what would rename a terminal's window."""
    if isinstance(value, dict):
        return {name: with_escapes(v) for name, v in value.items()}
    if isinstance(value, list):
        return [with_escapes(v) for v in value]
    return f"{value}\x1b]0;mine\x07" if isinstance(value, str) else value


def test_nothing_in_results_is_an_order_to_a_terminal(five, make_run):
    five["measures"] = [measure.described() for measure in TASKS["classification"].measures]
    stream, known = io.StringIO(), ("better", "interval", "name")
    hostile = with_escapes(five)
    for measure, was in zip(hostile["measures"], five["measures"], strict=True):
        measure.update({name: was[name] for name in known})
    print_run(hostile, Console(file=stream, width=100))
    other = with_escapes(make_run("fedprox", {"site-1": 0.9})) | {"measures": hostile["measures"]}
    text = stream.getvalue() + shown(comparison_table(compare([other]), 200))
    assert "\x1b" not in text and "\\x1b]0;mine" in text


def test_nulls_and_markup_in_names(empty, make_run):
    assert cells(shown(run_table(empty)), "a ") == ["a", "100", "–", "–", "–", "–"]
    assert "[b]x[/b] " in shown(run_table(make_run("fedap", {"[b]x[/b]": 0.9}, {"[b]x[/b]": 0.8})))


def test_a_running_run_has_no_table(running):
    with pytest.raises(UserError, match="has not ended"):
        run_table(running)


def test_comparison(twenty):
    text = shown(comparison_table(compare(twenty), 80))
    assert cells(text, "Local training")[:4] == ["Local", "training", "0.942", "0.904"]
    assert len(cells(text, "FedAP")) == len(
        ["name", "acc", "worst", "local", "worst", "below", "n", "of", "m", "auc", "round"]
    )
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
    names = [str(column.header) for column in table.columns]
    lines = shown(table, width=width).splitlines()
    assert not any("…" in line or len(line) > width for line in lines)
    rule = next(i for i, line in enumerate(lines) if set(line.strip()) == {"─"})
    # Each column's text, from where it stands: all its cells, one below the other.
    end = 0
    for column in table.columns:
        start, end = end + (2 if end else 0), end + (2 if end else 0) + column.width
        found = "".join(line[start:end].strip() for line in lines[rule + 1 :])
        expected = "".join(row[heads.index(str(column.header))] for row in rows)
        assert found.replace(" ", "").startswith(expected.replace(" ", "")), column.header
    text = " ".join(" ".join(lines).split())
    left = [*(head for head in heads if head not in names), "against training alone", "each method against each"]
    assert "Only in comparison.md: " + ", ".join(left) + "." in text


def test_the_head_over_short_labels_is_whole(make_run):
    table = comparison_table(compare([make_run("fedap", {"a": 0.9})]), 80)
    assert "Algorithm" in shown(table)


def test_the_columns_that_matter_most_come_first(eight):
    shown_at = {
        width: [str(column.header) for column in comparison_table(eight, width).columns] for width in (40, 80, 120, 200)
    }
    assert shown_at[40] == ["Algorithm", "Accuracy", "Worst site", "AUC"]
    assert {"Worst site", "To local (points)", "Worst site's difference to local (points)", "New AUC"} < set(
        shown_at[80]
    )
    assert {"Held-out AUC", "Sites more than a point below local", "Better than local"} < set(shown_at[120])
    assert shown_at[200] == comparison_rows(eight)[0]


@pytest.mark.parametrize(
    ("asked", "end"),
    [
        ({"algorithm": "fedavg"}, "testing"),
        ({"algorithm": "fedavg", "settings": {"finetune_steps": 20}}, "training further and testing"),
        ({"algorithm": "fedavg", "use": "best"}, "choosing and testing"),
        ({"algorithm": "fedblend"}, "training further, choosing and testing"),
    ],
)
def test_the_end_of_a_run_is_called_by_what_sites_do_there(asked, end):
    stream = io.StringIO()
    with progress_of(Console(file=stream, width=80), "run", make_config(**asked)) as watch:
        watch(Progress("test", 20))
    assert stream.getvalue() == f"run: {end}\n"


def test_the_bar_has_time_left_until_the_ending_is_over():
    stream = io.StringIO()
    with progress(Console(file=stream, width=120, force_terminal=True), "run", 2, "choosing and testing") as watch:
        bar = inspect.getclosurevars(watch).nonlocals["bar"]
        found = []
        for phase, round_, answered in [("train", 1, 1), ("test", 2, 0), ("test", 2, 1), ("test", 2, 2)]:
            watch(Progress(phase, round_, answered, 2))
            found.append((bar.tasks[0].percentage, bar.tasks[0].finished))
    assert found == [(50.0, False), (pytest.approx(200 / 3), False), (pytest.approx(250 / 3), False), (100.0, True)]
    assert "choosing and testing, 2/2 sites" in stream.getvalue() and "round 2/2" in stream.getvalue()


def test_lines_of_progress_name_who_is_waited_for_once_a_round():
    stream = io.StringIO()
    moments = [Progress("train", 1), Progress("train", 1, 2, 3), *[Progress("train", 1, 2, 3, "for east")] * 2]
    with progress(Console(file=stream, width=80), "run", 4) as watch:
        for moment in [*moments, Progress("train", 2)]:
            watch(moment)
    first, late, second = stream.getvalue().splitlines()
    assert first.startswith("run: round 1/4, ") and second.startswith("run: round 2/4, ")
    assert late == "run: training: for east"


def test_lines_of_progress_count_sites_where_a_step_takes_long_and_say_what_the_rounds_do_not_take(monkeypatch):
    """Also where nobody saw the first round before it had an answer, as of a job that is asked now and then."""
    seconds = iter([0, 1, 5, 7, 10, 16, 30, 31, 45, 46])  # the rounds begin at 5
    monkeypatch.setattr("medpfl.report.progress.time.monotonic", lambda: next(seconds))
    first = [("prepare", 0, 0), ("train", 0, 1), ("train", 0, 2)]
    steps = [*first, ("train", 1, 0), ("train", 1, 1), ("train", 1, 2), ("test", 2, 0)]
    stream = io.StringIO()
    with progress(Console(file=stream, width=80), "run", 2, "training further and testing") as watch:
        for phase, round_, answered in [*steps, ("test", 2, 1), ("test", 2, 2)]:
            watch(Progress(phase, round_, answered, 3))
    assert stream.getvalue().splitlines() == [
        "run: preparing sites",
        "run: round 1/2, 5 s, about 5 s to the last, then training further and testing",
        "run: round 2/2, 2/3 sites",
        "run: training further and testing",
        "run: training further and testing, 1/3 sites",
    ]
