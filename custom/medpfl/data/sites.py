"""From a run's configuration to every site's data, the same in every engine and process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medpfl.config.run import RunConfig
from medpfl.data.kinds.kind import CentreKind
from medpfl.data.kinds.registry import kind_of
from medpfl.data.source import DataSource


def open_source(config: RunConfig, own: Path | None = None) -> DataSource:
    """The source that a configuration names. Nothing is read yet.

    Args:
        config: the run.
        own: where this site has the data that the configuration names, if it says so itself.

    Raises:
        UserError: the run has options that such data do not have.
    """
    if own is not None:
        if config.partition == "natural":
            return kind_of(str(own), {}).at_site(config, own)
        config = config.model_copy(update={"data": str(own)})
        if isinstance(kind := kind_of(str(own), {}), CentreKind):  # a hospital's own patients are never divided
            return kind.source(config.model_copy(update={"partition": "natural"}))
    return kind_of(config.data, config.data_args).source(config)


def fixed_sites(data: str, partition: str, data_args: Mapping[str, Any], held_out: int | str = 0) -> int | None:
    """The number of sites that train where data or partition say it (centres, a file, sites of their own), else None.

    Raises:
        UserError: the data are not here, or ``held_out`` leaves no site.
    """
    return kind_of(data, data_args).fixed_sites(data, partition, data_args, held_out)
