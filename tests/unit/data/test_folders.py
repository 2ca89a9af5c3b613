"""Pictures in folders: centres, classes, patients, the cache, and runs and jobs with them."""

import shutil

import numpy as np
import pytest
import torch
from pictures import CENTRES, CLASSES, CPU, EACH, config, paint, pixels, write_centres
from PIL import Image

from medpfl.algorithms.fedimpres.settings import ImpressionSettings
from medpfl.algorithms.fedimpres.start_images import start_images
from medpfl.cli.options import Options
from medpfl.core.errors import UserError
from medpfl.core.site_data import PARTS
from medpfl.core.version import version
from medpfl.data.check import check
from medpfl.data.kinds.folders import picture_cache
from medpfl.data.kinds.folders.folder_kind import FolderKind
from medpfl.data.kinds.folders.layout import read_layout
from medpfl.data.kinds.folders.picture_source import Folders
from medpfl.data.kinds.function.own_data import OwnData
from medpfl.data.kinds.registry import kind_of
from medpfl.data.kinds.scans.scan_kind import ScanKind
from medpfl.data.public_images import public_images
from medpfl.data.sites import open_source
from medpfl.flare.job.export import export_job
from medpfl.runs.experiment import run_experiment


def test_sites_are_the_sorted_centres_and_parts_cover_each_without_sharing(fundus):
    source = open_source(config(fundus))
    assert isinstance(source, Folders)
    assert source.model_arguments() == {"in_channels": 3, "num_classes": 2, "image_size": 32}
    described = source.describe()
    assert [site["centre"] for site in described["sites"].values()] == ["north", "south", "west"]
    assert described["classes"] == list(CLASSES)
    for number, name in enumerate(("site-1", "site-2", "site-3")):
        data = source.site(name, CPU)
        assert data.images["train"].dtype == torch.uint8
        assert [data.samples(part) for part in PARTS] == [6, 0, 6]
        assert data.labels["train"].tolist().count(0) == 3
        seen = [pixels(data.images[part]) for part in PARTS]
        assert len(set().union(*seen)) == sum(map(len, seen)) == 2 * EACH
        assert data.images["test"][:, number].float().mean() > 110  # the centre's cast
        assert data.bags("test") is None
        assert described["sites"][name]["classes"] == {"0": EACH, "1": EACH}


def test_both_eyes_of_a_patient_are_in_one_part(fundus):
    source = open_source(config(fundus, fractions=(0.4, 0.3, 0.3), data_args={"patient": "^([^_]+)_"}))
    assert source.describe()["sites"]["site-1"]["patients"] == EACH
    for centre in CENTRES:
        people = [{picture.patient for picture in part} for part in source._parts(centre).values()]
        assert sum(map(len, people)) == len(set().union(*people)) == EACH


def test_whose_a_picture_is_is_known_where_the_names_tell_it(fundus):
    data = open_source(config(fundus, data_args={"patient": "^([^_]+)_"})).site("site-1", CPU)
    assert data.owners("train").tolist() == [0, 0, 1, 1, 2, 2]  # both eyes
    assert data.bags("train") is None  # each picture has a prediction of its own
    assert open_source(config(fundus)).site("site-1", CPU).owners("train") is None


def test_the_split_does_not_depend_on_when_and_where_files_were_made(fundus, home):
    again = write_centres(home / "again" / "fundus", backwards=True)
    sites = [open_source(config(folder, seed=3)).site("site-2", CPU) for folder in (fundus, again)]
    for part in PARTS:
        assert torch.equal(sites[0].images[part], sites[1].images[part])
    other = open_source(config(fundus, seed=4)).site("site-2", CPU)
    assert not torch.equal(other.images["test"], sites[0].images["test"])


def test_a_hospitals_own_folder_is_its_site_whatever_it_is_called(fundus, home):
    together = open_source(config(fundus)).site("site-2", CPU)
    inside = shutil.copytree(fundus / "south", home / "own" / "south").parent
    for folder in (fundus / "south", inside):
        own = open_source(config(folder)).site("site-3", CPU)
        assert torch.equal(own.images["train"], together.images["train"])


def test_a_hospital_may_lack_a_class_that_the_job_names(fundus):
    shutil.rmtree(fundus / "south" / "glaucoma")
    job = config(fundus / "south", data_args={"classes": ["healthy", "glaucoma", "normal"]})
    data = open_source(job).site("site-2", CPU)
    assert set(data.labels["train"].tolist()) == {2}
    assert open_source(config(fundus)).site("site-2", CPU).labels["train"].tolist() == [1] * 3


def test_deeper_folders_belong_to_their_class(fundus):
    before = open_source(config(fundus)).site("site-3", CPU)
    for label in CLASSES:
        for file in sorted((fundus / "west" / label).iterdir())[:2]:
            (file.parent / "deeper").mkdir(exist_ok=True)
            file.rename(file.parent / "deeper" / file.name)
    after = open_source(config(fundus, fractions=(1, 0, 0))).site("site-3", CPU)
    whole = open_source(config(fundus, fractions=(1, 0, 0))).site("site-3", CPU)
    assert pixels(after.images["train"]) == pixels(torch.cat([before.images["train"], before.images["test"]]))
    assert torch.equal(whole.labels["train"], after.labels["train"])


def test_classes_that_are_numbers_are_in_their_order(home):
    for centre in "ab":
        for label in (0, 2, 10):
            paint(home / "x" / centre / str(label) / "1.png", (9, 9, 9), label)
    assert read_layout(home / "x").classes == ("0", "2", "10")


def test_centres_that_are_held_out(fundus):
    assert Options(data=str(fundus)).config("fedavg").sites == 3
    assert Options(data=str(fundus), held_out="north").config("fedavg").sites == 2
    source = open_source(config(fundus, sites=2, held_out="north"))
    assert [site["centre"] for site in source.describe()["sites"].values()] == ["south", "west"]
    assert source.held_out(CPU)["north"].samples("test") == 2 * EACH
    assert source.describe()["held_out"] == {"north": 2 * EACH}


def test_what_is_set_aside_is_no_sites_and_comes_from_training_alone(fundus):
    whole, source = open_source(config(fundus)), open_source(config(fundus, holdout=0.34))
    aside = start_images(ImpressionSettings(start="holdout", images=100), source, public_images, seed=0)
    assert aside.shape == (6, 3, 32, 32)
    assert -1 <= aside.min() < aside.max() <= 1
    for name in ("site-1", "site-2", "site-3"):
        assert torch.equal(source.site(name, CPU).images["test"], whole.site(name, CPU).images["test"])
        assert source.site(name, CPU).samples("train") == 4
        assert pixels(source.site(name, CPU).images["train"]) < pixels(whole.site(name, CPU).images["train"])
        assert source.describe()["sites"][name]["train"] == 4
    four = ImpressionSettings(start="holdout", images=4)
    assert start_images(four, source, public_images, seed=0).shape[0] == 4
    assert start_images(ImpressionSettings(images=4), source, public_images, seed=0).shape == (4, 3, 32, 32)
    with pytest.raises(UserError, match="no site has a picture to set aside"):
        start_images(
            ImpressionSettings(start="holdout", images=4),
            open_source(config(fundus, holdout=0.01)),
            public_images,
            seed=0,
        )


def test_a_share_of_the_training_pictures_pooled(fundus):
    source = open_source(config(fundus))
    training = set().union(*(pixels(source.site(f"site-{k}", CPU).images["train"]) for k in (1, 2, 3)))
    pooled = source.pooled_training(0.5, CPU)
    assert [pooled.samples(part) for part in PARTS] == [9, 0, 0]
    assert pixels(pooled.images["train"]) < training
    with pytest.raises(UserError, match="hospitals' pictures are not pooled"):
        open_source(config(fundus / "south")).pooled_training(0.5, CPU)


def test_a_second_reading_comes_from_the_cache_until_a_file_changes(fundus, monkeypatch):
    open_source(config(fundus)).prepare()
    first = open_source(config(fundus)).site("site-1", CPU)
    with monkeypatch.context() as patch:
        patch.setattr("medpfl.data.kinds.folders.picture_cache.read_picture", lambda *_: pytest.fail("decoded again"))
        again = open_source(config(fundus)).site("site-1", CPU)
        assert torch.equal(again.images["train"], first.images["train"])
    paint(fundus / "north" / "normal" / "n1_right.png", (0, 0, 0), 1)
    changed = open_source(config(fundus, fractions=(1, 0, 0))).site("site-1", CPU)
    assert not pixels(changed.images["train"]) <= pixels(torch.cat([first.images["train"], first.images["test"]]))
    assert {folder.stat().st_mode & 0o777 for folder in (fundus.parent / "cache").rglob("*") if folder.is_dir()} == {
        0o700
    }


@pytest.mark.parametrize("library", ["pillow", "pydicom"])
def test_another_version_of_a_library_decodes_anew(fundus, monkeypatch, library):
    open_source(config(fundus)).site("site-1", CPU)
    monkeypatch.setattr(picture_cache, "version", lambda name: "99" if name == library else version(name))
    open_source(config(fundus)).site("site-1", CPU)
    assert len(list((fundus.parent / "cache" / "medpfl" / "folders").iterdir())) == 2


def test_a_damaged_cache_is_made_again(fundus):
    first = open_source(config(fundus)).site("site-1", CPU)
    (file,) = (fundus.parent / "cache" / "medpfl" / "folders").iterdir()
    file.write_bytes(file.read_bytes()[:-7])
    assert torch.equal(open_source(config(fundus)).site("site-1", CPU).images["train"], first.images["train"])


def test_what_is_a_folder_of_pictures(fundus, monkeypatch):
    monkeypatch.chdir(fundus.parent)
    for data in ("fundus", "./fundus", str(fundus), str(fundus / "south")):
        assert FolderKind().is_here(data) and not ScanKind().is_here(data) and kind_of(data, {}).name == "folders"
    assert Options(data="fundus").config("fedavg").data == str(fundus)
    assert isinstance(open_source(config("a:b")), OwnData)
    for file in ("south/labels.csv", "north/ct/1.dcm", "north/scan.nii.gz"):
        (fundus / file).parent.mkdir(exist_ok=True)
        (fundus / file).touch()
        assert ScanKind().is_here(str(fundus)) and not FolderKind().is_here(str(fundus))
        (fundus / file).unlink()
    assert kind_of("elsewhere", {"classes": list(CLASSES)}).name == "scans"
    assert kind_of("elsewhere", {"classes": list(CLASSES), "channels": "rgb"}).name == "folders"


def test_a_name_is_looked_for_in_the_data_folder_and_a_server_needs_no_pictures(fundus, monkeypatch):
    job = config("fundus", data_args={"classes": list(CLASSES), "channels": "rgb"})
    assert open_source(job).model_arguments() == {"in_channels": 3, "num_classes": 2, "image_size": 32}
    assert open_source(job).describe()["sites"] == {}
    with pytest.raises(UserError, match="image folder 'fundus' is not on this machine: no folder of that name in "):
        open_source(job).site("site-1", CPU)
    with pytest.raises(UserError, match="start=holdout: hospitals' pictures do not leave them"):
        start_images(ImpressionSettings(start="holdout", images=4), open_source(job), public_images, seed=0)
    with pytest.raises(UserError, match="--data fundus: give --sites: the pictures are not on this machine"):
        Options(data="fundus", data_args=['classes=["a", "b"]', "channels=rgb"]).config("fedavg")
    monkeypatch.setenv("MEDPFL_DATA", str(fundus.parent))
    assert len(open_source(job).describe()["sites"]) == 3


def test_a_job_carries_names_alone(fundus, home):
    job = export_job(Options(data=str(fundus), model="lenet5").config("fedavg"), home / "job")
    text = (job / "app" / "config" / "config_fed_client.json").read_text()
    assert str(home) not in text
    for carried in ('"data": "fundus"', '"glaucoma"', '"channels": "rgb"'):
        assert carried in text


def test_check_says_what_is_there(fundus):
    (fundus / "west" / "unsure").mkdir()
    Image.new("RGB", (8, 8)).save(fundus / "west" / "normal" / "black.png")
    shutil.rmtree(fundus / "south" / "normal")
    found = [(f.level, f.message) for f in check(str(fundus))]
    assert found[0] == ("ok", "fundus, 3 centres, classes: glaucoma, normal")
    assert ("warning", "west/unsure: no picture in it") in found
    assert ("ok", "north: 12 pictures: glaucoma 6, normal 6") in found
    assert ("ok", "north: 40×40 pixels") in found
    assert ("ok", "west: 8 to 56 × 8 to 40 pixels (width × height)") in found
    assert ("ok", "north: by the default split (0.5/0.1/0.4): train 6, validation 1, test 5") in found
    assert ("warning", "south: no picture of class normal") in found
    assert any(level == "warning" and "west: pictures of one colour: 1, the first is" in text for level, text in found)
    assert ("ok", "1 other file in the folder, not read") in found


def test_check_says_where_pictures_are_dark_as_those_of_12_bits_in_16(tmp_path):
    rng = np.random.default_rng(0)
    dark = "north: no pixel of any picture is above 16 of 255: values of 12 bits in files of 16?"
    for centre, most in (("north", 4096), ("south", 65536)):
        for number in range(4):
            file = tmp_path / centre / "ab"[number % 2] / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            values = rng.integers(0, most, (64, 64), dtype=np.uint16)
            values[0, 0] = most - 1
            Image.fromarray(values).save(file)
    told = [finding.message for finding in check(tmp_path) if finding.level == "warning"]
    assert [text.startswith(dark) for text in told if "no pixel" in text] == [True]
    one = tmp_path / "south" / "a" / "0.png"
    Image.fromarray(rng.integers(0, 4096, (64, 64), dtype=np.uint16)).save(one)
    told = " ".join(finding.message for finding in check(tmp_path) if finding.level == "warning")
    assert f"south: 1 files of 16 bits have no pixel above 64 of 255, {one} first: values of 12 bits?" in told


def test_check_says_whose_pictures_are_whose_and_what_the_order_is(fundus):
    found = {f.message: f.level for f in check(fundus)}
    assert [level for text, level in found.items() if "each picture counts as its own patient" in text] == ["warning"]
    assert any("--data-arg 'patient=^([^_]+)_' keeps them together" in text for text in found)
    assert [level for text, level in found.items() if "the job's may differ" in text] == ["note"]
    told = {f.message: f.level for f in check(fundus, {"patient": "^([^_]+)_", "classes": "normal,glaucoma"})}
    assert told["fundus, 3 centres, classes: normal, glaucoma"] == "ok"
    assert told["north: 12 pictures of 6 patients: normal 6, glaucoma 6"] == "ok"
    assert {level for text, level in told.items() if "is it the same person?" not in text} == {"ok"}


def test_check_suggests_no_expression_that_takes_a_prefix_for_the_patient(fundus):
    for file in (fundus / "north").rglob("*.png"):
        file.rename(file.with_name(f"MCUCXR_{file.name}"))
    (words,) = (f.message for f in check(fundus) if "each picture counts as its own patient" in f.message)
    assert "^([^_]+)_" not in words and "--data-arg patient=EXPRESSION, a regular expression whose group is" in words
    told = [(f.level, f.message) for f in check(fundus, {"patient": "^([^_]+)_"})]
    said = "north: all 12 pictures of north are one patient by patient='^([^_]+)_': is the expression right?"
    assert ("warning", said) in told and sum("is the expression right" in words for _, words in told) == 1


def test_check_refuses_an_expression_by_which_all_that_is_there_is_one_patient(fundus):
    """A hospital's own folder: there is nothing to test on."""
    for k, file in enumerate((fundus / "north").rglob("*.png")):
        file.rename(file.with_name(f"MCUCXR_{k}.png"))
    told = [(f.level, f.message) for f in check(fundus / "north", {"patient": "^([^_]+)_"})]
    assert ("error", True) in [(level, "is the expression right?" in words) for level, words in told]


def test_check_with_other_arguments(fundus):
    (found,) = check(fundus, {"classes": "normal,cataract"})
    assert (found.level, "'glaucoma' is none of the classes normal, cataract" in found.message) == ("error", True)
    (found,) = check(fundus, {"patient": "^([0-9]+)"})
    assert (found.level, "finds no patient in the file's name" in found.message) == ("error", True)
    with pytest.raises(UserError, match="--data-arg window: "):
        check(fundus, {"window": [0, 1]})


def test_a_run(fundus, home):
    settings = {"warmup": 0, "images": 4, "start": "holdout", "admm_iterations": 1, "inner_steps": 1, "batch_size": 4}
    run = config(fundus, algorithm="fedimpres", model="lenet5", sites=2, held_out=1, holdout=0.2, settings=settings)
    results = run_experiment(run, home / "out", env="inprocess")
    assert [site["n"] for site in results["final"]["selected"]["sites"].values()] == [6, 6]
    assert results["new"]["held_out"]["west"]["n"] == 2 * EACH
    assert results["data"]["reading"] == {"size": 32, "fit": "crop", "channels": "rgb", "patient": ""}
    assert "north" in (home / "out" / "report.html").read_text()
