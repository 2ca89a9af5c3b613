"""Sites as uneven as in FedImpres' sparsest table: few images, of one class, some without validation or test images."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tiny import config, run
from typer.testing import CliRunner

from medpfl.cli.main import app
from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.core.site_data import ImageTensors
from medpfl.data.partition.published_counts import COUNTS
from medpfl.data.uneven import require_test_cases
from medpfl.runs.experiment import run_experiment

TABLE = np.array(COUNTS["0.005"])
NEEDED = TABLE.sum(axis=0)


def coloured_noise(labels, rng):
    """(n, 28, 28, 3) uint8, of a colour for each class."""
    colours = np.random.default_rng(0).integers(0, 200, (8, 3))
    return (colours[labels][:, None, None] + rng.integers(0, 56, (len(labels), 28, 28, 3))).astype(np.uint8)


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """Writes MedMNIST's form: the table's training images and 60 more a class, and ``others`` for the other parts."""
    rng, folder = np.random.default_rng(1), tmp_path_factory.mktemp("uneven")

    def write(others):
        path, arrays = folder / f"uneven-{others}.npz", {}
        if path.exists():
            return path
        for part, counts in {"train": NEEDED + 60, "val": np.full(8, others), "test": np.full(8, others)}.items():
            labels = rng.permutation(np.repeat(np.arange(8), counts))
            arrays[f"{part}_images"], arrays[f"{part}_labels"] = coloured_noise(labels, rng), labels[:, None]
        np.savez(path, **arrays)
        return path

    return write


def numbers(value):
    """All numbers in nested lists and dicts."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from numbers(item)
    elif isinstance(value, float):
        yield value


IMPRESSION = {"start": "holdout", "images": 3, "warmup": 1, "admm_iterations": 1, "inner_steps": 1}
METHODS = {
    "fedimpres": {"holdout": 0.05, "settings": IMPRESSION},
    "fedavg": {},
    "fedbn": {},
    "fedap": {"settings": {"pretrain_epochs": 1}},
    "f-fedap": {},
    "vit-heads": {"model": "vit-tiny", "model_args": {"patch_size": 14}},
}


QUICK = ("f-fedap",)


# Temporary folders of earlier tests' runs go with those, whenever that is.
@pytest.mark.filterwarnings("error", "ignore:Implicitly cleaning up:ResourceWarning")
@pytest.mark.parametrize(
    "algorithm", [*QUICK, *(pytest.param(m, marks=pytest.mark.slow) for m in METHODS if m not in QUICK)]
)
def test_every_method_reports_every_site(algorithm, uneven, tmp_path):
    fields = {"model": "lenet5", "local_epochs": 1, "rounds": 3, "train_fraction": 0.003} | METHODS[algorithm]
    run_config = make_config(
        algorithm=algorithm, data=str(uneven(12)), partition="fedimpres-0.005", sites=8, device="cpu", **fields
    )
    results = run_experiment(run_config, tmp_path, env="inprocess")
    sites = results["data"]["sites"]
    assert [s["train"] for s in sites.values()] == [1, 1, 2, 1, 3, 2, 2, 3]
    assert [s["test"] for s in sites.values()] == [0, 12, 12, 12, 12, 24, 12, 12]
    assert not results["failures"]
    assert all(record["participants"] == list(sites) for record in results["rounds"])
    assert [record["sites"]["site-1"]["validation"] for record in results["rounds"]] == [None] * 3
    tested = results["final"]["selected"]["sites"]
    assert list(tested) == [f"site-{n}" for n in range(2, 9)]
    assert [site for site, m in tested.items() if m["auroc"] is not None] == ["site-6"]  # all others have one class
    assert all(0 <= m["accuracy"] <= 1 for m in tested.values())
    assert "No test data at site-1: no row in the tables, and not counted over sites." in results["notes"]
    assert all(map(math.isfinite, numbers(json.loads((tmp_path / "results.json").read_text()))))
    assert "NaN" not in (tmp_path / "report.html").read_text()
    assert "nan" not in (tmp_path / "history.csv").read_text()


def test_centres_of_two_patients_are_advised_more_of_them():
    described = {"sites": {name: {"train": 2, "test": 0, "patients": 2} for name in ("north", "south")}}
    with pytest.raises(UserError, match=r"each site has one or two patients, who train: more patients are needed$"):
        require_test_cases(described, make_config(algorithm="fedavg", sites=2))


def test_centres_are_advised_no_partition():
    """Which is refused of them: more cases are what helps."""
    natural = make_config(algorithm="fedavg", sites=2, partition="natural")
    two = {name: {"train": 2, "validation": 0, "test": 0} for name in ("north", "south")}
    scans = {"sites": two, "preprocessing": {"size": 64}}
    with pytest.raises(UserError, match=r"each site has one or two patients, who train: more patients are needed$"):
        require_test_cases(scans, natural)
    pictures = {"sites": two, "reading": {"size": 64}}
    with pytest.raises(UserError, match=r"too few cases to be divided: give data with test cases, or more of them$"):
        require_test_cases(pictures, natural)


@pytest.mark.slow
def test_a_run_that_could_test_nowhere_ends_before_training(uneven, tmp_path):
    common = ["run", "fedavg", "--env", "inprocess", "--device", "cpu", "--out", str(tmp_path / "out"), "--data"]
    pictures, whose = tmp_path / "pictures", "--data-arg=patient=(p[0-9])_"
    for i in range(12):
        (pictures / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.new("L", (28, 28), 20 * i).save(pictures / "ab"[i % 2] / f"p{i % 3}_{i}.png")
    for data, options, remedy in (
        (uneven(0), ["--partition", "fedimpres-0.005"], "--partition fedimpres-0.005 fix have none"),
        (uneven(12), ["--sites", "3", "--fractions", "0.5,0.5,0"], "--fractions 0.5,0.5,0 leaves none"),
        (uneven(0), ["--sites", "3", "--official"], "leave --official out"),
        (pictures, ["--sites", "3", "--partition", "iid", whose], "more patients are needed, or fewer --sites"),
    ):
        done = CliRunner().invoke(app, [*common, str(data), *options])
        assert isinstance(done.exception, UserError), done.output
        words = str(done.exception)
        assert "no site has a test case, so nothing would be measured" in words and remedy in words
        assert not (tmp_path / "out" / "state").exists()


@pytest.mark.slow
def test_the_table_is_printed(uneven, tmp_path):
    """site-1 has two of one class."""
    arguments = ["--data", uneven(60), "--out", tmp_path / "out", "--partition", "fedimpres-0.005", "--rounds", 2]
    arguments += ["--train-fraction", 0.001, "--env", "inprocess", "--device", "cpu"]
    done = CliRunner().invoke(app, ["run", "fedavg", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "nan" not in done.output.lower()
    assert "site-1" in done.output
    assert "No test data at site-1, " not in done.output


parts_of_sites = st.lists(
    st.fixed_dictionaries(
        {
            "train": st.lists(st.integers(0, 2), min_size=1, max_size=5),
            "validation": st.lists(st.integers(0, 2), max_size=3),
            "test": st.lists(st.integers(0, 2), max_size=3),
        }
    ),
    min_size=2,
    max_size=3,
)


@settings(max_examples=25)
@given(parts_of_sites, st.sampled_from(["fedavg", "fedbn", "f-fedap", "local"]), st.integers(1, 4))
def test_any_few_images_train_and_are_measured(sites, algorithm, batch_size):
    """The network has batch norm on features, which a batch of one image has no statistics for."""
    labels = [{part: torch.tensor(found, dtype=torch.long) for part, found in site.items()} for site in sites]
    run_config = config(algorithm, sites=len(sites), rounds=2, settings={"batch_size": batch_size})

    def few(made):
        for site, own in zip(made.values(), labels, strict=True):
            pixels = {
                part: (80 * y[:, None, None, None] + torch.arange(16).view(1, 1, 4, 4)) for part, y in own.items()
            }
            site.data = ImageTensors({part: x.to(torch.uint8) for part, x in pixels.items()}, own)

    state, _ = run(run_config, few)
    assert state.phase == "done"
    # Sites with the same labels have the same images here, and one image's update may be far from four's: that is told.
    told = ("to the last bit", "it was scaled back")
    assert not [failure for failure in state.failures if not any(words in failure.reason for words in told)]
    for site, own in zip(run_config.site_names, sites, strict=True):
        tested = state.final[site]["test"]["last"]
        assert (tested is None) == (not own["test"])
        assert tested is None or (tested["auroc"] is None) == (len(set(own["test"])) < 2)
    assert all(map(math.isfinite, numbers([dict(state.final), list(state.history)])))
