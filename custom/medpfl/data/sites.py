"""From a run's configuration to every site's data, the same in every engine and process.

The configuration names a data set that is partitioned over simulated sites, or a function of the user's own
(``module:function``) that returns one site's data.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from medpfl.algorithms.base import Value
from medpfl.config import RunConfig
from medpfl.data.catalog import open_dataset
from medpfl.data.centres import described_elsewhere, held_out_centres
from medpfl.data.ct.manifest import find_manifest, named_classes, open_manifest
from medpfl.data.ct.source import Scans
from medpfl.data.dataset import ImageDataset
from medpfl.data.files import PICTURES
from medpfl.data.folders.layout import read_layout
from medpfl.data.folders.source import Folders
from medpfl.data.inputs import Inputs, stored_images
from medpfl.data.kinds import find_folder, is_ct, is_folders, kind_of
from medpfl.data.medmnist_sets import image_shape, known_set
from medpfl.data.own_images import OwnImages, brought_by_sites
from medpfl.data.partition import Partition, make_partition
from medpfl.data.partition_spec import parse_spec
from medpfl.data.start_images import gathered, start_images
from medpfl.errors import UserError
from medpfl.seeding import derive_seed, generator
from medpfl.site.data import ImageTensors, SiteData, SiteLoaders, padded, scale


class DataSource(Protocol):
    """Where sites' data come from."""

    def model_arguments(self) -> dict[str, Any]:
        """``in_channels``, ``num_classes`` and ``image_size`` for the model, as far as the data say."""

    def prepare(self) -> None:
        """Reads what a simulation will need, so that what is wrong with it is said before any process starts."""

    def site(self, name: str, device: torch.device) -> SiteData:
        """One site's data, on the device."""

    def pooled_training(self, share: float, device: torch.device) -> SiteData:
        """A share of all sites' training data together; UserError unless this is a simulation."""

    def held_out(self, device: torch.device, *, divided: bool = False) -> dict[str, SiteData]:
        """Centres that take no part in training, by name: all samples as the test part, or divided as a site's."""

    def start_images(self, settings: Mapping[str, Value]) -> Tensor:
        """What a federated impression starts from, (n, C, H, W) float32, by the settings ``start`` and ``images``."""

    def describe(self) -> dict[str, Any]:
        """The ``data`` part of results.json."""

    def inputs(self) -> Inputs | None:
        """How a new file becomes the network's input; None where only the user's own code knows."""


@dataclass
class PartitionedImages:
    """One data set of images, divided over simulated sites."""

    config: RunConfig

    @cached_property
    def dataset(self) -> ImageDataset:
        """All images."""
        return open_dataset(self.config.data)

    @cached_property
    def partition(self) -> Partition:
        """Who has what."""
        c = self.config
        total = c.sites + _number_held_out(c)
        partition = make_partition(
            self.dataset,
            c.partition,
            total,
            c.seed,
            c.fractions,
            c.train_fraction,
            pooled=not c.official,
            holdout=c.holdout,
        )
        return _named(partition, c)

    def model_arguments(self) -> dict[str, Any]:
        """See :class:`DataSource`."""
        # Published sets are known without their file: whoever exports a job may not have it.
        if (shape := image_shape(self.config.data)) and (known := known_set(self.config.data)):
            channels, classes, size = shape[0], len(known.classes), shape[1]
        else:
            channels, classes, size = self.dataset.channels, self.dataset.n_classes, self.dataset.size
        edge = self.config.data_args.get("pad", size)
        if not isinstance(edge, int) or edge < size:
            raise UserError(f"--data-arg pad={edge}: images of {size} pixels can be padded to {size} or more")
        return {"in_channels": channels, "num_classes": classes, "image_size": edge}

    def prepare(self) -> None:
        """See :class:`DataSource`."""
        _ = self.partition

    def site(self, name: str, device: torch.device) -> SiteData:
        """See :class:`DataSource`."""
        parts = next((s for s in self.partition.sites if s.name == name), None)
        if parts is None:
            raise UserError(
                f"the partition has no site {name!r}: it has {', '.join(s.name for s in self.partition.sites)}"
            )
        return self._tensors({p: getattr(parts, p) for p in ("train", "validation", "test")}, device)

    def pooled_training(self, share: float, device: torch.device) -> SiteData:
        """See :class:`DataSource`. Test and validation samples are never in it."""
        training = [s for s in self.partition.sites if s.name in self.config.site_names]
        pooled = torch.cat([torch.as_tensor(s.train) for s in training])
        order = torch.randperm(len(pooled), generator=generator(self.config.seed, "pretraining", "sample"))
        chosen = pooled[order[: max(1, round(share * len(pooled)))]].numpy()
        return self._tensors({"train": chosen, "validation": chosen[:0], "test": chosen[:0]}, device)

    def held_out(self, device: torch.device, *, divided: bool = False) -> dict[str, SiteData]:
        """See :class:`DataSource`: the last sites of the partition."""
        found = {}
        for site in self.partition.sites:
            if site.name not in self.config.site_names:
                parts = {p: getattr(site, p) for p in ("train", "validation", "test")}
                if not divided:
                    every = np.sort(np.concatenate(list(parts.values())))
                    parts = {"train": every[:0], "validation": every[:0], "test": every}
                found[site.name] = self._tensors(parts, device)
        return found

    def start_images(self, settings: Mapping[str, Value]) -> Tensor:
        """See :class:`DataSource`. ``holdout`` takes images of the set that no site has, without their labels."""
        if settings["start"] != "holdout":
            return start_images(settings, self.model_arguments(), self.config.seed)
        rng = np.random.default_rng(derive_seed(self.config.seed, "impression", "start"))
        aside = self.partition.holdout
        chosen = np.sort(rng.permutation(aside)[: settings["images"]])
        shape = (self.dataset.channels, self._edge, self._edge)
        return gathered(len(chosen), shape, lambda rows: scale(self._pixels(chosen[rows])))

    def describe(self) -> dict[str, Any]:
        """See :class:`DataSource`."""
        counts = self.partition.counts(self.dataset.labels, self.dataset.n_classes)
        sites = {
            s.name: {
                "train": len(s.train),
                "validation": len(s.validation),
                "test": len(s.test),
                "classes": {str(c): int(n) for c, n in enumerate(counts[s.name])},
            }
            for s in self.partition.sites
            if s.name in self.config.site_names
        }
        d = self.dataset
        held_out = {s.name: len(s) for s in self.partition.sites if s.name not in sites}
        return {
            "name": d.name,
            "source": d.source,
            "md5": d.md5,
            "classes": list(d.classes),
            "partition": self.config.partition,
            "sites": sites,
            "held_out": held_out,
        }

    def inputs(self) -> Inputs:
        """See :class:`DataSource`."""
        d = self.dataset
        return stored_images(tuple(d.classes), d.channels, d.size, self.model_arguments()["image_size"])

    def _pixels(self, rows: np.ndarray) -> Tensor:
        return padded(self.dataset.images_chw(rows), self._edge)

    @property
    def _edge(self) -> int:
        """Edge length of the images as models see them."""
        return int(self.config.data_args.get("pad", 0)) or self.dataset.size

    def _tensors(self, indices: dict[str, Any], device: torch.device) -> ImageTensors:
        return ImageTensors(
            images={part: self._pixels(rows).to(device) for part, rows in indices.items()},
            labels={part: torch.from_numpy(self.dataset.labels[rows]).to(device) for part, rows in indices.items()},
        )


@dataclass
class OwnData:
    """The user's function ``(site, seed, **data_args) -> SiteLoaders | ImageTensors``."""

    config: RunConfig

    @cached_property
    def function(self) -> Callable[..., SiteData]:
        """The function that the configuration names."""
        return import_object(self.config.data, "data")

    def model_arguments(self) -> dict[str, Any]:
        """See :class:`DataSource`: nothing is known, the model's own arguments must say it."""
        return {}

    def prepare(self) -> None:
        """See :class:`DataSource`: asks for the centres that are held out, which are needed at the very end."""
        self.held_out(torch.device("cpu"))

    def site(self, name: str, device: torch.device) -> SiteData:
        """See :class:`DataSource`."""
        data = self.function(site=name, seed=self.config.seed, **self.config.data_args)
        if isinstance(data, SiteLoaders):
            return _moved(data, device)
        return replace(
            data,
            images={p: x.to(device) for p, x in data.images.items()},
            labels={p: y.to(device) for p, y in data.labels.items()},
        )

    def pooled_training(self, share: float, device: torch.device) -> SiteData:
        """See :class:`DataSource`."""
        raise UserError(
            "sites' own data cannot be pooled to pretrain f: give a checkpoint (--set pretrain=PATH) or use f-fedap"
        )

    def held_out(self, device: torch.device, *, divided: bool = False) -> dict[str, SiteData]:
        """See :class:`DataSource`: the function is asked for them by name, ``held-out-1`` and so on or as given.

        They are as the function divides them.
        """
        if not self.config.held_out:
            return {}
        if isinstance(self.config.held_out, int):
            names = [f"held-out-{k + 1}" for k in range(self.config.held_out)]
        else:
            names = self.config.held_out.split(",")
        found = {}
        for name in map(str.strip, names):
            try:
                found[name] = self.site(name, device)
            except UserError:
                raise
            except Exception as error:  # the user's own function may raise anything
                raise UserError(f"data of held-out centre {name}: {type(error).__name__}: {error}") from error
        return found

    def start_images(self, settings: Mapping[str, Value]) -> Tensor:
        """See :class:`DataSource`: the model's own arguments do not say what images look like."""
        raise UserError("a federated impression needs the size of the images, which one's own loaders do not tell")

    def describe(self) -> dict[str, Any]:
        """See :class:`DataSource`: the numbers come from the sites."""
        return described_elsewhere(self.config.data)

    def inputs(self) -> None:
        """See :class:`DataSource`: how the function reads files is not known."""


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


def import_object(spec: str, what: str) -> Any:
    """The object that ``package.module:name`` names; UserError says which half is wrong."""
    module, _, name = spec.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise UserError(f"{what} {spec!r}: no module {error.name!r} can be imported") from None
    except AttributeError:
        raise UserError(f"{what} {spec!r}: module {module!r} has no {name!r}") from None


def _moved(data: SiteLoaders, device: torch.device) -> SiteLoaders:
    data.device = device
    return data


def _named(partition: Partition, config: RunConfig) -> Partition:
    """The partition with the run's names: site-1 is the first of them, and so on; further sites are held out."""
    usual = [f"site-{i + 1}" for i in range(config.sites + _number_held_out(config))]
    wanted = [*config.site_names, *usual[config.sites :]]
    found = {site.name for site in partition.sites}
    if found == set(wanted) and len(found) == len(wanted):
        return partition
    if unknown := found ^ set(usual):
        raise UserError(
            f"partition {config.partition}: sites must be named site-1 to site-{len(usual)}, not {min(unknown)!r}"
        )
    if len(set(wanted)) < len(wanted):
        raise UserError(f"--sites {','.join(config.names)}: a centre that is held out has one of these names")
    names = dict(zip(usual, wanted, strict=True))
    return replace(partition, sites=[replace(site, name=names[site.name]) for site in partition.sites])


def _number_held_out(config: RunConfig) -> int:
    if isinstance(config.held_out, str):
        raise UserError(
            f"--held-out {config.held_out}: {config.data} has no named centres; give a number of sites to draw more"
        )
    return config.held_out


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
