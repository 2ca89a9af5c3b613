"""Experiment tracking with FLARE's own receivers: a series for each site and measure, at the server.

The values are those that come with the sites' answers anyway, so nothing more leaves a site. FLARE's receivers listen
to events that sites send; the controller fires the same events for them, at the server alone.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE, AnalyticsDataType
from nvflare.apis.fl_constant import EventScope, FedEventHeader, FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.utils.analytix_utils import create_analytic_dxo

from medpfl.core.errors import UserError
from medpfl.core.server_state import ServerState

if TYPE_CHECKING:
    from nvflare.recipe.spec import Recipe

_SHOWN_BY = {
    "tensorboard": ("tb_events", "tensorboard --logdir {}"),
    "mlflow": ("mlflow.db", "mlflow ui --backend-store-uri sqlite:///{}"),
    "wandb": ("wandb", "wandb sync {}/offline-run-*"),
}
"""What each tracker's receiver writes into the server's run folder, and the command that takes it."""
TRACKERS = tuple(_SHOWN_BY)
DEFAULT = "tensorboard"


def installed(tracker: str) -> bool:
    """Whether the tracker's package can be imported here; a folder ``wandb`` of earlier runs is none."""
    spec = find_spec(tracker)
    return spec is not None and spec.origin is not None


def check_tracker(tracker: str) -> None:
    """Refuses what the receivers would fail at later.

    Raises:
        UserError: the tracker is unknown, or its package is not installed here.
    """
    if tracker not in TRACKERS:
        raise UserError(f"--track {tracker}: use {', '.join(TRACKERS)} or none")
    if not installed(tracker):
        wanted = tracker if tracker == DEFAULT else "'medpfl[track]'"
        raise UserError(
            f"--track {tracker}: the package {tracker} is not installed here; pip install {wanted}, or --track none"
        )


def add_receiver(recipe: Recipe, tracker: str, name: str) -> None:
    """Adds FLARE's receiver for this tracker to the recipe's server; Weights & Biases writes offline.

    Raises:
        UserError: see :func:`check_tracker`.
    """
    from nvflare.recipe.utils import add_experiment_tracking  # the server's process has no use for recipes

    check_tracker(tracker)
    of_run = {"project": "medpfl", "name": name, "group": name, "job_type": "federation"}
    add_experiment_tracking(recipe, tracker, {"wandb_args": of_run} if tracker == "wandb" else None)


def stay_offline() -> None:
    """Turns off what MLflow and Weights & Biases report to their makers, unless the environment says otherwise.

    Takes effect before their packages are imported.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")


def keep_in(folder: str) -> None:
    """Lets Weights & Biases write into the run's folder, as the others do, and not where the server was started."""
    os.environ.setdefault("WANDB_DIR", folder)


def how_to_see(out: Path, tracker: str) -> str | None:
    """The command that shows what a tracker's receiver wrote for the last run in ``out``; None if it wrote nothing."""
    name, command = _SHOWN_BY[tracker]
    runs = sorted(out.glob("flare/**/results.json"), key=lambda file: file.stat().st_mtime)
    written = runs[-1].with_name(name) if runs else None
    if written is None or not written.exists():
        return None
    path = written.resolve() if tracker == "mlflow" else written  # SQLAlchemy's address is absolute
    return command.format(shlex.quote(str(path)))


def new_values(before: ServerState, after: ServerState, names: Sequence[str]) -> Iterator[tuple[str, str, float, int]]:
    """Site, name, value and round of all that a step has made known, in the order of rounds.

    Validation of a round comes with the answers of the next. Its measures are told by ``names``.
    """
    last = max(0, len(before.history) - 1)
    for i, record in enumerate(after.history[last:], start=last):
        known = before.history[i]["sites"] if i < len(before.history) else {}
        for site, values in record["sites"].items():
            earlier = _flat(known.get(site, {}), names)
            yield from ((site, k, v, record["round"]) for k, v in _flat(values, names).items() if k not in earlier)


def _flat(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
    validation = values.get("validation") or {}
    measured = {f"validation/{name}": validation.get(name) for name in names}
    found = {"train_loss": values.get("train_loss"), **measured, **(values.get("numbers") or {})}
    return {name: value for name, value in found.items() if value is not None}


def publish(context: FLContext, site: str, name: str, value: float, round_: int) -> None:
    """Tells the server's receivers a site's value, as if the site had sent it."""
    dxo = create_analytic_dxo(name, value, AnalyticsDataType.SCALAR, global_step=round_)
    data = dxo.to_shareable()
    data.set_peer_props({ReservedKey.IDENTITY_NAME: site})
    # An event that goes "out" would be sent on to all sites.
    data.set_header(FedEventHeader.DIRECTION, "in")
    context.set_prop(FLContextKey.EVENT_DATA, data, private=True, sticky=False)
    context.set_prop(FLContextKey.EVENT_SCOPE, EventScope.FEDERATION, private=True, sticky=False)
    # By the engine: a component would make it an event of the server's own.
    context.get_engine().fire_event(f"fed.{ANALYTIC_EVENT_TYPE}", context)
