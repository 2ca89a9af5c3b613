import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from small_run import small, start
from tiny import figures, same

import medpfl
from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.core.statefile import read_state
from medpfl.core.version import sha256_of
from medpfl.data.kinds.npz.catalog import find
from medpfl.runs import experiment
from medpfl.runs.folder import state_before
from medpfl.site.store import DiskStore
from medpfl.tasks.further import NAMES as FURTHER

CONTRACT = {
    "schema",
    "algorithm",
    "choices",
    "config",
    "environment",
    "data",
    "rounds",
    "selected_round",
    "final",
    "mixing",
    "traffic",
    "seconds",
}
SITES = ["site-1", "site-2", "site-3"]


def models(out):
    return {path.stem: read_state(path)[0] for path in (out / "models").iterdir()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An experiment's folder and what the run returned. Nothing may change it."""
    out = tmp_path_factory.mktemp("runs") / "fedap"
    return out, start(out, small(alone="yes"))


def test_all_files_are_written(finished):
    out, results = finished
    assert {p.name for p in out.iterdir()} >= {
        "results.json",
        "history.csv",
        "report.html",
        "partition.json",
        "models",
        "state",
    }
    assert set(models(out)) == set(SITES)
    assert json.loads((out / "results.json").read_text()) == json.loads(json.dumps(results))
    with open(out / "history.csv") as file:
        assert {(row["round"], row["site"]) for row in csv.DictReader(file)} == {(r, s) for r in "12" for s in SITES}
    assert not list(out.rglob("*.tmp"))


def test_results_keep_the_contract(finished):
    _, results = finished
    assert results.keys() >= CONTRACT
    assert (results["schema"], results["algorithm"], results["status"]) == (3, "fedap", "finished")
    assert results["choices"].keys() == {"personal", "mixing", "objective", "use", "server"}
    environment = results["environment"]
    assert environment.keys() >= {"env", "nvflare", "torch", "monai", "numpy", "scipy", "cpu", "gpu"}
    assert environment["numpy"] == np.__version__
    assert environment["medpfl_sha256"] == sha256_of(Path(medpfl.__file__).parent)
    assert results["data"].keys() >= {"name", "md5", "partition", "sites"}
    assert results["data"]["sites"]["site-1"].keys() == {"train", "validation", "test", "classes", "judged_classes"}
    assert results["config"]["settings"]["lambda"] == 0.5
    assert [r["round"] for r in results["rounds"]] == [1, 2]
    for record in results["rounds"]:
        assert record["participants"] == SITES
        for site in record["sites"].values():
            assert site.keys() == {"train_loss", "validation", "sent_bytes", "received_bytes", "seconds"}
            assert site["validation"].keys() >= {"accuracy", "auroc"}
    for which in ("selected", "last"):
        final = results["final"][which]
        assert final.keys() >= {"sites", "mean", "worst", "std"}
        assert list(final["sites"]) == SITES
        for name, site in final["sites"].items():
            plain = {"n", "accuracy", "balanced_accuracy", "auroc", "auroc_ci95", "auroc_ci95_by", "auroc_classes"}
            assert site.keys() == plain | ({*FURTHER, "intervals"} if which == "selected" else set())
            assert site["n"] == results["data"]["sites"][name]["test"]
    assert results["mixing"]["sites"] == SITES
    assert [sum(row) for row in results["mixing"]["matrix"]] == pytest.approx([1, 1, 1])
    assert [results["mixing"]["matrix"][i][i] for i in range(3)] == [0.5] * 3
    assert results["seconds"].keys() >= {"total", "start", "training"}
    assert results["failures"] == []
    assert any("pretrained on 20%" in note for note in results["notes"])


def test_the_selected_round_has_the_best_mean_validation(finished):
    _, results = finished
    means = [
        sum(site["validation"]["accuracy"] for site in r["sites"].values()) / len(SITES) for r in results["rounds"]
    ]
    assert results["selected_round"] == 1 + means.index(max(means))


def test_traffic_counts_all_that_was_sent(finished):
    _, results = finished
    sites = [site for r in results["rounds"] for site in r["sites"].values()]
    rounds = {way: sum(site[way] for site in sites) for way in ("sent_bytes", "received_bytes")}
    # Beside the rounds: each site sent its statistics once, and received the pretrained model and the last mix.
    assert 0 < results["traffic"]["sent_bytes"] - rounds["sent_bytes"] < 3 * 3000
    beyond = results["traffic"]["received_bytes"] - rounds["received_bytes"]
    assert rounds["received_bytes"] // 2 < beyond - rounds["received_bytes"] // 2 < rounds["received_bytes"]


def test_the_model_trained_alone_is_local_trainings_of_its_own_best_round(finished, tmp_path):
    out, results = finished
    local = start(tmp_path / "local", small("local"))
    for name in SITES:
        kept = DiskStore(out / "state" / name, durable=False)
        alone = DiskStore(tmp_path / "local" / "state" / name, durable=False).get("model", 2)
        assert all(torch.equal(tensor, alone[key]) for key, tensor in kept.get("alone", 2).items())
        said = results["verdict"]["sites"][name]
        assert said["used"] == {"candidate": "as published", "round": results["selected_round"], "weight": 1.0}
        if said["alone_round"] == local["selected_rounds"][name]:
            assert results["reference"]["final"]["selected"]["sites"][name] == local["final"]["selected"]["sites"][name]
    assert sum(results["verdict"]["counts"].values()) == 3
    assert local["mixing"] is None
    assert "verdict" not in local


def test_each_site_that_trains_alone_selects_its_own_round(tmp_path):
    """Rates so large that sites do not all end best in the same round; each has its best, and its test is of that."""
    results = start(tmp_path, small("local", rounds=4, settings={"lr": 0.2}))
    course = {s: [r["sites"][s]["validation"]["accuracy"] for r in results["rounds"]] for s in SITES}
    own = {site: 1 + values.index(max(values)) for site, values in course.items()}
    assert results["selected_rounds"] == own
    assert len(set(own.values())) > 1
    assert results["selected_round"] is None
    assert not any("was absent" in note for note in results["notes"])
    for site, round_ in own.items():
        kept = DiskStore(tmp_path / "state" / site, durable=False)
        assert set(kept.rounds("model")) == {round_, 4}
    assert "own round" in (tmp_path / "report.html").read_text()


def test_a_finished_run_is_only_read(finished):
    out, results = finished
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*.*") if p.name != ".lock"}

    def watch(_):
        raise AssertionError("it runs again")

    assert start(out, small(alone="yes"), resume=True, watch=watch) == json.loads(json.dumps(results))
    assert {p: p.stat().st_mtime_ns for p in before} == before


@pytest.mark.slow
def test_a_kill_during_the_further_tests_loses_none(tmp_path, monkeypatch):
    """Not asked for, and made again in the same way; what is there, or said not to be, is not."""

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(experiment, "running_statistics", killed)
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path / "run", small())
    resumed = start(tmp_path / "run", small(), resume=True)
    whole = start(tmp_path / "whole", small())
    assert {"new", "running_statistics"} <= resumed.keys()
    for part in ("new", "running_statistics", "notes"):
        assert resumed[part] == whole[part]
    for part in ("running_statistics", "new_test", "forgetting"):
        monkeypatch.setattr(experiment, part, killed)
    assert start(tmp_path / "run", small(), resume=True) == json.loads(json.dumps(resumed))


def test_results_of_other_data_are_not_taken_for_these(tmp_path):
    rng = np.random.default_rng(0)
    data, out = tmp_path / "own.npz", tmp_path / "out"

    def write():
        images, labels = (lambda n: rng.integers(0, 255, (n, 28, 28), np.uint8)), (lambda n: np.arange(n) % 2)
        sizes = {"train": 40, "val": 20, "test": 20}
        np.savez(
            data, **{f"{p}_{k}": of(n) for p, n in sizes.items() for k, of in (("images", images), ("labels", labels))}
        )

    write()
    asked = small("fedavg", rounds=1, sites=2, train_fraction=1.0, data=str(data), partition="iid")
    start(out, asked)
    kept = (out / "results.json").read_bytes()
    write()
    with pytest.raises(
        UserError, match=r"out has results of other data: the checksum of .*own\.npz was \w+, now it is"
    ):
        start(out, asked, resume=True)
    assert (out / "results.json").read_bytes() == kept
    data.unlink()  # what nobody has here any more is only read
    assert start(out, asked, resume=True) == json.loads(kept)


def test_an_existing_run_is_not_overwritten_unasked(finished):
    with pytest.raises(UserError, match=r"already holds a run: .*--resume.*--overwrite"):
        start(finished[0])


@pytest.mark.parametrize(
    ("other", "named"),
    [({"rounds": 5}, "rounds = 2, not 5"), ({"seed": 7}, "seed = 0, not 7"), ({"algorithm": "fedbn"}, "algorithm = ")],
)
def test_resuming_with_other_settings_is_refused(finished, other, named):
    with pytest.raises(UserError, match=named):
        start(finished[0], small(**other), resume=True)


class Killed(BaseException):
    """As a kill: nothing catches it."""


# Site-1 has answered: in round 2, which starts when one is finished; and when validating the last mix.
@pytest.mark.parametrize("when", [("train", 1, 1), pytest.param(("validate", 2, 2), marks=pytest.mark.slow)])
def test_a_killed_run_resumes_to_the_same_figures_and_models(finished, tmp_path, when):
    whole, results = finished
    out = tmp_path / "killed"

    def kill(progress):
        if (progress.phase, progress.round, progress.answered) == when:
            raise Killed

    with pytest.raises(Killed):
        start(out, small(alone="yes"), watch=kill)
    left = json.loads((out / "results.json").read_text())
    assert left["status"] == "running"
    assert len(left["rounds"]) == when[1]
    resumed = start(out, small(alone="yes"), resume=True)
    assert resumed["seconds"]["total"] > left["seconds"]["total"] + resumed["seconds"]["start"]
    assert figures(resumed["rounds"]) == figures(results["rounds"])
    for key in ("final", "verdict", "selected_round", "mixing", "data", "traffic", "config"):
        assert resumed[key] == results[key], key
    ours, theirs = models(out), models(whole)
    assert all(same(ours[site], theirs[site]) for site in SITES)


def test_a_resume_of_nothing_is_a_start(tmp_path):
    assert start(tmp_path / "new", small("fedbn", rounds=1), resume=True)["status"] == "finished"


@pytest.mark.slow
def test_overwrite_throws_the_old_run_away(tmp_path):
    config = small("fedbn", rounds=1)
    start(tmp_path, config)
    (tmp_path / "models" / "stale.safetensors").touch()
    results = start(tmp_path, small("local", rounds=1), overwrite=True)
    assert results["algorithm"] == "local"
    assert set(models(tmp_path)) == set(SITES)


@pytest.mark.parametrize(
    "wrong", [{"data": "nothere"}, pytest.param({"model": "monai:DenseNet121"}, marks=pytest.mark.slow)]
)
def test_an_overwriting_run_that_cannot_begin_throws_nothing_away(tmp_path, wrong):
    start(tmp_path, small("local", rounds=1))
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(UserError):
        start(tmp_path, small("fedap", rounds=1, **wrong), overwrite=True)
    assert {file: file.read_bytes() for file in before} == before


@pytest.mark.parametrize("wish", [{}, {"resume": True}, {"overwrite": True}])
def test_a_run_that_nobody_began_is_in_nobodys_way(tmp_path, wish):
    """As of data whose mistake the sites told: what is left is no run, and the next one may be another."""
    own = {"data": "tiny:site_data", "model": "tiny:Net", "sites": 3, "settings": {"batch_size": 4}}
    with pytest.raises(UserError, match="0 usable answers in phase 'prepare'"):
        start(tmp_path, make_config(algorithm="fedbn", rounds=1, data_args={"train": 0}, **own))
    assert (tmp_path / "state").exists()
    assert start(tmp_path, make_config(algorithm="fedavg", rounds=1, **own), **wish)["status"] == "finished"


@pytest.mark.parametrize("kept", ["models/site-1.safetensors", "joined/site-9/model.safetensors", "report.html"])
def test_what_a_run_has_made_is_not_taken_for_a_run_that_nobody_began(tmp_path, kept):
    for name in (".lock", "state/site-1/x", kept):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert state_before(small("fedbn", rounds=1), tmp_path, resume=True, overwrite=False) is None
    assert (tmp_path / kept).exists() and (tmp_path / "state" / "site-1" / "x").exists()


@pytest.mark.parametrize("resume", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_run_at_a_real_federation_is_not_gone_on_with_here(tmp_path, resume):
    (tmp_path / "job.json").write_text("{}")
    with pytest.raises(UserError, match=r"real federation: .*--env prod --resume.*--overwrite"):
        start(tmp_path, small("local", rounds=1), resume=resume)
    assert start(tmp_path, small("local", rounds=1), overwrite=True)["status"] == "finished"
    assert not (tmp_path / "job.json").exists()


def test_two_runs_in_one_folder(tmp_path):
    refused = []

    def second(progress):
        if not refused:
            with pytest.raises(UserError, match="is in use by another run") as caught:
                start(tmp_path, small("fedbn", rounds=1), resume=True)
            refused.append(caught.value)

    start(tmp_path, small("fedbn", rounds=1), watch=second)
    assert refused


def test_a_file_in_the_folders_place(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(UserError, match=r"run cannot be made a run's folder .*; choose another --out"):
        start(tmp_path / "run")
    assert (tmp_path / "run").read_text() == "mine"


def test_own_data_has_no_partition(tmp_path):
    config = make_config(
        algorithm="fedbn", data="tiny:site_data", model="tiny:Net", sites=3, rounds=1, settings={"batch_size": 4}
    )
    results = start(tmp_path, config)
    assert results["status"] == "finished"
    assert results["reference"]["final"]["selected"]["sites"]["site-1"]["n"] == 7
    assert not (tmp_path / "partition.json").exists()
    assert results["final"]["last"]["sites"]["site-1"]["n"] == 7


def test_the_new_test_of_a_finished_run_is_made_when_it_is_asked_for(tmp_path):
    first = start(tmp_path, together=False)
    assert "new" not in first
    again = start(tmp_path, resume=True, together=True)
    assert again["new"]["models"] == 3
    assert again["final"] == first["final"]
    assert json.loads((tmp_path / "results.json").read_text())["new"] == again["new"]


def test_the_new_test_of_equal_models_is_theirs(tmp_path):
    results = start(tmp_path, small("fedavg", held_out=1))
    tested = results["final"]["selected"]["sites"]
    right = sum(site["n"] * site["accuracy"] for site in tested.values())
    assert results["new"]["pooled"]["n"] == sum(site["n"] for site in tested.values())
    # FedAvg's sites share all but two counters, so the average of their predictions is each one's.
    assert results["new"]["pooled"]["accuracy"] * results["new"]["pooled"]["n"] == pytest.approx(right)
    assert set(results["new"]["held_out"]) == {"site-4"}


def test_held_out_sites_do_not_pretrain():
    from medpfl.engine.federation import Federation

    federation = Federation.of(small("fedap", held_out=1))
    pooled = federation.source.pooled_training(1.0, federation.device)
    training = [s for s in federation.source.partition.sites if s.name in SITES]
    assert pooled.samples("train") == sum(len(s.train) for s in training)
    assert len(federation.source.partition.sites) == 4


def test_a_run_that_is_refused_leaves_no_new_folder(tmp_path):
    config = small("fedbn", rounds=1, model="torch.nn:NoSuchLayer")
    for out in (tmp_path / "runs" / "new", tmp_path):
        with pytest.raises(UserError, match="NoSuchLayer"):
            start(out, config)
    assert not list(tmp_path.iterdir())


def test_finished_results_are_read_where_the_data_are_not(tmp_path, caplog):
    """Though they lack a test that they would have today."""
    file = tmp_path / "mine.npz"
    with np.load(find("organamnist-sample")) as sample:
        np.savez(file, **{key: sample[key][:60] for key in sample})
    config = small("fedavg", data=str(file))
    start(tmp_path / "run", config)
    there = tmp_path / "run" / "results.json"
    without = {key: value for key, value in json.loads(there.read_text()).items() if key != "new"}
    there.write_text(json.dumps(without))
    file.rename(tmp_path / "elsewhere.npz")
    assert start(tmp_path / "run", config, resume=True) == without
    assert "fedavg not tested further" in caplog.text
    with pytest.raises(UserError):
        start(tmp_path / "run", config, resume=True, together=True)
