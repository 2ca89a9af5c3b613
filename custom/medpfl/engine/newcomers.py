"""The rules by which a site that joins after training gets its model, and what join.json says of sites that did.

The server's steps are :mod:`medpfl.server.newcomer`, the site's :mod:`medpfl.site.newcomer`. The methods' papers say
nothing of newcomers; the rules are ours, with the reasons beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from medpfl.algorithms.mechanism import Rule
from medpfl.config.run import RunConfig
from medpfl.core.attention import attention_blocks, head_entries
from medpfl.core.errors import UserError
from medpfl.core.layers import batch_norm_layers
from medpfl.core.parameters import ParameterSplit
from medpfl.core.server_state import ServerState
from medpfl.server.checkpoint import checkpoint_config, load_checkpoint
from medpfl.server.rounds import Plan

EPOCHS = 5
"""How long a newcomer adapts unless the user says otherwise."""
JOINED = "join.json"


HEADS = Rule("copies of the shared heads, in order", "random heads would disturb the trained ones beside them")
BATCH_NORM = Rule(
    "the first model's scale and shift, statistics of its own training data",
    "other sites' batch norm never leaves them, and statistics need no labels and no training",
)
FIRST = Rule("the seeded first model's", "where every site began; no other site's personal part is to be had")
"""The newcomer's personal part: attention heads, batch norm, all else."""


def personal_rules(split: ParameterSplit, model: nn.Module) -> list[Rule]:
    """The rules by which a newcomer's personal part is made."""
    if not split.shared_names:
        return [FIRST]
    rules = []
    names = {name for name in split.personal_names if model.state_dict()[name].is_floating_point()}
    normalisation = {name for path, m in batch_norm_layers(model).items() for name in _entries(path, m)}
    divided = _head_entries(model) if split.heads_divided else set()
    if names & divided:
        rules.append(HEADS)
    if names & normalisation:
        rules.append(BATCH_NORM)
    if names - normalisation - divided:
        rules.append(FIRST)
    return rules


def finished(file: Path, where: str) -> tuple[RunConfig, ServerState]:
    """The configuration and the last state of a run, from its checkpoint, which is only read.

    Args:
        file: the checkpoint.
        where: what messages call the run.

    Raises:
        UserError: the run has not ended, or the file is damaged.
    """
    config = checkpoint_config(file)
    server = load_checkpoint(file, config)
    if server.phase != "done":
        raise UserError(
            f"{where}: the run has not ended, {server.round} of {config.rounds} rounds are done; go on with "
            "--resume first"
        )
    return config, server


def joined_results(
    plan: Plan, server: ServerState, model: nn.Module, epochs: int, found: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """What the server knows of join.json.

    Args:
        plan: of the finished run.
        server: its last state.
        model: of the run's architecture.
        epochs: how long the newcomers adapted, at most.
        found: by site, what :meth:`medpfl.server.newcomer.Welcome.run` gives.
    """
    config = plan.config
    return {
        "schema": 1,
        "status": "finished",
        "run": {
            "algorithm": config.algorithm,
            "rounds": server.round,
            "sites": config.sites,
            **({"init": config.init} if config.init else {}),
        },
        "rules": {
            "shared": vars(config.mixer.newcomer),
            **({"method": rules} if (rules := _rules(config)) else {}),
            "personal": [vars(rule) for rule in personal_rules(plan.split, model)],
        },
        "epochs": epochs,
        "measures": config.learned.described(),
        "sites": dict(found),
        "mean": {w: _mean(config, [site.get(w) for site in found.values()]) for w in _HERE if _any(found, w)},
    }


def _rules(config: RunConfig) -> list[dict[str, str]]:
    return [vars(part.newcomer) for part in config.mechanisms if part.newcomer]


_HERE = ("received", "adapted", "alone", "used")


def _any(found: Mapping[str, Mapping[str, Any]], which: str) -> bool:
    return which != "used" or any(which in site for site in found.values())


def _mean(config: RunConfig, measured: list[Mapping[str, Any] | None]) -> dict[str, float | None]:
    values = {m: [v[m] for v in measured if v and v[m] is not None] for m in config.learned.everywhere}
    return {m: float(np.mean(v)) if v else None for m, v in values.items()}


def _entries(path: str, module: nn.Module) -> set[str]:
    return {f"{path}.{name}" if path else name for name in module.state_dict()}


def _head_entries(model: nn.Module) -> set[str]:
    blocks = attention_blocks(model).items()
    return {f"{path}.{name}" for path, block in blocks for name in head_entries(block, range(block.num_heads))}
