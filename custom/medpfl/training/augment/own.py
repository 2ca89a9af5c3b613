"""The user's own augmentation: random transforms of MONAI's in a list, as a bundle's configuration writes them.

.. code-block:: yaml

    transforms:
      - {_target_: RandFlipd, keys: [image, label], prob: 0.5, spatial_axis: 1}
      - {_target_: RandGaussianNoised, keys: image, prob: 0.3, std: 0.05}

They are dictionary transforms of ``image``, (C, H, W) or (C, D, H, W), and where labels are masks of ``label``, with
one channel. The list travels with the job, so it holds nothing but plain values and names of classes: random transforms
of ``monai.transforms``, or ``package.module.Class`` of a module that whoever runs it has permitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from inspect import isclass
from typing import Any

import monai.transforms
import torch
from monai.transforms import Compose, Randomizable, Transform
from monai.utils import convert_to_tensor
from torch import Tensor

from medpfl.core.errors import UserError
from medpfl.core.permitted_code import permitted_module, require_own
from medpfl.core.plain import plain_problem

TARGET = "_target_"
_KEYS = ("image", "label")
_LIMITS = {
    "size": (-1, 1024),
    "zoom": (0, 10),
    "holes": (0, 1000),
    "num_": (0, 1000),
    "sigma": (0, 100),
    "degree": (0, 10),
    "pad": (0, 512),
    "spacing": (1, 1024),
}
"""By what an argument's name holds, the least and the most of a number: of a picture's own order, so that a list from
elsewhere takes no site's memory and time."""


def problem(spec: Mapping[str, Any], *, masks: bool) -> str | None:
    """Why a run cannot have these transforms, in words.

    Args:
        spec: the list.
        masks: whether the task's labels are such, which move with their images.
    """
    if set(spec) != {"transforms"} or not isinstance(spec["transforms"], list) or not spec["transforms"]:
        return "augment needs one entry, transforms: a list of MONAI's transforms"
    if any(not isinstance(step, dict) or TARGET not in step for step in spec["transforms"]):
        return f"augment: every entry of transforms is a mapping with a {TARGET}, e.g. {TARGET}: RandFlipd"
    for target in _targets(spec):
        if not isinstance(target, str) or not all(part.isidentifier() for part in target.split(".")):
            return f"augment: {TARGET}: {target!r} is no name of a class"
        if "." not in target and not _is_random(getattr(monai.transforms, target, None)):
            return f"augment: {target!r} is no random transform of monai.transforms, e.g. RandFlipd"
    arguments = _without_targets(spec)
    return plain_problem(arguments, "augment") or _beyond(arguments) or _not_there(spec, _KEYS if masks else _KEYS[:1])


def code(spec: Mapping[str, Any]) -> list[str]:
    """The ``module:class`` of others' code that the transforms are."""
    named = [t.rpartition(".") for t in _targets(spec) if isinstance(t, str) and "." in t]
    return [f"{module}:{name}" for module, _, name in named]


class Own:
    """Changes batches sample by sample, by transforms of :func:`problem`'s kind.

    Raises:
        UserError: a transform cannot be made with these arguments, or nobody has permitted its code.
    """

    def __init__(self, spec: Mapping[str, Any]):
        self.transform = Compose([_made(step) for step in spec["transforms"]])

    def __call__(self, x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """See :class:`medpfl.training.augment.presets.Preset`; of a bag all slices are changed alike, as channels.

        Slices are grey or of three colours: what has another number where they have their channels is a volume.
        """
        self.transform.set_random_state(seed=int(torch.randint(2**31, (), generator=generator)))
        if y.ndim != x.ndim - 1:
            bags = x.ndim == 5 and x.shape[2] in (1, 3)
            samples = [self._changed({"image": s}) for s in (x.flatten(1, 2) if bags else x)]
            return torch.stack([s["image"] for s in samples]).view_as(x), y
        samples = [self._changed({"image": s, "label": mask[None]}) for s, mask in zip(x, y, strict=True)]
        images, masks = (torch.stack([s[key] for s in samples]) for key in _KEYS)
        if masks.is_floating_point() and not torch.equal(masks, masks.round()):
            raise UserError(
                "augment: the transforms make labels between two classes, as interpolation does: give label the mode "
                "nearest, e.g. mode: [bilinear, nearest] for keys: [image, label]"
            )
        return images, masks[:, 0].to(y.dtype)

    def _changed(self, sample: dict[str, Tensor]) -> dict[str, Tensor]:
        found = self.transform(sample)
        for key, tensor in sample.items():
            if found[key].shape != tensor.shape:
                there, was = list(found[key].shape), list(tensor.shape)
                raise UserError(f"augment: the transforms make {key} of shape {was} one of {there}; keep the shape")
        return {key: convert_to_tensor(found[key], track_meta=False) for key in sample}


def _targets(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        if TARGET in value:
            yield value[TARGET]
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _targets(item)


def _without_targets(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_targets(item) for key, item in value.items() if key != TARGET}
    return [_without_targets(item) for item in value] if isinstance(value, list | tuple) else value


def _not_there(value: Any, there: tuple[str, ...]) -> str | None:
    """Which transform is of a key that a sample has not, in words."""
    if isinstance(value, list | tuple):
        return next(filter(None, (_not_there(item, there) for item in value)), None)
    if not isinstance(value, Mapping):
        return None
    keys = value.get("keys", ()) if TARGET in value and not value.get("allow_missing_keys") else ()
    if missing := [key for key in ([keys] if isinstance(keys, str) else keys) if key not in there]:
        why = f"{missing[0]!r}, which are masks, and the task has none" if missing[0] in _KEYS else f"{missing[0]!r}"
        return f"augment: {value[TARGET]} is of {why}; keys: {', '.join(there)}"
    return _not_there(list(value.values()), there)


def _beyond(value: Any, name: str = "") -> str | None:
    """Which number is beyond :data:`_LIMITS`, in words."""
    if isinstance(value, Mapping):
        return next(filter(None, (_beyond(item, key) for key, item in value.items())), None)
    if isinstance(value, list | tuple):
        return next(filter(None, (_beyond(item, name) for item in value)), None)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    for part, (least, most) in _LIMITS.items():
        if part in name and not least <= value <= most:
            return f"augment: {name}={value}: a number from {least} to {most} is needed"
    return None


def _is_random(kind: Any) -> bool:
    return isclass(kind) and issubclass(kind, Randomizable)


def _made(value: Any) -> Any:
    """The values of a configuration, with objects in place of mappings that have a target."""
    if isinstance(value, list | tuple):
        return [_made(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    arguments = {key: _made(item) for key, item in value.items() if key != TARGET}
    if TARGET not in value:
        return arguments
    kind = _class(value[TARGET])
    try:
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        raise UserError(f"augment: {value[TARGET]}: {error}") from None


def _class(target: str) -> Any:
    if "." not in target:
        return getattr(monai.transforms, target)
    module, _, name = target.rpartition(".")
    spec = f"{module}:{name}"
    kind = getattr(permitted_module(spec, "augmentation"), name, None)
    if not (isclass(kind) and issubclass(kind, Transform)):
        raise UserError(
            f"augmentation {spec!r}: {module!r} has no transform of this name, a class of MONAI's Transform"
        )
    require_own(kind, spec, "augmentation")
    return kind
