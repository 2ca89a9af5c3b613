"""One data set of images, divided over simulated sites."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from medpfl.config.run import RunConfig
from medpfl.core.errors import UserError
from medpfl.core.gathered import gathered
from medpfl.core.site_data import PARTS, ImageTensors, Part, SiteData, padded, scale
from medpfl.data.dataset import ImageDataset
from medpfl.data.finding import heed
from medpfl.data.inputs import Inputs, stored_images
from medpfl.data.kinds.npz.catalog import find, open_dataset
from medpfl.data.kinds.npz.medmnist import image_shape, known_set
from medpfl.data.kinds.npz.npz_file import number_of_images, padded_edge
from medpfl.data.partition.known_patients import at_two_sites, by_hospital
from medpfl.data.partition.make import Partition, make_partition
from medpfl.data.partition.spec import parse_spec
from medpfl.data.people import people
from medpfl.data.split import SiteIndices, rows_to_pretrain_on
from medpfl.data.uneven import JUDGED, judged_classes

logger = logging.getLogger(__name__)


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
        return _named(partition, c, self._names_of_file())

    def _names_of_file(self) -> list[str]:
        """What the file calls the sites that it is divided by, site-1 first; empty where it is divided otherwise."""
        if self.config.partition != "natural" or self.dataset.site_ids is None:
            return []
        return [str(name) for name in np.unique(self.dataset.site_ids)]

    def model_arguments(self) -> dict[str, Any]:
        """See :class:`medpfl.data.source.DataSource`."""
        # Published sets are known without their file: whoever exports a job may not have it.
        if (shape := image_shape(self.config.data)) and (known := known_set(self.config.data)):
            channels, classes, size = shape[0], len(known.classes), (shape[1],) * 3 if known.volumes else shape[1]
        else:
            channels, classes, size = self.dataset.channels, self.dataset.n_classes, self.dataset.shape
        if not isinstance(size, int):
            if "pad" in self.config.data_args:
                edge = self.config.data_args["pad"]
                raise UserError(f"--data-arg pad={edge}: {self.config.data} has volumes, which are not padded")
            return {"in_channels": channels, "num_classes": classes, "image_size": size}
        return {"in_channels": channels, "num_classes": classes, "image_size": padded_edge(self.config.data_args, size)}

    def prepare(self) -> None:
        """See :class:`medpfl.data.source.DataSource`."""
        if self.dataset.patients is not None and self.dataset.site_ids is not None:
            heed(people(by_hospital(self.dataset, self.config.official)), f"{self.dataset.source}: ")
        partition, spec = self.partition, parse_spec(self.config.partition)
        if self.dataset.patients is not None and spec.kind == "file":
            heed(at_two_sites(self.dataset, partition, spec.path))
        if self.dataset.site_ids is not None and self.config.partition != "natural":
            logger.warning(
                "%s has %d sites of its own and is divided by %s over %d all the same: --partition natural keeps them",
                self.config.data,
                len(np.unique(self.dataset.site_ids)),
                self.config.partition,
                self.config.sites,
            )

    def site(self, name: str, device: torch.device) -> SiteData:
        """See :class:`medpfl.data.source.DataSource`."""
        parts = next((s for s in self.partition.sites if s.name == name), None)
        if parts is None:
            raise UserError(
                f"the partition has no site {name!r}: it has {', '.join(s.name for s in self.partition.sites)}"
            )
        return self._tensors({p: getattr(parts, p) for p in PARTS}, device)

    def training_patients(self, name: str) -> frozenset[str]:
        """See :func:`medpfl.data.source.training_patients`."""
        known = any(site.name == name for site in self.partition.sites)
        return self.patients(name, "train") if known else frozenset()

    def patients(self, name: str, part: Part) -> frozenset[str]:
        """Whose the samples of a part of a site's data are, each another's if unknown; UserError if it is no site's."""
        rows = next((getattr(site, part) for site in self.partition.sites if site.name == name), None)
        if rows is None:
            raise UserError(f"{name} is none of the run's sites: {', '.join(self.config.site_names)}")
        return self.dataset.people_of(rows)

    def values(self, name: str) -> int:
        """See :func:`medpfl.data.source.number_of_values`: of the whole set, which each site reads."""
        shape = self.model_arguments()
        size = shape["image_size"]
        pixels = size**2 if isinstance(size, int) else prod(size)
        return number_of_images(find(self.config.data)) * shape["in_channels"] * pixels

    def pooled_training(self, share: float, device: torch.device) -> SiteData:
        """See :class:`medpfl.data.source.DataSource`. Test and validation samples are never in it."""
        training = [s for s in self.partition.sites if s.name in self.config.places]
        pooled = torch.cat([torch.as_tensor(s.train) for s in training])
        chosen = pooled[rows_to_pretrain_on(len(pooled), share, self.config.seed)].numpy()
        return self._tensors({"train": chosen, "validation": chosen[:0], "test": chosen[:0]}, device)

    def held_out(self, device: torch.device, *, divided: bool = False) -> dict[str, SiteData]:
        """See :class:`medpfl.data.source.DataSource`: the last sites of the partition."""
        found = {}
        for site in self.partition.sites:
            if site.name not in self.config.places:
                parts = {p: getattr(site, p) for p in PARTS}
                if not divided:
                    every = np.sort(np.concatenate(list(parts.values())))
                    parts = {"train": every[:0], "validation": every[:0], "test": every}
                found[site.name] = self._tensors(parts, device)
        return found

    def set_aside(self, count: int, rng: np.random.Generator) -> Tensor:
        """See :class:`medpfl.data.source.DataSource`."""
        if self.dataset.volumes:
            raise UserError(f"--holdout: {self.config.data} has volumes, of which nothing is set aside")
        aside = self.partition.holdout
        if not len(aside):
            raise UserError(f"--holdout {self.config.holdout}: too small a share, no image is set aside")
        chosen = np.sort(rng.permutation(aside)[:count])
        shape = (self.dataset.channels, self._edge, self._edge)
        return gathered(len(chosen), shape, lambda rows: scale(self._pixels(chosen[rows])))

    def fitting_classes(self, called: str) -> tuple[str, ...]:
        """See :class:`medpfl.data.source.DataSource`: the site's file must be of the shape of the set it stands for."""
        data, known, shape = self.dataset, known_set(called), image_shape(called)
        if known and shape:
            for what, found, expected in (
                ("classes", data.n_classes, len(known.classes)),
                ("channels", data.channels, shape[0]),
                ("pixels", data.size, shape[1]),
            ):
                if found != expected:
                    raise UserError(
                        f"{self.config.data}: images of {found} {what}; the job divides {called}, which has {expected}"
                    )
        return tuple(data.classes)

    def in_words(self) -> str:
        """See :class:`medpfl.data.source.DataSource`."""
        classes, c = self.dataset.n_classes, self.config
        return f"data set {c.data!r}, {classes} classes, the whole set at server and sites ({c.partition})"

    def describe(self) -> dict[str, Any]:
        """See :class:`medpfl.data.source.DataSource`."""
        centres = dict(zip((s.name for s in self.partition.sites), self._names_of_file(), strict=False))
        sites = {
            s.name: {
                **({"centre": centres[s.name]} if s.name in centres else {}),
                "train": len(s.train),
                "validation": len(s.validation),
                "test": len(s.test),
                "classes": {str(c): int(n) for c, n in enumerate(self.dataset.counts(_all_rows(s)))},
                **self._judged(s),
                **self._in_patients(s),
            }
            for s in self.partition.sites
            if s.name in self.config.places
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

    def checksum(self) -> str:
        """Of the file."""
        return self.dataset.md5

    def _judged(self, site: SiteIndices) -> dict[str, Any]:
        d = self.dataset
        if d.several_labels:
            return {}
        labels = {part: d.labels[getattr(site, part)] for part in JUDGED}
        return {"judged_classes": judged_classes(labels, d.n_classes)}

    def _in_patients(self, site: SiteIndices) -> dict[str, Any]:
        """How many patients a site's images are of, and those that judge; nothing where nobody is known."""
        d = self.dataset
        if d.patients is None:
            return {}
        judging = {f"{part}_patients": len(d.people_of(getattr(site, part))) for part in JUDGED}
        return {"patients": len(d.people_of(_all_rows(site)))} | judging

    def inputs(self) -> Inputs | None:
        """See :class:`medpfl.data.source.DataSource`; None of volumes, of which no other file is known."""
        d = self.dataset
        if d.volumes:
            return None
        return stored_images(tuple(d.classes), d.channels, d.size, self.model_arguments()["image_size"])

    def _pixels(self, rows: np.ndarray) -> Tensor:
        images = self.dataset.images_chw(rows)
        return images if self.dataset.volumes else padded(images, self._edge)

    @property
    def _edge(self) -> int:
        """Edge length of the images as models see them."""
        return int(self.config.data_args.get("pad", 0)) or self.dataset.size

    def _tensors(self, indices: dict[str, Any], device: torch.device) -> ImageTensors:
        return ImageTensors(
            images={part: self._pixels(rows).to(device) for part, rows in indices.items()},
            labels={part: torch.from_numpy(self.dataset.labels[rows]).to(device) for part, rows in indices.items()},
            persons=self.dataset.persons_chosen(indices, device),
        )


def _all_rows(site: SiteIndices) -> np.ndarray:
    return np.concatenate([getattr(site, part) for part in PARTS])


def _named(partition: Partition, config: RunConfig, own: list[str]) -> Partition:
    """The partition with the run's names: site-1 is the first of them, and so on; further sites are held out.

    Names that are the file's ``own`` are of these sites, in whichever order they are given.
    """
    usual = [f"site-{i + 1}" for i in range(config.sites + _number_held_out(config))]
    wanted = [*config.site_names, *usual[config.sites :]]
    found = {site.name for site in partition.sites}
    if found == set(wanted) and len(found) == len(wanted):
        return partition
    if unknown := found - set(usual):
        raise UserError(
            f"partition {config.partition}: sites must be named site-1 to site-{len(usual)}, not {min(unknown)!r}"
        )
    if missing := set(usual) - found:
        raise UserError(
            f"partition {config.partition}: has no {min(missing)!r}, and site-1 to site-{len(usual)} are needed"
        )
    if len(set(wanted)) < len(wanted):
        raise UserError(f"--sites {','.join(config.names)}: a centre that is held out has one of these names")
    if any(name in own for name in config.names):
        wanted[: config.sites] = own[: config.sites]
        if set(config.names) != set(wanted[: config.sites]):
            raise UserError(
                f"--sites {','.join(config.names)}: {config.data} has the sites {', '.join(own)}; name the first "
                f"{config.sites} as it does, or all otherwise, in the order of its names"
            )
    names = dict(zip(usual, wanted, strict=True))
    return replace(partition, sites=[replace(site, name=names[site.name]) for site in partition.sites])


def _number_held_out(config: RunConfig) -> int:
    if isinstance(config.held_out, str):
        raise UserError(
            f"--held-out {config.held_out}: {config.data} has no named centres; give a number of sites to draw more"
        )
    return config.held_out
