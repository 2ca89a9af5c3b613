"""What two runs must have in common to be the same run: their figures, and their sites' models."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

FIGURES = ("rounds", "final", "selected_round", "selection", "mixing", "traffic", "failures", "heads")
OF_SOME = ("selected_rounds", "new", "verdict", "reference")
"""Not in the results of every run."""


def figures(folder: Path) -> dict:
    """What a run computed, without how long it took."""
    results = json.loads((folder / "results.json").read_text())
    assert results["status"] == "finished"
    kept = {key: results[key] for key in FIGURES} | {key: results.get(key) for key in OF_SOME}
    for record in kept["rounds"]:
        del record["seconds"]
        record.get("impression", {}).pop("seconds", None)
        for site in record["sites"].values():
            site.pop("seconds", None)  # a site that failed has none
    return kept


def flat(value, path=()):
    """Every leaf of nested JSON with its path."""
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in flat(inner, (*path, key))]
    if isinstance(value, list):
        return [leaf for i, inner in enumerate(value) for leaf in flat(inner, (*path, i))]
    return [(path, value)]


def models(folder: Path) -> dict:
    return {file.stem: load_file(file) for file in sorted((folder / "models").glob("*.safetensors"))}


def assert_same_models(first: Path, second: Path, sites: int = 2) -> None:
    ours, theirs = models(first), models(second)
    assert ours.keys() == theirs.keys()
    assert len(ours) == sites
    for site, state in ours.items():
        assert state.keys() == theirs[site].keys()
        for name, tensor in state.items():
            assert tensor.equal(theirs[site][name]), (site, name)


def assert_alike(here, there) -> None:
    """Nested JSON that is the same, numbers to the sixth decimal: engines may add in another order."""
    ours, theirs = flat(here), flat(there)
    assert [path for path, _ in ours] == [path for path, _ in theirs]
    for (path, one), (_, other) in zip(ours, theirs, strict=True):
        assert one == (pytest.approx(other, abs=1e-6) if isinstance(other, float) else other), path
