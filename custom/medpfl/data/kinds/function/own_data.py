"""Sites' data that a function of the user's own reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from medpfl.config.run import RunConfig
from medpfl.core.errors import NotInOnePlace, UserError
from medpfl.core.masked_data import MaskedImages, MaskedVolumes
from medpfl.core.one_file import as_a_file
from medpfl.core.own_loaders import heed_range
from medpfl.core.permitted_code import permitted_module, require_own
from medpfl.core.site_data import ImageTensors, Part, SiteData, SiteLoaders
from medpfl.data.centres import described_elsewhere
from medpfl.tasks.task import Task

_MASKED = MaskedImages | MaskedVolumes


@dataclass
class OwnData:
    """The user's function ``(site, seed, **data_args)``: loaders, images with labels, or images with masks."""

    config: RunConfig

    @cached_property
    def function(self) -> Callable[..., SiteData]:
        """The function that the configuration names."""
        return _named(self.config.data)

    def model_arguments(self) -> dict[str, Any]:
        """See :class:`medpfl.data.source.DataSource`: nothing is known, the model's own arguments must say it."""
        return {}

    def prepare(self) -> None:
        """See :class:`medpfl.data.source.DataSource`.

        Looks the function up, and asks for the centres that are held out, which are needed at the very end.
        """
        _ = self.function
        self.held_out(torch.device("cpu"))

    def site(self, name: str, device: torch.device) -> SiteData:
        """See :class:`medpfl.data.source.DataSource`."""
        data = self.function(site=name, seed=self.config.seed, **self.config.data_args)
        if not isinstance(data, SiteLoaders | ImageTensors | MaskedImages | MaskedVolumes):
            raise UserError(
                f"{self.config.data} returned {type(data).__name__} for {name}: it must be SiteLoaders, ImageTensors, "
                "MaskedImages or MaskedVolumes"
            )
        _require_labels(name, data, self.config.learned)
        if isinstance(data, SiteLoaders):
            data.device, data.one_class = device, self.config.learned.one_class
            return data
        if isinstance(data, MaskedVolumes):
            _require_fitting(name, data, data.masks)
            for part, masks in data.masks.items():
                _require_one_each(f"{name}: {part}:", data, part, len(masks), "volumes")
            _heed_first(data)
            return replace(data, device=device)
        if isinstance(data, MaskedImages):
            _require_fitting(name, data, data.labels)
            data = _in_cases(name, data)
        else:
            data = _fitted(name, data, self.config.learned)
        _heed_first(data)
        moved = {
            name: {part: tensor.to(device) for part, tensor in getattr(data, name).items()}
            for name in ("images", "labels", "patients", "persons")
        }
        return replace(data, **moved)

    def pooled_training(self, share: float, device: torch.device) -> SiteData:
        """See :class:`medpfl.data.source.DataSource`."""
        raise NotInOnePlace("sites' own data cannot be pooled")

    def held_out(self, device: torch.device, *, divided: bool = False) -> dict[str, SiteData]:
        """See :class:`medpfl.data.source.DataSource`.

        The function is asked for them by name, ``held-out-1`` and so on or as given; they are as it divides them.
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

    def set_aside(self, count: int, rng: np.random.Generator) -> Tensor:
        """See :class:`medpfl.data.source.DataSource`; nothing is known of one's own function's images."""
        raise UserError("nothing is set aside of one's own function's images")

    def fitting_classes(self, called: str) -> tuple[str, ...]:
        """See :class:`medpfl.data.source.DataSource`: a job does not say which."""
        return ()

    def in_words(self) -> str:
        """See :class:`medpfl.data.source.DataSource`."""
        return f"what the function {self.config.data} returns at each site"

    def describe(self) -> dict[str, Any]:
        """See :class:`medpfl.data.source.DataSource`: the numbers come from the sites."""
        return described_elsewhere(self.config.data)

    def inputs(self) -> None:
        """See :class:`medpfl.data.source.DataSource`: how the function reads files is not known."""


def _named(spec: str) -> Any:
    """The object that ``package.module:name`` names.

    Raises:
        UserError: nobody has permitted the module, or it or the name is not there; it says which.
    """
    module, _, name = spec.partition(":")
    try:
        found = getattr(permitted_module(spec, "data"), name)
    except ModuleNotFoundError as error:
        raise UserError(f"data {spec!r}: no module {error.name!r} can be imported{as_a_file(spec, error)}") from None
    except AttributeError:
        raise UserError(f"data {spec!r}: module {module!r} has no {name!r}") from None
    require_own(found, spec, "data")
    return found


def _heed_first(data: ImageTensors | MaskedImages | MaskedVolumes) -> None:
    for image in data.images["train"][:1]:
        heed_range(image)


def _require_labels(site: str, data: SiteData, learned: Task) -> None:
    """UserError where the data have masks and the task takes none, or the other way round."""
    masked, kind = isinstance(data, _MASKED), type(data).__name__
    if learned.labels == "mask" and not masked:
        raise UserError(
            f"{site}: {kind} has one label or several a case; {learned.name} takes MaskedImages or MaskedVolumes"
        )
    if masked and learned.labels != "mask":
        raise UserError(f"{site}: {kind} has masks, and {learned.name} takes none: say --task segmentation")


def _fitted(site: str, data: ImageTensors, learned: Task) -> ImageTensors:
    """With labels as tasks have them, and patients numbered from 0; one of several labels is several, and one person.

    Raises:
        UserError: a part is missing, labels or patients are not the images', or a number is none.
    """
    one_class = learned.one_class
    labels, patients, persons = {}, {}, dict(data.persons)
    for part in get_args(Part):
        _require_part(site, data, part, data.labels)
        where, images, own = f"{site}: {part}:", len(data.images[part]), data.labels[part]
        _require_pixels(where, data.images[part])
        _require_tensor(where, "labels", own)
        if own.is_floating_point() and one_class:
            kind = str(own.dtype).removeprefix("torch.")
            raise UserError(f"{where} labels are {kind}; whole numbers, the classes, are needed")
        if one_class and own.dim() == 2 and own.shape[1] == 1:  # as MedMNIST has them
            own = own.squeeze(1)
        if one_class and own.dim() != 1:
            raise UserError(
                f"{where} labels are {list(own.shape)}, and {learned.name} has one class a case, ({images},); several "
                "labels are --task multi-label, masks MaskedImages"
            )
        for what, of in (("labels", own), ("patients", data.patients.get(part)), ("persons", data.persons.get(part))):
            if of is not None:
                _require_number(where, what, of, images, "images")
        labels[part] = own if own.is_floating_point() else own.long()
        if part in data.patients:
            known, said = data.patients[part], labels[part]
            with_label = torch.cat([known[:, None], (said[:, None] if said.dim() == 1 else said).to(known)], 1)
            patients[part] = with_label.unique(dim=0, return_inverse=True)[1]
            if len(patients[part].unique()) > len(known.unique()):
                persons.setdefault(part, known)
    return replace(data, labels=labels, patients=patients, persons=persons)


def _require_pixels(where: str, images: Tensor) -> None:
    """UserError unless they are as :func:`~medpfl.core.site_data.scale` takes them, and numbers."""
    _require_tensor(where, "images", images)
    if not (images.is_floating_point() or images.dtype == torch.uint8):
        kind = str(images.dtype).removeprefix("torch.")
        raise UserError(f"{where} images are {kind}; uint8, 0 to 255, or floating point in [-1, 1] is needed")
    if images.is_floating_point() and not bool(images.isfinite().all()):
        raise UserError(f"{where} images have values that are no numbers (NaN or infinite)")


def _in_cases(site: str, data: MaskedImages) -> MaskedImages:
    """With cases numbered from 0 in the order in which they lie.

    Raises:
        UserError: slices of a case do not lie together, or patients, persons or spacings are too few or too many.
    """
    patients = {}
    for part, masks in data.labels.items():
        where, cases = f"{site}: {part}:", len(masks)
        if (known := data.patients.get(part)) is not None:
            _require_number(where, "patients", known, len(masks), "images")
            found, patients[part] = known.unique_consecutive(return_inverse=True)
            if len(found) > len(found.unique()):
                twice = next(number for number in found.tolist() if (found == number).sum() > 1)
                raise UserError(f"{where} slices of patient {twice} do not lie together; order images by patient")
            cases = len(found)
        _require_one_each(where, data, part, len(masks), "images", cases)
    return replace(data, patients=patients)


def _require_one_each(
    where: str, data: MaskedImages | MaskedVolumes, part: Part, images: int, called: str, cases: int | None = None
) -> None:
    """UserError unless each image has a person and each case a spacing, where either is told."""
    if part in data.persons:
        _require_number(where, "persons", data.persons[part], images, called)
    spacings = data.spacings.get(part)
    if spacings and len(spacings) != (wanted := images if cases is None else cases):
        raise UserError(f"{where} {len(spacings)} spacings, and {wanted} cases; one each is needed")


def _require_number(where: str, what: str, given: Any, images: int, called: str) -> None:
    _require_tensor(where, what, given)
    if len(given) != images:
        raise UserError(f"{where} {len(given)} {what}, and {images} {called}; one each is needed")


def _require_tensor(where: str, what: str, given: Any) -> None:
    if not isinstance(given, Tensor):
        kind = type(given).__name__
        raise UserError(
            f"{where} {what} are of type {kind}; a tensor is needed, as torch.as_tensor makes it of numbers"
        )


def _require_part(site: str, data: Any, part: Part, labels: Mapping[Part, Any]) -> None:
    if part not in data.images or part not in labels:
        what, none = ("masks", "empty") if isinstance(data, _MASKED) else ("labels", "empty tensors")
        raise UserError(f"{site}: {type(data).__name__} has no {part} images and {what}; no cases are {none}")


def _require_fitting(site: str, data: MaskedImages | MaskedVolumes, masks: Mapping[Part, Any]) -> None:
    """UserError where masks are not their images': tensors of slices, or lists of volumes; or a part is missing."""
    for part in get_args(Part):
        _require_part(site, data, part, masks)
        where, own, of = f"{site}: {part}:", data.images[part], masks[part]
        if len(own) != len(of):
            raise UserError(f"{where} {len(of)} masks, and {len(own)} images; one each is needed")
        for image, mask in [(own, of)] if isinstance(own, Tensor) else zip(own, of, strict=True):
            channel = 1 if isinstance(own, Tensor) else 0
            _require_pixels(where, image)
            _require_tensor(where, "masks", mask)
            if mask.dtype != torch.uint8:
                raise UserError(
                    f"{where} masks are {str(mask.dtype).removeprefix('torch.')}; uint8, the classes, is needed"
                )
            if mask.shape != (*image.shape[:channel], *image.shape[channel + 1 :]):
                found, wanted = ("×".join(map(str, tensor.shape)) for tensor in (mask, image))
                raise UserError(f"{where} masks of {found}, and images of {wanted}: both must be of one size")
