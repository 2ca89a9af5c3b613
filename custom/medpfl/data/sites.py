"""From a run's configuration to every site's data, the same in every engine and process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medpfl.config.run import RunConfig
from medpfl.core.errors import UserError
from medpfl.data.kinds.kind import CentreKind
from medpfl.data.kinds.npz.medmnist import known_set
from medpfl.data.kinds.registry import kind_of
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
        task_for(config.data, config.data_args, config.task)
    return kind.source(config)


def task_for(data: str, data_args: Mapping[str, Any], asked: str | None) -> str | None:
    """What is learned from data: what is asked for, else what the data say; None if they do not.

    Raises:
        UserError: the data have other labels than the task that is asked for.
    """
    kind = kind_of(data, data_args)
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
