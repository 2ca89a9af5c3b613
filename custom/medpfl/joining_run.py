"""Sites that join a finished run: what they start with, what training at the site adds, and what they reach alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from medpfl.assemble import Federation
from medpfl.config import TRAINING, RunConfig, make_config
from medpfl.data.kinds import kind_of
from medpfl.data.sites import fixed_sites, open_source
from medpfl.engine.inprocess import CHECKPOINT
from medpfl.errors import UserError
from medpfl.joining import SHARED, Start, personal_rules, start
from medpfl.lock import run_folder
from medpfl.messages import Message
from medpfl.parameters import State
from medpfl.results import write_json
from medpfl.seeding import generator
from medpfl.server.checkpoint import checkpoint_config, load_checkpoint
from medpfl.server.rounds import ServerState
from medpfl.site.data import Batch, SiteData, endless_batches
from medpfl.site.evaluation import evaluate
from medpfl.site.measures import MEASURES
from medpfl.site.objectives import Objective, site_objective
from medpfl.site.training import TrainingDiverged, train_epochs
from medpfl.threads import intra_op_threads

EPOCHS = 5
JOINED = "join.json"
_DATA = ("data", "data_args", "partition", "sites", "fractions", "train_fraction", "official")
_MAY_CHANGE = {*_DATA, "settings", "device", "local_epochs"}
_HERE = ("received", "adapted", "alone")


def join(algorithm: str, run: Path, said: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Lets sites join a finished run, in a simulation, and writes ``join.json`` and their models.

    Args:
        algorithm: must be the run's.
        run: the run's folder.
        said: fields of a configuration that the user gave: ``data`` and what belongs to it, by default the run's
            held-out centres; ``local_epochs`` to train at the new site; ``settings`` of that training; ``device``.
        out: where to write.

    Returns:
        The content of join.json: ``run``, ``rules``, ``epochs``, and for each site how it started, the epochs kept,
        and measures on its test data ``received``, ``adapted`` and ``alone`` (from the first model, as long).

    Raises:
        UserError: the run has not ended, is another algorithm's, or the new data do not fit it.
    """
    config, server = _finished(run, algorithm)
    with run_folder(out):
        return _join(config, server, run, said, out)


def _join(config: RunConfig, server: ServerState, run: Path, said: Mapping[str, Any], out: Path) -> dict[str, Any]:
    federation = Federation.of(_with_training(config, run, said))
    sites = _newcomers(federation, run, said)
    epochs = said.get("local_epochs", EPOCHS)
    plan = federation.plan(impressions=False)
    model = federation.model()
    found: dict[str, Any] = {}
    with torch.random.fork_rng(), intra_op_threads(config.intra_op_threads):
        for name, data in sites.items():
            begun = start(plan, server, federation.initial_personal, federation.model, data)
            try:
                found[name], state = _joined(federation, server, begun, name, data, epochs)
            except TrainingDiverged as error:
                raise UserError(f"{name}: {error}") from None
            _deliver(federation, out, name, server.round, state, found[name])
    results = {
        "schema": 1,
        "run": {"folder": run.name, "algorithm": config.algorithm, "rounds": server.round, "sites": config.sites},
        "rules": {
            "shared": vars(SHARED[config.resolved_mixing]),
            "personal": [vars(rule) for rule in personal_rules(plan.split, model)],
        },
        "config": federation.config.model_dump(mode="json"),
        "epochs": epochs,
        "sites": found,
        "mean": {which: _mean([site[which] for site in found.values()]) for which in _HERE},
    }
    write_json(out / JOINED, results)
    return results


def _finished(run: Path, algorithm: str) -> tuple[RunConfig, ServerState]:
    file = run / "state" / "server" / CHECKPOINT
    if not file.is_file():
        raise UserError(f"--join {run}: there is no run in it ({file} is missing); give the --out of a simulated run")
    config = checkpoint_config(file)
    server = load_checkpoint(file, config)
    if server.phase != "done":
        raise UserError(
            f"--join {run}: the run has not ended, {server.round} of {config.rounds} rounds are done; go on with "
            "--resume first"
        )
    if config.algorithm != algorithm:
        raise UserError(f"--join {run}: that run is of {config.algorithm}, not {algorithm}")
    return config, server


def _with_training(config: RunConfig, run: Path, said: Mapping[str, Any]) -> RunConfig:
    for name, value in said.items():
        if name not in _MAY_CHANGE and value != getattr(config, name):
            raise UserError(
                f"--{name.replace('_', '-')} {value}: the run in {run} has {getattr(config, name)!r}, which a new site "
                "must share; leave it out"
            )
    own = said.get("settings", {})
    if fixed := [name for name in own if name not in TRAINING and own[name] != config.all_settings.get(name)]:
        raise UserError(f"--set {fixed[0]}: a new site may choose {', '.join(TRAINING)}; the rest is the run's")
    fields = config.model_dump()
    return make_config(**fields | {"settings": {**config.settings, **own}, "device": said.get("device", config.device)})


def _newcomers(federation: Federation, run: Path, said: Mapping[str, Any]) -> dict[str, SiteData]:
    """The new sites' data by name: of the centres that the run held out, or the data that are given."""
    config = federation.config
    if "data" in said:
        sites = _given(federation, said)
    elif config.held_out:
        if other := next((name for name in _DATA if name in said), None):
            raise UserError(f"--{other.replace('_', '-')}: the held-out centres of {run} are divided as the run says")
        sites = federation.source.held_out(federation.device, divided=True)
    else:
        raise UserError(f"--join {run}: that run held no centre out; give the new site's data with --data")
    for name, data in sites.items():
        for part in ("train", "test"):
            if not data.samples(part):
                raise UserError(f"{name} has no {'training' if part == 'train' else 'test'} sample")
        _require_fit(federation, name, data)
    return sites


def _given(federation: Federation, said: Mapping[str, Any]) -> dict[str, SiteData]:
    before, data = federation.config, said["data"]
    arguments = {k: v for k, v in before.data_args.items() if k != "classes"} | said.get("data_args", {})
    centres = kind_of(data, arguments) in ("scans", "folders")
    partition = "natural" if centres else said.get("partition", "iid")
    number = said.get("sites") or fixed_sites(data, partition, arguments) or 1
    fields = {k: said[k] for k in ("fractions", "train_fraction", "official") if k in said}
    new = {"data": data, "data_args": arguments, "partition": partition, "sites": number}
    new |= {"names": (), "held_out": 0, "min_sites": 0}
    # Any method can be asked for the data alone; the run's own may need more sites than join.
    alone = {"algorithm": "local", "personal": None, "mixing": None, "settings": {}, "holdout": 0}
    config = make_config(**before.model_dump() | fields | new | alone)
    other = open_source(config)
    ours, theirs = (source.inputs() for source in (federation.source, other))
    if ours and theirs and ours.classes != theirs.classes:
        raise UserError(
            f"--data {data}: its classes are {', '.join(theirs.classes)}; the run's are {', '.join(ours.classes)}"
            + ("; name them in that order in a manifest.json" if set(ours.classes) == set(theirs.classes) else "")
        )
    shapes = federation.source.model_arguments(), other.model_arguments()
    if all(shapes) and shapes[0] != shapes[1]:
        name = next(k for k in shapes[0] if shapes[0][k] != shapes[1][k])
        raise UserError(f"--data {data}: {name} is {shapes[1][name]}; the run's model takes {shapes[0][name]}")
    return {f"new-{i + 1}": other.site(site, federation.device) for i, site in enumerate(config.site_names)}


def _require_fit(federation: Federation, name: str, data: SiteData) -> None:
    try:
        evaluate(federation.model(), data, "test")
    except (RuntimeError, ValueError) as error:
        first = str(error).partition("\n")[0]
        raise UserError(
            f"{name}: its samples do not fit {federation.config.model} as the run trained it: {first}"
        ) from None


def _joined(
    federation: Federation, server: ServerState, begun: Start, name: str, data: SiteData, epochs: int
) -> tuple[dict[str, Any], State]:
    """The report on one site, and its adapted model."""
    config, model = federation.config, federation.model()
    first = deepcopy(model.state_dict())
    model.load_state_dict(begun.state)
    received = evaluate(model, data, "test")
    shown = _impression(config, server, name, model)
    objective = site_objective(model, federation.split, config.all_settings, shown)
    kept, validation = adapt(model, data, config, name, epochs, objective)
    state = {key: tensor.detach().cpu().clone() for key, tensor in model.state_dict().items()}
    report = {
        "samples": {part: data.samples(part) for part in ("train", "validation", "test")},
        "sent_bytes": begun.sent_bytes,
        "received_bytes": begun.received_bytes,
        "weights": dict(begun.row),
        "received": received,
        "adapted": evaluate(model, data, "test"),
        "epoch": kept,
        "validation": validation,
    }
    model.load_state_dict(first)
    report["alone_epoch"], report["alone_validation"] = adapt(model, data, config, name, epochs)
    return report | {"alone": evaluate(model, data, "test")}, state


def _impression(config: RunConfig, server: ServerState, name: str, model: nn.Module) -> Iterator[Batch] | None:
    if (found := Message("train", server.round, server.impression).impression) is None:
        return None
    device = next(model.parameters()).device
    order = generator(config.seed, name, "join", "impression")
    return endless_batches(*(t.to(device) for t in found), config.all_settings["batch_size"], order)


def adapt(
    model: nn.Module, data: SiteData, config: RunConfig, name: str, epochs: int, objective: Objective | None = None
) -> tuple[int, list[dict[str, Any] | None]]:
    """Trains the model in place and leaves it as it was after the epoch with the best validation measure.

    The model before training counts too. Without validation samples the last epoch's is kept.

    Args:
        model: on the data's device.
        data: the site's.
        config: training settings and ``select_by``.
        name: of the site, for the order of its samples.
        epochs: at most; each begins with a fresh optimizer, as a round of one epoch does.
        objective: by default cross-entropy.

    Returns:
        The number of epochs that the kept model has seen, and the validation measures before and after every epoch.
    """
    found = [evaluate(model, data, "validation")]
    best, kept = 0, deepcopy(model.state_dict())
    for epoch in range(1, epochs + 1):
        order = generator(config.seed, name, "join", epoch, "shuffle")
        torch.manual_seed(order.initial_seed())  # for layers like dropout, which draw from the global generator
        train_epochs(model, data, config.all_settings, 1, order, objective)
        found.append(evaluate(model, data, "validation"))
        if found[-1] is None or _score(found[-1], config) > _score(found[best], config):
            best, kept = epoch, deepcopy(model.state_dict())
    model.load_state_dict(kept)
    return best, found


def _score(measured: Mapping[str, Any], config: RunConfig) -> float:
    value = measured[config.select_by]
    return -1.0 if value is None else value


def _deliver(
    federation: Federation, out: Path, name: str, round_: int, state: State, report: Mapping[str, Any]
) -> None:
    record = {
        "samples": report["samples"],
        "validation": report["validation"][report["epoch"]],
        "test": report["adapted"],
        "joined": {"after_round": round_, "epochs": report["epoch"]},
    }
    federation.delivery(out / "joined" / name).write("selected", name, round_, state, record)


def _mean(measured: list[dict[str, Any] | None]) -> dict[str, float | None]:
    values = {m: [v[m] for v in measured if v and v[m] is not None] for m in MEASURES}
    return {m: float(np.mean(v)) if v else None for m, v in values.items()}
