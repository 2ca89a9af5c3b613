"""``medpfl advise``: from options, from numbers, and what it refuses; nothing is trained."""

import json
import subprocess
import sys

import pytest
import torch
from PIL import Image

import medpfl
from medpfl.config.run import make_config
from medpfl.core.permitted_code import permit
from medpfl.report.advice.regimes import shipped

COUNTS = "site,train,validation,test\nnorth,73,10,40\nsouth,20,3,9\n"


def hospital(site: str, seed: int) -> medpfl.ImageTensors:
    parts, own = ("train", "validation", "test"), 0 if site == "site-1" else 2
    return medpfl.ImageTensors(
        images={part: torch.zeros(6, 1, 8, 8) for part in parts}, labels={part: torch.full((6,), own) for part in parts}
    )


def said(done):
    return " ".join(done.stdout.split())


def test_of_options(medpfl, tmp_path):
    done = medpfl("advise", "--sites", 5, "--partition", "iid", "--json", tmp_path / "a.json")
    words, content = said(done), json.loads((tmp_path / "a.json").read_text())
    assert "The regime: 5 sites with some hundred training samples each (median 380), much the same classes" in words
    assert "images that look alike at all sites" in words
    assert "for other images, networks, schedules or sites they promise nothing" in words
    assert "20 rounds of 1 epoch, SGD, learning rate 0.01; network lenet5" in words
    assert content["features"]["sites"] == 5 and content["features"]["skew"] < 0.05
    assert content["sites"]["site-1"]["train"] == 380 and sum(content["sites"]["site-1"]["classes"].values()) == 760
    [answer] = content["answers"]
    assert answer["rests_on"].keys() <= {regime.name for regime in shipped().regimes}
    assert answer["by_mean"] in {row["title"] for row in answer["rows"]}
    skewed = said(medpfl("advise", "--partition", "equal-dirichlet:0.05", "--train-fraction", 0.2))
    assert "very different classes" in skewed and "few training samples" in skewed


def test_of_numbers_alone_for_even_and_for_skewed_labels(medpfl, tmp_path):
    (tmp_path / "counts.csv").write_text(COUNTS)
    words = said(medpfl("advise", "--counts", "counts.csv", "--shift", cwd=tmp_path))
    assert "north 73 10 40 –" in words
    assert "If the sites have much the same classes (label skew 0)" in words
    assert "If the sites have very different classes (label skew 0.8)" in words
    assert "images that look different from site to site" in words


def test_of_masks_classes_are_no_label_skew(medpfl, tmp_path):
    """As of a run: no regime of masks knows one, so that it would be said and count for nothing."""
    (tmp_path / "counts.csv").write_text(
        "site,train,validation,test,class:a,class:b\nnorth,73,10,40,73,0\nsouth,73,10,40,3,70\n"
    )
    words = said(medpfl("advise", "--counts", "counts.csv", "--task", "segmentation", "--json", "a.json", cwd=tmp_path))
    assert "north 73 10 40 –" in words and "label skew" not in words.partition("The nearest regimes")[0]
    content = json.loads((tmp_path / "a.json").read_text())
    assert content["features"]["skew"] is None and content["answers"][0]["skew"] is None


def test_numbers_need_no_torch(tmp_path):
    (tmp_path / "counts.csv").write_text(COUNTS)
    program = (
        "import sys; sys.argv = ['medpfl', 'advise', '--counts', 'counts.csv']\n"
        "from medpfl.cli.main import app\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "print({'torch', 'nvflare', 'monai', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.endswith("set()\n"), done.stdout + done.stderr
    assert "The regime: 2 sites" in done.stdout


def test_of_ones_own_loaders(medpfl):
    permit("test_advise")
    done = medpfl("advise", "--data", "test_advise:hospital", "--sites", 2)
    assert "2 sites with few training samples each (median 6), very different classes (label skew 1.00)" in said(done)
    assert "--shift or --no-shift" in said(done)


def test_of_another_task_it_says_that_it_knows_nothing(medpfl, tmp_path):
    words = "There is no advice for {}: our benchmarks are of classification"
    (tmp_path / "preset.yml").write_text("task: ordinal\n")
    done = medpfl("advise", "--preset", "preset.yml", "--json", "a.json", cwd=tmp_path)
    assert words.format("ordinal") in said(done) and json.loads((tmp_path / "a.json").read_text())["answers"] == []
    results = {
        "schema": 3,
        "algorithm": "fedbn",
        "config": {"task": "multi-label"},
        "data": {"sites": {}},
        "rounds": [],
    }
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert words.format("multi-label") in said(medpfl("advise", "--counts", tmp_path))


def test_of_masks_it_tells_of_hospitals(medpfl, tmp_path):
    found = said(medpfl("advise", "--data", "sarcoma-sample", "--json", "a.json", cwd=tmp_path))
    assert "points of Dice over training alone" in found and "label skew" not in found.split("distance of 1")[0]
    (tmp_path / "counts.csv").write_text(COUNTS)
    assert "of Dice over" in said(medpfl("advise", "--counts", "counts.csv", "--task", "segmentation", cwd=tmp_path))
    assert json.loads((tmp_path / "a.json").read_text())["answers"][0]["measure"] == "dice"


def test_data_are_read_as_the_arguments_say(medpfl, tmp_path):
    for number in (1, 2):
        for name in "ab":
            Image.new("L", (8 * number, 8), 40 * number).save(_in(tmp_path / "data" / f"s{number}" / name) / "1.png")
            Image.new("L", (8 * number, 8), 50 * number).save(tmp_path / "data" / f"s{number}" / name / "2.png")
    done = medpfl("advise", "--data", "data", "--data-arg", "size=16", "--data-arg", "channels=grey", cwd=tmp_path)
    assert "The regime: 2 sites" in said(done)


def _in(folder):
    folder.mkdir(parents=True)
    return folder


def test_a_preset_of_a_run_will_do(medpfl, tmp_path):
    (tmp_path / "preset.yml").write_text("rounds: 500\nsites: 4\npartition: iid\nsettings:\n  lr: 0.1\n")
    assert "The regime: 4 sites" in said(medpfl("advise", "--preset", "preset.yml", cwd=tmp_path))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--counts nowhere.csv", "nowhere.csv: no such file"),
        ("--counts counts.csv --sites 3", "--sites has no meaning with --counts"),
        ("--counts counts.csv --preset x.yml", "--preset has no meaning with --counts"),
        ("--counts counts.csv --json .", "--json .: cannot be written"),
        ("--data nothing-here.npz", "nothing-here.npz"),
        ("--sites 1", "two sites or more"),
        ("--partition dirichlet:-1", "is not a positive number"),
    ],
)
def test_mistakes_are_named(medpfl, tmp_path, arguments, words):
    (tmp_path / "counts.csv").write_text(COUNTS)
    done = medpfl("advise", *arguments.split(), cwd=tmp_path, check=False)
    assert done.returncode == 2 and words in done.stderr, done.stdout + done.stderr


def test_the_commands_that_it_names_are_runs():
    commands = {row.command for regime in shipped().regimes for row in regime.rows if row.command}
    assert commands
    for command in commands:
        algorithm, *rest = command.split()
        options = list(zip(rest[::2], rest[1::2], strict=True))
        assert {name for name, _ in options} <= {"--set", "--use"}
        settings = {k: float(v) for name, text in options if name == "--set" for k, v in [text.split("=")]}
        make_config(algorithm=algorithm, settings=settings, use=dict(options).get("--use"))
