"""Pictures in folders: centres, classes and patients; how a picture is read; what a user reads when it is wrong."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from medpfl.cli_options import Options
from medpfl.config import make_config
from medpfl.data.check import check
from medpfl.data.folders.layout import read_layout
from medpfl.data.folders.reading import Reading, picture_size, read_picture
from medpfl.data.folders.source import Folders
from medpfl.data.kinds import is_ct, is_folders, kind_of
from medpfl.data.own_function import OwnData
from medpfl.data.sites import open_source
from medpfl.errors import UserError
from medpfl.experiment import run_experiment
from medpfl.flare.export import export_job

CPU = torch.device("cpu")
PARTS = ("train", "validation", "test")
CENTRES = {"north": (220, 60, 40), "south": (60, 200, 60), "west": (60, 60, 220)}
CLASSES = ("glaucoma", "normal")
EACH = 6
TINY = {"rounds": 1, "local_epochs": 1, "settings": {"batch_size": 4}}


def paint(file: Path, colour, seed, size=(48, 40), **options) -> Path:
    """A noisy picture of a colour, unlike that of any other seed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(-30, 30, (size[1], size[0], 3))
    Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8)).save(file, **options)
    return file


def write_centres(root: Path, backwards: bool = False) -> Path:
    """Three centres of two classes; two eyes of a patient; a grey, a palette and a turned picture among them."""
    wanted = [
        (centre, label, person, eye)
        for centre in CENTRES
        for label in CLASSES
        for person in range(EACH // 2)
        for eye in ("left", "right")
    ]
    for centre, label, person, eye in reversed(wanted) if backwards else wanted:
        number = list(CENTRES).index(centre)
        seed = wanted.index((centre, label, person, eye))
        file = root / centre / label / f"{label[0]}{person}_{eye}.{('png', 'jpg', 'bmp')[number]}"
        colour = [c - 40 * CLASSES.index(label) * (c > 100) for c in CENTRES[centre]]
        paint(file, colour, seed, size=(40 + 8 * number, 40))
    first, second, third = (root / "north" / "normal" / f"n{k}_left.png" for k in range(3))
    Image.open(first).convert("L").save(first)
    Image.open(second).quantize(16).save(second)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(third).save(third, exif=exif)
    (root / "north" / "readme.txt").write_text("not a picture")
    return root


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write_centres(tmp_path_factory.mktemp("made") / "fundus")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MEDPFL_DATA", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture
def fundus(made, home):
    """A copy to spoil, and a cache of its own."""
    return shutil.copytree(made, home / "fundus")


def config(data, **fields):
    arguments = {"size": 32} | fields.pop("data_args", {})
    defaults = {"algorithm": "fedavg", "sites": 3, "fractions": (0.5, 0.0, 0.5), "partition": "natural"} | TINY
    return make_config(data=str(data), data_args=arguments, device="cpu", **(defaults | fields))


def pixels(images):
    return {image.numpy().tobytes() for image in images}


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
    aside = source.start_images({"start": "holdout", "images": 100})
    assert aside.shape == (6, 3, 32, 32)
    assert -1 <= aside.min() < aside.max() <= 1
    for name in ("site-1", "site-2", "site-3"):
        assert torch.equal(source.site(name, CPU).images["test"], whole.site(name, CPU).images["test"])
        assert source.site(name, CPU).samples("train") == 4
        assert pixels(source.site(name, CPU).images["train"]) < pixels(whole.site(name, CPU).images["train"])
        assert source.describe()["sites"][name]["train"] == 4
    assert source.start_images({"start": "holdout", "images": 4}).shape[0] == 4
    assert source.start_images({"start": "noise", "images": 4}).shape == (4, 3, 32, 32)
    with pytest.raises(UserError, match="no site has a picture to set aside"):
        open_source(config(fundus, holdout=0.01)).start_images({"start": "holdout", "images": 4})


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
        patch.setattr("medpfl.data.folders.cache.read_picture", lambda *_: pytest.fail("decoded again"))
        again = open_source(config(fundus)).site("site-1", CPU)
        assert torch.equal(again.images["train"], first.images["train"])
    paint(fundus / "north" / "normal" / "n1_right.png", (0, 0, 0), 1)
    changed = open_source(config(fundus, fractions=(1, 0, 0))).site("site-1", CPU)
    assert not pixels(changed.images["train"]) <= pixels(torch.cat([first.images["train"], first.images["test"]]))
    assert {folder.stat().st_mode & 0o777 for folder in (fundus.parent / "cache").rglob("*") if folder.is_dir()} == {
        0o700
    }


def test_a_damaged_cache_is_made_again(fundus):
    first = open_source(config(fundus)).site("site-1", CPU)
    (file,) = (fundus.parent / "cache" / "medpfl" / "folders").iterdir()
    file.write_bytes(file.read_bytes()[:-7])
    assert torch.equal(open_source(config(fundus)).site("site-1", CPU).images["train"], first.images["train"])


def gradient(mode="RGB"):
    """Wide, dark on the left, and on the right as light as it can be."""
    return Image.fromarray(np.tile(np.linspace(0, 255, 64, dtype=np.uint8), (32, 1))).convert(mode)


def read(tmp_path, image, name="x.png", save=None, **reading):
    image.save(tmp_path / name, **(save or {}))
    return read_picture(tmp_path / name, Reading(size=16, **reading))


def test_how_a_picture_becomes_square(tmp_path):
    crop, pad, stretch = (read(tmp_path, gradient(), fit=fit) for fit in ("crop", "pad", "stretch"))
    assert crop.shape == pad.shape == stretch.shape == (3, 16, 16)
    assert crop.dtype == np.uint8
    assert 50 < crop[0, 8, 0] < 80 and 175 < crop[0, 8, -1] < 205
    assert stretch[0, 8, 0] < 15 and stretch[0, 8, -1] > 240
    assert not pad[:, :4].any() and not pad[:, -4:].any() and pad[0, 8, -1] > 240


def test_channels(tmp_path):
    rgb, grey = read(tmp_path, gradient("L")), read(tmp_path, gradient("RGB"), channels="grey")
    assert rgb.shape == (3, 16, 16) and (rgb == rgb[:1]).all()
    assert grey.shape == (1, 16, 16)
    np.testing.assert_array_equal(grey[0], rgb[0])


def test_sixteen_bits_palettes_transparency_and_other_kinds(tmp_path):
    plain = read(tmp_path, gradient("L")).astype(int)
    deep = Image.fromarray(np.asarray(gradient("L")).astype(np.uint16) * 257)
    for name in ("x.png", "x.tif"):
        np.testing.assert_allclose(read(tmp_path, deep, name), plain, atol=1)
    np.testing.assert_allclose(read(tmp_path, gradient().quantize(256)), plain, atol=2)
    np.testing.assert_allclose(read(tmp_path, gradient("CMYK"), "x.tif"), plain, atol=2)
    clear = gradient("RGBA")
    clear.putalpha(Image.fromarray(np.repeat(np.uint8([[255], [0]]), 16, 0).repeat(64, 1)))
    seen = read(tmp_path, clear)
    assert seen[:, :7].any() and not seen[:, 9:].any()


def test_a_turned_picture_stands_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # its top is on the right
    turned = read(tmp_path, gradient(), "x.jpg", {"exif": exif}, fit="stretch")
    assert turned[0, 0, 8] < 30 and turned[0, -1, 8] > 225
    assert picture_size(tmp_path / "x.jpg") == (32, 64)


def test_values_of_no_known_range(tmp_path):
    with pytest.raises(UserError, match=r"x.tif: cannot be read \(values from 0 to 2, mode F: 8 or 16 bits are needed"):
        read(tmp_path, Image.fromarray(np.linspace(0, 2, 64, dtype=np.float32)[None].repeat(9, 0)), "x.tif")


@pytest.mark.parametrize("content", [b"", b"not a picture", None])
def test_a_broken_picture_is_named(fundus, content):
    file = fundus / "south" / "normal" / "n1_left.jpg"
    file.write_bytes(file.read_bytes()[:400] if content is None else content)
    with pytest.raises(UserError, match=r"south/normal/n1_left.jpg: cannot be read \(.*\); repair it or take it out"):
        open_source(config(fundus)).prepare()
    assert ["n1_left.jpg" in f.message for f in check(fundus) if f.level == "error"] == [True]


def test_the_same_file_at_two_sites_is_told(fundus, caplog):
    shutil.copy(fundus / "north" / "normal" / "n0_left.png", fundus / "west" / "glaucoma" / "copy.png")
    open_source(config(fundus)).prepare()
    said = (
        "n0_left.png and .*copy.png have the same content: training and test may share them; 1 of them in two classes"
    )
    assert re.search(said, caplog.text)
    assert any("have the same content" in f.message for f in check(fundus) if f.level == "warning")


def _move(fundus, old, new):
    (fundus / new).parent.mkdir(parents=True, exist_ok=True)
    (fundus / old).rename(fundus / new)


SPOILED = {
    "stray": lambda f: _move(f, "north/normal/n0_left.png", "north/n0_left.png"),
    "loose": lambda f: _move(f, "north/normal/n0_left.png", "n0_left.png"),
    "empty": lambda f: (f / "east").mkdir(),
    "case": lambda f: _move(f, "north/normal", "north/Normal"),
    "parts": lambda f: [_move(f, "north", "train"), _move(f, "south", "test"), shutil.rmtree(f / "west")],
    "inside": lambda f: (
        [_move(f, "north", "a"), shutil.rmtree(f / "south"), shutil.rmtree(f / "west")]
        + [_move(f, f"a/{c}", f"a/{part}/{c}") for c, part in zip(CLASSES, ("train", "test"), strict=True)]
    ),
    "single": lambda f: [shutil.rmtree(f / c / "normal") for c in CENTRES],
    "apart": lambda f: [_move(f, f"{c}/{k}", f"{c}/{c}-{k}") for c in CENTRES for k in CLASSES],
}


@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        (
            "stray",
            r"north/n0_left.png lies directly in a sub-folder, north/glaucoma/g0_left.png one deeper: ",
        ),
        ("loose", "fundus: n0_left.png lies in no class folder"),
        ("empty", "fundus: east: no picture is in it, and every sub-folder is a centre"),
        ("case", "class folders north/Normal and south/normal differ in case or spaces alone: call them the same"),
        ("parts", "fundus: test, train are parts, not centres: put a class's pictures of all parts into one folder"),
        ("inside", "fundus: test, train are parts, not classes"),
        ("single", "fundus: 'glaucoma' is the only class folder; two are needed"),
        ("apart", "no class folder is in two of the centres north, south, west: .*name the classes with --data-arg"),
    ],
)
def test_a_folder_that_cannot_be_used(fundus, spoiled, message):
    SPOILED[spoiled](fundus)
    with pytest.raises(UserError, match=message):
        Options(data=str(fundus)).config("fedavg")
    (found,) = check(fundus)
    assert found.level == "error"


def test_names_of_classes_tell_a_stray_picture_from_a_class(fundus):
    SPOILED["stray"](fundus)
    with pytest.raises(UserError, match=r"north/n0_left.png lies beside the class folders of north: move it into one"):
        read_layout(fundus, CLASSES)
    _move(fundus / "south", "normal/n0_left.jpg", "normal/left/n0.jpg")
    assert len(read_layout(fundus / "south", CLASSES).centres["south"]) == 2 * EACH


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sites": 2}, "--sites 2: .*fundus has 3 centres to train at"),
        ({"held_out": "east"}, "--held-out east: .* has the centres north, south, west"),
        ({"official": True}, "--official: .* come without parts; leave it out"),
        ({"pooling": "attention"}, "--pooling attention is over a scan's slices"),
        ({"data_args": {"sizes": 3}}, "--data-arg sizes: .*there are size, fit, channels, patient, classes"),
        ({"data_args": {"fit": "zoom"}}, "--data-arg fit: Input should be 'crop', 'pad' or 'stretch'"),
        ({"data_args": {"patient": "^[^_]+_"}}, "--data-arg patient: .* has no group in parentheses"),
        ({"data_args": {"patient": "(["}}, "--data-arg patient: .* is no regular expression"),
        ({"data_args": {"patient": "^n(.)"}}, r"north/glaucoma/g0_left.png: --data-arg patient=.* finds no patient"),
        ({"data_args": {"classes": ["ill", "normal"]}}, r"north/glaucoma: 'glaucoma' is none of the classes ill, norm"),
        ({"data_args": {"classes": "a"}}, '--data-arg classes: "a" is no list'),
    ],
)
def test_what_does_not_fit_is_said(fundus, fields, message):
    with pytest.raises(UserError, match=message):
        source = open_source(config(fundus, **fields))
        source.model_arguments()
        source.prepare()


def test_a_partition_and_a_file_are_refused(fundus):
    with pytest.raises(
        UserError, match="--partition iid: image folders are their own centres'; give natural or leave it out"
    ):
        Options(data=str(fundus), partition="iid").config("fedavg")
    with pytest.raises(UserError, match=r"n0_left.png: a picture; give a folder with one for each centre"):
        open_source(config(fundus / "north" / "normal" / "n0_left.png"))


def test_what_is_a_folder_of_pictures(fundus, monkeypatch):
    monkeypatch.chdir(fundus.parent)
    for data in ("fundus", "./fundus", str(fundus), str(fundus / "south")):
        assert is_folders(data) and not is_ct(data) and kind_of(data, {}) == "folders"
    assert Options(data="fundus").config("fedavg").data == str(fundus)
    assert isinstance(open_source(config("a:b")), OwnData)
    for file in ("south/labels.csv", "north/ct/1.dcm", "north/scan.nii.gz"):
        (fundus / file).parent.mkdir(exist_ok=True)
        (fundus / file).touch()
        assert is_ct(str(fundus)) and not is_folders(str(fundus))
        (fundus / file).unlink()
    assert kind_of("elsewhere", {"classes": list(CLASSES)}) == "scans"
    assert kind_of("elsewhere", {"classes": list(CLASSES), "channels": "rgb"}) == "folders"


def test_a_name_is_looked_for_in_the_data_folder_and_a_server_needs_no_pictures(fundus, monkeypatch):
    job = config("fundus", data_args={"classes": list(CLASSES), "channels": "rgb"})
    assert open_source(job).model_arguments() == {"in_channels": 3, "num_classes": 2, "image_size": 32}
    assert open_source(job).describe()["sites"] == {}
    with pytest.raises(UserError, match="image folder 'fundus' is not on this machine: no folder of that name in "):
        open_source(job).site("site-1", CPU)
    with pytest.raises(UserError, match="start=holdout: hospitals' pictures do not leave them"):
        open_source(job).start_images({"start": "holdout", "images": 4})
    with pytest.raises(UserError, match="--data fundus: give --sites: the pictures are not on this machine"):
        Options(data="fundus", data_arg=['classes=["a", "b"]', "channels=rgb"]).config("fedavg")
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
    assert ("ok", "west: 8×8 to 56×40 pixels") in found
    assert ("ok", "north: by the default split (0.5/0.1/0.4): train 6, validation 1, test 5") in found
    assert ("warning", "south: no picture of class normal") in found
    assert any(level == "warning" and "west: pictures of one colour: 1, the first is" in text for level, text in found)
    assert ("ok", "1 other file in the folder, not read") in found


def test_check_says_whose_pictures_are_whose_and_what_the_order_is(fundus):
    found = {f.message: f.level for f in check(fundus)}
    assert [level for text, level in found.items() if "each picture counts as its own patient" in text] == ["warning"]
    assert [level for text, level in found.items() if "the job's may differ" in text] == ["note"]
    told = {f.message: f.level for f in check(fundus, {"patient": "^([^_]+)_", "classes": "normal,glaucoma"})}
    assert told["fundus, 3 centres, classes: normal, glaucoma"] == "ok"
    assert told["north: 12 pictures of 6 patients: normal 6, glaucoma 6"] == "ok"
    assert set(told.values()) == {"ok"}


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
    results = run_experiment(run, home / "out", env="inprocess", reference=False)
    assert [site["n"] for site in results["final"]["selected"]["sites"].values()] == [6, 6]
    assert results["new"]["held_out"]["west"]["n"] == 2 * EACH
    assert results["data"]["reading"] == {"size": 32, "fit": "crop", "channels": "rgb", "patient": ""}
    assert "north" in (home / "out" / "report.html").read_text()
