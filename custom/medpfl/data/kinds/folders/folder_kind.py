"""Pictures in folders as a kind of data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medpfl.core.errors import UserError
from medpfl.core.home import at_home
from medpfl.data.arguments import named_classes
from medpfl.data.centres import require_natural, require_portable
from medpfl.data.kinds.folders.layout import find_folder, is_picture_folder, read_layout
from medpfl.data.kinds.folders.table import tables
from medpfl.data.kinds.kind import CentreKind, require_mean_pooling
from medpfl.data.kinds.npz.catalog import is_set
from medpfl.data.kinds.scans.label_columns import several_labels
from medpfl.data.kinds.scans.manifest import holds_scans
from medpfl.data.places import is_path, places

if TYPE_CHECKING:
    from medpfl.config.run import RunConfig
    from medpfl.data.finding import Finding
    from medpfl.data.source import DataSource

_OWN = {"fit", "channels", "patient"}
"""Arguments that only image folders have."""


class FolderKind(CentreKind):
    """Folders of pictures: one for each centre, in it one for each class."""

    name = "folders"
    title = "image folders"
    form = "pictures in folders"
    noun = "pictures"
    divisible = True
    also_takes = ("npz",)
    sets_aside = True

    def is_here(self, data: str) -> bool:
        """See :class:`~medpfl.data.kinds.kind.Kind`.

        Folders with pictures and no scans; a published set whose images are here keeps its bare name.
        """
        there = [place for place in places(data) if place.is_dir()]
        if any(map(holds_scans, places(data))) or not any(map(is_picture_folder, there)):
            return False
        return is_path(data) or not is_set(data)

    def is_said_by(self, data_args: Mapping[str, Any]) -> bool:
        """See :class:`~medpfl.data.kinds.kind.Kind`: besides the classes, something that only pictures have."""
        return "classes" in data_args and not _OWN.isdisjoint(data_args)

    def task(self, data: str, data_args: Mapping[str, Any]) -> str:
        """See :class:`~medpfl.data.kinds.kind.Kind`: of several labels where tables here have them."""
        there = tables(find_folder(data)) if self.is_here(data) else {}
        return "multi-label" if several_labels(there.values()) else "classification"

    def check(self, data: str, data_args: Mapping[str, Any]) -> list[Finding]:
        """See :class:`~medpfl.data.kinds.kind.Kind`."""
        from medpfl.data.kinds.folders.check_folders import check_folders

        return check_folders(data, data_args)

    def source(self, config: RunConfig) -> DataSource:
        """See :class:`~medpfl.data.kinds.kind.Kind`; with ``official`` each site has an npz file, with parts."""
        from medpfl.data.kinds.folders.picture_source import Folders
        from medpfl.data.kinds.npz.site_file import OwnImages

        require_mean_pooling(config)
        if config.official and not self.is_here(config.data):
            return OwnImages(config)
        if config.official:
            raise UserError(f"--official: the pictures of {config.data} come without parts; leave it out")
        return Folders(config)

    def path(self, data: str) -> Path:
        """See :class:`~medpfl.data.kinds.kind.CentreKind`."""
        return find_folder(data)

    def centres(self, data: str, data_args: Mapping[str, Any]) -> tuple[Path, tuple[str, ...]]:
        """See :class:`~medpfl.data.kinds.kind.CentreKind`."""
        layout = read_layout(find_folder(data), named_classes(data_args))
        return layout.root, tuple(layout.centres)

    def portable(self, config: RunConfig) -> RunConfig:
        """See :class:`~medpfl.data.kinds.kind.Kind`: the folder's name, the classes and what tells it from scans."""
        from medpfl.data.kinds.folders.picture_source import Folders

        require_natural(config)
        if "train_counts" in config.data_args:
            raise UserError(
                "--data-arg train_counts: is for simulated sites; in a job --fractions divide each site's own"
            )
        name, source = config.data, Folders(config)
        classes = named_classes(config.data_args)
        if self.is_here(config.data):
            classes = source.layout.classes
            if find_folder(config.data) == at_home(config.data):
                name = source.layout.root.resolve().name
        require_portable(name, config.data, "the folder", "give a folder whose name has no / \\ and :")
        told = {"classes": list(classes), "channels": source.reading.channels}
        return config.model_copy(update={"data": name, "data_args": config.data_args | told})
