"""One hospital's folder over simulated sites: patients stay whole, and nothing is lost."""

import sys
from pathlib import Path

import numpy as np
import pytest
from masked import config as masked_config
from masked import draw, write_slices
from pictures import CPU, config, paint

from medpfl.cli.options import Options
from medpfl.core.errors import UserError
from medpfl.core.site_data import PARTS
from medpfl.data.kinds.folders.layout import read_layout
from medpfl.data.kinds.registry import kind_of
from medpfl.data.partition.by_patient import divide_patients
from medpfl.data.partition.draw import draw as draw_labels
from medpfl.data.partition.known_patients import Image
from medpfl.data.partition.spec import parse_spec
from medpfl.data.sites import open_source

sys.path.append(str(Path(__file__).parent / "ct"))
from make_dicom import chest, write_nifti

OWN = {"patient": "^([^_]+)_"}


@pytest.fixture
def hospital(home):
    """12 patients of two pictures each, one centre."""
    for number in range(24):
        label = ("ill", "well")[number % 12 < 4]
        paint(home / "eyes" / label / f"p{number % 12}_{number // 12}.png", (60, 80, 90 + 5 * number), number)
    return home / "eyes"


@pytest.mark.parametrize("partition", ["dirichlet:0.5", "equal-dirichlet:0.5", "iid"])
def test_each_patient_is_at_one_site_and_the_draw_is_the_seeds(hospital, partition):
    (pictures,) = read_layout(hospital, patient=OWN["patient"]).centres.values()
    sites = ("site-1", "site-2", "site-3")
    divided = divide_patients(pictures, partition, sites, 1)
    assert tuple(divided) == sites and divided == divide_patients(pictures, partition, sites, 1)
    ids = [picture.id for own in divided.values() for picture in own]
    assert len(ids) == len(set(ids)) == 24 and all(p.centre == site for site in sites for p in divided[site])
    people = [{picture.patient for picture in own} for own in divided.values()]
    assert sum(map(len, people)) == len(set.union(*people)) == 12


def test_a_patient_is_drawn_by_the_class_of_most_samples_wherever_they_stand():
    """Of three images the first is of class 0, the others of the patient's number's parity."""
    samples = [Image("c", f"p{p:02d}", (0, p % 2, p % 2)[k], f"{p}-{k}", 0, None) for k in range(3) for p in range(40)]
    sites = ("site-1", "site-2", "site-3")
    drawn = draw_labels(parse_spec("dirichlet:0.2"), np.arange(40) % 2, 3, 0)
    for order in (samples, samples[::-1]):
        divided = divide_patients(order, "dirichlet:0.2", sites, 0)
        people = [sorted({int(image.patient[1:]) for image in divided[site]}) for site in sites]
        assert people == [sorted(rows.tolist()) for rows in drawn]


def test_pictures_of_one_hospital_train_at_simulated_sites(hospital):
    source = open_source(config(hospital, partition="iid", sites=3, data_args=OWN))
    source.prepare()
    parts = [source.site(f"site-{k}", CPU) for k in (1, 2, 3)]
    assert sum(site.samples(part) for site in parts for part in PARTS) == 24
    assert source.describe()["partition"] == "iid" and set(source.describe()["sites"]) == {"site-1", "site-2", "site-3"}


def test_scans_of_one_hospital_train_at_simulated_sites(home):
    folder = home / "ct"
    for number in range(6):
        write_nifti(folder / f"p{number}.nii", chest(slices=6, seed=number), spacing=(5, 5, 5))
    (folder / "labels.csv").write_text("series,label\n" + "".join(f"p{n}.nii,{n % 2}\n" for n in range(6)))
    source = open_source(config(folder, partition="iid", sites=2, data_args={"size": 16}))
    source.prepare()
    described = source.describe()
    assert [site["scans"] for site in described["sites"].values()] == [3, 3]
    assert sum(source.site(name, CPU).samples(part) for name in ("site-1", "site-2") for part in PARTS) == 36


def test_seeds_divide_the_same_data(hospital, home):
    """Each seed's division was other data by its checksum, and a comparison of two ended after all its training."""
    write_slices(home / "brains", sites=("north",), patients=6, slices=2)
    for number in range(6):
        write_nifti(home / "ct" / f"p{number}.nii", chest(slices=6, seed=number), spacing=(5, 5, 5))
    (home / "ct" / "labels.csv").write_text("series,label\n" + "".join(f"p{n}.nii,{n % 2}\n" for n in range(6)))
    for made, data in ((config, hospital), (config, home / "ct"), (masked_config, home / "brains")):
        sources = [
            open_source(made(data, sites=sites, seed=seed, **said))
            for sites, seed, said in ((2, 0, {"partition": "iid"}), (2, 1, {"partition": "iid"}), (1, 0, {}))
        ]
        assert len({source.describe()["md5"] for source in sources}) == 1


@pytest.mark.parametrize("kind", ["picture", "series"])
def test_other_parts_patients_and_voxels_are_other_data(home, kind):
    """A comparison went on with runs of other test patients, as many at each site, and with those of other scans."""
    folder, end = home / "mine", {"picture": "png", "series": "nii"}[kind]

    def write(seed=0):
        for k in range(8):
            if kind == "picture":
                paint(folder / f"{k}.png", (30 + seed, 30, 40 + k), k)
            else:
                write_nifti(folder / f"{k}.nii", chest(slices=6 + seed, seed=k), spacing=(5, 5, 5))

    def checksum(parts, patient="p{}"):
        rows = [f"{k}.{end},{k % 2},{patient.format(k)},{part}" for k, part in enumerate(parts)]
        (folder / "labels.csv").write_text("\n".join([f"{kind},label,patient,split", *rows]) + "\n")
        source = open_source(config(folder, sites=1, data_args={"size": 16}))
        told = source.describe()
        assert told["sites"]["site-1"]["train"] == told["sites"]["site-1"]["test"] == 4
        assert source.checksum() == told["md5"]
        return told["md5"]

    parts = ["train"] * 4 + ["test"] * 4
    write()
    found = [checksum(parts), checksum(parts), checksum(parts[::-1]), checksum(parts, "q{}")]
    write(seed=1)
    found.append(checksum(parts))
    assert found[0] == found[1] and len(set(found)) == 4


@pytest.mark.parametrize("partition", ["dirichlet:5", "equal-dirichlet:0.5", "iid"])
def test_images_with_masks_of_one_hospital_train_at_simulated_sites(home, partition):
    folder = write_slices(home / "brain", sites=("north",), patients=9, slices=2)
    source = open_source(masked_config(folder, partition=partition, sites=3, data_args={"size": 32}))
    source.prepare()
    sites = [f"site-{k}" for k in (1, 2, 3)]
    people = [{pair.patient for pair in source.layout.centres[site]} for site in sites]
    assert sum(map(len, people)) == len(set.union(*people)) == 9
    described = source.describe()
    assert described["partition"] == partition and sum(s["patients"] for s in described["sites"].values()) == 9
    assert sum(source.site(site, CPU).samples(part) for site in sites for part in PARTS) == 18


def test_masks_in_an_npz_file_are_divided_by_patient(home):
    images, masks = (np.stack(arrays) for arrays in zip(*(draw(n) for n in range(12)), strict=True))
    patients = np.array([f"p{n // 2}" for n in range(12)])
    np.savez(home / "mr.npz", train_images=images, train_masks=masks, train_patients=patients)
    source = open_source(masked_config(home / "mr.npz", partition="iid", sites=2))
    source.prepare()
    people = [{pair.patient for pair in own} for own in source.layout.centres.values()]
    assert [len(own) for own in people] == [3, 3] and not people[0] & people[1]
    assert source.layout.centres["site-1"][0].split is None and source.layout.form == "arrays"


def test_masks_that_cannot_be_divided_are_refused_before_anything_is_read(home):
    both = write_slices(home / "brain", patients=3, slices=1)
    with pytest.raises(UserError, match=r"--partition iid: divides one centre, and .* has 2: north, south"):
        _asked(both)
    with pytest.raises(UserError, match="images with masks are their own centres': leave it out; dirichlet:A"):
        _asked(both, partition="fedimpres-0.01")
    one = _asked(both / "north", sites="3")
    assert one.partition == "iid" and one.task == "segmentation"
    with pytest.raises(UserError, match="--partition iid: is for simulated sites; in a job each hospital has its own"):
        kind_of(str(both / "north"), {}).portable(one)


def _asked(data, **fields):
    return Options(**{"data": str(data), "partition": "iid", "sites": "2"} | fields).config("fedavg")


def test_a_job_carries_no_partition_of_a_hospital(hospital):
    with pytest.raises(UserError, match="--partition iid: is for simulated sites"):
        kind_of(str(hospital), {}).portable(_asked(hospital))


def test_what_cannot_be_divided(hospital, fundus):
    assert _asked(hospital).partition == "iid"
    with pytest.raises(UserError, match=r"divides one centre, and .* has 3: north, south, west"):
        _asked(fundus)
    with pytest.raises(UserError, match="are their own centres': leave it out; dirichlet:A"):
        _asked(hospital, partition="fedimpres-0.01")
    with pytest.raises(UserError, match="with --partition iid all sites train"):
        _asked(hospital, held_out="1")
    with pytest.raises(UserError, match="only 24 patients to divide"):
        open_source(_asked(hospital, sites="25")).prepare()
    with pytest.raises(UserError, match=r"would have no patient of 24: another --seed"):
        open_source(_asked(hospital, partition="dirichlet:0.001", sites="5")).prepare()
