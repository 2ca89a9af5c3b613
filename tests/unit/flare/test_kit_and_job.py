"""`medpfl site init --job`: a hospital's data are compared with what the job says of them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from kits import FEDAP, done, files, init, read, write
from PIL import Image
from typer.testing import CliRunner

from medpfl.cli.main import app

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
    output = done(kit, "--data", f"eyes={fundus}", "--job", job("eyes", "glaucoma,normal", *PICTURES))
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
    done(kit, "--data", f"ct={scans}", "--job", job("ct", ",".join(classes), *SCANS))


def test_a_file_of_another_size_or_with_more_classes(kit, blood, job):
    output = refused(kit, "--data", f"eyes={blood}", "--job", job("eyes", "a,b", *PICTURES))
    assert "images of 8 pixels; the job 'eyes' has 32" in output
    fits = [*PICTURES, "--data-arg", "size=8", "--model", "impression-cnn"]
    assert "0 a, 1 b" in done(kit, "--data", f"eyes={blood}", "--job", job("eyes", "a,b", *fits))


def test_a_file_that_is_not_the_set_which_the_job_divides(kit, blood):
    output = refused(kit, "--data", f"organamnist-sample={blood}", "--job", FEDAP)
    assert "images of 2 classes; the job divides organamnist-sample, which has 11" in output


def test_a_known_name_that_is_not_given_again_is_noted(kit, blood):
    write(kit, "medpfl.json", {"data": {"organamnist-sample": "/data/organs.npz"}})
    output = done(kit, "--data", f"blood={blood}", "--job", FEDAP)
    assert (
        "takes data called 'organamnist-sample': /data/organs.npz, not given with --data and so not checked" in output
    )
