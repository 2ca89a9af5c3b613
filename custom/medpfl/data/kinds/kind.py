"""What a kind of data is: how it is recognised, checked, opened, and named in a job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from medpfl.core.errors import UserError
from medpfl.data.centres import held_out_centres, require_one

if TYPE_CHECKING:
    from medpfl.config.run import RunConfig
    from medpfl.data.finding import Finding
    from medpfl.data.source import DataSource


class Kind(ABC):
    """A kind of data. Where nothing else is said, ``data`` is a ``--data`` value, and nothing is read.

    Attributes:
        name: short, of its own.
        form: what lies at a hospital, in messages, e.g. ``pictures in folders``.
        also_takes: names of the kinds that a site may have too where a job takes this one.
        sets_aside: a share of the training samples can be set aside (``--holdout``).
    """

    name: ClassVar[str]
    form: ClassVar[str]
    also_takes: ClassVar[tuple[str, ...]] = ()
    sets_aside: ClassVar[bool] = False

    @abstractmethod
    def is_here(self, data: str) -> bool:
        """Whether that names data of this kind on this machine."""

    def is_said_by(self, data_args: Mapping[str, Any]) -> bool:
        """Whether a job with these arguments takes this kind, whatever is here by the name of its data."""
        return False

    def task(self, data: str, data_args: Mapping[str, Any]) -> str:
        """The task that such data are for where the user names none; empty where only the user knows."""
        return "classification"

    def network(self, data: str, data_args: Mapping[str, Any]) -> str:
        """The network that is trained on such data where neither user nor method names one; empty for the task's."""
        return ""

    def refusal(self, data: str, data_args: Mapping[str, Any]) -> str | None:
        """Why data that are here cannot have these arguments, whatever the run; None where they can."""
        return None

    @abstractmethod
    def check(self, data: str, data_args: Mapping[str, Any]) -> list[Finding]:
        """Reads the data and says in words whether they can be used; never raises for data that are wrong.

        Raises:
            UserError: an argument that such data do not have, or a wrong value of one.
        """

    def check_deep(
        self, data: str, data_args: Mapping[str, Any], page: Path, progress: Callable[[int, int], None] | None = None
    ) -> list[Finding]:
        """:meth:`check`, and every sample decoded as training would; a page with pictures is written.

        Args:
            data: see the class.
            data_args: as of a run.
            page: the HTML file to write, for its owner alone to read.
            progress: called with how many files or samples are read, and of how many.

        Raises:
            UserError: see :meth:`check`, or there is nothing deeper to be checked.
        """
        raise UserError(f"{data}: --deep decodes scans; the check of {self.form} reads all there is as it is")

    @abstractmethod
    def source(self, config: RunConfig) -> DataSource:
        """The source of a run's data; UserError for options of the run that such data do not have."""

    def at_site(self, config: RunConfig, own: Path) -> DataSource:
        """The source where a site's own data of this kind lie at ``own``, and the job calls them ``config.data``."""
        return self.source(config.model_copy(update={"data": str(own)}))

    @abstractmethod
    def fixed_sites(
        self, data: str, partition: str, data_args: Mapping[str, Any], held_out: int | str = 0
    ) -> int | None:
        """See :func:`medpfl.data.sites.fixed_sites`."""

    def name_of(self, path: Path) -> str:
        """What data at a path are called where the user gives them no name; UserError if they cannot be read."""
        return path.stem if path.is_file() else path.name

    def portable(self, config: RunConfig) -> RunConfig:
        """The configuration with data named as a job may name them: by no path, and so that a site knows their kind.

        Raises:
            UserError: no other machine could find data by that name.
        """
        return config

    def unknown(self, data: str) -> str | None:
        """Why no job can be made of data so named, of which nothing is known; None where enough is."""
        return None

    def kept_arguments(self, data_args: Mapping[str, Any]) -> dict[str, Any]:
        """Those of a run's arguments that hold for data of this kind which a newcomer brings to it."""
        return dict(data_args)


class CentreKind(Kind):
    """Data in centres: a folder or manifest has some, each of which is a site.

    Where ``divisible``, the patients of a single centre may be divided over simulated sites instead.

    Attributes:
        title: what they are, in messages, e.g. ``image folders``.
        noun: what a centre has many of, e.g. ``scans``.
        divisible: whether one centre's patients can be divided over simulated sites by ``--partition``.
    """

    title: ClassVar[str]
    noun: ClassVar[str]
    divisible: ClassVar[bool] = False

    @abstractmethod
    def path(self, data: str) -> Path:
        """The folder or manifest that the data are in; UserError if there is none."""

    @abstractmethod
    def centres(self, data: str, data_args: Mapping[str, Any]) -> tuple[Path, tuple[str, ...]]:
        """Where the centres of data that are here lie, and their names.

        Raises:
            UserError: the data cannot be read.
        """

    def require_divisible(self, data: str, data_args: Mapping[str, Any], partition: str, held_out: int | str) -> None:
        """UserError if data that are here and to be divided have several centres, or one that is to be held out."""
        root, names = self.centres(data, data_args)
        require_one(names, root, partition, held_out)

    def fixed_sites(
        self, data: str, partition: str, data_args: Mapping[str, Any], held_out: int | str = 0
    ) -> int | None:
        """The centres that are not held out; None where one is divided; UserError where none is here or left."""
        if partition != "natural":
            return None
        if not self.is_here(data):
            raise UserError(f"--data {data}: give --sites: the {self.noun} are not on this machine")
        root, names = self.centres(data, data_args)
        return len(names) - len(held_out_centres(names, root, held_out))


def require_mean_pooling(config: RunConfig) -> None:
    """UserError if a run with single images, not scans of many slices, is to pool otherwise than by the mean."""
    if config.pooling != "mean":
        raise UserError(f"--pooling {config.pooling} is over a scan's slices, and {config.data} has single images")
