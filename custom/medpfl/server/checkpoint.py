"""The server's state after each step in one file, so that a kill loses at most the round in flight."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from medpfl.config import RunConfig
from medpfl.errors import UserError
from medpfl.messages import IMPRESSION, Failure
from medpfl.server.rounds import ServerState
from medpfl.statefile import TornFile, read_state, write_state

_MAY_CHANGE = {"device", "timeout", "grace", "min_sites"}
"""Settings that may differ when a run is resumed: they do not touch its figures."""


def save_checkpoint(path: Path, config: RunConfig, state: ServerState, *, durable: bool) -> None:
    """Writes the state atomically. Sites with the same shared state (FedAvg: all) store it once."""
    tensors: dict[str, Tensor] = {}
    slots: dict[int, int] = {}
    of_site: dict[str, int] = {}
    for site, shared in state.shared.items():
        slot = of_site[site] = slots.setdefault(id(shared), len(slots))
        tensors |= {f"shared/{slot}/{name}": tensor for name, tensor in shared.items()}
    for site, layers in state.statistics.items():
        for layer, pair in layers.items():
            tensors |= {f"statistics/{site}/{i}/{layer}": torch.from_numpy(array) for i, array in enumerate(pair)}
    if state.weights is not None:
        tensors["weights"] = torch.from_numpy(state.weights)
    tensors |= state.impression
    info = {
        "config": config.model_dump(mode="json"),
        "phase": state.phase,
        "round": state.round,
        "samples": dict(state.samples),
        "shared": of_site,
        "history": list(state.history),
        "best_round": state.best_round,
        "failures": [asdict(f) for f in state.failures],
        "traffic": dict(state.traffic),
        "final": state.final,
    }
    write_state(path, tensors, durable=durable, info=info)


def load_checkpoint(path: Path, config: RunConfig) -> ServerState:
    """The state of an earlier run with the same settings.

    Raises:
        UserError: the file is damaged, or the run had other settings: the first difference is named.
    """
    try:
        tensors, info = read_state(path)
    except TornFile as error:
        raise UserError(f"{error}; the run cannot be resumed from it") from None
    _same_run(path, info["config"], config)
    slots: dict[int, dict[str, Tensor]] = {slot: {} for slot in info["shared"].values()}
    statistics: dict[str, dict[str, list[np.ndarray]]] = {}
    for key, tensor in sorted(tensors.items()):
        kind, _, rest = key.partition("/")
        if kind == "shared":
            slot, _, name = rest.partition("/")
            slots[int(slot)][name] = tensor
        elif kind == "statistics":
            site, _, layer = rest.split("/", 2)
            statistics.setdefault(site, {}).setdefault(layer, []).append(tensor.numpy())
    return ServerState(
        phase=info["phase"],
        round=info["round"],
        samples=info["samples"],
        shared={site: slots[slot] for site, slot in info["shared"].items()},
        statistics={s: {layer: tuple(pair) for layer, pair in layers.items()} for s, layers in statistics.items()},
        weights=tensors["weights"].numpy() if "weights" in tensors else None,
        impression={name: tensor for name, tensor in tensors.items() if name.startswith(IMPRESSION)},
        history=tuple(info["history"]),
        best_round=info["best_round"],
        failures=tuple(Failure(**f) for f in info["failures"]),
        traffic=info["traffic"],
        final=info["final"],
    )


def _same_run(path: Path, before: dict[str, Any], config: RunConfig) -> None:
    now = config.model_dump(mode="json")
    for name, value in now.items():
        if name not in _MAY_CHANGE and before.get(name) != value:
            raise UserError(
                f"{path.parent} holds a run with {name} = {before.get(name)!r}, not {value!r}: resume with the same "
                "settings or choose another --out"
            )
