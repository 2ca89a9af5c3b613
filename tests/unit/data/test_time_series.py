"""Time series in npz files: sites, patients, how they are read, what is refused, and the way of a run to its bundle."""

import json

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from monai.bundle import ConfigWorkflow
from recordings import series, write_series

from medpfl.algorithms.fedap.statistics import statistics_under
from medpfl.bundle.series import LoadSeriesd
from medpfl.cli.audit import open_audit
from medpfl.config.fields import OPTIONS
from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.core.layers import batch_norm_layers
from medpfl.core.site_data import PARTS
from medpfl.data.check import check
from medpfl.data.fit import check_fit, other_kind
from medpfl.data.kinds.registry import kind_of
from medpfl.data.kinds.series.reading import as_input
from medpfl.data.sites import fixed_sites, open_source
from medpfl.engine.federation import Federation
from medpfl.flare.job.recipes import FedBNRecipe
from medpfl.runs.asked import as_meant, config_of, configs_of
from medpfl.runs.experiment import run_experiment
from medpfl.site.policy import OPEN, AuditThresholds

CPU = torch.device("cpu")
SITES = {"sites": np.repeat(["north", "south"], 30), "patients": np.tile(np.arange(10), 6)}
SMALL = {"model": "fcn-1d", "model_args": {"width": 4}}


def config(data, algorithm="fedbn", **fields):
    fields = {"partition": "natural", "sites": 1, **fields}
    return make_config(algorithm=algorithm, data=str(data), **fields)


def said(data, **fields):
    """What a command line would have said."""
    return as_meant(
        dict.fromkeys(OPTIONS) | {"data_args": {}, "model_args": {}, "settings": {}, "data": str(data)} | fields
    )


def asked(data, algorithm="fedbn", **fields):
    return config_of(algorithm, said(data, **fields))


def test_a_recipe_makes_the_run_that_a_command_makes(home, monkeypatch):
    """Also of a file in the folder that it is started in: FLARE's processes run in others."""
    write_series(home / "mine.npz", **SITES)
    monkeypatch.chdir(home)
    made, by_command = FedBNRecipe(data="mine.npz").config, asked("mine.npz")
    assert (made.model, made.sites, made.partition) == ("fcn-1d", 2, "natural")
    assert made == by_command


def test_sites_and_patients_are_the_files(home):
    file = write_series(home / "mine.npz", **SITES)
    assert kind_of(str(file), {}).name == "series"
    assert fixed_sites(str(file), "natural", {}) == 2
    source = open_source(config(file, sites=2))
    assert source.model_arguments() == {"in_channels": 3, "num_classes": 3, "image_size": (40,)}
    north, south = source.site("site-1", CPU), source.site("site-2", CPU)
    assert [sum(of.samples(part) for part in PARTS) for of in (north, south)] == [30, 30]
    assert [north.samples(part) for part in PARTS] == [15, 3, 12]
    whose = [set(north.owners(part).tolist()) for part in PARTS]
    assert not whose[0] & whose[2] and not whose[0] & whose[1]
    # Patient 3 of the north and patient 3 of the south are two.
    assert not set().union(*whose) & set(south.owners("train").tolist())
    raw = torch.from_numpy(np.load(file)["series"])
    expected = (raw - raw.mean(2, keepdim=True)) / raw.std(2, keepdim=True, correction=0)
    first = next(iter(north.batches("test", 1)))[0][0]
    assert (expected - first).abs().amax((1, 2)).min() < 1e-5
    assert source.describe()["sites"]["site-1"]["patients"] == 10


def test_what_is_pooled_are_windows_that_sites_train_on(home):
    source = open_source(config(write_series(home / "mine.npz", **SITES), sites=2))
    pooled = source.pooled_training(1.0, CPU)
    assert [pooled.samples(part) for part in PARTS] == [30, 0, 0]
    training = torch.cat([source.site(name, CPU).images["train"] for name in ("site-1", "site-2")])
    rows, others = pooled.images["train"].flatten(1), training.flatten(1)
    assert torch.equal(rows[:, None].eq(others).all(2).sum(0), torch.ones(30, dtype=torch.long))


def test_drawn_sites_keep_a_patient_together(home):
    file = write_series(home / "mine.npz", patients=np.arange(60) // 3)
    source = open_source(config(file, partition="equal-dirichlet:1", sites=4))
    owners = [
        set(torch.cat([source.site(name, CPU).owners(part) for part in PARTS]).tolist())
        for name in ("site-1", "site-2", "site-3", "site-4")
    ]
    assert sum(map(len, owners)) == len(set().union(*owners)) == 20
    assert [len(own) for own in owners] == [5, 5, 5, 5]


def test_a_folder_has_a_file_for_each_site(home):
    for name in ("east", "west"):
        write_series(home / "wards" / f"{name}.npz", n=20, seed=len(name), classes=["a", "b", "c"])
    source = open_source(config(home / "wards", sites=2))
    assert source.describe()["sites"]["site-2"]["centre"] == "west"
    assert source.classes == ("a", "b", "c")
    write_series(home / "wards" / "west.npz", length=50, n=20)
    with pytest.raises(UserError, match=r"west\.npz: windows are 3×50 \(channels, samples\), east\.npz's 3×40"):
        open_source(config(home / "wards", sites=2)).prepare()


def test_parts_that_the_file_gives_are_kept(home):
    split = np.array(["train", "test", "validation"])[np.arange(60) % 3]
    split = np.where(np.arange(60) % 3, split, np.char.upper(split))
    source = open_source(config(write_series(home / "mine.npz", split=split, labels=np.arange(60) // 20)))
    site = source.site("site-1", CPU)
    assert [site.samples(part) for part in PARTS] == [20, 20, 20]


@pytest.mark.parametrize("folder", [True, False])
def test_a_patient_at_two_sites_is_told_and_refused_in_two_parts(home, caplog, folder):
    """By whatever way to write the name; a run began, and a patient of one site's training was in the other's test."""
    names, parts = ["north", "south"], {"north": ["train", "test"], "south": ["test", "train"]}
    whose = {"north": ["Ann", "Bob"], "south": ["Cid", "ann"]}

    def written(parts):
        of = [dict(patients=np.repeat(whose[n], 15), split=np.repeat(parts[n], 15)) for n in names]
        if folder:
            for name, arrays in zip(names, of, strict=True):
                write_series(home / "wards" / f"{name}.npz", n=30, labels=np.arange(30) % 3, **arrays)
            return home / "wards"
        both = {key: np.concatenate([arrays[key] for arrays in of]) for key in of[0]}
        return write_series(home / "mine.npz", sites=np.repeat(names, 30), **both)

    data = written(parts)
    open_source(config(data, sites=2)).prepare()
    told = "patient Ann is in north and in south: is it the same person?"
    assert told in caplog.text and told in [f.message for f in check(str(data), {})]
    data = written(parts | {"south": ["train", "test"]})
    refused = "patient Ann is in train of north and in test of south: all that is of a patient"
    with pytest.raises(UserError, match=refused):
        open_source(config(data, sites=2)).prepare()
    assert any(f.level == "error" and refused in f.message for f in check(str(data), {}))


@pytest.mark.parametrize(
    "change, words",
    [
        ({"series": np.full((60, 3, 40), np.nan)}, "in 60 of 60 windows, first in window 0, channel 0"),
        ({"series": np.full((60, 3, 40), 1e300)}, "no finite number in 60 of 60"),
        ({"series": np.zeros((60, 3, 40), dtype=complex)}, r"series is complex128 60×3×40; numbers, \(n, C, T\)"),
        ({"series": np.zeros((60, 3, 4, 5))}, r"series is float64 60×3×4×5; numbers, \(n, C, T\)"),
        ({"labels": np.arange(59)}, r"labels is int64 59; whole numbers, \(60,\)"),
        ({"labels": np.linspace(0, 1, 60)}, "labels is float64 60; whole numbers"),
        ({"labels": np.arange(60) % 3 - 1}, "labels has -1; right are the classes 0, 1, 2"),
        ({"labels": np.full(60, 10**9)}, "labels has 1000000000; right are the classes"),
        ({"classes": np.array(["a", "b"])}, "labels has 2; right are 0 to 1"),
        ({"labels": np.zeros(60, dtype=int)}, "all windows have the label 0"),
        ({"labels": None}, r"has no labels \(it has series\)"),
        ({"sites": np.arange(3)}, r"sites is int64 3; text or integers, \(60,\), are needed"),
        ({"patients": np.repeat(["a", "nan", "NA", ""], 15)}, "45 windows are of the patient 'nan', who is nobody"),
        ({"split": np.full(60, "dev")}, "split has 'dev'; right are train, validation, test"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_says_why(home, change, words):
    file = write_series(home / "mine.npz", **change)
    with pytest.raises(UserError, match=words):
        open_source(config(file)).prepare()
    assert any(found.level == "error" for found in check(file))


def test_a_damaged_file_is_named(home):
    file = write_series(home / "mine.npz")
    file.write_bytes(file.read_bytes()[:-400])
    (home / "other.npz").write_bytes(b"")
    with pytest.raises(UserError, match=r"mine\.npz.*(damaged|not an npz file)"):
        open_source(config(file)).prepare()


def test_what_a_job_says_the_data_must_be(home):
    file = write_series(home / "mine.npz", classes=np.array(["a", "b", "c"]))
    for data_args, words in (
        ({"length": 41}, "series of 40 samples a window; the job has 41"),
        ({"channels": 2}, "series of 3 channels; the job has 2"),
        ({"divide": [1, 2]}, "series of 3 channels; the job has 2"),
        ({"classes": ["b", "a", "c"]}, "its classes are a, b, c, the job's are b, a, c; the order matters"),
        ({"normalise": "site"}, "--data-arg normalise"),
        ({"window": 3}, "--data-arg window: such data have no argument of that name; there are "),
    ):
        with pytest.raises(UserError, match=words):
            open_source(config(file, data_args=data_args)).prepare()


def test_what_has_no_meaning_for_series_is_refused(home):
    file = write_series(home / "mine.npz")
    for fields, words in (
        ({"augment": "light"}, "--augment light: changes pictures .* has time series"),
        ({"official": True}, "--official: .* `split` is kept anyway"),
        ({"pooling": "attention"}, "has single images"),
    ):
        with pytest.raises(UserError, match=words):
            open_source(config(file, **fields))
    fedimpres = config(file, algorithm="fedimpres", **SMALL, sites=2, partition="iid")
    with pytest.raises(UserError, match="made of square pictures, and these data are time series"):
        Federation.of(fedimpres).plan()
    with pytest.raises(UserError, match="fcn-1d takes time series"):
        Federation.of(make_config(algorithm="fedbn", model="fcn-1d", sites=2))
    with pytest.raises(UserError, match="has 1 centre to train at; --partition dirichlet:A or iid divides it"):
        open_source(config(file, sites=3)).prepare()
    with pytest.raises(UserError, match="--held-out 1: with --partition iid all sites train"):
        asked(file, partition="iid", sites="3", held_out="1")


def test_the_network_is_one_for_series_unless_another_is_named(home):
    file = write_series(home / "mine.npz", **SITES)
    assert asked(file).model == "fcn-1d"
    assert asked(file, model="monai:resnet10").model == "monai:resnet10"
    runs = configs_of(["fedbn", "fedap"], 1, said(file))
    assert {run.model for _, run in runs} == {"fcn-1d"}
    model = Federation.of(asked(file, model_args={"width": 4})).model().to(CPU)
    assert {type(layer).__name__ for layer in batch_norm_layers(model).values()} == {"BatchNorm1d"}
    assert model(torch.zeros(2, 3, 40)).shape == model(torch.zeros(2, 3, 7)).shape == (2, 3)
    # Batch norm 1-D stays at the site: only convolutions and the last layer are shared.
    shared = Federation.of(asked(file, model_args={"width": 4})).split.shared_names
    assert list(shared) == ["blocks.0.0.weight", "blocks.1.0.weight", "blocks.2.0.weight", "fc.weight", "fc.bias"]


def test_similarity_rests_on_every_sample_of_every_window(home):
    federation = Federation.of(asked(write_series(home / "mine.npz", **SITES), "fedap", model_args={"width": 4}))
    data, model = federation.source.site("site-1", CPU), federation.model().to(CPU)
    found = statistics_under("batch-norm", model, federation.split, data, {}, None)
    windows = torch.cat([x for x, _ in data.batches("train", 4)])
    into = model.blocks[0][0](windows).detach().double().transpose(0, 1).flatten(1)  # (4, windows * samples)
    torch.testing.assert_close(found["blocks.0.1/mean"], into.mean(1))
    torch.testing.assert_close(found["blocks.0.1/variance"], into.var(1, correction=0))
    assert len(found) == 6


@given(st.floats(-2000, 2000, width=32), st.integers(2, 5000))
@example(-920.85, 187)
def test_a_constant_channel_becomes_nothing(value, length):
    """Whatever rounding makes of its mean."""
    assert not as_input(torch.full((1, length), value), "window", ()).any()


def test_windows_are_normalised_and_divided():
    window = torch.tensor([[1.0, 3.0, 5.0, 7.0], [2.0, 2.0, 2.0, 2.0]])
    assert as_input(window, "window", ()).tolist()[1] == [0, 0, 0, 0]
    assert torch.allclose(as_input(window, "window", (3, 1))[0], torch.tensor([-3.0, -1, 1, 3]) / 5**0.5)
    assert as_input(window, "none", (2, 4)).tolist() == [[0.5, 1.5, 2.5, 3.5], [0.5] * 4]


@pytest.mark.parametrize(
    ("named", "listed"), [(("rest", "walk", "7"), "0 rest: 2, 1 walk: 2, 2 7: 2"), ((), "0: 2, 1: 2, 2: 2")]
)
def test_check_tells_numbers_of_classes_from_their_names_and_counts(tmp_path, named, listed):
    arrays = {"series": np.random.default_rng(0).normal(size=(6, 1, 8)), "labels": np.arange(6) % 3}
    np.savez(tmp_path / "x.npz", **arrays, **({"classes": np.array(named)} if named else {}))
    assert f"3 classes: {listed}" in {found.message for found in check(str(tmp_path / "x.npz"))}


def test_check_says_what_would_spoil_a_result(home):
    content = series()
    content["series"][:, 2] = 1000 * content["series"][:, 2]
    content["series"][5], content["series"][8] = content["series"][2], 4.0
    file = write_series(home / "mine.npz", **content)
    words = {found.message for found in check(file, {"normalise": "none"})}
    assert "60 windows of 3 channels and 40 samples" in words
    assert "windows without any change: 1, the first is number 8" in words
    assert "windows that are there more than once: 1" in words
    spread = content["series"].std((0, 2))
    assert any(f"spread is {spread.max() / spread.min():,.0f} times the smallest's" in word for word in words)
    assert any("an array `patients` keeps them together" in word for word in words)
    assert not any("spread" in found.message for found in check(file))


def test_a_job_carries_the_shape_and_a_site_with_another_is_told(home):
    file = write_series(home / "mine.npz", classes=np.array(["a", "b", "c"]))
    job = kind_of(str(file), {}).portable(config(file, sites=2, names=("north", "south")))
    assert job.data == "mine" and job.data_args == {
        "classes": ["a", "b", "c"], "channels": 3, "length": 40, "normalise": "window"
    }  # fmt: skip
    own = write_series(home / "ward.npz")
    assert other_kind(job, own) == []
    [found] = check_fit(job, own)
    assert (found.level, found.message) == ("ok", "as the job says; its classes: 0 a, 1 b, 2 c")
    [found] = check_fit(job, write_series(home / "ward.npz", length=41))
    assert found.level == "error" and "ward.npz: series of 41 samples a window; the job has 40" in found.message
    (home / "mine.npz").unlink()
    assert kind_of("mine", job.data_args).name == "series"
    there = open_source(job)  # as on the server, which has no data
    assert there.model_arguments() == {"in_channels": 3, "num_classes": 3, "image_size": (40,)}
    assert there.describe()["sites"] == {}
    assert open_source(job, own=write_series(home / "ward.npz")).site("south", CPU).samples("train") == 30


@pytest.mark.slow
def test_fedap_runs_on_series_and_leaves_a_bundle_that_predicts(home, tmp_path):
    file = write_series(home / "mine.npz", n=120, sites=np.repeat(["north", "south"], 60))
    run = asked(
        file, "fedap", rounds=25, settings={"pretrain": "pooled", "lr": 0.1}, model_args={"width": 8}, alone="no"
    )
    results = run_experiment(run, tmp_path / "run", env="inprocess", threads=1)
    assert results["final"]["selected"]["mean"]["accuracy"] > 0.9
    assert results["mixing"]["matrix"] == [[0.5, 0.5], [0.5, 0.5]]
    model = tmp_path / "run" / "state" / "site-1" / "selected"
    window = 100 + 3 * np.load(file)["series"][1]  # another offset and gain: windows are normalised
    np.save(tmp_path / "new.npy", window)
    made = ConfigWorkflow(
        config_file=str(model / "bundle" / "configs" / "inference.json"), workflow_type="inference",
        bundle_root=str(model / "bundle"), input_path=str(tmp_path / "new.npy"), output_path="",
    )  # fmt: skip
    made.initialize()
    [found] = made.parser.get_parsed_content("evaluator").run()["results"]
    assert max(found["probabilities"], key=found["probabilities"].get) == "1"
    meta = json.loads((model / "bundle" / "configs" / "metadata.json").read_text())
    assert meta["network_data_format"]["inputs"]["image"]["spatial_shape"] == [40]
    np.save(tmp_path / "new.npy", window[:, :30])
    load = LoadSeriesd("image", channels=3, length=40)
    with pytest.raises(UserError, match=r"new\.npy: is 3×30; 3×40 \(channels, samples\) is needed"):
        load({"image": tmp_path / "new.npy"})
    for content, words in (
        (np.full((3, 40), np.inf), "no finite number"),
        (np.full((3, 40), "a"), "no array of numbers"),
    ):
        np.save(tmp_path / "new.npy", content)
        with pytest.raises(UserError, match=words):
            load({"image": tmp_path / "new.npy"})


def test_an_audit_says_that_it_has_no_attack_on_series(home):
    job = config(write_series(home / "mine.npz", **SITES), sites=2, **SMALL)
    with pytest.raises(UserError, match="time series, and the attacks here look for images: none can be tried"):
        open_audit(job, None, None, OPEN, AuditThresholds(), 60.0)


@pytest.mark.parametrize("unit", [1e-15, 1e-12, 1e9, 1e25])
def test_windows_are_normalised_in_whatever_units_a_sensor_has(unit):
    window = torch.tensor([[1.0, 3.0, 5.0, 7.0], [2.0, 2.0, 2.0, 2.0]])
    assert torch.allclose(as_input(window * unit, "window", ()), as_input(window, "window", ()), atol=1e-5)
