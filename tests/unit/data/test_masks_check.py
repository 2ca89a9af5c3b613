"""What ``medpfl data check`` says of images with masks; and that a job carries no path and finds a hospital's own."""

import shutil
from pathlib import Path

import nibabel
import numpy as np
import pytest
from masked import (
    CPU,
    config,
    draw,
    save_nifti,
    volume,
    write_datalist,
    write_picture,
    write_siblings,
    write_slices,
    write_volumes,
)
from PIL import Image

from medpfl.core.errors import UserError
from medpfl.core.site_data import PARTS
from medpfl.data.check import check
from medpfl.data.fit import check_fit, other_kind
from medpfl.data.kinds.masks.mask_kind import MaskKind
from medpfl.data.kinds.masks.pair import Pair
from medpfl.data.kinds.masks.picture_pair import read_mask
from medpfl.data.kinds.masks.reading import Reading
from medpfl.data.kinds.registry import kind_of, said_kind
from medpfl.data.sites import open_source

REAL = Path(__file__).parents[4] / "shared" / "data"


def said(data, **arguments):
    return [(finding.level, finding.message) for finding in check(str(data), arguments)]


def words(data, level, **arguments):
    return " | ".join(message for found, message in said(data, **arguments) if found == level)


def test_good_slices(home):
    found = said(write_slices(home / "brains"), classes=["background", "tumour"])
    assert ("ok", "brains: 30 pictures with masks, 2 sites, classes: 0 background, 1 tumour") in found
    assert ("ok", "north: 15 pictures, 5 cases of 5 patients") in found
    assert ("ok", "north: 40×40 (rows × columns), colour") in found
    assert (
        "ok",
        "north: by the default split (0.5/0.1/0.4): train 9 of 3 patients, validation 0, test 6 of 2 patients",
    ) in found
    share = next(message for _, message in found if "pixels of the classes" in message)
    assert share.startswith("north: pixels of the classes: background 89.4 %, tumour 10.6 %")
    lacking = "north: 5 patients and no validation case by the default split (0.5/0.1/0.4): rounds are selected without"
    assert [message.startswith(lacking) for level, message in found if level != "ok"] == [True, False]


@pytest.mark.parametrize(
    ("patients", "remedy"),
    [(2, "that takes more patients"), (3, "--fractions 0.4,0.2,0.4 gives it one"), (10, "")],
)
def test_a_site_without_validation_is_told_with_what_gives_it_one(home, patients, remedy):
    root = write_slices(home / "brains", sites=("x",), patients=patients, slices=1)
    warned = words(root, "warning")
    assert warned.endswith(remedy) and (f"x: {patients} patients and no validation case" in warned) == bool(remedy)
    if "gives it one" in remedy:
        parts = open_source(config(root, sites=1, fractions=(0.4, 0.2, 0.4))).site("site-1", CPU)
        assert [parts.samples(part) for part in PARTS] == [1, 1, 1]


def test_what_is_worth_knowing(home):
    root = write_siblings(home / "chests")
    for file in sorted((root / "a" / "images").iterdir()):
        Image.open(file).convert("L").save(file)
    Image.new("L", (40, 40)).save(root / "b" / "masks" / "p0_0_mask.png")
    shutil.copy(root / "a" / "images" / "p0_0.png", root / "b" / "images" / "p0_0.png")
    for mask in (root / "b" / "masks").iterdir():
        Image.fromarray(np.asarray(Image.open(mask)) // 255).save(mask)
    Image.new("L", (40, 40), 9).save(root / "a" / "images" / "p1_1.png")
    filled = [root / "a" / "masks" / f"p0_{number}_mask.png" for number in (0, 1)]
    for mask in filled:
        Image.new("L", (40, 40), 255).save(mask)
    notes = words(root, "note")
    emptied = root / "b" / "masks" / "p0_0_mask.png"
    assert "nobody names the classes" in notes and f"b: background alone: 1 of 6 masks, it is {emptied}" in notes
    assert "pictures are grey at a, b; colour at b: all are read as rgb" in notes
    assert "masks mark their structure by 1, 255: taken for the same" in notes
    warnings = words(root, "warning")
    assert "each image counts as its own patient" in warnings and "have the same content" in warnings
    assert f"a: without any background: 2 of 6 masks, the first is {filled[0]}" in warnings
    assert "a: pictures of one colour: 1 of 6, the first is " in warnings and "p1_1.png" in warnings
    assert "nothing is left to test on; --held-out x, or leave the site out" in words(
        write_slices(home / "one", sites=("x",), patients=1), "warning"
    )
    Image.fromarray(np.asarray(Image.open(mask)) * 255).save(mask)  # among masks of 1 at its site
    assert "taken for the same" not in words(root, "note")
    assert "no mask at all has the class B" in words(root, "warning", classes="background,A,B", values=[0, [1, 255], 2])


def test_an_expression_for_the_patient_is_suggested_where_it_makes_sense_of_the_names(home):
    root = write_siblings(home / "chests")
    assert "--data-arg 'patient=^([^_]+)_' keeps them together" in words(root, "warning")
    for file in (root / "a").rglob("*.png"):
        file.rename(file.with_name(f"MCUCXR_{file.name}"))
    assert "^([^_]+)_" not in words(root, "warning") and "patient=EXPRESSION" in words(root, "warning")
    said = "all 6 pictures of a are one patient by patient='^([^_]+)_': is the expression right?"
    assert said in words(root, "warning", patient="^([^_]+)_")
    assert said in words(root / "a", "error", patient="^([^_]+)_")  # and there is nobody else to test on


def write_visits(root, name):
    for k in range(6):
        for visit in range(2):
            image = root / name.format(f"p{k:02d}", visit)
            values, mask = volume(10 * k + visit)
            save_nifti(image, values)
            save_nifti(image.with_name(image.name.replace(".nii", "_mask.nii")), mask)
    return root


def test_a_palette_that_numbers_black_otherwise_is_refused_unless_its_numbers_are_said(home):
    """Pillow numbers white first of a black and white mask: the structure was taken for the background."""
    for k in range(2):
        write_picture(home / "x" / f"{k}.png", home / "x" / f"{k}_mask.png", k)
    file = home / "x" / "1_mask.png"
    mask = Image.fromarray(np.asarray(Image.open(file)).astype(bool)).convert("RGB").quantize(2)
    mask.save(file)
    assert mask.getpalette()[:6] == [255, 255, 255, 0, 0, 0]
    wrong = f"{file}: its palette has black as number 1, and number 0, which is the background, as another colour"
    assert wrong in words(home / "x", "error")
    with pytest.raises(UserError, match="its palette has black as number 1"):
        open_source(config(home / "x", sites=1)).prepare()
    assert wrong not in words(home / "x", "error", values=[0, 1])
    mask.save(file, transparency=0)  # what is not to be seen is the background
    assert wrong not in words(home / "x", "error")


def test_what_is_not_to_be_seen_in_a_mask_is_background(tmp_path):
    _, inside = draw(0)
    white, part = np.full((40, 40), 255, np.uint8), inside.astype(np.uint8) * 255
    colours = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    colours[inside > 0] = 255
    layers = {
        "clear": np.dstack([white] * 3 + [part]),
        "grey": np.dstack([white, part]),
        "coloured": np.dstack([colours, part]),
        "no layer": np.dstack([part] * 3 + [0 * white]),
    }
    for name, pixels in layers.items():
        write_picture(tmp_path / "1.png", tmp_path / "m.png", 0)
        Image.fromarray(pixels).save(tmp_path / "m.png")
        pair = Pair("a", "b", "c", "d", tmp_path / "1.png", tmp_path / "m.png")
        assert np.array_equal(read_mask(pair, Reading(), 2).classes, inside > 0), name


def test_a_shear_is_said_to_be_taken_out_only_where_it_is(home):
    affine = np.eye(4)
    affine[1, 2] = np.tan(np.radians(15))
    for k in range(2):
        values, mask = volume(k, (16, 16, 16))
        save_nifti(home / "x" / f"{k}.nii.gz", values, affine=affine)
        save_nifti(home / "x" / f"{k}_mask.nii.gz", mask, affine=affine)
    lean = "its axes are 15.0 degrees off right angles (sheared): "
    assert f"{lean}it stays so, and lengths in mm are as if it were not" in words(home / "x", "warning")
    assert f"{lean}slices are moved back into line" in words(home / "x", "warning", spacing=[0, 0, 2])
    lengths = [
        len(open_source(config(home / "x", sites=1, data_args=said)).site("site-1", CPU).images["train"][0][0, 0])
        for said in ({}, {"spacing": [0, 0, 1]})
    ]
    assert lengths[0] == 16 < lengths[1]


def test_volumes_of_which_nobody_says_whose_they_are_are_told(home):
    root = write_visits(home / "visits", "{}_t{}.nii.gz")
    warned = words(root, "warning")
    assert "each image counts as its own patient, so images of one patient can be in training and in test" in warned
    assert "--data-arg 'patient=^([^_]+)_' keeps them together" in warned
    alike = "12 patients are called as another but for a number at the end, p00_t0 and p00_t1 first"
    assert alike in words(root, "note") and "a folder for both keeps them together" in words(root, "note")
    assert "counts as its own" not in words(root, "warning", patient="^([^_]+)_")
    listed = [{"image": f"{f.name[:6]}.nii.gz", "label": f.name} for f in sorted(root.glob("*_mask.nii.gz"))]
    file = write_datalist(root / "list.json", training=listed)
    assert "an entry's `patient` says whose it is, or where files' names begin" in words(file, "warning")
    assert alike in words(file, "note") and "one `patient` in both entries" in words(file, "note")
    assert "visits: 12 volumes, 12 cases of 6 patients" in words(file, "ok", patient="^([^_]+)_")
    write_datalist(file, training=[entry | {"patient": entry["image"][:3]} for entry in listed[:-1]] + listed[-1:])
    assert f"of 1 of 12 images nobody says whose they are, {root / 'p05_t1.nii.gz'} first: each" in words(
        file, "warning"
    )
    write_datalist(file, training=[entry | {"patient": entry["image"][:3]} for entry in listed])
    assert "counts as its own" not in words(file, "warning")


def test_folders_that_may_be_visits_are_told(home):
    root = write_visits(home / "visits", "a/{}_{}/scan.nii.gz")
    assert "counts as its own" not in words(root, "warning") and "for a number" not in words(root, "note")
    for folder in sorted((root / "a").iterdir())[:2]:
        folder.rename(folder.with_name("p00_v" + folder.name[-1]))
    assert "a: 2 patients are called as another but for a number at the end, p00_v0 and" in words(root, "note")


def test_all_that_is_wrong_is_listed_in_the_runs_words(home):
    root = write_slices(home / "brains")
    Image.new("L", (39, 40)).save(root / "north" / "n0" / "8_mask.png")
    Image.fromarray(np.full((40, 40), 9, np.uint8)).save(root / "south" / "s0" / "8_mask.png")
    (root / "south" / "s1" / "9.png").write_bytes(b"no picture")
    errors = words(root, "error")
    for part in ("8_mask.png: is 39×40 pixels, its image", "two structures?", "s1/9.png: cannot be read"):
        assert part in errors
    with pytest.raises(UserError) as first:
        open_source(config(root)).prepare()
    assert str(first.value) in errors
    (root / "north" / "n0" / "8.png").unlink()
    assert words(root, "error").endswith("take the file out of the folder")
    with pytest.raises(
        UserError, match=r"--data-arg sise: .* \(did you mean size\?\); there are dims, size, fit, .*classes$"
    ):
        said(root, sise=32)
    with pytest.raises(UserError, match="--data-arg fit"):
        said(root, fit="round")


def test_volumes(home, caplog):
    root = write_volumes(home / "sarcomas")
    found = said(root, classes=["background", "tumour"], patch=[11, 16, 16])
    assert ("ok", "ge: 4 volumes, 4 cases of 4 patients") in found
    assert ("ok", "ge: 10×24×20 to 13×24×26 (slices × rows × columns), 3×1×1 mm, no CT") in found
    assert ("note", "ge: smaller than the patch, 11×16×16, and padded with its least value: 1 of 4 volumes") in found
    assert not words(root, "error")
    values, _ = volume(2, (24, 24, 12))
    values[0, 0, :5] = np.nan
    save_nifti(root / "ge" / "STS_002" / "image.nii.gz", values)
    told = "STS_002/image.nii.gz: 5 voxels are not numbers (NaN): taken as the least value"
    assert told in words(root, "warning")
    for dims in (2, 3):
        caplog.clear()
        open_source(config(root, data_args={"dims": dims})).prepare()
        assert told in caplog.text  # a run says it too
    save_nifti(root / "ge" / "STS_000" / "mask.nii.gz", np.zeros((20, 24, 9), np.uint8))
    save_nifti(root / "ge" / "STS_001" / "mask.nii.gz", np.zeros((22, 24, 11), np.uint8), (1, 1, 1))
    save_nifti(root / "siemens" / "STS_010" / "image.nii.gz", volume(1, low=-900)[0], (1, 1, 3))
    errors = words(root, "error")
    assert "has 20×24×9 voxels, its image" in errors and "its voxels are 1×1×1 mm, those of" in errors
    assert "siemens: some volumes look like CT and some do not" in errors


def test_a_npz_file(home):
    images, masks = np.zeros((6, 8, 8), np.uint8), np.zeros((6, 8, 8), np.uint8)
    masks[:, 2:4, 2:4] = 1
    masks[3, 0, 0] = 5
    np.savez(home / "mine.npz", train_images=images, train_masks=masks)
    assert "mask number 3 has the values 0, 1, 5, and with two classes" in words(home / "mine.npz", "error")
    assert "an array `train_patients` in the file says whose" in words(home / "mine.npz", "warning", values=[0, [1, 5]])
    assert "mine: 6 images with masks, 1 site" in words(home / "mine.npz", "ok", values=[0, [1, 5]])


@pytest.mark.parametrize("write", [write_slices, write_siblings, write_volumes])
def test_a_job_carries_no_path_and_a_hospital_has_its_own_folder(home, write):
    root = write(home / "tumours")
    arguments = {"patch": [4, 8, 8]} if write is write_volumes else {"size": 16}
    whole = config(root, data_args={"classes": "background,tumour", **arguments})
    job = MaskKind().portable(whole)
    assert job.data == "tumours" and "/" not in str(job.data_args)
    assert job.data_args["classes"] == ["background", "tumour"]
    assert isinstance(said_kind(job.data_args), MaskKind)
    elsewhere = job.model_copy(update={"data": "not-here"})
    server = open_source(elsewhere)
    assert server.model_arguments() == open_source(whole).model_arguments()
    assert server.describe()["sites"] == {} and server.describe()["classes"] == ["background", "tumour"]
    assert "background" in server.in_words() and server.inputs() == open_source(whole).inputs()
    for number, name in enumerate(sorted(folder.name for folder in root.iterdir()), start=1):
        own = root / name
        assert other_kind(elsewhere, own) == []
        assert [finding.level for finding in check_fit(elsewhere, own)] == ["ok"]
        data = open_source(elsewhere, own).site(f"site-{number}", CPU)
        together = open_source(whole).site(f"site-{number}", CPU)
        assert [data.samples(part) for part in PARTS] == [together.samples(part) for part in PARTS]
        assert data.digest() == together.digest()


def test_data_that_are_not_what_a_job_says_are_refused_at_the_site(home, fundus):
    job = config("tumours", data_args={"classes": ["background", "tumour"], "dims": 2, "size": 16, "channels": "grey"})
    assert "pictures in folders; the job takes images with masks" in other_kind(job, fundus)[0].message
    images = np.zeros((4, 20, 20), np.uint8)
    np.savez(home / "own.npz", train_images=images, train_masks=images)
    assert "images of 20×20 pixels; the job has 16" in check_fit(job, home / "own.npz")[0].message
    named = {"train_images": images[:, :16, :16], "train_masks": images[:, :16, :16]}
    np.savez(home / "own.npz", **named, classes=np.array(["background", "lung"]))
    assert "its classes are background, lung, the job's are" in check_fit(job, home / "own.npz")[0].message
    np.savez(home / "own.npz", **named)
    assert check_fit(job, home / "own.npz")[0].level == "ok"
    with pytest.raises(UserError, match="--data-arg dims is missing"):
        open_source(config("tumours", data_args={"classes": 2, "values": [0, 1]})).model_arguments()


def test_slices_and_pictures_can_train_together(home):
    job = config("x", data_args={"classes": 2, "dims": 2, "size": 16, "channels": "grey"})
    write_volumes(home / "volumes", sites=("own",))
    write_picture(home / "pictures" / "1.png", home / "pictures" / "1_mask.png", 0)
    shapes = {
        open_source(job, home / what).site("site-1", CPU).images["train"].shape[1:] for what in ("volumes", "pictures")
    }
    assert shapes == {(1, 16, 16)}


@pytest.mark.parametrize(
    ("name", "pairs", "sites"), [("brain-mri", 3929, 5), ("chest-xray", 704, 2), ("sarcoma-mr", 28, 3)]
)
def test_real_hospitals_are_found(name, pairs, sites, home):
    root = REAL / name
    if not root.is_dir():
        pytest.skip(f"{name} does not lie beside the clone")
    assert isinstance(kind_of(str(root), {}), MaskKind)
    layout = open_source(config(root, sites=sites)).layout
    assert (len(layout.centres), sum(map(len, layout.centres.values()))) == (sites, pairs)


def turn_by_exif(file, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.open(file).save(file, exif=exif)


def test_a_picture_that_exif_data_turn_without_its_mask_is_told(home):
    root = write_slices(home / "brains", slices=1)
    turned = root / "north/n0/8.png"
    turn_by_exif(turned, 3)
    assert f"{turned}: EXIF data turn it, and not its mask" in words(root, "warning")
    turn_by_exif(root / "north/n0/8_mask.png", 3)
    assert "EXIF" not in words(root, "warning")


def test_a_mask_of_the_picture_as_it_is_stored_is_told_so(home):
    root = write_slices(home / "brains", slices=1)
    write_picture(root / "north/n0/8.png", root / "north/n0/8_mask.png", 0, size=(30, 40))
    turn_by_exif(root / "north/n0/8.png", 6)
    assert "both must be of one size (EXIF data turn the image; the mask fits the stored one" in words(root, "error")


def test_a_picture_of_12_bits_among_others_is_told(home):
    root = write_slices(home / "brains", slices=2)
    dark = root / "north/n0/8.png"
    values = np.random.default_rng(0).integers(0, 4096, (40, 40)).astype(np.uint16)
    Image.fromarray(values).save(dark)
    told = f"{dark}: 16 bits, and no pixel above 64 of 255: values of 12 bits? rescale it first"
    assert told in words(root, "warning")
    Image.fromarray(values * 16).save(dark)
    assert "12 bits" not in words(root, "warning")


def test_what_is_odd_of_many_images_with_masks_is_told_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_volumes(tmp_path / "v", sites=("a",), cases=3)
    for file in (tmp_path / "v").rglob("*.nii.gz"):
        image = nibabel.load(file)
        image = nibabel.Nifti1Image(np.asarray(image.dataobj), None, image.header)
        for form in (image.set_sform, image.set_qform):
            form(None, 0)
        nibabel.save(image, file)
    (told,) = [f.message for f in check(tmp_path / "v") if "does not say how it is oriented" in f.message]
    assert told.endswith("(and 2 more like it)")
