"""CT scans as a kind of data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medpfl.core.errors import UserError
from medpfl.core.home import at_home
from medpfl.data.arguments import named_classes
from medpfl.data.centres import require_natural, require_portable
from medpfl.data.kinds.folders.layout import is_picture_folder
from medpfl.data.kinds.kind import CentreKind
from medpfl.data.kinds.npz.catalog import has_images, is_set
from medpfl.data.kinds.npz.medmnist import known_set
from medpfl.data.kinds.scans.label_columns import several_labels
from medpfl.data.kinds.scans.manifest import find_manifest, holds_scans, open_manifest
from medpfl.data.places import is_path, places

if TYPE_CHECKING:
    from medpfl.config.run import RunConfig
    from medpfl.data.finding import Finding
    from medpfl.data.source import DataSource


class ScanKind(CentreKind):
    """CT volumes of a manifest's centres, or of folders with label tables."""

    name = "scans"
    title = "CT scans"
    form = "CT scans"
    noun = "scans"
    divisible = True

    def is_here(self, data: str) -> bool:
        """See :class:`~medpfl.data.kinds.kind.Kind`.

        A path to a folder or JSON file is taken at its word, unless only pictures are there. Any folder may happen to
        be called like a data set, so a bare name means scans only where a manifest or a label table is; a published
        set whose images are here keeps its name.
        """
        there = places(data)
        if any(map(holds_scans, there)):
            return is_path(data) or not is_set(data)
        if any(map(is_picture_folder, filter(Path.is_dir, there))):
            return False
        if is_path(data) or not there:
            return bool(there)
        return Path(data).is_dir() and not (has_images(data) or known_set(data.lower()))

    def is_said_by(self, data_args: Mapping[str, Any]) -> bool:
        """See :class:`~medpfl.data.kinds.kind.Kind`: the classes are named, and nothing that only pictures have."""
        return "classes" in data_args

    def task(self, data: str, data_args: Mapping[str, Any]) -> str:
        """See :class:`~medpfl.data.kinds.kind.Kind`: of several labels where tables here have them."""
        if not self.is_here(data):
            return "classification"
        manifest = open_manifest(find_manifest(data), named_classes(data_args))
        return "multi-label" if several_labels(manifest.tables) else "classification"

    def check(self, data: str, data_args: Mapping[str, Any]) -> list[Finding]:
        """See :class:`~medpfl.data.kinds.kind.Kind`."""
        # DICOM and NIfTI readers take a second to import, and images need none of them.
        from medpfl.data.kinds.scans.check_scans import check_scans

        return check_scans(data, data_args).findings

    def check_deep(
        self, data: str, data_args: Mapping[str, Any], page: Path, progress: Callable[[int, int], None] | None = None
    ) -> list[Finding]:
        """See :class:`~medpfl.data.kinds.kind.Kind`."""
        from medpfl.data.kinds.scans.deep_check import check_deep

        return check_deep(data, data_args, page, progress)

    def source(self, config: RunConfig) -> DataSource:
        """See :class:`~medpfl.data.kinds.kind.Kind`."""
        from medpfl.data.kinds.scans.scan_source import Scans

        if config.official:
            raise UserError(f"--official: a split of {config.data} is in its tables and kept anyway; leave it out")
        return Scans(config)

    def path(self, data: str) -> Path:
        """See :class:`~medpfl.data.kinds.kind.CentreKind`."""
        return find_manifest(data)

    def centres(self, data: str, data_args: Mapping[str, Any]) -> tuple[Path, tuple[str, ...]]:
        """See :class:`~medpfl.data.kinds.kind.CentreKind`."""
        manifest = open_manifest(find_manifest(data), named_classes(data_args))
        return manifest.root, tuple(centre.name for centre in manifest.centres)

    def name_of(self, path: Path) -> str:
        """See :class:`~medpfl.data.kinds.kind.Kind`: the manifest's name."""
        return open_manifest(find_manifest(str(path))).name

    def portable(self, config: RunConfig) -> RunConfig:
        """See :class:`~medpfl.data.kinds.kind.Kind`: their manifest's name, or that they were found by, and classes."""
        from medpfl.data.kinds.scans.scan_source import Scans

        require_natural(config)
        name, classes = config.data, named_classes(config.data_args)
        if self.is_here(config.data):
            manifest = Scans(config).manifest
            classes = manifest.classes
            if find_manifest(config.data) == at_home(config.data):
                name = manifest.name
        require_portable(
            name, config.data, "the scans", 'give the manifest a "name" without / \\ : and .json', manifests=True
        )
        return config.model_copy(update={"data": name, "data_args": config.data_args | {"classes": list(classes)}})
