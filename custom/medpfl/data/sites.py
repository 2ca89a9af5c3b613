"""From a run's configuration to every site's data, the same in every engine and process.

The configuration names a data set that is partitioned over simulated sites, or a function of the user's own
(``module:function``) that returns one site's data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medpfl.config import RunConfig
from medpfl.data.catalog import open_dataset
from medpfl.data.centres import held_out_centres
from medpfl.data.ct.manifest import find_manifest, named_classes, open_manifest
from medpfl.data.ct.source import Scans
from medpfl.data.files import PICTURES
from medpfl.data.folders.layout import read_layout
from medpfl.data.folders.source import Folders
from medpfl.data.kinds import find_folder, is_ct, is_folders, kind_of
from medpfl.data.own_function import OwnData
from medpfl.data.own_images import OwnImages, brought_by_sites
from medpfl.data.partition import make_partition
from medpfl.data.partition_spec import parse_spec
from medpfl.data.partitioned import PartitionedImages
from medpfl.data.source import DataSource
from medpfl.errors import UserError


def open_source(config: RunConfig, own: Path | None = None) -> DataSource:
    """The source that a configuration names. Nothing is read yet.

    Args:
        config: the run.
        own: where this site has the data that the configuration names, if it says so itself.
    """
    if own is not None:
        if config.partition == "natural" and not (is_ct(str(own)) or is_folders(str(own))):
            return OwnImages(config, own)
        config = config.model_copy(update={"data": str(own)})
    kind = kind_of(config.data, config.data_args)
    if kind == "function":
        return OwnData(config)
    if kind == "scans":
        return Scans(config)
    if config.pooling != "mean":
        raise UserError(f"--pooling {config.pooling} is over a scan's slices, and {config.data} has single images")
    if kind == "folders":
        if config.official and not is_folders(config.data):
            return OwnImages(config)
        if config.official:
            raise UserError(f"--official: the pictures of {config.data} come without parts; leave it out")
        return Folders(config)
    if Path(config.data).suffix.lower() in PICTURES:
        raise UserError(f"{config.data}: a picture; give a folder with one for each centre, in it one for each class")
    if brought_by_sites(config.data, config.partition):
        return OwnImages(config)
    if unknown := [name for name in config.data_args if name != "pad"]:
        raise UserError(f"--data-arg {unknown[0]}: images have the argument pad alone")
    return PartitionedImages(config)


def fixed_sites(data: str, partition: str, data_args: Mapping[str, Any], held_out: int | str = 0) -> int | None:
    """The number of sites that train where the partition says it (a file, a data set with sites of its own), else None.

    Raises:
        UserError: the data are not here, or ``held_out`` leaves no site.
    """
    kind = kind_of(data, data_args)
    if kind in ("scans", "folders"):
        classes = named_classes(data_args)
        if not (is_ct(data) or is_folders(data)):
            what = "scans" if kind == "scans" else "pictures"
            raise UserError(f"--data {data}: give --sites: the {what} are not on this machine")
        if kind == "scans":
            manifest = open_manifest(find_manifest(data))
            root, names = manifest.root, [centre.name for centre in manifest.centres]
        else:
            layout = read_layout(find_folder(data), classes)
            root, names = layout.root, list(layout.centres)
        return len(names) - len(held_out_centres(names, root, held_out))
    if brought_by_sites(data, partition):
        raise UserError(f"--data {data} with --partition natural: give --sites: each site brings images of its own")
    if parse_spec(partition).kind not in ("file", "natural", "fedimpres"):
        return None
    total = len(make_partition(open_dataset(data), partition).sites)
    if isinstance(held_out, str) or held_out < 1:  # names are refused with the data, which have none
        return total
    if held_out >= total:
        raise UserError(f"--held-out {held_out}: {data} has {total} sites, and at least one must be left to train at")
    return total - held_out
