"""An npz file that says whose its images are: each patient's at one site and in one part, and counted as a patient."""

import json
import re

import numpy as np
import pytest
import torch

from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.core.site_data import PARTS
from medpfl.data.kinds.npz.check_npz import check_npz
from medpfl.data.kinds.npz.npz_file import load
from medpfl.data.kinds.npz.partitioned import PartitionedImages
from medpfl.data.partition.make import make_partition
from medpfl.data.sites import open_source
from medpfl.data.source import number_of_patients, training_patients

CPU = torch.device("cpu")
SIZES = {"train": 30, "val": 9, "test": 12}
APART = np.arange(51) // 3
"""Three images a patient, who is in one of the file's parts."""
ACROSS = np.arange(51) % 17
"""Three images a patient, who is in several of the file's parts."""


def names(what, values):
    """The arrays of a file's three parts."""
    pieces = np.split(np.asarray(values), np.cumsum(list(SIZES.values()))[:-1])
    return {f"{part}_{what}": piece for part, piece in zip(SIZES, pieces, strict=True)}


def at_hospital(file, **fields):
    look = {"classes": ["a", "b", "c"], "size": 8, "channels": "grey"}
    fields = {"data_args": look, "partition": "natural", "sites": 2, **fields}
    return open_source(make_config(algorithm="fedbn", data="blood", **fields), file)


def simulated(file, partition="iid", sites=3, **fields):
    return PartitionedImages(make_config(algorithm="fedbn", data=str(file), partition=partition, sites=sites, **fields))


def places(sites, patients):
    """By patient in how many parts of how many sites the images are."""
    pairs = [
        (patient, (site.name, part)) for site in sites for part in PARTS for patient in patients[getattr(site, part)]
    ]
    return {patient: {place for whose, place in pairs if whose == patient} for patient, _ in pairs}


def test_a_hospitals_own_file_is_divided_by_patient(write):
    source = at_hospital(write(change=names("patients", ACROSS)))
    parts = source._parts("north")
    assert {len(there) for there in places([parts], ACROSS).values()} == {1}
    assert number_of_patients(source, "north") == {"train": 8, "validation": 2, "test": 7}
    assert training_patients(source, "north") == {str(patient) for patient in ACROSS[parts.train]}
    assert number_of_patients(at_hospital(write()), "north")["train"] == 25  # unknown: each image a patient's
    data = source.site("north", CPU)
    assert data.samples("train") == 24
    owners = {whose for part in PARTS for whose in data.owners(part).tolist()}
    assert len(owners) == 17 and len(data.owners("test").unique()) == 7
    few = at_hospital(write(change=names("patients", ACROSS)), train_fraction=0.5)
    assert number_of_patients(few, "north") == {"train": 4, "validation": 2, "test": 7}


def test_a_hospitals_own_parts_are_kept_where_they_know_no_patient_twice(write):
    source = at_hospital(write(change=names("patients", APART)), official=True)
    assert number_of_patients(source, "north") == {"train": 10, "validation": 3, "test": 4}
    assert source._parts("north").test.tolist() == list(range(39, 51))
    with pytest.raises(UserError, match=r"mine\.npz: patient \d+ is in .* and .*: all that is of one patient must be"):
        at_hospital(write(change=names("patients", ACROSS)), official=True).site("north", CPU)


@pytest.mark.parametrize("partition", ["iid", "dirichlet:1", "equal-dirichlet:1", "natural"])
def test_simulated_sites_share_no_patient(write, partition):
    sites = names("sites", ACROSS % 3) if partition == "natural" else {}
    source = simulated(write(change=names("patients", ACROSS) | sites), partition)
    assert {len(there) for there in places(source.partition.sites, ACROSS).values()} == {1}
    described = source.describe()["sites"]
    for name, site in described.items():
        whose = {
            part: set(source.dataset.people[getattr(source.partition.sites[int(name[-1]) - 1], part)]) for part in PARTS
        }
        assert site["patients"] == sum(map(len, whose.values())) and site["test_patients"] == len(whose["test"])
        assert source.patients(name, "test") == whose["test"]
        assert source.site(name, CPU).owners("train").unique().numel() == len(whose["train"])
    assert sum(site["patients"] for site in described.values()) == (15 if partition[:5] == "equal" else 17)


def test_simulated_sites_have_the_files_parts(write):
    sites = names("sites", APART % 3)
    with pytest.raises(
        UserError, match=r"--official: .*mine\.npz says whose the images are, and --partition iid draws"
    ):
        simulated(write(change=names("patients", APART) | sites), official=True).prepare()
    source = simulated(write(change=names("patients", APART) | sites), "natural", official=True)
    for code, part in enumerate(PARTS):
        rows = np.concatenate([getattr(site, part) for site in source.partition.sites])
        assert set(source.dataset.split[rows]) <= {code}
    with pytest.raises(UserError, match=r"mine\.npz: patient \S+ is in"):
        simulated(
            write(change=names("patients", ACROSS) | names("sites", ACROSS % 3)), "natural", official=True
        ).prepare()


def test_no_patient_is_half_set_aside(write):
    partition = make_partition(load(write(change=names("patients", ACROSS))), "iid", 2, holdout=0.2)
    assert len(partition.holdout) == 9 and len(set(ACROSS[partition.holdout])) == 3
    used = np.concatenate([getattr(site, part) for site in partition.sites for part in PARTS])
    assert not set(ACROSS[partition.holdout]) & set(ACROSS[used])
    others = make_partition(load(write(change=names("patients", ACROSS))), "iid", 2, seed=1, holdout=0.2)
    assert set(ACROSS[others.holdout]) != set(ACROSS[partition.holdout])


def test_nor_is_one_whose_name_is_written_in_two_ways(write):
    spelled = [f"P{k % 17}" if k < 20 else f"p {k % 17}" for k in range(51)]
    for seed in range(3):
        partition = make_partition(load(write(change=names("patients", spelled))), "iid", 2, seed=seed, holdout=0.2)
        assert len(partition.holdout) == 9 and len(set(ACROSS[partition.holdout])) == 3


def test_where_the_files_parts_are_kept_only_those_who_train_are_set_aside(write):
    """A fifth of the 30 training images: two of the ten patients, and nobody whom the file tests or validates on."""
    dataset = load(write(change=names("patients", APART) | names("sites", APART % 3)))
    for seed in range(5):
        partition = make_partition(dataset, "natural", seed=seed, holdout=0.2, pooled=False)
        assert len(partition.holdout) == 6 and partition.holdout.max() < 30
        assert sum(len(site.test) for site in partition.sites) == 12


def test_one_person_is_written_in_two_ways_and_two_sites_number_theirs_alike(write):
    spelled = [f"P{k % 17}" if k < 20 else f"p {k % 17}" for k in range(51)]
    assert number_of_patients(at_hospital(write(change=names("patients", spelled))), "north")["train"] == 8
    alike = names("patients", ACROSS // 2) | names("sites", np.where(ACROSS % 2, "x", "y"))
    assert len(set(load(write(change=alike)).people)) == 17
    divided = make_partition(load(write(change=alike)), "iid", 17)  # each site has one of the 17
    assert {len(there) for there in places(divided.sites, ACROSS).values()} == {1}


def test_a_partition_that_would_part_a_patient_is_refused(write, tmp_path):
    dataset = load(write(change=names("patients", ACROSS), classes=8))
    with pytest.raises(UserError, match=r"fedimpres-0.01: has numbers of images, and .*mine\.npz says whose they are"):
        make_partition(dataset, "fedimpres-0.01")
    file = tmp_path / "by-hand.json"
    file.write_text(json.dumps({"site-1": {"train": [0, 1]}, "site-2": {"train": [2], "test": [18, 3]}}))
    with pytest.raises(UserError, match=r"by-hand\.json: patient 1 of .*mine\.npz is in train and test"):
        make_partition(dataset, f"file:{file}")
    whole = make_partition(dataset, "iid", 2, holdout=0.2)
    whole.save(tmp_path / "drawn.json")
    assert len(make_partition(dataset, f"file:{tmp_path / 'drawn.json'}").holdout) == len(whole.holdout)
    drawn = json.loads((tmp_path / "drawn.json").read_text())
    twin = next(row for row in range(51) if row % 17 == whole.sites[0].train[0] % 17 and row != whole.sites[0].train[0])
    drawn["sites"]["site-1"]["train"].remove(twin)
    (tmp_path / "drawn.json").write_text(json.dumps(drawn | {"holdout": [twin]}))
    with pytest.raises(UserError, match=r"patient \d+ of .*mine\.npz is in train and holdout"):
        make_partition(dataset, f"file:{tmp_path / 'drawn.json'}")
    file.write_text(json.dumps({"site-1": {"train": [0, 17]}, "site-2": {"train": [2], "test": [3]}}))
    assert len(make_partition(dataset, f"file:{file}").sites) == 2
    spelled = names("patients", [f"P{k % 17}" if k < 20 else f"p {k % 17}" for k in range(51)])
    file.write_text(json.dumps({"site-1": {"train": [0, 1]}, "site-2": {"train": [2], "test": [35, 3]}}))
    with pytest.raises(UserError, match=r"by-hand\.json: patient p1 of .*mine\.npz is in train and test"):
        make_partition(load(write(change=spelled, classes=8)), f"file:{file}")


def test_a_patient_at_two_sites_of_a_partition_file_is_told(write, tmp_path, caplog):
    data, file = write(change=names("patients", ACROSS), classes=8), tmp_path / "by-hand.json"
    file.write_text(
        json.dumps({"site-1": {"train": [0, 3]}, "site-2": {"train": [17, 2]}, "site-3": {"train": [34, 20, 1]}})
    )
    simulated(data, f"file:{file}").prepare()
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told == f"{file}: patient 0 (and 1 more like it) is at two sites or more, 0 at site-1 and site-2 and site-3"
    caplog.clear()
    simulated(data).prepare()
    assert not caplog.records


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"val_patients": None}, r"mine\.npz: has train_patients, but no val_patients"),
        ({"val_patients": np.arange(3)}, r"val_patients is int64 3; text or integers, \(9,\), are needed"),
        ({"test_patients": np.ones(12)}, r"test_patients is float64 12; text or integers, \(12,\), are needed"),
    ],
)
def test_names_are_of_all_images_or_none(write, change, message):
    with pytest.raises(UserError, match=message):
        load(write(change=names("patients", APART) | change))


@pytest.mark.parametrize("nobody", ["", "nan", "?"])
def test_nobody_is_no_patient(write, nobody):
    whose = [nobody if k % 3 else str(k) for k in range(51)]
    with pytest.raises(
        UserError, match=rf"mine\.npz: 34 images are of the patient '{re.escape(nobody)}', who is nobody"
    ):
        load(write(change=names("patients", whose)))


def test_one_person_at_two_hospitals_is_told_and_refused_in_two_parts(write, caplog):
    """By the file's parts the patients 0 to 3 train at x and are tested at y."""
    whose = np.concatenate([np.arange(39) // 3, np.arange(12) // 3])
    file = write(change=names("patients", whose) | names("sites", np.where(np.arange(51) < 39, "x", "y")))
    simulated(file, "natural", sites=2).prepare()
    assert "patient 0 (and 3 more like it) is in x and in y: is it the same person?" in caplog.text
    with pytest.raises(UserError, match=r"patient 0 \(and 3 more like it\) is in train of x and in test of y"):
        simulated(file, "natural", sites=2, official=True).prepare()
    said = [f.message for f in check_npz(str(file), {})]
    assert any("patient 0 (and 3 more like it) is in more than one of the file's parts" in line for line in said)


def test_a_file_of_one_patient_is_an_error_of_the_check(write):
    found = [(f.level, f.message) for f in check_npz(str(write(change=names("patients", np.zeros(51, int)))), {})]
    assert ("error", "mine: all images are of one patient: none is left to test on") in found


def test_patients_who_are_too_many_to_be_set_aside_stay_and_others_are_taken(write):
    whose = np.concatenate([np.zeros(30, int), np.arange(1, 22)])
    dataset = load(write(change=names("patients", whose)))
    for seed in range(5):
        holdout = make_partition(dataset, "iid", 2, seed=seed, holdout=0.2).holdout
        assert len(holdout) == 10 and 0 not in whose[holdout]


def test_a_part_without_images_needs_no_names(write):
    for none in (None, np.array([])):
        change = names("patients", APART) | {"val_patients": none}
        assert len(load(write(val=0, change=change)).patients) == 42


def test_a_check_says_how_many_patients_there_are(write):
    said = [f.message for f in check_npz(str(write(change=names("patients", ACROSS))), {})]
    assert any("mine: 51 images of 17 patients; by the default split train 24 of 8 patients" in line for line in said)
    assert any("patient 0 (and 16 more like it) is in more than one of the file's parts" in line for line in said)
    assert not any("does not say whose" in line for line in said)
    said = [f.message for f in check_npz(str(write(change=names("patients", APART))), {})]
    assert not any("more than one of the file's parts" in line for line in said)
    said = [f.message for f in check_npz(str(write()), {})]
    assert any("does not say whose an image is" in line and "arrays train_patients" in line for line in said)
