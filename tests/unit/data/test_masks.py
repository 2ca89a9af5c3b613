"""Pictures with masks: how they are found, whose they are, how they are read."""

import shutil
import unicodedata

import numpy as np
import pytest
import torch
from masked import CPU, config, draw, write_datalist, write_picture, write_siblings, write_slices, write_volumes
from PIL import Image

from medpfl.core.errors import UserError
from medpfl.core.masked_data import MaskedImages
from medpfl.core.server_state import ServerState
from medpfl.core.site_data import PARTS, scale
from medpfl.data.check import check
from medpfl.data.kinds.masks import cache
from medpfl.data.kinds.masks.cache import load_pairs
from medpfl.data.kinds.masks.classes_of import to_classes, values_in
from medpfl.data.kinds.masks.layout import read_folder
from medpfl.data.kinds.masks.mask_kind import MaskKind
from medpfl.data.kinds.masks.pair import Pair
from medpfl.data.kinds.masks.picture_pair import read_mask, read_pair
from medpfl.data.kinds.masks.reading import Reading
from medpfl.data.kinds.registry import kind_of
from medpfl.data.sites import fixed_sites, open_source
from medpfl.engine.results import _notes


@pytest.fixture
def brains(home):
    return write_slices(home / "brains")


@pytest.fixture
def chests(home):
    return write_siblings(home / "chests")


def opened(data, **fields):
    return open_source(config(data, **fields))


def test_masks_are_told_by_names_before_classes_are(brains, chests, home):
    for folder in (brains, chests, brains / "north", chests / "a"):
        kind = kind_of(str(folder), {})
        assert isinstance(kind, MaskKind) and kind.task(str(folder), {}) == "segmentation"
    (home / "plain" / "x").mkdir(parents=True)
    Image.new("L", (9, 9)).save(home / "plain" / "x" / "masked_by_hand.png")
    assert kind_of(str(home / "plain"), {}).task(str(home / "plain"), {}) == "classification"
    assert fixed_sites(str(brains), "natural", {}) == 2
    assert fixed_sites(str(brains), "natural", {}, "north") == 1


def test_sites_are_folders_and_a_patients_slices_one_case_in_order(brains):
    source = opened(brains, data_args={"size": 40})
    assert source.model_arguments() == {"in_channels": 3, "num_classes": 2, "image_size": (40, 40)}
    data = source.site("site-1", CPU)
    assert isinstance(data, MaskedImages)
    assert [data.samples(part) for part in PARTS] == [9, 0, 6]
    cases = list(data.cases("train"))
    assert [len(case.mask) for case in cases] == [3, 3, 3] and cases[0].spacing is None
    patient = source._parts("north")["train"][0].patient
    for image, mask, number in zip(cases[0].images, cases[0].mask, (8, 9, 10), strict=True):
        pixels, inside = draw(int(patient[1]) * 10 + number)
        assert torch.equal(image, scale(torch.from_numpy(pixels.transpose(2, 0, 1))))
        assert torch.equal(mask, torch.from_numpy(inside))
    assert data.owners("train").tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_no_patient_is_in_two_parts_and_a_held_out_centre_is_tested_whole(brains):
    source = opened(brains, sites=1, held_out="south", fractions=(0.4, 0.2, 0.4))
    people = [{pair.patient for pair in part} for part in source._parts("north").values()]
    assert sum(map(len, people)) == len(set().union(*people)) == 5
    aside = source.held_out(CPU)
    assert list(aside) == ["south"] and [aside["south"].samples(part) for part in PARTS] == [0, 0, 15]
    assert source.held_out(CPU, divided=True)["south"].samples("train") == 6


def test_a_hospitals_own_folder_is_its_site_and_has_the_same_split(brains, chests):
    for folder, name in ((brains, "south"), (chests, "b")):
        together = opened(folder).site("site-2", CPU)
        own = opened(folder / name).site("site-2", CPU)
        for part in PARTS:
            assert torch.equal(own.images[part], together.images[part])
            assert torch.equal(own.labels[part], together.labels[part])


def test_sibling_folders_take_marks_and_patterns_for_patients(chests):
    assert opened(chests).describe()["sites"]["site-1"]["cases"] == 6
    data = opened(chests, data_args={"patient": "^([^_]+)_"}).site("site-1", CPU)
    assert [len(case.mask) for case in data.cases("train")] == [2, 2]


@pytest.mark.parametrize(
    "named", ["cxr/{}.png masks/{}.png", "img/{}.jpg label/{}_seg.png", "imagesTr/{}.tif labelsTr/{}.tif"]
)
def test_names_of_sibling_folders(home, named):
    image, mask = named.split()
    for k in range(4):
        write_picture(home / "x" / image.format(f"case{k}"), home / "x" / mask.format(f"case{k}"), k)
    layout = read_folder(home / "x", Reading())
    assert [pair.mask.name.startswith(pair.image.stem) for pair in layout.centres["x"]] == [True] * 4


@pytest.mark.parametrize("mark", ["_mask", "_segmentation", "-seg", "-label"])
def test_names_of_masks_beside_their_images(home, mark):
    for k in range(4):
        write_picture(home / "x" / f"case-{k}.png", home / "x" / f"case-{k}{mark}.png", k)
    layout = read_folder(home / "x", Reading())
    assert [pair.mask.stem for pair in layout.centres["x"]] == [f"case-{k}{mark}" for k in range(4)]


@pytest.mark.parametrize("named", ["img/{}.png masks/{}.png", "{}.png {}_mask.png"])
def test_accents_of_image_and_mask_may_be_written_in_two_ways(home, named):
    image, mask = named.split()
    for k in range(4):
        one, other = (unicodedata.normalize(form, f"Müller{k}") for form in ("NFC", "NFD"))
        write_picture(home / "x" / image.format(one), home / "x" / mask.format(other), k)
    assert len(read_folder(home / "x", Reading()).centres["x"]) == 4


def test_sub_folders_of_numbered_pictures_are_patients_unless_it_is_said(brains):
    assert list(read_folder(brains / "north", Reading()).centres) == ["north"]
    assert len(read_folder(brains / "north", Reading(folders="sites")).centres) == 5
    assert list(read_folder(brains, Reading(folders="patients")).centres) == ["brains"]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda root: (root / "north/n0/8_mask.png").unlink(), r"n0/8\.png: the image has no mask of its own"),
        (lambda root: (root / "north/n0/8.png").unlink(), r"n0/8_mask\.png: the mask has no image of its own"),
        (
            lambda root: shutil.copy(root / "north/n0/8_mask.png", root / "north/n0/8_mask_label.png"),
            r"n0/8_mask_label\.png: the mask has no image of its own",
        ),
        (lambda root: shutil.copy(root / "north/n0/8.png", root / "north/n0/8.jpg"), r"8\.png: the image has no mask"),
        (lambda root: write_picture(root / "1.png", root / "1_mask.png", 0), r"1\.png lies beside the folder north"),
    ],
)
def test_what_does_not_pair_is_named(brains, spoil, words):
    spoil(brains)
    with pytest.raises(UserError, match=words):
        opened(brains).prepare()


def spoiled(brains, change):
    file = brains / "south" / "s2" / "9_mask.png"
    change(file)
    opened(brains, data_args={"size": 16}).prepare()


def saved(pixels, **options):
    return lambda file: Image.fromarray(np.asarray(pixels, dtype=np.uint8), **options).save(file)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (saved(np.zeros((40, 39))), r"9_mask\.png: is 39×40 pixels, its image .*9\.png 40×40"),
        (saved(np.eye(40) + np.eye(40, k=1) * 2), r"9_mask\.png: has the values 0, 1, 2, and with two classes"),
        (
            lambda file: Image.open(file).resize((23, 23)).resize((40, 40), Image.Resampling.BICUBIC).save(file),
            r"9_mask\.png: has \d+ values, 0, \d.*: was it resized with interpolation.* by the nearest pixel",
        ),
        (saved(np.eye(40) * 7), r"has the value (7|255), .* has (7|255): two structures"),
        (saved(np.random.default_rng(0).integers(0, 9, (40, 40, 3))), r"9_mask\.png: cannot be read .*in colours"),
        (
            lambda file: Image.fromarray(np.eye(40, dtype=np.float32) / 2).save(file, "TIFF"),
            r"9_mask\.png: has the value 0\.5; the classes of a mask are whole numbers",
        ),
        (lambda file: file.write_bytes(b"no picture"), r"9_mask\.png: cannot be read"),
        (lambda file: file.with_name("9.png").write_bytes(b"no picture"), r"s2/9\.png: cannot be read"),
    ],
)
def test_a_mask_that_cannot_be_used_is_named(brains, change, words):
    with pytest.raises(UserError, match=words):
        spoiled(brains, change)


def three_classes(home, values=(0, 1, 2)):
    root = home / "three"
    for k in range(4):
        write_picture(root / f"{k}.png", root / f"{k}_mask.png", k)
        _, inside = draw(k)
        inside[:4] = 2
        Image.fromarray(np.asarray(values, dtype=np.uint8)[inside]).save(root / f"{k}_mask.png")
    return root


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((0, 1, 2), {"classes": "background,A,B"}),
        ((0, 1, 2), {"classes": 3}),
        ((0, 100, 200), {"values": [0, 100, 200]}),
        ((0, 100, 200), {"values": {"100": 1, "200": 2}}),
        ((7, 100, 200), {"classes": ["background", "A", "B"], "values": [[0, 7], 100, [200, 250]]}),
    ],
)
def test_values_of_a_mask_are_classes_or_are_said(home, values, said):
    source = opened(three_classes(home, values), sites=1, data_args={"size": 40, **said})
    assert source.model_arguments()["num_classes"] == 3
    assert source.describe()["sites"]["site-1"]["classes"] == {"0": 4, "1": 4, "2": 4}
    assert len(source.classes) == 3
    data = source.site("site-1", CPU)
    assert (data.labels["train"][:, :4] == 2).all() and data.labels["train"].dtype == torch.uint8


def test_several_values_can_be_one_structure(home):
    source = opened(three_classes(home), sites=1, data_args={"size": 40, "values": [0, [1, 2]]})
    assert source.site("site-1", CPU).class_counts(3).tolist()[2] == 0


def test_many_values_are_many_classes_where_all_are_named():
    mask = np.arange(20, dtype=np.uint8)[None]
    assert to_classes(mask, values_in(mask), 20, None).tolist() == mask.tolist()
    with pytest.raises(ValueError, match=r"has 20 values, 0, 1, 2, 3, 4, 5, \.\.\.: was it resized"):
        to_classes(mask, values_in(mask), 2, [[0], [1]])
    with pytest.raises(ValueError, match=r"has the values 10, 11, 12, 13, 14, 15, \.\.\., and there are 10 classes"):
        to_classes(mask, values_in(mask), 10, None)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"values": [0, 100]}, r"0_mask\.png: has the value 200, and --data-arg values names 0, 100"),
        ({"classes": 4}, r"0_mask\.png: has the values 100, 200, and there are 4 classes, 0 to 3"),
        ({"classes": "a,b", "values": [0, 1, 2]}, "--data-arg values: 3 classes, and classes are 2: a, b"),
        ({"classes": "A,background"}, "classes: background is a class after the first, A; the first is .* 0 in a mask"),
        ({"classes": "A,B, BG"}, "classes: BG is a class after the first, A"),
        ({"classes": ["A", "Hintergrund"]}, "put Hintergrund first, or call it otherwise"),
        ({"values": [0, 0]}, "--data-arg values: .*its own values"),
        ({"patch": [8, 8, 8]}, "--data-arg patch: pictures with masks have size, fit, channels, dims"),
        ({"dims": 3}, "--data-arg dims=3: .* has pictures"),
        ({"spacing": [1, 2]}, r"--data-arg spacing: \[1, 2\] has not the 3 numbers that are needed; there are"),
        ({"window": [1, 2, 3]}, r"--data-arg window: \[1, 2, 3\] has not the 2 numbers that are needed"),
        ({"colour": "red"}, "--data-arg colour: .*there are dims, size"),
        ({"channels": 4}, "--data-arg channels=4: a picture has rgb or grey"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(home, said, words):
    with pytest.raises(UserError, match=words):
        opened(three_classes(home, (0, 100, 200)), sites=1, data_args=said).prepare()


@pytest.mark.parametrize("fit", ["pad", "crop", "stretch"])
def test_image_and_mask_are_made_square_alike(home, fit):
    """The bright rectangle is where the mask is, at every fit: half a pixel off would show at its edges."""
    write_picture(home / "x" / "1.png", home / "x" / "1_mask.png", 3, size=(60, 90))
    data = opened(home / "x", sites=1, fractions=(1, 0, 0), data_args={"size": 30, "fit": fit}).site("site-1", CPU)
    bright, inside = data.images["train"][0, 0] > 130, data.labels["train"][0] == 1
    assert inside.sum() > 20 and (bright != inside).float().mean() < 0.02
    assert (data.images["train"][0, :, 0] == 0).all() == (fit == "pad")


def test_masks_of_one_bit_and_of_a_palette_are_classes(home):
    for k in range(2):
        write_picture(home / "x" / f"{k}.png", home / "x" / f"{k}_mask.png", k)
    _, inside = draw(0)
    Image.fromarray(inside.astype(bool)).save(home / "x" / "0_mask.png")
    palette = Image.fromarray(draw(1)[1], mode="P")
    palette.putpalette([0, 0, 0, 200, 30, 30])
    palette.save(home / "x" / "1_mask.png")
    data = opened(home / "x", sites=1, fractions=(1, 0, 0), data_args={"size": 40}).site("site-1", CPU)
    found = {mask.numpy().tobytes() for mask in data.labels["train"]}
    assert found == {draw(k)[1].tobytes() for k in range(2)}


def test_what_was_decoded_is_not_decoded_again_until_a_file_changes(brains, home, monkeypatch):
    opened(brains).prepare()
    files = list((home / "cache" / "medpfl" / "masks").iterdir())
    assert len(files) == 2 and all(file.stat().st_mode & 0o077 == 0 for file in files[0].parents[:1])
    opened(brains).prepare()
    assert list((home / "cache" / "medpfl" / "masks").iterdir()) == files
    write_picture(brains / "north/n0/8.png", brains / "north/n0/8_mask.png", 77)
    opened(brains).prepare()
    assert len(list((home / "cache" / "medpfl" / "masks").iterdir())) == 3
    monkeypatch.setattr(cache, "version", lambda name: "99" if name == "nibabel" else "1")
    opened(brains).prepare()
    assert len(list((home / "cache" / "medpfl" / "masks").iterdir())) == 5


def test_a_centres_pictures_are_decoded_once_however_it_is_divided(home, monkeypatch):
    root = write_slices(home / "brains", sites=("north",), patients=12, slices=2)
    decoded = []
    monkeypatch.setattr(cache, "read_pair", lambda pair, *how: decoded.append(pair) or read_pair(pair, *how))
    for seed, sites in ((0, 4), (1, 4), (2, 4), (0, 2), (0, 5)):
        source = opened(root / "north", sites=sites, seed=seed, partition="iid", data_args={"folders": "patients"})
        source.prepare()
        data = source.site("site-1", CPU)
    assert len(decoded) == 24 and len(list((home / "cache" / "medpfl" / "masks").iterdir())) == 1
    rows = {mask.numpy().tobytes() for part in PARTS for mask in data.labels[part]}
    own = load_pairs(source.layout.centres["site-1"], "pictures", source.reading, 2, home / "apart")
    assert rows == {one.mask[0].numpy().tobytes() for one in own}  # those of that site


def test_what_a_result_says_of_them(brains):
    described = opened(brains, data_args={"classes": "background,tumour"}).describe()
    assert described["classes"] == ["background", "tumour"] and described["name"] == "brains"
    assert described["sites"]["site-2"] == {
        **{"train": 9, "validation": 0, "test": 6, "classes": {"0": 15, "1": 15}},
        **{"centre": "south", "patients": 5, "validation_patients": 0, "test_patients": 2, "cases": 5},
    }
    assert described["reading"] == {"dims": 2, "size": 128, "fit": "pad", "channels": 3, "values": None}
    first = described["md5"]
    write_picture(brains / "north/n0/8.png", brains / "north/n0/8_mask.png", 77, size=(41, 40))
    assert opened(brains).describe()["md5"] != first


def test_volumes_of_few_patients_are_few_judges(home):
    write_volumes(home / "files", sites=("a",), cases=8)
    names = [f"files/a/STS_00{k}" for k in range(8)]
    entries = [
        {"image": f"{name}/image.nii.gz", "label": f"{name}/mask.nii.gz", "patient": k // 3}
        for k, name in enumerate(names)
    ]
    file = write_datalist(home / "list.json", training=entries[6:], validation=entries[:6])
    run = config(file, algorithm="fedbn", use="blend", alone="yes", sites=1, data_args={"patch": [4, 8, 8]})
    described = open_source(run).describe()
    of_site = described["sites"]["site-1"]
    assert {key: of_site[key] for key in ("validation", "patients", "validation_patients", "cases")} == {
        **{"validation": 6, "patients": 3, "validation_patients": 2, "cases": 8}
    }
    told = {"sites": {"site-1": {"validation": {"n": 6}}}}
    final = {"site-1": {"test": {"selected": None}, "tested": {"selected": 1}}}
    notes = _notes(run, ServerState(history=(told,), final=final), described)
    assert any(note.startswith("Fewer than 5 validation patients chose what site-1 uses (") for note in notes)


def test_pooling_and_what_has_no_meaning(brains):
    source = opened(brains)
    assert source.pooled_training(0.5, CPU).samples("train") == 9
    with pytest.raises(UserError, match="no images with masks are set aside"):
        source.set_aside(3, np.random.default_rng(0))
    with pytest.raises(UserError, match="--official"):
        opened(brains, official=True).prepare()
    with pytest.raises(UserError, match="single images"):
        opened(brains, pooling="attention")


def test_a_new_picture_is_read_as_training_reads_it(brains):
    from monai.bundle import ConfigParser

    source = opened(brains, data_args={"size": 24})
    inputs = source.inputs()
    assert (inputs.kind, inputs.channels, inputs.size) == ("masked picture", 3, 24)
    steps = ConfigParser({"steps": {"_target_": "Compose", "transforms": inputs.steps}}).get_parsed_content("steps")
    pair = source._parts("north")["train"][0]
    expected = source.site("site-1", CPU).images["train"]
    new = steps({"image": str(pair.image)})["image"]
    assert any(torch.allclose(new, scale(image), atol=1e-6) for image in expected)


def test_a_masks_values_may_be_rounded_by_its_headers_scale():
    """Of 0 and 255 with a slope of 1/255 a file reads 1.00000006."""
    scaled = np.array([[0, 255], [255, 0]], dtype=np.uint8).astype(np.float32) * np.float32(1.00000006 / 255)
    noisy = np.array([[1e-6, 0.99996], [2.00001, 0]], dtype=np.float32)
    assert values_in(scaled) == (0, 1)
    assert to_classes(scaled, values_in(scaled), 2, None).tolist() == [[0, 1], [1, 0]]
    assert values_in(noisy) == (0, 1, 2)
    assert to_classes(noisy, (0, 1, 2), 3, None).tolist() == [[0, 1], [2, 0]]
    assert to_classes(noisy, (0, 1, 2), 2, [[0], [1, 2]]).tolist() == [[0, 1], [1, 0]]
    with pytest.raises(ValueError, match=r"has the value 0\.5; the classes of a mask are whole numbers"):
        values_in(np.array([0, 0.5], dtype=np.float32))


def test_a_mask_in_jpeg_is_refused_whatever_it_holds(tmp_path):
    """An empty one at quality 70 comes back as all 1, and was read as all structure."""
    write_picture(tmp_path / "1.png", tmp_path / "1_mask.png", 0)
    for name in ("1_mask.jpg", "1_mask.JFIF", "1_mask.jpe"):
        Image.new("L", (48, 48)).save(tmp_path / name, format="JPEG", quality=70)
        with pytest.raises(UserError, match=rf"{name}: a mask in JPEG, which changes values"):
            read_mask(Pair("x", "p", "c", "1", tmp_path / "1.png", tmp_path / name), Reading(), 2)


def test_images_and_masks_of_formats_that_are_not_read_are_told(brains, caplog):
    (brains / "north" / "n0" / "extra.heic").write_bytes(b"ftypheic")
    said = "1 picture is not read (.heic), "
    assert any(f.level == "warning" and f.message.startswith(said) for f in check(str(brains)))
    open_source(config(brains)).prepare()
    assert said in caplog.text
    mask = brains / "north" / "n0" / "8_mask.png"
    mask.rename(mask.with_suffix(".gif"))
    with pytest.raises(UserError, match=r"8\.png: the image has no mask .*; 2 pictures are not read \(\.gif, \.heic\)"):
        open_source(config(brains)).prepare()
