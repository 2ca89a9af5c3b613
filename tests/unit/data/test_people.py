"""One person, however files and tables write the name, and wherever there are samples of that person."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from masked import write_picture
from pictures import CPU, paint
from PIL import Image
from recordings import write_series

from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.core.site_data import PARTS
from medpfl.data.check import check
from medpfl.data.partition.by_patient import divide_patients
from medpfl.data.patients import by_person, person, split_patients
from medpfl.data.people import meeting, people
from medpfl.data.sites import open_source
from medpfl.data.source import training_patients


@dataclass(frozen=True)
class OfPatient:
    patient: str
    id: str
    label: int = 0
    split: str | None = None
    centre: str = "a"


def twice(number, one="P{}", other=" p {}"):
    """Two samples each of so many persons, whose names are written in two ways."""
    return [OfPatient(form.format(n), f"{n}-{k}") for n in range(number) for k, form in enumerate((one, other))]


@given(st.integers(3, 40), st.integers(0, 5))
def test_one_person_is_in_one_part(number, seed):
    parts = split_patients(twice(number), (0.5, 0.2, 0.3), 1.0, seed, "a")
    found = [{sample.patient for sample in samples} for samples in parts.values()]
    assert sum(map(len, found)) == len(set().union(*found)) == number  # under one name each
    assert sum(map(len, parts.values())) == 2 * number


@given(st.integers(4, 30), st.integers(0, 5))
def test_one_person_is_at_one_site(number, seed):
    divided = divide_patients(twice(number), "iid", ["a", "b", "c"], seed)
    found = [{person(sample.patient) for sample in samples} for samples in divided.values()]
    assert sum(map(len, found)) == len(set().union(*found)) == number


def test_accents_written_in_two_ways_make_no_other_person(home):
    assert len(by_person([OfPatient("M\u00fcller", "1"), OfPatient("Mu\u0308ller", "2")])) == 1


def test_names_that_differ_otherwise_are_two_persons():
    assert len(by_person([OfPatient("P1", "1"), OfPatient("P01", "2"), OfPatient("p1 ", "3")])) == 2


def test_patients_that_equal_sites_have_no_room_for_are_told(caplog):
    divide_patients([OfPatient(f"p{n}", str(n)) for n in range(14)], "equal-dirichlet:1", list("abcde"), 0)
    assert "4 of 14 patients are at no site, so that all have as many" in caplog.text


def test_what_is_told_of_them():
    (told,) = people({"north": twice(3), "south": [OfPatient("q", "1")]})
    assert (told.level, told.message) == (
        "warning",
        "north: patient ' p 0' (and 2 more like it) is written 'P0' too: by names that differ in case, spaces or how "
        "accents are written alone they are taken for one person, and stay in one part",
    )
    apart = [OfPatient("P1", "1", split="train"), OfPatient("p1", "2", split="test")]
    assert people({"north": apart})[0].message.endswith("alone they are taken for one person")
    (told,) = people({"north": [OfPatient("P1", "1")], "south": [OfPatient("p1", "2")]})
    assert (told.level, told.message) == ("warning", "patient P1 is in north and in south: is it the same person?")
    (told,) = people({"a": [OfPatient("P1", "1", split="train")], "b": [OfPatient("p1", "2", split="test")]})
    assert told.level == "error" and "patient P1 is in train of a and in test of b" in told.message


@pytest.fixture
def masked(tmp_path):
    """A datalist with two patients of site A in training who are in the test of site B."""
    rng, lists = np.random.default_rng(0), {"training": [], "test": []}
    for part, site, number in (("training", "A", 6), ("test", "B", 2)):
        for k in range(number):
            for what, content in (("image", rng.integers(0, 255, (8, 8))), ("mask", rng.integers(0, 2, (8, 8)) * 255)):
                Image.fromarray(content.astype(np.uint8)).save(tmp_path / f"{site}{k}-{what}.png")
            lists[part].append({"image": f"{site}{k}-image.png", "label": f"{site}{k}-mask.png", "patient": f"P{k}",
                                "site": site})  # fmt: skip
    (tmp_path / "datalist.json").write_text(json.dumps(lists))
    return tmp_path / "datalist.json"


def test_a_patient_of_two_sites_is_noticed_in_images_with_masks(masked):
    said = "patient P0 (and 1 more like it) is in train of A and in test of B: all that is of a patient"
    assert [f.level for f in check(str(masked)) if said in f.message] == ["error"]
    fields = {"sites": 2, "partition": "natural", "model": "unet", "device": "cpu"}
    config = make_config(algorithm="local", task="segmentation", data=str(masked), **fields)
    with pytest.raises(UserError, match="is in train of A and in test of B"):
        open_source(config).prepare()


def test_images_with_masks_of_a_patient_written_in_two_ways_are_one_persons(home):
    rng = np.random.default_rng(0)
    for k in range(24):
        folder = home / "brains" / f"{'Pp'[k % 2]}{k // 4}" / f"scan{k}"
        folder.mkdir(parents=True)
        for mark, content in (("", rng.integers(0, 255, (16, 16))), ("_mask", rng.integers(0, 2, (16, 16)) * 255)):
            Image.fromarray(content.astype(np.uint8)).save(folder / f"1{mark}.png")
    fields = {"sites": 1, "partition": "natural", "model": "unet", "task": "segmentation"}
    args = {"folders": "patients"}
    source = open_source(make_config(algorithm="local", data=str(home / "brains"), data_args=args, **fields))
    of = source.site("site-1", CPU)
    assert sum(len(of.owners(part).unique()) for part in PARTS) == 6
    assert source.describe()["sites"]["site-1"]["patients"] == 6


def test_whoever_counts_patients_counts_persons(home):
    """An update of twelve names of six people tells of six."""
    rows = [
        f"{k}.png,{form.format(k // 2)},{'ab'[k // 12]}"
        for k, form in zip(range(24), ["P{}", "p {}"] * 12, strict=True)
    ]
    for k in range(24):
        paint(home / "eyes" / f"{k}.png", (90, 90, 90), k)
    (home / "eyes" / "labels.csv").write_text("\n".join(["picture,patient,label", *rows]) + "\n")
    names = [form.format(n // 4) for n, form in zip(range(60), ["P{}", "p{}"] * 30, strict=True)]
    series = write_series(home / "mine.npz", patients=np.array(names))
    for data, model, people_there in ((home / "eyes", "lenet5", 12), (series, "fcn-1d", 15)):
        fields = {"model": model, "sites": 1, "partition": "natural"}
        source = open_source(make_config(algorithm="local", data=str(data), **fields))
        of = source.site("site-1", CPU)
        assert sum(len(of.owners(part).unique()) for part in PARTS) == people_there
        assert len(training_patients(source, "site-1")) == len(of.owners("train").unique())


def write_two_spellings(folder, kind):
    """Twelve images of six people, each of whom is written in two ways."""
    rows = ["picture,patient,label"]
    for k in range(12):
        patient = ("P{}", "p {}")[k % 2].format(k // 2)
        if kind == "pictures":
            paint(folder / f"{k}.png", (90, 90, 90), k)
            rows.append(f"{k}.png,{patient},{'ab'[k // 6]}")
        else:
            write_picture(folder / patient / "1.png", folder / patient / "1_mask.png", k)
    if kind == "pictures":
        (folder / "labels.csv").write_text("\n".join(rows) + "\n")


@pytest.mark.parametrize("kind", ["pictures", "masks"])
def test_a_held_out_centre_has_the_people_that_a_division_has(home, kind):
    for centre in ("north", "south"):
        write_two_spellings(home / "eyes" / centre, kind)
    how = {"model": "lenet5"} if kind == "pictures" else {"model": "unet", "task": "segmentation"}
    fields = {"data": str(home / "eyes"), "sites": 1, "partition": "natural", "held_out": "south"} | how
    source = open_source(make_config(algorithm="local", **fields))
    whole, divided = (source.held_out(CPU, divided=divided)["south"] for divided in (False, True))
    assert len(whole.owners("test")) == 12 and len(whole.owners("test").unique()) == 6
    assert sum(len(divided.owners(part).unique()) for part in PARTS) == 6
    said = [finding.message for finding in check(str(home / "eyes"))]
    assert [message for message in said if message.startswith("south: 12 pictures") and "of 6 patients" in message]


def test_pairs_that_meet_are_those_with_something_in_common_in_their_order():
    places = {"c": {1, 2}, "a": {2, 3}, "b": {4}, "d": {3, 1, 2}}
    assert meeting(places) == [("c", "a"), ("c", "d"), ("a", "d")]
    assert meeting({}) == meeting({"a": {1}}) == []
