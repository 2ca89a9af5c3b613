"""Options from a file: what outweighs what, what a user reads who makes a mistake, and the presets that there are."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from medpfl.cli.main import app
from medpfl.cli.options import Options
from medpfl.config.fields import OPTIONS
from medpfl.config.preset import read_preset
from medpfl.core.errors import UserError

ROOT = Path(__file__).parents[2]
PRESETS = sorted((ROOT / "app_config" / "presets").iterdir())
HEADS = "rounds: 7\nsettings: {lr: 0.1, weight_decay: 5e-4, p: 0.4}\ndata_args: {pad: 32}\nsites: [north, south]\n"


@pytest.fixture
def preset(tmp_path):
    def write(text):
        (tmp_path / "mine.yml").write_text(text)
        return tmp_path / "mine.yml"

    return write


def read(command, name, words):
    """What typer makes of a command's words, without running it."""
    params = command.make_context(name, words).params
    preset = params.get("preset")
    return params | ({"preset": Path(preset)} if preset else {})  # not every version has made a path of it here


def options_of(command):
    """The algorithm and the options of a command line."""
    _, name, *words = shlex.split(command)
    params = read(typer.main.get_command(app).commands[name], name, words)
    return params.get("algorithm"), Options(**{k: v for k, v in params.items() if k == "preset" or k in OPTIONS})


def config_of(command):
    algorithm, options = options_of(command)
    return options.config(algorithm)


def test_the_command_line_then_the_preset_then_the_paper_then_the_package(preset):
    file = preset(HEADS)
    found = config_of(f"medpfl run vit-heads --preset {file} --rounds 9 --set lr=0.2 --data-arg size=28")
    assert (found.rounds, found.all_settings["lr"], found.data_args) == (9, 0.2, {"pad": 32, "size": 28})
    found = config_of(f"medpfl run vit-heads --preset {file}")
    assert (found.rounds, found.all_settings["lr"], found.all_settings["p"]) == (7, 0.1, 0.4)
    assert found.site_names == ["north", "south"]
    assert (found.model, found.local_epochs, found.all_settings["momentum"]) == ("vit-tiny", 3, 0.9)  # the paper's
    assert (found.all_settings["batch_size"], found.seed) == (32, 0)  # the package's


def test_the_fingerprint_of_a_pretrained_model_is_taken_from_either(preset):
    f = "sha256:" + 64 * "a"
    assert config_of(f"medpfl run fedap --pretrained {f}").pretrained == f
    assert config_of(f"medpfl run fedap --preset {preset(f'pretrained: {f}')}").pretrained == f
    with pytest.raises(UserError, match="pretrained: String should match pattern"):
        config_of("medpfl run fedap --pretrained f.pt")


def test_a_preset_is_named_where_no_method_of_a_comparison_has_its_setting(preset):
    file = preset("settings: {lambda: 0.1}")
    compared = CliRunner().invoke(app, ["compare", "fedavg", "fedprox", "--preset", str(file)])
    assert str(compared.exception) == (
        f"setting 'lambda': none of local, fedavg, fedprox has such a setting (with --preset {file})"
    )
    file = preset("model_args: {depth: 3}")
    compared = CliRunner().invoke(app, ["compare", "fedavg", "--preset", str(file)])
    assert str(compared.exception).endswith(f"has such an argument (with --preset {file})")


def test_a_flag_of_a_preset_can_be_taken_back(preset):
    file = preset("official: true\nsites: 4\n")
    assert config_of(f"medpfl run fedavg --preset {file}").official
    assert not config_of(f"medpfl run fedavg --preset {file} --no-official").official
    assert config_of(f"medpfl run fedavg --preset {file} --sites a,b").site_names == ["a", "b"]


def test_paths_start_where_the_command_runs(preset, tmp_path, monkeypatch):
    (tmp_path / "start").mkdir()
    monkeypatch.chdir(tmp_path)
    found = config_of(f"medpfl run fedimpres --preset {preset('settings: {start: start}')}")
    assert found.settings["start"] == str(tmp_path / "start")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("local-epochs: 3", r"'local-epochs' is no option here \(did you mean local_epochs\?\); there are "),
        ("env: sim", "'env' is no option here; there are"),
        ("rounds: true", "rounds: Input should be a valid integer, not true"),
        ("rounds: 0", "rounds: Input should be greater than or equal to 1, not 0"),
        ("timeout: soon", 'timeout: Input should be a valid number, not "soon"'),
        ("fractions: half", 'fractions: Input should be a valid .*, not "half"'),
        ("settings: 3", "settings: "),
        ("sites: 010", "wrong YAML: '010' is a number in YAML, and not a plain one"),
        ("timeout: 1:30", "wrong YAML: '1:30' is a number in YAML"),
        ("timeout: 1:30.5", r"wrong YAML: '1:30\.5' is a number in YAML"),
        ("settings: {batch_size: 0x10}", "wrong YAML: '0x10' is a number"),
        ("rounds: 1_000", "wrong YAML: '1_000' is a number"),
        ("rounds: 3\nrounds: 4", "wrong YAML: 'rounds' is there twice"),
        ("rounds: [", "wrong YAML: "),
        ("model: net.py:Net", "model: net.py:Net is code of a file: give it on the command line, --model net.py:Net"),
        ("data: /x/own.py:hospital", "data: /x/own.py:hospital is code of a file: .*, --data /x/own.py:hospital"),
        ("- rounds", "a YAML mapping of options is needed"),
        ("", "a YAML mapping of options is needed"),
    ],
)
def test_mistakes_are_named_with_the_file(preset, text, said):
    file = preset(text)
    with pytest.raises(UserError, match=f"^--preset {re.escape(str(file))}: (?:{said})") as caught:
        config_of(f"medpfl run fedavg --preset {file}")
    assert "\n" not in str(caught.value)


def test_a_measure_that_the_task_does_not_have(preset):
    with pytest.raises(UserError, match=r"select_by must be one of auto, accuracy, .*, got 'f1' \(with --preset "):
        config_of(f"medpfl run fedavg --preset {preset('select_by: f1')}")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.yml: cannot be read: No such file"):
        config_of(f"medpfl run fedavg --preset {tmp_path / 'nowhere.yml'}")


def test_plain_numbers_and_names_that_look_like_numbers(preset):
    file = preset("rounds: 10\ntimeout: 90.5\nsettings: {lr: 5e-4, momentum: .5}\nsites: ['010', north]\n")
    found = config_of(f"medpfl run fedavg --preset {file}")
    assert (found.rounds, found.timeout, found.settings) == (10, 90.5, {"lr": 5e-4, "momentum": 0.5})
    assert found.site_names == ["010", "north"]


def test_a_share_that_is_no_number(preset):
    with pytest.raises(UserError, match=r"fractions.*finite number"):
        config_of(f"medpfl run fedavg --preset {preset('fractions: [0.5, .inf, 0.1]')}")


def test_two_shares(preset):
    with pytest.raises(UserError, match=r"--fractions \[0\.5, 0\.5\]: give three shares"):
        config_of(f"medpfl run fedavg --preset {preset('fractions: [0.5, 0.5]')}")


def test_a_setting_that_the_method_does_not_have(preset):
    with pytest.raises(UserError, match=r"setting 'lambda' has no meaning for fedavg.*\(with --preset .*mine\.yml\)"):
        config_of(f"medpfl run fedavg --preset {preset('settings: {lambda: 0.5}')}")


def test_compare_has_no_seed_to_preset(preset):
    error = CliRunner().invoke(app, ["compare", "fedavg", "--preset", str(preset("seed: 3"))]).exception
    assert isinstance(error, UserError)
    assert "'seed' is no option here" in str(error)


@pytest.mark.slow
def test_compare_takes_a_preset(preset, tmp_path):
    file = preset("sites: 2\nrounds: 1\ntrain_fraction: 0.05\nsettings: {lr: 0.02, layers: 2}\n")
    words = ["fedper", "--preset", file, "--set", "layers=1", "--seeds", 1, "--out", tmp_path / "out"]
    done = CliRunner().invoke(app, ["compare", *map(str, words)])
    assert done.exit_code == 0, done.output + repr(done.exception)
    used = json.loads((tmp_path / "out" / "fedper" / "seed-0" / "results.json").read_text())["config"]
    assert (used["rounds"], used["sites"], used["settings"]["lr"], used["settings"]["layers"]) == (1, 2, 0.02, 1)


def test_results_say_what_came_of_it(preset, tmp_path):
    file = preset("sites: 2\nrounds: 3\ntrain_fraction: 0.05\nselect_by: auroc\nsettings: {lr: 0.02}\n")
    words = ["--preset", file, "--rounds", 1, "--env", "inprocess", "--alone", "no", "--out", tmp_path / "out"]
    done = CliRunner().invoke(app, ["run", "fedbn", *map(str, words)])
    assert done.exit_code == 0, done.output + repr(done.exception)
    used = json.loads((tmp_path / "out" / "results.json").read_text())["config"]
    assert (used["rounds"], used["sites"], used["select_by"], used["settings"]["lr"]) == (1, 2, "auroc", 0.02)


def commands(file):
    return re.findall(r"^# +(medpfl .+)$", file.read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("file", PRESETS, ids=lambda file: file.stem)
def test_the_presets_make_configurations_of_what_they_say(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEDPFL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "app_config").symlink_to(ROOT / "app_config")
    content = yaml.safe_load(file.read_text())
    said = read_preset(file, list(content))
    made = [config_of(command) for command in commands(file) if re.match("medpfl (run|export)", command)]
    assert made
    for config in made:
        for name, value in said.items():
            found = config.all_settings if name == "settings" else getattr(config, name)
            if isinstance(value, dict):
                assert value.items() <= found.items()
            else:
                assert found == (tuple(value) if isinstance(value, list) else value)
    readme = (ROOT / "app_config" / "README.md").read_text()
    assert f"`{file.name}`" in readme
