"""Images with masks as a kind of data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medpfl.core.errors import UserError
from medpfl.core.home import at_home
from medpfl.data.centres import require_natural, require_portable
from medpfl.data.kinds.kind import CentreKind, require_mean_pooling
from medpfl.data.kinds.masks.layout import find_masked, open_layout
from medpfl.data.kinds.masks.reading import read_reading
from medpfl.data.kinds.npz.catalog import is_set
from medpfl.data.places import is_path

if TYPE_CHECKING:
    from medpfl.config.run import RunConfig
    from medpfl.data.finding import Finding
    from medpfl.data.source import DataSource

_OWN = {"dims", "values", "patch", "patches", "foreground", "folders", "fold"}
"""Arguments that only images with masks have."""


class MaskKind(CentreKind):
    """Pictures or volumes, each with the class of every pixel or voxel: in folders, a datalist or one npz file."""

    name = "masks"
    title = "images with masks"
    form = "images with masks"
    noun = "images"
    divisible = True

    def is_here(self, data: str) -> bool:
        """See :class:`~medpfl.data.kinds.kind.Kind`; a published set whose images are here keeps its bare name."""
        found = find_masked(data)
        return found is not None and (found.is_file() or is_path(data) or not is_set(data))

    def is_said_by(self, data_args: Mapping[str, Any]) -> bool:
        """See :class:`~medpfl.data.kinds.kind.Kind`: besides the classes, something that only masks have."""
        return "classes" in data_args and not _OWN.isdisjoint(data_args)

    def task(self, data: str, data_args: Mapping[str, Any]) -> str:
        """See :class:`~medpfl.data.kinds.kind.Kind`."""
        return "segmentation"

    def check(self, data: str, data_args: Mapping[str, Any]) -> list[Finding]:
        """See :class:`~medpfl.data.kinds.kind.Kind`."""
        from medpfl.data.kinds.masks.check_masks import check_masks

        return check_masks(data, data_args)

    def source(self, config: RunConfig) -> DataSource:
        """See :class:`~medpfl.data.kinds.kind.Kind`."""
        from medpfl.data.kinds.masks.masked_source import Masked

        require_mean_pooling(config)
        return Masked(config)

    def path(self, data: str) -> Path:
        """See :class:`~medpfl.data.kinds.kind.CentreKind`."""
        if found := find_masked(data):
            return found
        raise UserError(f"images with masks {data!r} are not on this machine")

    def centres(self, data: str, data_args: Mapping[str, Any]) -> tuple[Path, tuple[str, ...]]:
        """See :class:`~medpfl.data.kinds.kind.CentreKind`; what the job says may tell sites from patients."""
        layout = open_layout(data, read_reading(data_args))
        return layout.root, tuple(layout.centres)

    def portable(self, config: RunConfig) -> RunConfig:
        """See :class:`~medpfl.data.kinds.kind.Kind`: the data's name, the classes and what the network takes."""
        from medpfl.data.kinds.masks.masked_source import Masked

        require_natural(config)
        name, source = config.data, Masked(config)
        if source.here and self.path(config.data) == at_home(config.data):
            name = source.layout.name
        require_portable(
            name, config.data, "the data", "give a folder or file whose name has no / \\ and :", manifests=True
        )
        arguments = source.model_arguments()
        told = {"classes": list(source.classes), "dims": source.reading.dims, "channels": arguments["in_channels"]}
        size = list(arguments["image_size"])
        if source.reading.dims == 3:
            told["patch"] = size
        elif size[0] != size[1]:
            raise UserError(f"{config.data}: images of {size[1]}×{size[0]} pixels: sites can share square ones alone")
        else:
            told["size"] = size[0]
        return config.model_copy(update={"data": name, "data_args": config.data_args | told})
