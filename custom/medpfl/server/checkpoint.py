"""The server's state after each step in one file, so that a kill loses at most the round in flight.

The state of the step before stays beside it: it is used when the last file turns out to be damaged.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from medpfl.config.fields import CIRCUMSTANCES
from medpfl.config.named_code import fingerprints
from medpfl.config.run import RunConfig, make_config
from medpfl.core.errors import TornFile, UserError
from medpfl.core.growing import Growing
from medpfl.core.messages import Failure
from medpfl.core.server_state import ServerState
from medpfl.core.statefile import read_info, read_state, write_state
from medpfl.core.whole_file import flush

logger = logging.getLogger(__name__)

CHECKPOINT = "server.safetensors"


def checkpoint_exists(path: Path) -> bool:
    """Whether there is a state to go on from; a kill may leave the previous one alone."""
    return path.exists() or _previous(path).exists()


def save_checkpoint(
    path: Path, config: RunConfig, state: ServerState, *, durable: bool, rounds: Growing | None = None
) -> None:
    """Writes the state atomically. Sites with the same shared state store it once.

    Args:
        path: the file.
        config: the run's.
        state: the server's.
        durable: wait for the disk.
        rounds: the same at every save of a run, so that each round is encoded once.

    Raises:
        UserError: the file cannot be written; those that were there still are.
    """
    tensors: dict[str, Tensor] = {}
    slots: dict[int, int] = {}
    of_site: dict[str, int] = {}
    for site, shared in state.shared.items():
        slot = of_site[site] = slots.setdefault(id(shared), len(slots))
        tensors |= {f"shared/{slot}/{name}": tensor for name, tensor in shared.items()}
    for channel, sites in state.kept.items():
        for site, kept in sites.items():
            tensors |= {f"kept/{channel}/{site}/{name}": tensor for name, tensor in kept.items()}
    for channel, common in state.common.items():
        tensors |= {f"common/{channel}/{name}": tensor for name, tensor in common.items()}
    for mechanism, own in state.moved_by.items():
        tensors |= {f"moved/{mechanism}/{name}": tensor for name, tensor in own.items()}
    if state.weights is not None:
        tensors["weights"] = torch.from_numpy(state.weights)
    info = {
        "config": config.model_dump(mode="json"),
        "settings": dict(config.all_settings),
        "code": dict(state.code) or fingerprints(config),
        "phase": state.phase,
        "round": state.round,
        "samples": dict(state.samples),
        "shared": of_site,
        "history": list(state.history),
        "selection": dict(state.selection),
        "best_round": state.best_round,
        "failures": [asdict(f) for f in state.failures],
        "traffic": dict(state.traffic),
        "final": state.final,
        "pretrained": state.pretrained,
        "judged": state.judged,
        "seconds": state.seconds,
    }
    fresh = _next(path)
    try:
        write_state(fresh, tensors, durable=durable, info=(rounds or Growing()).text(info, "history"))
        if path.exists():
            os.replace(path, _previous(path))
        os.replace(fresh, path)
        if durable:
            flush(path.parent)
        for unfinished in path.parent.glob(f".{fresh.name}.*.tmp"):  # a kill left it
            unfinished.unlink()
    except OSError as error:
        raise UserError(
            f"{path}: the server cannot write its checkpoint ({error.strerror}); the run can be resumed from the last "
            "one that was written"
        ) from error


def _previous(path: Path) -> Path:
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def _next(path: Path) -> Path:
    return path.with_name(f"{path.stem}.next{path.suffix}")


def _generations(path: Path) -> list[Path]:
    """The files to read, the last state first.

    A kill between the two moves of a save leaves the new state, whole, beside the previous one, which is the damaged
    file where the run went on from the one before that.
    """
    files = (path if path.exists() else _next(path), _previous(path))
    return [file for file in files if file.exists()] or [path]


def last_state(path: Path, config: RunConfig) -> ServerState | None:
    """The same as :func:`load_checkpoint`, and None if there is no checkpoint."""
    return load_checkpoint(path, config) if checkpoint_exists(path) else None


def load_checkpoint(path: Path, config: RunConfig) -> ServerState:
    """The state of an earlier run with the same settings; if the last one is damaged, the one before, with a note.

    Raises:
        UserError: both are damaged, or the run had other settings: the first difference is named.
    """
    torn: list[TornFile] = []
    for file in _generations(path):
        try:
            state = _load(file, config)
        except TornFile as error:
            torn.append(error)
            continue
        note = Failure("server", state.round, "its last checkpoint was damaged; the run went on from the one before")
        return replace(state, failures=(*state.failures, note)) if torn else state
    raise UserError(f"{' and '.join(map(str, torn))}; the run cannot be resumed from it")


def _load(path: Path, config: RunConfig) -> ServerState:
    tensors, info = read_state(path)
    require_same_run(path.parent, info["config"], config)
    _require_same_making(path.parent, info, config)
    code, now = dict(info.get("code") or {}), fingerprints(config)
    for module, words in changed_code(code, config).items():
        logger.warning("%s: %s", path.parent, words)
        if info["phase"] != "done":
            code[module] += f", {now[module]}"
    slots: dict[int, dict[str, Tensor]] = {slot: {} for slot in info["shared"].values()}
    kept: dict[str, dict[str, dict[str, Tensor]]] = {}
    common: dict[str, dict[str, Tensor]] = {}
    moved_by: dict[str, dict[str, Tensor]] = {}
    for key, tensor in sorted(tensors.items()):
        kind, _, rest = key.partition("/")
        if kind == "shared":
            slot, _, name = rest.partition("/")
            slots[int(slot)][name] = tensor
        elif kind == "kept":
            channel, site, name = rest.split("/", 2)
            kept.setdefault(channel, {}).setdefault(site, {})[name] = tensor
        elif kind == "common":
            channel, _, name = rest.partition("/")
            common.setdefault(channel, {})[name] = tensor
        elif kind == "moved":
            mechanism, _, name = rest.partition("/")
            moved_by.setdefault(mechanism, {})[name] = tensor
    return ServerState(
        phase=info["phase"],
        round=info["round"],
        samples=info["samples"],
        shared={site: slots[slot] for site, slot in info["shared"].items()},
        kept=kept,
        common=common,
        moved_by=moved_by,
        weights=tensors["weights"].numpy() if "weights" in tensors else None,
        history=tuple(info["history"]),
        selection=info.get("selection") or {},
        best_round=info["best_round"],
        failures=tuple(Failure(**f) for f in info["failures"]),
        traffic=info["traffic"],
        final=info["final"],
        pretrained=info.get("pretrained"),
        judged=info.get("judged"),
        seconds=info.get("seconds", 0.0),
        code={} if now | code == now else now | code,
    )


def _require_same_making(folder: Path, info: Mapping[str, Any], config: RunConfig) -> None:
    """UserError where a default that nobody named is another one since."""
    for name, value in config.all_settings.items():
        if (was := info.get("settings", {}).get(name, value)) != value:
            raise UserError(
                f"{folder} holds a run with {name} = {was!r}, which is {value!r} by default now: put the default back, "
                "give --overwrite, or choose another --out"
            )


def changed_code(code: Mapping[str, str], config: RunConfig) -> dict[str, str]:
    """By module of others' code that is another one now than the last on record, by its file, a sentence that says so.

    Args:
        code: of :class:`ServerState`, or of results.
        config: of the run.
    """
    return {
        module: f"{module} has changed since this run was made; --overwrite makes it anew"
        for module, digest in fingerprints(config).items()
        if code.get(module, digest).rpartition(", ")[2] != digest
    }


def checkpoint_config(path: Path) -> RunConfig:
    """The configuration of the run that a checkpoint is of.

    Raises:
        UserError: the file and the one before are damaged, or they are of another version of this package. Of damage
            to tensors :func:`load_checkpoint` tells.
    """
    torn: list[TornFile] = []
    for file in _generations(path):
        try:
            return make_config(**_recorded(file))
        except TornFile as error:
            torn.append(error)
        except UserError as error:
            raise UserError(f"{file}: no run of this version of the package: {error}") from None
    raise UserError(f"{' and '.join(map(str, torn))}; the run cannot be read")


def difference(before: Mapping[str, Any], config: RunConfig) -> str | None:
    """The first setting, in words, in which a run on record is another one than this; None if it is the same run.

    Args:
        before: the recorded configuration, as JSON has it; fields that an earlier version did not know have their
            defaults.
        config: of the run that is to go on; what does not touch the figures may differ.
    """
    # Not checked again: an earlier version may have allowed what is now refused.
    then = RunConfig.model_construct(**before).model_dump(mode="json", warnings=False)
    by_default = config.choices_by_default
    for name, value in config.model_dump(mode="json").items():
        if name == "settings":
            if unlike := config.settings_unlike(then[name]):
                what = min(unlike, key=lambda n: n not in {**then[name], **value})  # rather one that was given
                was, now = ("off" if v is None else repr(v) for v in unlike[what])
                return f"{what} = {was}, not {now}"
        elif name not in CIRCUMSTANCES:
            was, now = (chosen or by_default.get(name, chosen) for chosen in (then[name], value))
            if was != now:
                return f"{name} = {was!r}, not {now!r}"
    return None


def as_recorded(path: Path, config: RunConfig) -> RunConfig:
    """The same run in the words in which it began, defaults given or not (:func:`in_the_words_of`)."""
    for file in _generations(path) if checkpoint_exists(path) else []:
        try:
            return in_the_words_of(_recorded(file), config)
        except TornFile:
            continue
    return config


def _recorded(file: Path) -> dict[str, Any]:
    """The configuration in a checkpoint; TornFile if there is none."""
    info = read_info(file)
    if not isinstance(info, dict) or not isinstance(info.get("config"), dict):
        raise TornFile(f"{file} is damaged: it has no configuration of a run")
    return info["config"]


def in_the_words_of(before: Mapping[str, Any], config: RunConfig) -> RunConfig:
    """The same run with the settings and choices that were given then: by these its sites tell it from others.

    Another run is left as it is. Of start weights that a file has only who reads it can say whether they are the same.
    """
    named = not config.init or config.init.startswith("sha256:")
    if difference(before, config if named else config.model_copy(update={"init": before.get("init", "")})):
        return config
    return config.model_copy(update={n: before[n] for n in ("settings", *config.choices_by_default) if n in before})


def require_same_run(folder: Path, before: Mapping[str, Any], config: RunConfig) -> None:
    """Refuses to go on with a run in a folder that has other settings (:func:`difference`).

    Raises:
        UserError: it names the first difference.
    """
    if found := difference(before, config):
        raise UserError(f"{folder} holds a run with {found}: resume with the same settings or choose another --out")
