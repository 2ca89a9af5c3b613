"""From a run's configuration to every site's data, the same in every engine and process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medpfl.algorithms import algorithm as method
from medpfl.config.run import RunConfig
from medpfl.config.settings import paths
from medpfl.core.errors import UserError
from medpfl.core.home import at_home, whole
from medpfl.data.kinds.kind import CentreKind, Kind
from medpfl.data.kinds.npz.catalog import SAMPLE
from medpfl.data.kinds.npz.medmnist import known_set
from medpfl.data.kinds.registry import absent, kind_of, meant
from medpfl.data.partition.by_patient import require_drawn
from medpfl.data.source import DataSource
from medpfl.tasks import tasks


def open_source(config: RunConfig, own: Path | None = None) -> DataSource:
    """The source that a configuration names. Nothing is read yet.

    Args:
        config: the run.
        own: where this site has the data that the configuration names, if it says so itself.

    Raises:
        UserError: the run has options that such data do not have, or a task that they have no labels for.
    """
    kind = kind_of(config.data, config.data_args) if own is None else kind_of(str(own), {})
    if config.holdout and not kind.sets_aside:
        raise UserError(f"--holdout {config.holdout:g}: of {kind.form} nothing is set aside; leave it out")
    if own is not None:
        if config.partition == "natural":
            return kind.at_site(config, own)
        config = config.model_copy(update={"data": str(own)})
        if isinstance(kind, CentreKind):  # a hospital's own patients are never divided
            return kind.source(config.model_copy(update={"partition": "natural"}))
        kind = kind_of(config.data, config.data_args)
    if kind.is_here(config.data):
        _task_for(kind, config.data, config.data_args, config.task)
    return kind.source(config)


def as_data_say(algorithm: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A run's fields with what its data say of it where nobody else does: task, network, partition, number of sites.

    The partition's file and those in settings get whole paths: sites run in other folders.

    Args:
        algorithm: the method, which may have a network of its own.
        fields: of :class:`~medpfl.config.run.RunConfig`; None, or not there, where nothing is said.

    Raises:
        UserError: the data cannot be divided or learned as the fields want it, or their sites are to be counted and
            they are not here.
    """
    data, data_args = fields.get("data") or SAMPLE, fields.get("data_args") or {}
    held_out, partition, model = fields.get("held_out") or 0, _whole(fields.get("partition")), fields.get("model")
    kind = kind_of(data, data_args)
    task = _task_for(kind, data, data_args, fields.get("task"))
    if model is None and "model" not in method(algorithm).schedule:
        model = kind.network(data, data_args) or None
    if isinstance(kind, CentreKind):
        if kind.divisible and partition:
            require_drawn(partition, kind.title)
            if partition != "natural" and kind.is_here(data):
                kind.require_divisible(data, data_args, partition, held_out)
        elif partition not in (None, "natural"):
            raise UserError(
                f"--partition {partition}: {kind.title} are their own centres'; give natural or leave it out"
            )
        partition = partition or "natural"
    sites = fields.get("sites")
    if sites is None and partition and not fields.get("names"):
        sites = kind.fixed_sites(data, partition, data_args, held_out)
    settings = _with_whole_paths(fields.get("settings") or {})
    return {**fields, "task": task, "model": model, "partition": partition, "sites": sites, "settings": settings}


def whole_path(data: str | None) -> str | None:
    """Data by the whole path of their file or folder, where they are one; UserError for a path of which nothing is."""
    if data and (wrong := absent(data)):
        raise UserError(f"--data {wrong}")
    if not data or not (path := at_home(data)).exists():
        return data
    # A folder may happen to be called like a data set that is meant.
    if path.is_dir() and meant(data) != path:
        return data
    return whole(path)


def _whole(partition: str | None) -> str | None:
    if partition and partition.startswith("file:"):
        return f"file:{whole(partition.removeprefix('file:'))}"
    return partition


def _with_whole_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(settings)
    for name, words in paths().items():
        if isinstance(path := found.get(name), str) and path not in words:
            found[name] = whole(path)
    return found


def task_for(data: str, data_args: Mapping[str, Any], asked: str | None) -> str | None:
    """What is learned from data: what is asked for, else what the data say; None if they do not.

    Raises:
        UserError: the data have other labels than the task that is asked for.
    """
    return _task_for(kind_of(data, data_args), data, data_args, asked)


def _task_for(kind: Kind, data: str, data_args: Mapping[str, Any], asked: str | None) -> str | None:
    known, said = tasks(), kind.task(data, data_args)
    fits = not (asked and said and asked in known and known[asked].labels != known[said].labels)
    if not fits and known[asked].labels == "mask" and not (kind.is_here(data) or known_set(data)):
        raise UserError(
            f"--task {asked}: {data} is not here, so say of what its masks are: --data-arg classes=background,NAME and "
            "--data-arg dims=2 (pictures, slices) or dims=3 (volumes)"
        )
    if not fits:
        fitting = [name for name, task in known.items() if task.labels == known[said].labels]
        raise UserError(f"--task {asked}: {data} has {_LABELS[known[said].labels]}; it is for {' or '.join(fitting)}")
    return asked or said or None


_LABELS = {"class": "one class an image", "labels": "several labels an image", "mask": "masks"}


def fixed_sites(data: str, partition: str, data_args: Mapping[str, Any], held_out: int | str = 0) -> int | None:
    """The number of sites that train where data or partition say it (centres, a file, sites of their own), else None.

    Raises:
        UserError: the data are not here, or ``held_out`` leaves no site.
    """
    return kind_of(data, data_args).fixed_sites(data, partition, data_args, held_out)
