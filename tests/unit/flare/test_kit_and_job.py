"""`medpfl site init --job`: a hospital's data are compared with what the job says of them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from kits import FEDAP, done, files, init, read, site, write
from PIL import Image
from typer.testing import CliRunner

from medpfl.cli.main import app
from medpfl.config.run import make_config
from medpfl.flare.job.export import export_job

sys.path.append(str(Path(__file__).parents[1] / "data" / "ct"))
from hospitals import write_centre


@pytest.fixture
def fundus(tmp_path):
    """One hospital's pictures, of a class alone."""
    for k in range(4):
        file = tmp_path / "fundus" / "normal" / f"{k}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((8, 8), 10 + k).save(file)
    return tmp_path / "fundus"


@pytest.fixture
def eyes(tmp_path):
    """Nine pictures of each of two classes: the default split trains on 9 or 10, validates on 1 or 2."""
    for name in "ab":
        (tmp_path / "eyes-here" / name).mkdir(parents=True)
        for k in range(9):
            Image.effect_noise((8, 8), 10 + k).save(tmp_path / "eyes-here" / name / f"{k}.png")
    return tmp_path / "eyes-here"


@pytest.fixture
def scans(tmp_path):
    """One hospital's scans, with the classes in its manifest."""
    folder = tmp_path / "lungs"
    write_centre(folder / "here", patients=4)
    centre = {"name": "here", "kind": "dicom", "folder": "here", "labels": "here/labels.csv"}
    manifest = {"schema": 1, "name": "ct", "classes": ["clear", "opaque"], "centres": [centre]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


PICTURES = ["--data-arg", "channels=grey", "--data-arg", "size=32", "--sites", "a,b"]
SCANS = ["--data-arg", "slices=4", "--data-arg", "size=32", "--sites", "a,b"]


@pytest.fixture
def job(tmp_path):
    def export(data, classes, *more):
        words = [
            "fedbn",
            "--job",
            tmp_path / data,
            "--data",
            data,
            "--track",
            "none",
            "--data-arg",
            f"classes={classes}",
        ]
        result = CliRunner().invoke(app, ["export", *map(str, [*words, *more])])
        assert result.exit_code == 0, result.output + repr(result.exception)
        return tmp_path / data

    return export


def refused(kit, *arguments):
    before = files(kit)
    result = init(kit, *arguments)
    assert result.exit_code == 1, result.output + repr(result.exception)
    assert "Nothing was written" in result.output
    assert files(kit) == before
    return result.output


def test_pictures_that_the_job_can_take(kit, fundus, job):
    assert "the only class folder" in refused(kit, "--data", f"eyes={fundus}")
    few = ["--policy", "least_patients=2"]
    output = done(kit, "--data", f"eyes={fundus}", "--job", job("eyes", "glaucoma,normal", *PICTURES), *few)
    assert "as the job says; its classes: 0 glaucoma, 1 normal" in output
    assert read(kit, "medpfl.json")["data"] == {"eyes": str(fundus)}


def test_a_class_that_the_job_does_not_know(kit, fundus, job):
    output = refused(kit, "--data", f"eyes={fundus}", "--job", job("eyes", "glaucoma,healthy", *PICTURES))
    assert "'normal' is none of the classes glaucoma, healthy" in output


def test_advice_on_the_order_of_classes_is_a_command_that_there_is(kit, blood, scans):
    advice = "`medpfl data check PATH --data-arg classes=...`"
    for data in (blood, scans):
        assert advice in done(kit, "--data", f"mine={data}", "--dry-run")
    for centre in ("a", "b"):
        for name in ("ill", "well"):
            (scans.parent / "eyes" / name).mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(len(name + centre)).integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(scans.parent / "eyes" / name / f"{centre}.png")
    assert advice in done(kit, "--data", scans.parent / "eyes", "--dry-run")


@pytest.mark.slow
def test_data_of_another_kind(kit, fundus, blood, scans, job):
    takes_scans, takes_pictures = job("ct", "healthy,ill", *SCANS), job("eyes", "a,b", *PICTURES)
    output = refused(kit, "--data", f"ct={fundus}", "--job", takes_scans)
    assert f"{fundus}: pictures in folders; the job takes CT scans" in output
    assert "images in one npz file; the job takes CT scans" in refused(
        kit, "--data", f"ct={blood}", "--job", takes_scans
    )
    output = refused(kit, "--data", f"eyes={scans}", "--job", takes_pictures)
    assert "CT scans; the job takes pictures in folders or images in one npz file" in output


@pytest.mark.slow
def test_scans_with_other_class_names_or_another_order(kit, scans, job):
    classes = json.loads((scans / "manifest.json").read_text())["classes"]
    output = refused(kit, "--data", f"ct={scans}", "--job", job("ct", "healthy,ill", *SCANS))
    assert f"its classes are {', '.join(classes)}, the job's are healthy, ill" in output
    assert "the order matters" in refused(
        kit, "--data", f"ct={scans}", "--job", job("ct", ",".join(classes[::-1]), *SCANS)
    )
    few = ["--policy", "least_patients=2"]
    done(kit, "--data", f"ct={scans}", "--job", job("ct", ",".join(classes), *SCANS), *few)


def test_a_file_of_another_size_or_with_more_classes(kit, blood, job):
    output = refused(kit, "--data", f"eyes={blood}", "--job", job("eyes", "a,b", *PICTURES))
    assert "images of 8 pixels; the job 'eyes' has 32" in output
    fits = [*PICTURES, "--data-arg", "size=8", "--model", "impression-cnn"]
    few = ["--policy", "least_patients=2"]
    assert "0 a, 1 b" in done(kit, "--data", f"eyes={blood}", "--job", job("eyes", "a,b", *fits), *few)


def test_a_site_with_too_few_patients_for_its_policy_approves_no_job(kit, eyes, job):
    made = job("eyes", "a,b", *PICTURES)
    few = "this site has 9 training patients, and least_patients is 20: it will send no update"
    assert f"warning {few}" in done(kit, "--data", f"eyes={eyes}")
    assert f"error   {few}" in refused(kit, "--data", f"eyes={eyes}", "--job", made)
    assert few in refused(kit, "--job", made)  # of data that the kit knows already
    assert "approved" not in read(kit, "medpfl.json").get("policy", {})
    reviewed = site("review", made, "--kit", kit)
    assert reviewed.exit_code == 1 and few in reviewed.output
    assert "this site's policy refuses it:" in reviewed.output and "takes it" not in reviewed.output
    assert "will send no update" not in done(kit, "--job", made, "--policy", "least_patients=9")
    assert "this site's policy takes it" in site("review", made, "--kit", kit).output


def test_a_job_that_makes_more_of_the_data_than_the_policy_lets_is_not_approved(kit, eyes, job):
    made = job("eyes", "a,b", *PICTURES)  # 18 grey pictures of 32 x 32
    few = ["--policy", "least_patients=9"]
    counted = "(samples x channels x shape; with masks more)"
    many = f"as the job reads this site's data, they are up to 18,432 values {counted}, and "
    less = ["--policy", "data_values=18431"]
    assert f"error   {many}data_values is 18,431" in refused(kit, "--data", f"eyes={eyes}", "--job", made, *few, *less)
    assert "data_values" not in done(kit, "--data", f"eyes={eyes}", *few)
    done(kit, *less)
    assert many in refused(kit, "--job", made)
    reviewed = site("review", made, "--kit", kit)
    assert reviewed.exit_code == 1 and "this site's policy refuses it:\n" in reviewed.output
    assert f"  {many}data_values is 18,431: let it ask for smaller images" in reviewed.output
    done(kit, "--job", made, "--policy", "data_values=18432")
    text = site("review", made, "--kit", kit).output
    said = f"as it reads this site's data, they are up to 18,432 values {counted} (policy: data_values, "
    assert f"{said}18,432 at most)" in text and "this site's policy takes it" in text
    found = json.loads(site("review", made, "--kit", kit, "--json").output)
    assert (found["values"], found["data_values"]) == (18432, 18432)
    done(kit, "--policy", "data_values=0")
    assert f"{said}any number)" in site("review", made, "--kit", kit).output
    unknown = (
        "how many values it makes of this site's data could not be told (policy: data_values, 10,000,000,000 at most)"
    )
    assert unknown in site("review", made).output


def test_a_job_by_which_no_update_leaves_needs_no_number_of_patients(kit, eyes, tmp_path):
    alone = {"algorithm": "local", "names": ("a", "b"), "sites": 2, "partition": "natural"}
    args = {"classes": "a,b", "channels": "grey", "size": 32}
    made = export_job(make_config(data="eyes", data_args=args, **alone), tmp_path / "alone")
    assert "will send no update" not in done(kit, "--data", f"eyes={eyes}", "--job", made)
    assert "this site's policy takes it" in site("review", made, "--kit", kit).output


def test_a_site_is_told_that_its_verdict_will_not_leave_where_few_choose(kit, eyes, tmp_path):
    stays = "validation patients, and least_patients is 9: what so few choose is not told, so what taking part was"
    assert stays not in done(kit, "--data", f"eyes={eyes}", "--policy", "least_patients=9")
    assert stays in done(kit, "--policy", "verdict=true")
    assert stays not in done(kit, "--policy", "measures=full")
    done(kit, "--policy", "measures=coarse")
    fields = {"sites": 2, "names": ("a", "b"), "rounds": 2, "partition": "natural", "data": "eyes"}
    args = {"classes": "a,b", "channels": "grey", "size": 32}
    for use, said in (("best", True), ("received", False)):
        config = make_config(algorithm="fedavg", alone="yes", use=use, data_args=args, **fields)
        made = export_job(config, tmp_path / use)
        text = site("review", made, "--kit", kit).output
        assert (stays in text) == said
        assert ("what taking part was worth leaves too" in text) != said
        found = json.loads(site("review", made, "--kit", kit, "--json").output)
        assert found["verdict"] != said and sum(found["patients"].values()) == 18
        assert (stays in done(kit, "--job", made, "--dry-run")) == said


def test_a_file_that_is_not_the_set_which_the_job_divides(kit, blood):
    output = refused(kit, "--data", f"organamnist-sample={blood}", "--job", FEDAP)
    assert "images of 2 classes; the job divides organamnist-sample, which has 11" in output


def test_a_known_name_that_is_not_given_again_is_noted(kit, blood):
    write(kit, "medpfl.json", {"data": {"organamnist-sample": "/data/organs.npz"}})
    output = done(kit, "--data", f"blood={blood}", "--job", FEDAP)
    assert (
        "takes data called 'organamnist-sample': /data/organs.npz, not given with --data and so not checked" in output
    )
