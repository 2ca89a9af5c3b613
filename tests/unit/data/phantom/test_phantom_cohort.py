"""The folder: counts, tables, determinism, and mistakes."""

import csv
import json
import shutil

import pytest
from tiny import no_space
from typer.testing import CliRunner

from medpfl.cli.main import app
from medpfl.core.errors import UserError
from medpfl.data.files import files_below
from medpfl.data.phantom.cohort import CLASSES, counts, make_phantom
from medpfl.data.phantom.six_centres import CENTRES


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("patients", [12, 13, 24, 60, 240, 2856])
def test_counts_are_exact_and_have_both_classes_everywhere(patients):
    both = counts(patients)
    assert sum(well + ill for well, ill in both) == patients
    assert min(min(pair) for pair in both) >= (2 if patients >= 24 else 1)


def test_default_counts_follow_sizes_and_prevalence():
    both = counts(240)
    assert [well + ill for well, ill in both] == [centre.size for centre in CENTRES]
    assert [ill for _, ill in both] == [round(centre.prevalence * centre.size) for centre in CENTRES]
    assert sum(ill for _, ill in both) / 240 == pytest.approx(1077 / 2856, abs=0.01)


def test_tables_fit_the_files(cohort):
    manifest = json.loads((cohort / "manifest.json").read_text())
    assert (manifest["schema"], manifest["phantom"], manifest["skip_broken"]) == (1, True, False)
    assert manifest["classes"] == list(CLASSES)
    truth = {row["series"]: row for row in table(cohort / "truth.csv")}
    assert len(truth) == 12
    for centre in manifest["centres"]:
        assert set(centre) == {"name", "kind", "folder", "labels", "description"}
        rows = table(cohort / centre["labels"])
        assert sorted(row["label"] for row in rows) == ["emphysema", "no emphysema"]
        for row in rows:
            assert len(list((cohort / centre["folder"] / row["patient"]).glob("*.dcm"))) > 40
            known = truth.pop(row["series"])
            assert {key: known[key] for key in ("centre", "patient", "label")} == {
                "centre": centre["name"],
                "patient": row["patient"],
                "label": row["label"],
            }
            share = float(known["emphysema_share"])
            assert 0.055 < share < 0.36 if row["label"] == "emphysema" else share < 0.031
    assert not truth
    assert "no patient" in (cohort / "README.txt").read_text()


@pytest.mark.slow
def test_same_arguments_same_bytes_and_another_seed_other_patients(cohort, tmp_path):
    calls = []
    again = make_phantom(tmp_path / "again", patients=12, matrix=48, seed=1, progress=lambda *now: calls.append(now))
    assert calls == [(k, 12) for k in range(1, 13)]
    files = sorted(path.relative_to(cohort) for path in cohort.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(again.parent) for path in again.parent.rglob("*") if path.is_file())
    assert all((cohort / file).read_bytes() == (again.parent / file).read_bytes() for file in files)

    other = make_phantom(tmp_path / "other", patients=12, matrix=32, seed=2).parent
    series = [{row["series"] for row in table(folder / "truth.csv")} for folder in (cohort, other)]
    assert not series[0] & series[1]


@pytest.mark.parametrize("masks", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_stopped_cohort_leaves_nothing(tmp_path, masks):
    def stop(done, total):
        raise KeyboardInterrupt

    (tmp_path / "mine").mkdir()
    for folder in (tmp_path / "half", tmp_path / "mine"):
        with pytest.raises(KeyboardInterrupt):
            make_phantom(folder, patients=12, matrix=32, masks=masks, progress=stop)
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]


@pytest.mark.slow
def test_a_killed_cohort_is_no_data(tmp_path):
    def killed(done, total):
        if done == 12:
            shutil.copytree(tmp_path / "whole", tmp_path / "killed")

    make_phantom(tmp_path / "whole", patients=12, matrix=32, masks=True, progress=killed)
    assert [file.name for file in (tmp_path / "whole").iterdir() if file.name.startswith(".")] == []
    assert len(files_below(tmp_path / "whole")) == 26
    assert files_below(tmp_path / "killed") == []


@pytest.mark.parametrize("masks", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_full_disk_is_said_in_a_line_and_leaves_nothing(tmp_path, masks):
    said = rf"^{tmp_path}/full: cannot be written \(File too large\)$"
    with no_space(left=2000), pytest.raises(UserError, match=said):
        make_phantom(tmp_path / "full", patients=12, matrix=32, masks=masks)
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_named(tmp_path):
    (tmp_path / "file.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "file.txt"):
        with pytest.raises(UserError, match="there is something already; name a new folder"):
            make_phantom(folder, patients=12, matrix=48)
    with pytest.raises(UserError, match="cannot be written"):
        make_phantom(tmp_path / "file.txt" / "below", patients=12, matrix=48)
    with pytest.raises(UserError, match="--patients 11: 6 centres with both classes need 12"):
        make_phantom(tmp_path / "new", patients=11)
    with pytest.raises(UserError, match="--matrix 31"):
        make_phantom(tmp_path / "new", matrix=31)
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "file.txt").read_text() == "mine"


def test_the_command_passes_its_options(tmp_path):
    done = CliRunner().invoke(app, ["data", "phantom", str(tmp_path / "new"), "--patients", "12", "--matrix", "31"])
    assert isinstance(done.exception, UserError)
    assert "--matrix 31" in str(done.exception)
    assert not (tmp_path / "new").exists()
