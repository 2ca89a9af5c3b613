"""results.json: what every run writes, atomically and after every round."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from medpfl.config import RunConfig
from medpfl.differential_privacy import account, in_words
from medpfl.messages import IMPRESSION
from medpfl.report.picture import png_grid
from medpfl.server.mixing import ROBUST
from medpfl.server.state import Plan, ServerState
from medpfl.server.weighing import mixing_matrix
from medpfl.site.measures import summary
from medpfl.statefile import write_bytes

SCHEMA = 1
SHOWN = 32
"""Images of an impression that a picture shows."""


def build_results(
    plan: Plan,
    state: ServerState,
    *,
    env: str,
    data: Mapping[str, Any],
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    """The results of a run as far as it has come.

    Args:
        plan: the server's.
        state: after the last step.
        env: where it ran: ``sim``, ``inprocess``, ``poc`` or ``prod``.
        data: what is known of the sites' data.
        seconds: ``total`` and ``start``; training is taken from the rounds.
    """
    config = plan.config
    rounds = list(state.history)
    return {
        "schema": SCHEMA,
        "status": "finished" if state.phase == "done" else "running",
        "algorithm": config.algorithm,
        "choices": config.choices(),
        "heads": _heads(plan),
        "impression": _impression(state),
        "privacy": account(config.all_settings, config.rounds),
        "config": config.model_dump(mode="json") | {"settings": config.all_settings},
        "environment": environment(env),
        "data": dict(data),
        "rounds": rounds,
        "selected_round": (state.best_round or state.round) if state.phase == "done" else None,
        "final": _final(state),
        "mixing": _mixing(plan, state),
        "traffic": dict(state.traffic),
        "seconds": {**seconds, "training": sum(r["seconds"] for r in rounds)},
        "failures": [{"round": f.round, "site": f.site, "reason": f.reason} for f in state.failures],
        "notes": _notes(config, state),
    }


def environment(env: str) -> dict[str, Any]:
    """Where a run was made: engine, versions, processor."""
    return {
        "env": env,
        "medpfl": version("medpfl"),
        "nvflare": version("nvflare"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def write_json(path: Path, value: Any) -> None:
    """Writes JSON atomically; NaN and infinity, which JSON does not have, are refused."""
    write_bytes(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode(), durable=False)


def _heads(plan: Plan) -> dict[str, Any] | None:
    """How many attention heads are personal: the realised p is what the number of heads lets it be."""
    if not (counts := plan.split.heads):
        return None
    personal, heads = (sum(column) for column in zip(*counts.values(), strict=True))
    return {"layers": len(counts), "personal": personal, "of": heads, "p": personal / heads}


def _impression(state: ServerState) -> dict[str, Any] | None:
    """The last federated impression, as a picture of its first images; None while the run goes on."""
    if state.phase != "done" or not state.impression:
        return None
    images, labels = (state.impression[f"{IMPRESSION}{kind}"] for kind in ("images", "labels"))
    if images.shape[1] not in (1, 3):
        return None
    shown = images[:SHOWN]
    return {"images": len(images), "labels": labels[:SHOWN].tolist(), "picture": png_grid(shown)}


def _final(state: ServerState) -> dict[str, Any] | None:
    if state.final is None:
        return None
    final = {}
    for which in ("selected", "last"):
        tested = {site: metrics["test"][which] for site, metrics in state.final.items()}
        sites = {site: values for site, values in tested.items() if values is not None}
        final[which] = {"sites": sites, **summary(sites)}
    return final


def _mixing(plan: Plan, state: ServerState) -> dict[str, Any] | None:
    names = plan.config.site_names
    if not state.samples or plan.config.resolved_mixing in ("identity", *ROBUST):
        return None
    present = [i for i, name in enumerate(names) if name in state.samples]
    return {
        "sites": [names[i] for i in present],
        "matrix": mixing_matrix(plan, state, present)[present].tolist(),
    }


def _notes(config: RunConfig, state: ServerState) -> list[str]:
    notes = []
    if privacy := account(config.all_settings, config.rounds):
        notes += in_words(privacy)
    if config.needs_pretraining and config.all_settings["pretrain"] == "pooled":
        notes.append(
            "The model under which similarity was measured was pretrained on "
            f"{config.all_settings['pretrain_share']:.0%} of all sites' training images pooled, as in the paper; the "
            "server holds this whole data set. Sites with data of their own need a checkpoint or f-FedAP."
        )
        if config.all_settings["statistics_epsilon"]:
            notes.append("That pretraining saw the patients whom epsilon is for, and epsilon does not count it.")
    if state.phase == "done" and not state.best_round:
        notes.append("There were no validation images, so the last round is reported.")
    if untested := [site for site, metrics in (state.final or {}).items() if metrics["test"]["selected"] is None]:
        notes.append(f"No test data at {', '.join(untested)}: no row in the tables, and not counted over sites.")
    for site, metrics in (state.final or {}).items():
        tested = metrics["tested"]
        if state.best_round and tested["selected"] != state.best_round:
            notes.append(
                f"{site} was absent when round {state.best_round} was validated, or its file is damaged; its last "
                "model was tested instead."
            )
    return notes


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
