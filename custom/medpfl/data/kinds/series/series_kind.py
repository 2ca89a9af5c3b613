"""Time series as a kind of data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from medpfl.core.errors import UserError
from medpfl.core.home import at_home
from medpfl.data.centres import require_natural, require_portable
from medpfl.data.kinds.kind import CentreKind, require_mean_pooling
from medpfl.data.kinds.series.reading import SeriesReading, read_reading
from medpfl.data.kinds.series.series_npz import find_series, number_of_windows, read_series
from medpfl.data.kinds.series.series_set import SeriesSet
from medpfl.training.augment import NONE

if TYPE_CHECKING:
    from medpfl.config.run import RunConfig
    from medpfl.data.finding import Finding
    from medpfl.data.kinds.series.series_source import TimeSeries


class SeriesKind(CentreKind):
    """Windows of several channels in an npz file, or in a folder with such a file for each site."""

    name: ClassVar[str] = "series"
    title = "time series"
    form = "time series in npz files"
    sets_aside = True
    noun = "series"
    divisible = True
    also_takes: ClassVar[tuple[str, ...]] = ("pamap2",)
    usual_network: ClassVar[str] = "fcn-1d"

    def is_here(self, data: str) -> bool:
        """See :class:`~medpfl.data.kinds.kind.Kind`."""
        return self.found(data) is not None

    def is_said_by(self, data_args: Mapping[str, Any]) -> bool:
        """See :class:`~medpfl.data.kinds.kind.Kind`: besides the classes, how many samples a window has."""
        return "classes" in data_args and "length" in data_args

    def network(self, data: str, data_args: Mapping[str, Any]) -> str:
        """See :class:`~medpfl.data.kinds.kind.Kind`."""
        return self.usual_network

    def found(self, data: str) -> Path | None:
        """The file or folder that a ``--data`` value names, None if there is none here."""
        return find_series(data)

    def reading(self, data_args: Mapping[str, Any]) -> SeriesReading:
        """How windows become inputs; UserError names a wrong ``--data-arg``."""
        return read_reading(data_args)

    def read(self, data: str, data_args: Mapping[str, Any]) -> SeriesSet:
        """The windows of data that are here; UserError names what is wrong with them."""
        return read_series(data)

    def number(self, data: str, data_args: Mapping[str, Any]) -> int:
        """How many windows that would be at most; UserError as :meth:`read`. None is read."""
        return number_of_windows(self.path(data))

    def check(self, data: str, data_args: Mapping[str, Any]) -> list[Finding]:
        """See :class:`~medpfl.data.kinds.kind.Kind`."""
        from medpfl.data.kinds.series.check_series import check_series

        self.reading(data_args)  # names a wrong argument
        return check_series(self.source, data, data_args)

    def source(self, config: RunConfig) -> TimeSeries:
        """See :class:`~medpfl.data.kinds.kind.Kind`."""
        from medpfl.data.kinds.series.series_source import TimeSeries

        require_mean_pooling(config)
        if config.augment != NONE:
            raise UserError(
                f"--augment {config.augment}: changes pictures (turns, flips, noise on grey values), and {config.data} "
                "has time series; leave it out"
            )
        if config.official:
            raise UserError(
                f"--official: {config.data} has time series, whose file's own `split` is kept anyway; leave it out"
            )
        said = config.data, config.data_args
        opened = (lambda: self.read(*said)) if self.is_here(config.data) else None
        return TimeSeries(config, self.reading(config.data_args), opened, lambda: self.number(*said))

    def path(self, data: str) -> Path:
        """See :class:`~medpfl.data.kinds.kind.CentreKind`."""
        if found := self.found(data):
            return found
        raise UserError(f"time series {data!r} are not on this machine")

    def centres(self, data: str, data_args: Mapping[str, Any]) -> tuple[Path, tuple[str, ...]]:
        """See :class:`~medpfl.data.kinds.kind.CentreKind`."""
        found = self.read(data, data_args)
        return found.source, tuple(found.windows())

    def require_divisible(self, data: str, data_args: Mapping[str, Any], partition: str, held_out: int | str) -> None:
        """See :class:`~medpfl.data.kinds.kind.CentreKind`: all sites' windows are taken together and divided."""
        if held_out:
            raise UserError(f"--held-out {held_out}: with --partition {partition} all sites train")

    def portable(self, config: RunConfig) -> RunConfig:
        """See :class:`~medpfl.data.kinds.kind.Kind`: the data's name, the classes and the shape of a window."""
        require_natural(config)
        name, source = config.data, self.source(config)
        if self.is_here(name) and self.path(name) == at_home(name):
            name = self.name_of(self.path(name).resolve())
        require_portable(name, config.data, "the data", "give a file or folder whose name has no / \\ and :")
        shape = source.model_arguments()
        told = {
            "classes": list(source.classes),
            "channels": shape["in_channels"],
            "length": shape["image_size"][0],
            "normalise": source.reading.normalise,
            **({"divide": list(source.reading.divide)} if source.reading.divide else {}),
        }
        return config.model_copy(update={"data": name, "data_args": config.data_args | told})
