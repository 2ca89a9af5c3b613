"""Everything that reaches the server in FLARE, byte by byte: the method's shared tensors and numbers, and no more."""

import json
import os
from collections import Counter
from pathlib import Path
from secrets import token_hex

import numpy as np
import pytest
from agreement import assert_alike, figures
from hospitals_with_secrets import PATIENT, ROOT, KeepsAnswers, KeepsMessages, file_of, hospital, write_hospital
from nvflare.recipe import SimEnv

from medpfl.core.statefile import read_state
from medpfl.engine.federation import Federation
from medpfl.flare.job.recipes import PersonalizedRecipe
from medpfl.flare.transport.executor import TASKS
from medpfl.runs.experiment import run_experiment
from medpfl.tasks.further import NAMES as FURTHER

SHAPE = {"in_channels": 1, "num_classes": 3}
SMALL_VIT = {"size": 28, "hidden_size": 24, "mlp_dim": 24, "num_layers": 2, "num_heads": 6}
RUNS = {
    "vit-heads": {"model": "vit-tiny", "model_args": SHAPE | SMALL_VIT},
    "fedbn": {"model": "lenet5", "model_args": SHAPE},
}
SITES = ("site-1", "site-2", "site-3")
MEASURES = {"n", "accuracy", "balanced_accuracy", "auroc", "auroc_ci95", "auroc_classes", "intervals", *FURTHER}
NUMBERS = {"metrics", "samples", "train", "validation", "test", "train_loss", "tested", "selected", "last"} | MEASURES
NUMBERS |= {"selecting", "cases", "majority", "validation_loss", "auroc_ci95_by"}
NUMBERS |= {
    "seconds",
    "verdict",
    "alone",
    "alone_round",
    "used",
    "round",
    "weight",
    "gain",
    "difference",
    "low",
    "high",
}
CANDIDATES = {"as published", "before fine-tuning", "as received", "partly fine-tuned"}
"""The only words, for what the verdict is of."""


class Seen:
    """A run and what its server saw.

    Attributes:
        messages: the raw bytes of all messages to the server, headers included.
        files: the raw bytes of all files in the server's workspace.
        answers: the decoded answers: names to arrays, and what came beside them.
        config: the run's.
        federation: of it.
        results: the folder of its results.
        sites: by site, the folder that it keeps for itself.
    """

    def __init__(self, algorithm: str, folder: Path):
        for kind in ("messages", "answers"):
            (folder / kind).mkdir()
        recipe = PersonalizedRecipe(
            algorithm=algorithm, data=hospital, sites=3, rounds=2, min_sites=2, name="job", experiment="kept",
            settings={"batch_size": 4}, device="cpu", **RUNS[algorithm],
        )  # fmt: skip
        recipe._job.to_server(KeepsMessages(str(folder / "messages")))
        keeps = KeepsAnswers(str(folder / "answers"))
        recipe.add_server_input_filter(keeps, tasks=list(TASKS))
        recipe.execute(SimEnv(num_clients=3, workspace_root=str(folder / "ws")))
        self.config, self.federation = recipe.config, Federation.of(recipe.config)
        workspace = folder / "ws" / "job"
        self.messages = b"\0".join(f.read_bytes() for f in sorted((folder / "messages").iterdir()))
        self.files = b"\0".join(f.read_bytes() for f in sorted((workspace / "server").rglob("*")) if f.is_file())
        self.answers = [
            (json.loads(f.read_text()), dict(np.load(f.with_suffix(".npz"))) if f.with_suffix(".npz").exists() else {})
            for f in sorted((folder / "answers").glob("*.json"))
        ]
        self.results = workspace / "server" / "simulate_job"
        self.sites = {site: workspace / site / "medpfl" / "kept" / site for site in SITES}

    def reached(self, needle: bytes) -> bool:
        return needle in self.messages or needle in self.files


@pytest.fixture(scope="module", params=["fedbn", pytest.param("vit-heads", marks=pytest.mark.slow)])
def seen(request, tmp_path_factory):
    folder, patient = tmp_path_factory.mktemp(request.param), f"patient-{token_hex(8)}"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(PATIENT, patient)
        environment.setenv(ROOT, str(folder / f"scans-of-{patient}"))
        for number, site in enumerate(SITES):
            write_hospital(site, number)
        yield Seen(request.param, folder)


def rows(tensor) -> list[bytes]:
    """The rows of a tensor that could not be in other bytes by chance."""
    flat = np.ascontiguousarray(tensor).reshape(-1, np.shape(tensor)[-1]) if np.ndim(tensor) else np.zeros((0, 1))
    return [row.tobytes() for row in flat if row.nbytes >= 16 and len(np.unique(row)) > 3]


def test_the_recording_holds_what_was_sent(seen):
    # Else nothing below could fail.
    sent = [row for _, arrays in seen.answers for array in arrays.values() for row in rows(array)]
    assert len(sent) > 100
    assert all(row in seen.messages for row in sent[::17])
    assert b"kept" in seen.files


def test_its_figures_are_those_of_one_process(seen, tmp_path):
    run_experiment(seen.config, tmp_path / "here", env="inprocess", threads=1, together=False)
    assert_alike(figures(tmp_path / "here"), figures(seen.results))


def test_tensors_are_the_shared_ones_in_the_shared_shape(seen):
    shared = {name: tuple(t.shape) for name, t in seen.federation.initial_shared.items()}
    found = Counter(json.dumps({k: v.shape for k, v in arrays.items()}, sort_keys=True) for _, arrays in seen.answers)
    # Sites 1 and 2 train twice; they and site 3 say hello, and the two validate and test without tensors.
    assert found.pop(json.dumps(shared, sort_keys=True)) == 2 * 2
    assert set(found) == {"{}"}
    personal = set(seen.federation.split.personal_names)
    assert {name for _, arrays in seen.answers for name in arrays} & personal == {
        name for name in personal & set(shared) if "attn" in name
    }


def test_beside_tensors_there_are_numbers_under_known_names(seen):
    for answer, _ in seen.answers:
        for path, value in leaves(answer.get("meta", {}).get("medpfl_info", {})):
            assert set(path) <= NUMBERS | {"candidate"}, path
            word = value in {"candidate": CANDIDATES, "auroc_ci95_by": ("patient", "sample")}.get(path[-1], ())
            assert word or value is None or isinstance(value, int | float), (path, value)


def test_no_personal_value_reached_the_server(seen):
    states = [f for folder in seen.sites.values() for f in folder.glob("personal-*.safetensors")]
    assert len(states) >= 2
    needles = [row for f in states for tensor in read_state(f)[0].values() for row in rows(tensor.numpy())]
    assert len(needles) > 4
    assert not any(map(seen.reached, needles[:: max(1, len(needles) // 200)]))


def test_no_delivered_model_reached_the_server(seen):
    for site in ("site-1", "site-2"):
        model, _ = read_state(seen.sites[site] / "selected" / "model.safetensors")
        card = json.loads((seen.sites[site] / "selected" / "card.json").read_text())
        for name, tensor in model.items():
            if "attn.qkv" in name and tensor.ndim == 2:
                assert not seen.reached(tensor.numpy().tobytes())
        assert not seen.reached(card["sha256"].encode())


def test_no_image_reached_the_server(seen):
    for site in SITES:
        with np.load(file_of(site)) as found:
            for part in ("train", "validation", "test"):
                pixels = found[f"{part}_images"][0]
                scaled = (pixels.astype(np.float32) - 127.5) / 127.5
                for form in (pixels, scaled, scaled.astype(np.float16)):
                    assert not any(map(seen.reached, rows(form)[::7]))


def test_no_path_or_patient_reached_the_server(seen):
    assert str(file_of("site-1")).count(os.environ[PATIENT]) == 2  # in a folder's name and in a file's
    assert not seen.reached(os.environ[PATIENT].encode())


def test_an_error_is_told_by_its_kind_alone(seen):
    failed = [a for a, _ in seen.answers if a["code"] != "OK"]
    assert failed
    assert b"OSError in task 'train'" in seen.messages


def leaves(value, path=()):
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in leaves(inner, (*path, key))]
    if isinstance(value, list):
        return [leaf for inner in value for leaf in leaves(inner, path)]
    return [(path, value)]
