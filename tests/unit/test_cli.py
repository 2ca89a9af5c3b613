"""What a user sees who makes a mistake: a line that says what is wrong and what would be right, never a traceback."""

import os
import re
import subprocess
import sys

import pytest
import typer

from medpfl.algorithms import mixings
from medpfl.cli.main import app
from medpfl.config.fields import DATA, FAULTS, METHOD, OPTIONS, PLACE, RUN, TRAINING, default_in_words, flag_of
from medpfl.config.run import RunConfig


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("run fedapp", "did you mean fedap"),
        ("run FedProx", "unknown algorithm 'FedProx': did you mean fedprox? ("),
        ("run lg_fedavg", "did you mean lg-fedavg? ("),
        ("run FedHealth2", "did you mean fedap or d-fedap or f-fedap? ("),
        ("run f-fedhealth2", "did you mean f-fedap? ("),
        ("run fedavg --mixing similarity --model monai:ViT --model-arg patch_size=7", "has none"),
        ("run fedbn --model monai:ViT --model-arg patch_size=7", "no batch-norm layer"),
        ("run fedbn --model monai:DenseNet121", "choose larger images"),
        ("run fedavg --set lambda=0.3", "setting 'lambda' has no meaning for fedavg"),
        ("run fedavg --mixing unifrom", "unknown mixing 'unifrom' (did you mean uniform?): use "),
        ("run fedavg --set learning_rate=0.1", "(did you mean lr?)"),
        ("run fedavg --set finetune_epoch=5", "(did you mean finetune_epochs?)"),
        ("run fedavg --set nothing=1", "it can take up: "),
        ("run fedavg --set lr", "give KEY=VALUE"),
        ("run local --mixing samples", "local training shares and mixes nothing"),
        ("run fedavg --data nothing-here.npz", "nothing-here.npz"),
        ("run fedavg --data nothing-here --data-arg size=64", "nothing-here: there is no file or folder of that name"),
        ("run fedavg --data no/folder --data-arg size=64", "--data no/folder: there is no such file or folder"),
        ("run fedavg --data no/folder --task segmentation", "--data no/folder: there is no such file or folder"),
        ("run fedavg --data no/folder --pooling attention", "--data no/folder: there is no such file or folder"),
        ("run fedavg --data no/folder --data-arg classes=a,b", "--data no/folder: there is no such file or folder"),
        ("run fedavg --data bloodmnist", "medpfl data prepare bloodmnist"),
        ("run fedavg --sites 100000", "100000"),
        ("run fedavg --partition dirichlet:-1", "is not a positive number"),
        ("run fedavg --fractions 0.5,0.5", "give three shares"),
        ("run fedavg --device cuda", "sees no GPU here"),
        ("run fedavg --env real", "use sim, inprocess, poc or prod"),
        ("compare fedavg --env poc", "use sim or inprocess"),
        ("run fedavg --env prod", "give --kit"),
        ("run fedavg --env prod --kit . --threads 2", "--threads is for runs where one machine has all"),
        ("run fedavg --env prod --kit . --new-test", "--new-test is for runs where one machine has all"),
        ("run fedavg --env prod --kit . --held-out 1", "only a simulation can test held-out centres"),
        ("run fedavg --kit .", "--kit is for runs where the sites are real"),
        ("run fedavg --env poc --gpus 1", "--gpus is for runs where the sites are real"),
        ("run fedavg --join . --env poc", "there is no run in it"),
        ("run fedavg --join . --env prod", "give --kit"),
        ("run fedavg --join . --env sim --kit kit", "--kit is for runs where the sites are real"),
        ("run fedavg --join . --no-new-test", "--new-test has no meaning with --join"),
        ("run fedavg --join . --resume", "--resume has no meaning with --join"),
        ("run fedavg --join . --track mlflow", "--track has no meaning with --join"),
        ("run fedap --set pretrain=no-such-file", "no file"),
        ("compare fedavg --set mu2=1", "has such a setting"),
        ("compare fedap:mixing", "KEY=VALUE"),
        ("compare fedavg vit-heads:model=resnet32 --out out", "vit-heads_model=resnet32: "),
        ("export fedavg --job job --partition file:parts.json --sites 2", "cannot carry a path"),
        ("export fedavg --job . --sites 2", "what is there is no job of that name"),
        ("report nowhere", "nowhere"),
    ],
)
def test_mistakes_are_named(medpfl, tmp_path, arguments, said):
    if "cuda" in arguments:
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("there is a GPU here")
    done = medpfl(*arguments.split(), cwd=tmp_path, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 2
    assert not (tmp_path / "job").exists()


@pytest.mark.slow
def test_a_mistake_in_a_process_of_its_own(medpfl, tmp_path):
    done = medpfl("run", "fedapp", cwd=tmp_path, check=False, own=True)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("medpfl: ") and "did you mean fedap" in line


def test_a_broken_start_image_is_named_before_any_training(medpfl, tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "one.png").write_bytes(b"no image")
    options = "--model lenet5 --sites 2 --set start=images --env inprocess --device cpu --out out"
    done = medpfl("run", "fedimpres", *options.split(), cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "images/one.png: cannot be read" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "state").exists()


@pytest.mark.parametrize(("job", "said"), [("notes", "no job of that name"), ("notes/job", "cannot be made a folder")])
def test_a_job_that_would_take_the_place_of_something_else(medpfl, tmp_path, job, said):
    (tmp_path / "notes").write_text("mine")
    done = medpfl("export", "fedavg", "--job", job, "--sites", "2", cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [f.name for f in tmp_path.iterdir()] == ["notes"]
    assert (tmp_path / "notes").read_text() == "mine"


def test_space_in_the_folder_of_a_simulation(medpfl, tmp_path):
    done = medpfl("run", "fedavg", "--sites", "2", "--out", tmp_path / "a b", check=False)
    assert done.returncode == 2
    assert "space" in done.stderr


def test_help_begins_with_what_a_newcomer_needs_and_is_quick():
    command = [sys.executable, "-m", "medpfl.cli.main", "run", "--help"]
    environment = os.environ | {"COLUMNS": "80"}
    shown = subprocess.run(command, capture_output=True, text=True, env=environment).stdout
    first = shown.split("╭─ Data ─")[0]
    assert re.findall(r"│ (--[a-z-]+)", first) == [
        "--data",
        "--sites",
        "--rounds",
        "--env",
        "--out",
        "--preset",
        "--help",
    ]
    assert re.findall(r"╭─ (.+?) ─", shown)[2:] == [DATA, METHOD, TRAINING, RUN, PLACE, FAULTS]
    assert max(map(len, shown.splitlines())) == 80
    program = "import sys, medpfl.cli.main; print({'torch', 'nvflare', 'monai', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"


def test_every_field_of_a_run_is_an_option_unless_it_is_said_otherwise():
    of_line = {p.name for p in typer.main.get_command(app).commands["run"].params}
    assert set(RunConfig.model_fields) - of_line == {"names", "intra_op_threads"}
    words = re.split(r"[,.] ?", OPTIONS["mixing"].description)
    assert sorted(filter(None, words)) == sorted(mixings())
    assert [flag_of(name) for name in ("settings", "names", "data_args", "held_out")] == [
        "--set",
        "--sites",
        "--data-arg",
        "--held-out",
    ]
    defaults = {"seed": "0", "train_fraction": "1", "timeout": "3600", "rounds": "20, or the method's", "mixing": ""}
    assert {name: default_in_words(name) for name in defaults} == defaults


def test_lists(medpfl):
    algorithms, models, data = medpfl("algorithms"), medpfl("models"), medpfl("data", "list")
    assert "fedap" in algorithms.stdout
    assert "vit-heads brings its own defaults: model vit-tiny, rounds 50, local epochs 3," in algorithms.stdout
    assert "fedblend brings its own defaults: momentum=0.9." in algorithms.stdout
    assert "nesterov=0" in algorithms.stdout
    assert "lenet5" in models.stdout
    assert "organamnist" in data.stdout


def test_data_check_says_whether_a_set_can_be_used(medpfl, tmp_path):
    good = medpfl("data", "check", "organamnist-sample")
    assert "3,800 grey images" in good.stdout
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04 not much of an archive")
    bad = medpfl("data", "check", tmp_path / "torn.npz", check=False)
    assert bad.returncode == 1
    assert "torn.npz" in bad.stdout


def test_a_run_that_is_to_go_on_and_to_begin_anew_is_not_said_to_begin(medpfl, tmp_path):
    done = medpfl("run", "fedbn", "--resume", "--overwrite", "--out", tmp_path / "run", check=False)
    assert done.returncode == 2 and "give one of them" in done.stderr and "it begins" not in done.stderr


def test_a_run_of_which_only_damaged_states_are_left_says_so(medpfl, tmp_path):
    arguments = ["run", "fedbn", "--sites", 2, "--rounds", 1, "--train-fraction", 0.1, "--env", "inprocess"]
    arguments += ["--alone", "no", "--out", tmp_path / "run"]
    begun = medpfl(*arguments, "--resume")
    assert f"{tmp_path / 'run'}: there is no run yet to resume; it begins" in begun.stderr
    (model,) = (tmp_path / "run" / "state" / "site-1").glob("model-*.safetensors")
    model.write_bytes(model.read_bytes()[:100])
    for gone in ("results.json", "models/site-1.safetensors"):
        (tmp_path / "run" / gone).unlink()
    done = medpfl(*arguments, "--resume", check=False)
    assert done.returncode == 2 and "no run yet" not in done.stderr
    assert "model-000001.safetensors is damaged" in done.stderr
    assert "begin the run anew (--overwrite)" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_compare_shows_local_and_resumes(medpfl, tmp_path):
    arguments = ["compare", "fedbn", "fedap:mixing=uniform", "--sites", 2, "--rounds", 1, "--seeds", "1,4"]
    first = medpfl(*arguments, "--train-fraction", 0.1, "--out", tmp_path)
    assert "fedbn, seed 4: testing" in first.stderr
    table = (tmp_path / "comparison.md").read_text()
    for name in ("Local training", "FedBN", "FedAP (mixing=uniform)"):
        assert f"| {name} |" in table
    assert "seeds 1, 4." in table and (tmp_path / "fedbn" / "seed-4" / "results.json").is_file()
    again = medpfl(*arguments, "--train-fraction", 0.1, "--out", tmp_path)
    assert "testing" not in again.stderr
    assert (tmp_path / "comparison.md").read_text() == table


def test_what_is_run_where_no_algorithm_is_named_is_this_packages_own():
    from medpfl import algorithms
    from medpfl.cli.run import DEFAULT

    assert DEFAULT == algorithms.DEFAULT == algorithms.algorithm(DEFAULT).name


def test_what_is_piped_begins_with_the_answer_and_ends_with_the_whole_path(medpfl, tmp_path):
    small = ("--sites", 2, "--rounds", 1, "--train-fraction", 0.1, "--set", "finetune_steps=2")
    done = medpfl("run", *small, "--env", "inprocess", "--out", tmp_path / "[red]a")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Taking part ")
    assert lines[-1] == f"Report: {tmp_path}/[red]a/report.html"
    assert "fedblend: training further, choosing and testing" in done.stderr


def test_a_sign_that_the_terminals_encoding_lacks_is_a_question_mark(medpfl):
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = medpfl("data", "list", env=os.environ | ascii_only, own=True)
    assert done.stderr == ""
    assert "?" in done.stdout and "organamnist" in done.stdout
