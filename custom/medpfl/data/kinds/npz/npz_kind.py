"""Images in one npz file as a kind of data."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medpfl.core.errors import UserError
from medpfl.core.home import at_home
from medpfl.data.files import PICTURES
from medpfl.data.kinds.kind import Kind, require_mean_pooling
from medpfl.data.kinds.npz.catalog import find, open_dataset
from medpfl.data.kinds.npz.medmnist import brought_by_sites, known_set, official_md5
from medpfl.data.kinds.npz.npz_file import several_labels

if TYPE_CHECKING:
    from medpfl.config.run import RunConfig
    from medpfl.data.finding import Finding
    from medpfl.data.source import DataSource


class NpzKind(Kind):
    """A data set in one file, divided over simulated sites; or, at hospitals, a file of each one's own.

    What is nothing else is taken for such a set, by its name.
    """

    name = "npz"
    form = "images in one npz file"
    sets_aside = True

    def is_here(self, data: str) -> bool:
        """See :class:`~medpfl.data.kinds.kind.Kind`: only a path is a sign of it."""
        return Path(data).suffix.lower() == ".npz" and at_home(data).is_file()

    def task(self, data: str, data_args: Mapping[str, Any]) -> str:
        """See :class:`~medpfl.data.kinds.kind.Kind`: a published set's own, else what the labels' head says."""
        if known := known_set(Path(data).stem.lower()):
            return known.task
        try:
            file = find(data)
        except UserError:
            return "classification"
        return "multi-label" if several_labels(file) else "classification"

    def refusal(self, data: str, data_args: Mapping[str, Any]) -> str | None:
        """See :class:`~medpfl.data.kinds.kind.Kind`: a file has no names of classes."""
        if "classes" in data_args:
            return f"--data-arg classes: {data} is an npz file, whose labels are numbers; leave it out"
        return None

    def check(self, data: str, data_args: Mapping[str, Any]) -> list[Finding]:
        """See :class:`~medpfl.data.kinds.kind.Kind`."""
        from medpfl.data.kinds.npz.check_npz import check_npz

        return check_npz(data, data_args)

    def source(self, config: RunConfig) -> DataSource:
        """See :class:`~medpfl.data.kinds.kind.Kind`."""
        from medpfl.data.kinds.npz.partitioned import PartitionedImages
        from medpfl.data.kinds.npz.site_file import OwnImages

        require_mean_pooling(config)
        if Path(config.data).suffix.lower() in PICTURES:
            raise UserError(
                f"{config.data}: a picture; give a folder with one for each centre, in it one for each class"
            )
        if brought_by_sites(config.data, config.partition):
            return OwnImages(config)
        if unknown := [name for name in config.data_args if name != "pad"]:
            find(config.data)  # what is not here is another kind's, mistyped
            raise UserError(f"--data-arg {unknown[0]}: images have the argument pad alone")
        return PartitionedImages(config)

    def at_site(self, config: RunConfig, own: Path) -> DataSource:
        """See :class:`~medpfl.data.kinds.kind.Kind`: the job says what the images are, the site where."""
        from medpfl.data.kinds.npz.site_file import OwnImages

        return OwnImages(config, own)

    def fixed_sites(
        self, data: str, partition: str, data_args: Mapping[str, Any], held_out: int | str = 0
    ) -> int | None:
        """See :class:`~medpfl.data.kinds.kind.Kind`: those of a file, or of a set with sites of its own."""
        from medpfl.data.partition.make import make_partition
        from medpfl.data.partition.spec import parse_spec

        if brought_by_sites(data, partition):
            raise UserError(f"--data {data} with --partition natural: give --sites: each site brings images of its own")
        if parse_spec(partition).kind not in ("file", "natural", "printed"):
            return None
        total = len(make_partition(open_dataset(data), partition).sites)
        if isinstance(held_out, str) or held_out < 1:  # names are refused with the data, which have none
            return total
        if held_out >= total:
            raise UserError(
                f"--held-out {held_out}: {data} has {total} sites, and at least one must be left to train at"
            )
        return total - held_out

    def portable(self, config: RunConfig) -> RunConfig:
        """See :class:`~medpfl.data.kinds.kind.Kind`: a file of an official data set becomes the data set's name."""
        if os.sep not in config.data:
            return config
        name = Path(config.data).stem
        if official_md5(name) != open_dataset(config.data).md5:
            raise UserError(
                f"{config.data}: a job cannot carry a path, and this is not an official data set's file. Where each "
                f"site has images under a name, say it and what they are: --data {shlex.quote(name)} --sites A,B,... "
                "--data-arg classes=X,Y,... --data-arg size=PIXELS --data-arg channels=grey (or rgb); a set of "
                "`medpfl data list` needs its name alone, and lies in $MEDPFL_DATA as NAME.npz where the job runs"
            )
        return config.model_copy(update={"data": name})

    def unknown(self, data: str) -> str | None:
        """See :class:`~medpfl.data.kinds.kind.Kind`: a published set is known without its file."""
        if known_set(data.lower()) or Path(data).suffix:
            return None
        try:
            find(data)
        except UserError as error:
            return (
                f"{error}; for CT scans that the sites have under this name give --data-arg classes=A,B, for pictures "
                "--data-arg channels=rgb (or grey) too, for images with masks --data-arg dims=2 (or 3) too"
            )
        return None

    def kept_arguments(self, data_args: Mapping[str, Any]) -> dict[str, Any]:
        """See :class:`~medpfl.data.kinds.kind.Kind`: a run on folders or scans says what such a file says itself."""
        return {name: value for name, value in data_args.items() if name == "pad"}
