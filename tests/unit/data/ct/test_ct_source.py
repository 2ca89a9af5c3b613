"""CT scans as the sites' data: who has what, what a sample is, and what a user reads when something is wrong."""

import re
import shutil

import numpy as np
import pydicom
import pytest
import torch
from hospitals import FAULTS, truncated, write_cohort, write_table
from make_dicom import chest, write_series

from medpfl.cli.options import Options
from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.core.site_data import PARTS
from medpfl.data.check import check
from medpfl.data.kinds.scans.slice_cache import ScanCache
from medpfl.data.sites import open_source
from medpfl.data.source import images_per_sample, number_of_values
from medpfl.runs.experiment import run_experiment
from medpfl.site.many_patients import patients

CPU = torch.device("cpu")
SMALL_VIT = {"hidden_size": 12, "mlp_dim": 12, "num_layers": 1, "patch_size": 8}


QUICK, slow = (truncated,), pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write_cohort(tmp_path_factory.mktemp("cohort"))


@pytest.fixture
def cohort(made, tmp_path, monkeypatch):
    """A copy to spoil, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return shutil.copytree(made, tmp_path / "cohort")


def config(data, **fields):
    defaults = {"sites": 2, "held_out": 1, "fractions": (0.5, 0.0, 0.5), "rounds": 1, "local_epochs": 1}
    arguments = {"size": 16, "slices": 3, "spacing": [0, 0, 0]} | fields.pop("data_args", {})
    fields = {"algorithm": "vit-heads", "model_args": SMALL_VIT} | defaults | fields
    return make_config(data=str(data), data_args=arguments, device="cpu", **({"partition": "natural"} | fields))


def test_a_split_is_in_the_tables_of_scans_and_no_option(cohort):
    with pytest.raises(UserError, match=r"--official: a split of .*cohort is in its tables .*leave it out"):
        open_source(config(cohort, official=True))


def test_slices_carry_their_scans_label_and_their_patient(cohort):
    data = open_source(config(cohort)).site("site-1", CPU)
    assert data.images["train"].shape == (3 * 3, 1, 16, 16)
    assert data.images["train"].dtype == torch.float16
    assert data.bags("train").tolist() == data.owners("train").tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    labels = data.labels["train"].view(3, 3)
    assert (labels == labels[:, :1]).all()
    assert set(labels[:, 0].tolist()) == {0, 1}
    assert data.samples("test") == 3 * 3
    x, y = next(data.training_batches(5, torch.Generator()))
    assert (x.dtype, x.shape, len(y)) == (torch.float32, (5, 1, 16, 16), 5)
    assert -1 <= x.min() < x.max() <= 1


def test_each_scan_counts_with_all_the_slices_that_are_asked_for_before_it_is_decoded(cohort, monkeypatch):
    few = open_source(config(cohort))  # six scans at each centre, more than three slices each
    data = few.site("site-1", CPU)
    made = sum(data.images[part].numel() for part in PARTS)
    assert number_of_values(few, "site-1") == 6 * 3 * 16 * 16 == made
    monkeypatch.setattr(ScanCache, "__init__", lambda *arguments: pytest.fail("it was decoded"))
    many = open_source(config(cohort, data_args={"size": 1024, "slices": 100}))
    assert number_of_values(many, "site-1") == 6 * 100 * 1024 * 1024
    volumes = open_source(config(cohort, data_args={"size": 256, "depth": 512}))
    assert number_of_values(volumes, "site-1") == 6 * 512 * 256 * 256


def test_sites_are_the_centres_that_are_not_held_out(cohort):
    described = open_source(config(cohort)).describe()
    assert [site["centre"] for site in described["sites"].values()] == ["centre-1", "centre-2"]
    assert described["held_out"] == {"centre-3": 6}
    assert described["sites"]["site-1"]["train"] == 3
    assert described["sites"]["site-1"]["classes"] == {"0": 3, "1": 3}
    by_name = open_source(config(cohort, held_out="centre-1"))
    assert [site["centre"] for site in by_name.describe()["sites"].values()] == ["centre-2", "centre-3"]
    assert by_name.held_out(CPU)["centre-1"].samples("test") == 6 * 3


def test_a_held_out_centre_is_divided_like_a_site_when_it_joins(cohort):
    joining = open_source(config(cohort)).held_out(CPU, divided=True)["centre-3"]
    assert [joining.samples(part) for part in ("train", "validation", "test")] == [3 * 3, 0, 3 * 3]
    alone = open_source(config(cohort, sites=3, held_out=0)).site("site-3", CPU)
    assert joining.digest() == alone.digest()


def test_attention_takes_bags_of_equal_size(cohort):
    source = open_source(config(cohort, pooling="attention", data_args={"slices": 20}))
    data = source.site("site-1", CPU)
    assert data.images["train"].shape == (3, 20, 1, 16, 16)  # of 12 slices, the nearest repeated
    assert images_per_sample(source) == data.images_per_sample == 20
    assert data.bags("train").tolist() == [0, 1, 2]


TINY_3D = {"init_features": 4, "growth_rate": 4, "block_config": [1, 1], "bn_size": 2}


def whole(data, **fields):
    """A scan as one volume of 8 slices."""
    arguments = {"depth": 8} | fields.pop("data_args", {})
    return config(
        data, **{"algorithm": "fedbn", "model": "monai:DenseNet", "model_args": TINY_3D} | fields, data_args=arguments
    )


def test_a_scan_is_one_volume_of_the_size_that_is_said(cohort):
    source = open_source(whole(cohort))
    assert source.model_arguments()["image_size"] == (8, 16, 16)
    data, slices = source.site("site-1", CPU), open_source(config(cohort, data_args={"slices": 12})).site("site-1", CPU)
    assert data.images["train"].shape == (3, 1, 8, 16, 16)
    assert data.images_per_sample == 1
    assert data.bags("train").tolist() == data.owners("train").tolist() == [0, 1, 2]
    assert data.labels["train"].tolist() == slices.labels["train"][::12].tolist()
    # Of 12 slices 8 are made by area: the mean of all stays, and no value leaves the window.
    volume, own = data.images["train"][0].float(), slices.images["train"][:12].float()
    assert float(volume.mean()) == pytest.approx(float(own.mean()), abs=0.02)
    assert (volume[0, 0] - own[:2].mean(0)).abs().mean() < 0.1
    nothing = open_source(whole(cohort, fractions=(1.0, 0.0, 0.0))).site("site-1", CPU)
    assert nothing.images["test"].shape == (0, 1, 8, 16, 16)


def test_a_volume_of_12_slices_in_12_is_its_slices(cohort):
    data = open_source(whole(cohort, data_args={"depth": 12})).site("site-1", CPU)
    slices = open_source(config(cohort, data_args={"slices": 12})).site("site-1", CPU)
    assert torch.equal(data.images["train"][:, 0].reshape(-1, 1, 16, 16), slices.images["train"])


@pytest.mark.slow
def test_a_run_on_whole_volumes_trains_alone_too_and_is_by_patient(cohort, tmp_path):
    results = run_experiment(whole(cohort, augment="light:ct"), tmp_path / "out", env="inprocess")
    assert [site["n"] for site in results["final"]["selected"]["sites"].values()] == [3, 3]
    assert results["new"]["held_out"]["centre-3"]["n"] == 6
    assert results["data"]["preprocessing"]["depth"] == 8
    assert results["verdict"]["sites"].keys() == {"site-1", "site-2"}


def test_a_hospitals_own_manifest_is_its_site_whatever_it_is_called(cohort):
    own = config(cohort / "centre-2", sites=5, held_out=0)
    assert open_source(own).site("site-4", CPU).samples("train") == 3 * 3


def test_a_name_is_looked_for_in_the_data_folder(cohort, monkeypatch):
    monkeypatch.setenv("MEDPFL_DATA", str(cohort.parent))
    assert open_source(config("cohort")).manifest.root == cohort
    job = config("chest-ct", data_args={"classes": ["0", "1"]})
    assert open_source(job).model_arguments() == {"in_channels": 1, "num_classes": 2, "image_size": 16}
    with pytest.raises(UserError, match=r"CT data 'chest-ct' are not on this machine: no folder"):
        open_source(job).site("site-1", CPU)


def test_a_server_without_scans_describes_the_job_alone(cohort, monkeypatch):
    job = config("chest-ct", sites=2, held_out=0, data_args={"classes": ["0", "1"]})
    described = open_source(job).describe()
    assert (described["name"], described["sites"], described["classes"]) == ("chest-ct", {}, ["0", "1"])
    # One of the hospitals may have the server too: its own centre is not the federation.
    monkeypatch.setenv("MEDPFL_DATA", str(cohort))
    own = config("centre-1", sites=2, held_out=0, data_args={"classes": ["0", "1"]})
    assert open_source(own).describe()["sites"] == {}
    assert open_source(own).site("site-2", CPU).samples("train") == 3 * 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sites": 3}, "has 2 centres to train at and 1 held out"),
        ({"held_out": "centre-9"}, "--held-out centre-9: .* has the centres centre-1, centre-2, centre-3"),
        ({"held_out": 5}, "--held-out 5: at least one centre must be left to train at, and .* has 3: centre-1, "),
        ({"held_out": "centre-3, centre-1,centre-2"}, "--held-out .*: at least one centre must be left to train at"),
        ({"data_args": {"sizes": 16}}, "--data-arg sizes: .*there are size, slices, normalise, window"),
        ({"data_args": {"depth": 8}, "pooling": "attention"}, "with --data-arg depth a scan is one volume"),
        ({"data_args": {"depth": 512, "size": 1024}}, "--data-arg .*more than 134217728 voxels: take less"),
        ({"data_args": {"depth": 600}}, "--data-arg depth: .*less than or equal to 512"),
        ({"data_args": {"window": [100, -100]}}, "--data-arg window: .*the lower first"),
        (
            {"data_args": {"window": "-1350, 150"}},
            r"window: \"-1350, 150\" is no list of numbers: write it in brackets, as in 'window=\[-1350,150\]'",
        ),
        ({"data_args": {"spacing": 5}}, r"spacing: 5 is no list of numbers: .*, as in 'spacing=\[0,0,5\]'; there are"),
        ({"data_args": {"classes": ["ill", "well"]}}, "its classes are 0, 1, the job's are ill, well"),
        ({"data_args": {"classes": 3}}, "--data-arg classes: 3 is no list of at least two different names"),
        ({"data_args": {"classes": "a"}}, '--data-arg classes: "a" is no list'),
        ({"data_args": {"classes": None}}, "--data-arg classes: null is no list"),
        ({"data_args": {"classes": ["a"]}}, "--data-arg classes: .* is no list of at least two"),
        ({"data_args": {"classes": ["a", "a"]}}, "--data-arg classes: .* different names"),
        ({"data_args": {"classes": [0, 1]}}, r"--data-arg classes: \[0, 1\] is no list"),
    ],
)
def test_what_does_not_fit_is_said(cohort, fields, message):
    with pytest.raises(UserError, match=message):
        source = open_source(config(cohort, **fields))
        source.model_arguments()
        source.prepare()


def test_a_label_outside_a_jobs_classes_is_named_by_its_row(cohort):
    table = cohort / "centre-1" / "labels.csv"
    table.write_text(
        table.read_text().replace(",0\n", ",healthy\n").replace(",1\n", ",il\n", 1).replace(",1\n", ",ill\n")
    )
    job = config(cohort / "centre-1", held_out=0, data_args={"classes": ["healthy", "ill"]})
    with pytest.raises(
        UserError, match=r"labels.csv, line 3: label 'il' is none of the job's classes \(healthy, ill\)"
    ):
        open_source(job).site("site-1", CPU)


def test_a_series_at_two_centres_stops_a_simulation(cohort):
    shutil.copytree(cohort / "centre-1" / "p0", cohort / "centre-3" / "p0", dirs_exist_ok=True)
    uid = (cohort / "centre-1" / "labels.csv").read_text().splitlines()[1].split(",")[0]
    table = cohort / "centre-3" / "labels.csv"
    table.write_text("\n".join(["series,label", f"{uid},0", *table.read_text().splitlines()[2:]]))
    with pytest.raises(UserError, match=f"the series {uid} is in centre-1 and in centre-3: a scan has one centre"):
        open_source(config(cohort)).prepare()


def test_a_patient_at_two_centres_is_told_and_must_be_in_one_part(cohort, caplog):
    for name, part in (("centre-1", "train"), ("centre-2", "train"), ("centre-2", "test")):
        table = cohort / name / "labels.csv"
        rows = [row.split(",")[:2] for row in table.read_text().splitlines()[1:]]
        parts = [part, "train", "train", "test", "test", "test"]
        patients = ["same", *(f"{name}-{k}" for k in range(1, 6))]
        lines = [f"{uid},{label},{patients[k]},{parts[k]}" for k, (uid, label) in enumerate(rows)]
        table.write_text("\n".join(["series,label,patient,split", *lines]))
        if part == "train":
            open_source(config(cohort)).prepare()
    assert "patient same is in centre-1 and in centre-2: is it the same person?" in caplog.text
    with pytest.raises(UserError, match="patient same is in train of centre-1 and in test of centre-2"):
        open_source(config(cohort)).prepare()


def test_a_patient_with_two_labels_is_tested_twice_and_is_one_person(cohort):
    table = cohort / "centre-1" / "labels.csv"
    rows = sorted((row.split(",")[:2] for row in table.read_text().splitlines()[1:]), key=lambda row: row[1])
    persons = ["a-same", "b", "c", "d", "e", "a-same"]  # labels 0, 0, 0, 1, 1, 1
    lines = [f"{uid},{label},{person},test" for (uid, label), person in zip(rows, persons, strict=True)]
    table.write_text("\n".join(["series,label,patient,split", *lines]))
    source = open_source(config(cohort, pooling="attention"))
    data = source.site("site-1", CPU)
    assert len(set(data.bags("test").tolist())) == 6
    assert len(set(data.owners("test").tolist())) == 5
    described = source.describe()["sites"]["site-1"]
    assert described["test"] == 5 and described["classes"] == described["judged_classes"]["test"] == {"0": 3, "1": 3}


@pytest.mark.slow
def test_a_centre_that_is_named_twice_is_held_out_once(cohort):
    source = open_source(config(cohort, held_out="centre-1,centre-1"))
    assert source.describe()["held_out"] == {"centre-1": 6}


@pytest.mark.parametrize(("held_out", "sites"), [(None, 3), ("1", 2), ("centre-1,centre-1", 2), ("centre-3", 2)])
def test_the_number_of_sites_is_that_of_the_centres_that_train(cohort, held_out, sites):
    assert Options(data=str(cohort), held_out=held_out).config("fedavg").sites == sites


@pytest.mark.parametrize("held_out", ["3", "5", "centre-1,centre-2,centre-3"])
def test_one_centre_must_be_left_whoever_counts_the_sites(cohort, held_out):
    with pytest.raises(UserError, match=f"--held-out {held_out}: at least one centre must be left .* has 3"):
        Options(data=str(cohort), held_out=held_out).config("fedavg")


def test_a_set_with_sites_of_its_own_keeps_one_too(tmp_path):
    rng = np.random.default_rng(0)
    parts = {f"{part}_images": rng.integers(0, 255, (12, 28, 28), np.uint8) for part in ("train", "val", "test")}
    parts |= {f"{part}_labels": np.arange(12)[:, None] % 2 for part in ("train", "val", "test")}
    parts |= {f"{part}_sites": np.repeat(["a", "b", "c"], 4) for part in ("train", "val", "test")}
    np.savez(tmp_path / "own.npz", **parts)
    options = {"data": str(tmp_path / "own.npz"), "partition": "natural"}
    assert Options(**options, held_out="1").config("fedavg").sites == 2
    with pytest.raises(UserError, match=r"--held-out 3: .* has 3 sites, and at least one must be left to train at"):
        Options(**options, held_out="3").config("fedavg")


def test_a_job_without_scans_needs_the_number_of_sites():
    job = {"data": "chest-ct", "data_args": ['classes=["ill", "well"]']}
    with pytest.raises(UserError, match="--data chest-ct: give --sites: the scans are not on this machine"):
        Options(**job).config("fedavg")
    assert Options(**job, sites=3).config("fedavg").partition == "natural"


@pytest.mark.parametrize("linked", [pytest.param(False, marks=slow), True])
def test_what_changes_between_two_runs_in_a_process_is_noticed(cohort, tmp_path, linked):
    if linked:  # hospitals link folders of their archive
        shutil.move(cohort / "centre-1" / "p0", tmp_path / "p0")
        (cohort / "centre-1" / "p0").symlink_to(tmp_path / "p0")
    first = open_source(config(cohort)).describe()
    table = cohort / "centre-1" / "labels.csv"
    table.write_text(table.read_text().replace(",1\n", ",0\n", 1))
    second = open_source(config(cohort)).describe()
    assert second["sites"]["site-1"]["classes"] == {"0": 4, "1": 2} != first["sites"]["site-1"]["classes"]
    file = sorted((cohort / "centre-1" / "p0").iterdir())[4]
    dataset = pydicom.dcmread(file)
    dataset.Modality = "MR"
    dataset.save_as(file)
    with pytest.raises(UserError, match="MR"):
        open_source(config(cohort)).describe()


@pytest.mark.parametrize("fault", [pytest.param(f, id=f.__name__, marks=() if f in QUICK else slow) for f in FAULTS])
def test_check_and_run_say_the_same_and_nothing_is_trained(cohort, tmp_path, fault):
    said = fault(cohort)
    found = [f.message for f in check(cohort) if f.level == "error"]
    assert any(re.search(said, message) for message in found), found
    centres = 4 if fault.__name__ == "missing_file" else 3
    with pytest.raises(UserError, match=said):
        run_experiment(config(cohort, sites=centres, held_out=0), tmp_path / "out", env="inprocess")
    assert not (tmp_path / "out" / "results.json").exists()
    assert not (tmp_path / "out" / "models").exists()


@pytest.mark.parametrize("pooling", ["mean", pytest.param("attention", marks=slow)])
def test_a_run_reports_patients_the_new_test_and_the_held_out_centre(cohort, tmp_path, pooling):
    results = run_experiment(config(cohort, pooling=pooling), tmp_path / "out", env="inprocess")
    assert [site["n"] for site in results["final"]["selected"]["sites"].values()] == [3, 3]
    assert results["new"]["models"] == 2
    assert results["new"]["pooled"]["n"] == 6 and results["new"]["pooled"]["auroc_ci95_by"] == "patient"
    assert results["new"]["held_out"]["centre-3"]["n"] == 6
    assert results["data"]["preprocessing"]["size"] == 16
    assert results["heads"] == {"layers": 1, "personal": 4, "of": 6, "p": pytest.approx(4 / 6)}
    page = (tmp_path / "out" / "report.html").read_text()
    for words in ("centre-1", "4 of 6 attention heads are personal", "(p = 0.667)", "at centre-3, which took no part"):
        assert words in page, words


@pytest.mark.slow
def test_a_patient_with_scans_of_two_classes_is_two_cases_and_one_person(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for centre in ("north", "south"):
        folder, made = tmp_path / "twice" / centre, [(p, label) for p in range(12) for label in (0, 1)]
        scans = [
            write_series(folder / f"{p}-{label}", chest(slices=4, edge=16, seed=2 * p + label), patient=f"{centre}-{p}")
            for p, label in made
        ]
        write_table(folder, [(scan, label) for scan, (_, label) in zip(scans, made, strict=True)])
    fields = {"algorithm": "fedavg", "model": "lenet5", "model_args": {}, "use": "best", "alone": "yes"}
    asked = config(tmp_path / "twice", held_out=0, fractions=(0.34, 0.33, 0.33), **fields)
    data = open_source(asked).site("site-1", CPU)
    assert {part: patients(data, part) for part in PARTS} == dict.fromkeys(PARTS, 4)  # what a policy asks for
    results = run_experiment(asked, tmp_path / "out", env="inprocess")
    tested = results["final"]["selected"]["sites"]["site-1"]
    assert (tested["n"], tested["auroc_ci95_by"], results["data"]["sites"]["site-1"]["test"]) == (8, "patient", 4)
    assert any(
        note.startswith("Fewer than 7 validation patients chose what site-1, site-2") for note in results["notes"]
    )
    assert "Test patients" not in (tmp_path / "out" / "report.html").read_text()


def test_the_command_in_one_line_without_traceback(medpfl, cohort, tmp_path):
    said = FAULTS[0](cohort)
    command = ["run", "vit-heads", "--data", cohort, "--env", "inprocess", "--out", tmp_path / "out"]
    done = medpfl(*command, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert re.search(said, done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_of_patients_or_paths_is_in_what_a_site_sends(cohort, monkeypatch):
    from medpfl.core.server_state import ServerState
    from medpfl.engine.federation import Federation
    from medpfl.flare.transport.payload import update_to_shareable
    from medpfl.server.rounds import advance, messages
    from medpfl.site.store import MemoryStore

    federation = Federation.of(config(cohort))
    plan, sent = federation.plan(), []
    sites = {name: federation.site(name, MemoryStore()) for name in federation.config.site_names}
    state = ServerState()
    while state.phase != "done":
        replies = [sites[n].handle(m, federation.model()) for n, m in messages(plan, state).items()]
        sent += [repr(dict(update_to_shareable(reply))) for reply in replies]
        state = advance(plan, state, replies, 0.0)
    everything = " ".join(sent)
    identifiers = [row.split(",")[0] for row in (cohort / "centre-1" / "labels.csv").read_text().splitlines()[1:]]
    for secret in (*identifiers, "patient-", "centre-", str(cohort), ".dcm"):
        assert secret not in everything, secret
    assert "train_loss" in everything  # or nothing was looked at
