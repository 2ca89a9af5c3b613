"""PAMAP2's recordings, made in the documented form: gaps, activities, windows, subjects, and FedAP as published."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from recordings import recording, write_pamap2, write_recording

from medpfl.config.preset import read_preset
from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.core.site_data import PARTS
from medpfl.data.check import check
from medpfl.data.kinds.npz.download import prepare
from medpfl.data.kinds.registry import kind_of
from medpfl.data.kinds.series.pamap2 import CHANNELS, cut, read_recording
from medpfl.data.sites import fixed_sites, open_source
from medpfl.engine.federation import Federation
from medpfl.models import build_model
from medpfl.runs.experiment import run_experiment

CPU = torch.device("cpu")
PRESET = Path(__file__).parents[3] / "app_config" / "presets" / "fedap-pamap2.yml"


def config(data="pamap2", algorithm="fedbn", **fields):
    usual = {"partition": "natural", "sites": 3, "model": "pamap2-cnn"}
    return make_config(algorithm=algorithm, data=str(data), **{**usual, **fields})


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_pamap2(tmp_path_factory.mktemp("recordings") / "pamap2")


@pytest.fixture
def pamap2(written, home):
    return shutil.copytree(written, home / "data" / "pamap2")


def test_the_27_channels_are_the_documented_columns():
    # Columns from 1, as the set's description numbers them: a unit's 17 begin at 4, 21 and 38 with the temperature.
    acceleration, rate, field = (2, 3, 4), (8, 9, 10), (11, 12, 13)
    described = [begin + c - 1 for begin in (4, 21, 38) for c in (*acceleration, *rate, *field)]
    assert [c + 1 for c in CHANNELS] == described


def test_windows_are_of_one_activity_each(tmp_path):
    table = recording([(0, 30), (1, 450), (4, 250), (5, 300), (1, 199), (0, 10), (17, 200)])
    values, activity = read_recording(write_recording(tmp_path / "subject101.dat", table), 100)
    assert values.shape == (len(table), 27) and values.dtype == np.float32
    windows = list(cut(values, activity, 200, 100, 0))
    # 450 samples give windows at 0, 100 and 200; 250 one; running is none of the ten; 199 are too few; 200 give one.
    assert [doing for doing, _, _ in windows] == [1, 1, 1, 4, 17]
    np.testing.assert_allclose(windows[1][2], table[130:330, list(CHANNELS)].T, rtol=1e-5)
    np.testing.assert_allclose(windows[3][2], table[480:680, list(CHANNELS)].T, rtol=1e-5)


def test_stretches_share_no_sample(tmp_path):
    table = recording([(1, 1100)])
    values, activity = read_recording(write_recording(tmp_path / "subject101.dat", table), 100)
    found = list(cut(values, activity, 200, 100, 500))
    assert [number for _, number, _ in found] == [0] * 4 + [1] * 4  # the last 100 samples are too few
    np.testing.assert_allclose(found[4][2], table[500:700, list(CHANNELS)].T, rtol=1e-5)


def test_short_gaps_are_interpolated_and_no_window_lies_over_a_long_one(tmp_path):
    column = CHANNELS[5]
    table = recording([(1, 1000)], missing=[(250, 260, column), (500, 621, column), (0, 5, CHANNELS[0])])
    values, activity = read_recording(write_recording(tmp_path / "subject101.dat", table), 120)
    ends = table[249, column], table[260, column]
    np.testing.assert_allclose(values[250:260, 5], np.linspace(*ends, 12)[1:-1], rtol=1e-4)
    assert np.isnan(values[500:621, 5]).all()  # 121 samples are more than 120
    assert np.isnan(values[:5, 0]).all()  # nothing before them to start from
    assert not np.isnan(np.delete(values, 5, 1)[5:]).any()
    windows = [window for _, _, window in cut(values, activity, 200, 100, 0)]
    assert len(windows) == 3 + 2  # of samples 5 to 499, and of 621 to 999
    assert np.isfinite(windows).all()


def test_rows_that_are_not_there_are_gaps_too(tmp_path):
    table = recording([(1, 600)])
    short = np.delete(table, np.arange(300, 320), 0)
    values, activity = read_recording(write_recording(tmp_path / "subject101.dat", short), 100)
    assert len(values) == 600 and (activity == 1).all()
    np.testing.assert_allclose(values[300, 0] - values[299, 0], values[319, 0] - values[318, 0], rtol=1e-3)
    long = np.delete(table, np.arange(300, 420), 0)
    values, activity = read_recording(write_recording(tmp_path / "subject101.dat", long), 100)
    assert len(list(cut(values, activity, 200, 100, 0))) == 2  # 300 samples before and 180 behind


@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda t: t[:, :53], "has 53 columns; PAMAP2's files have 54"),
        (lambda t: np.vstack([t[:20], t[10:20]]), "row 21: its time, the first column, is not after"),
        (lambda t: np.vstack([t[:20], t[19:] + 5e4]), "20 rows over|rows over .* s; 100 a second are needed"),
    ],
)
def test_files_of_another_form_are_refused_by_name(tmp_path, spoil, words):
    file = write_recording(tmp_path / "subject101.dat", spoil(recording([(1, 300)])))
    with pytest.raises(UserError, match=f"subject101.dat: .*({words})"):
        read_recording(file, 100)


def test_a_row_that_is_cut_short_is_refused(tmp_path):
    file = write_recording(tmp_path / "subject101.dat", recording([(1, 300)]))
    file.write_text(file.read_text()[:-200])
    with pytest.raises(UserError, match=r"subject101\.dat: cannot be read as one of PAMAP2's files"):
        read_recording(file, 100)


def test_a_subject_is_a_site_and_stretches_stay_together(pamap2):
    assert kind_of("pamap2", {}).name == kind_of(str(pamap2), {}).name == "pamap2"
    assert fixed_sites("pamap2", "natural", {}) == 3
    source = open_source(config(data_args={"stretch": 400}))
    assert source.model_arguments() == {"in_channels": 27, "num_classes": 10, "image_size": (200,)}
    described = source.describe()
    assert described["classes"][0] == "lying" and described["classes"][9] == "ironing"
    site = described["sites"]["site-2"]
    # 700 samples of an activity are stretches of 400 (three windows) and 300 (two).
    assert (site["centre"], site["patients"]) == ("subject102", 1)
    assert sum(site[part] for part in PARTS) == 50
    assert site["classes"] == {str(c): 5 for c in range(10)}
    data = source.site("site-2", CPU)
    # Windows of one stretch overlap by half, those of different parts nowhere.
    train, test = (torch.cat([x for x, _ in data.batches(part, 64)])[:, 0] for part in ("train", "test"))
    assert (train[:, None, :100] == train[None, :, 100:]).all(-1).any()
    assert not (train[:, None, :100] == test[None, :, 100:]).all(-1).any()
    assert not (test[:, None, :100] == train[None, :, 100:]).all(-1).any()
    assert set(data.owners("test").tolist()) == {1}


def test_acceleration_is_in_g_and_the_field_in_about_the_earths(pamap2):
    raw, _ = read_recording(pamap2 / "Protocol" / "subject101.dat", 100)
    window = next(iter(open_source(config()).site("site-1", CPU).batches("train", 1)))[0][0]
    units = torch.tensor(([9.81] * 3 + [1.0] * 3 + [50.0] * 3) * 3)[:, None]
    behind = (torch.from_numpy(raw.T.copy()).unfold(1, 200, 1).transpose(0, 1) - window * units).abs()
    assert behind.flatten(1).amax(1).nan_to_num(9).min() < 1e-4


def test_single_windows_are_divided_as_in_the_paper(pamap2):
    source = open_source(
        config(data_args={"stretch": 0}, partition="equal-dirichlet:0.1", sites=4, fractions=(0.5, 0, 0.5))
    )
    sizes = [source.describe()["sites"][f"site-{k}"] for k in (1, 2, 3, 4)]
    # 3 subjects x 10 activities x 6 windows, as many at every site, and half of them to train on.
    assert [sum(site[part] for part in PARTS) for site in sizes] == [45] * 4
    assert all(abs(site["train"] - site["test"]) <= 1 for site in sizes)
    assert {k: sizes[0]["classes"][k] for k in ("0", "9")} != {"0": 4, "9": 4}


def test_windows_are_kept_and_made_again_where_a_file_has_changed(pamap2, home):
    before = open_source(config()).describe()
    kept = list((home / "cache" / "medpfl" / "pamap2").iterdir())
    assert len(kept) == 1 and open_source(config()).describe() == before
    write_recording(pamap2 / "Protocol" / "subject101.dat", recording([(1, 450)]))
    again = open_source(config()).describe()
    assert again["sites"]["site-1"]["classes"]["1"] == 0 and again["md5"] != before["md5"]
    # Another step is another set; how a window is scaled is not.
    open_source(config(data_args={"step": 50})).describe()
    open_source(config(data_args={"normalise": "window"})).describe()
    assert len(list((home / "cache" / "medpfl" / "pamap2").iterdir())) == 3


def test_the_archives_layouts_are_found(home):
    root = write_pamap2(home / "PAMAP2_Dataset", subjects=(101,), samples=300)
    (root / "Optional").mkdir()
    for place in (home, root, root / "Protocol"):
        assert len(open_source(config(place, sites=1)).data) == 20
    assert check(root)[0].message == "20 windows of 27 channels and 200 samples"


def test_what_cannot_be_is_refused(pamap2):
    for data_args, words in (
        ({"stretch": 150}, "--data-arg stretch: 150 is shorter than a window of 200 samples"),
        ({"channels": 9}, "--data-arg channels"),
        ({"length": 5000, "stretch": 0}, "no recording has 5000 samples in a row of lying"),
        ({"windows": 3}, "--data-arg windows: such data have no argument of that name"),
    ):
        with pytest.raises(UserError, match=words):
            open_source(config(data_args=data_args)).prepare()
    with pytest.raises(UserError, match=r"pamap2 is not fetched: .*archive\.ics\.uci\.edu.*CC BY 4\.0"):
        prepare("pamap2")


def test_the_network_is_the_papers_and_takes_both_layouts():
    model = build_model("pamap2-cnn", in_channels=27, num_classes=10, image_size=(200,)).eval()
    assert model.fc1.in_features == 32 * 44  # the authors' 1,408 features
    x = torch.randn(2, 27, 200)
    torch.testing.assert_close(model(x), model(x[:, :, None]))


@pytest.mark.slow
def test_fedap_runs_as_published(pamap2, tmp_path):
    said = read_preset(
        PRESET, ["data", "data_args", "model", "sites", "partition", "fractions", "rounds", "local_epochs", "settings"]
    )
    said = said | {"data": "pamap2", "sites": 3, "rounds": 2}
    run = make_config(algorithm="fedap", **said)
    assert (run.all_settings["lambda"], run.all_settings["pretrain"]) == (0.5, "pooled")
    assert run.model == "pamap2-cnn" and run.data_args == {"stretch": 0}
    results = run_experiment(run, tmp_path / "run", env="inprocess", threads=1)
    matrix = np.array(results["mixing"]["matrix"])
    np.testing.assert_allclose(matrix.sum(1), 1)
    np.testing.assert_allclose(np.diag(matrix), 0.5)
    assert {name.split(".")[0] for name in Federation.of(run).split.personal_names} == {"bn1", "bn2"}
    assert (tmp_path / "run" / "state" / "site-1" / "selected" / "bundle").is_dir()
