"""How training images are changed at random, batch by batch: presets for kinds of pictures, or the user's own list.

Evaluations, and statistics that a method takes of a site's data, see images as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import yaml
from torch import Tensor

from medpfl.core.errors import UserError
from medpfl.core.home import at_home
from medpfl.core.near import did_you_mean
from medpfl.training.augment.presets import PRESETS, Preset

Spec = str | Mapping[str, Any]
"""``none``, a preset's name, or ``transforms`` with a list of MONAI's (:mod:`medpfl.training.augment.own`)."""
Change = Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]
"""From a batch of images and labels and random numbers to a batch of the same shapes."""
NONE = "none"


def augmenter(spec: Spec) -> Change | None:
    """What changes batches; None if nothing does. Not for two threads."""
    if isinstance(spec, str):
        return None if spec == NONE else Preset(PRESETS[spec])
    from medpfl.training.augment.own import Own  # MONAI's transforms take a second to import

    return Own(spec)


def problem(spec: Spec, *, masks: bool) -> str | None:
    """Why a run cannot have it, in words; ``masks``: whether the task's labels are such."""
    if not isinstance(spec, str):
        from medpfl.training.augment.own import problem as own_problem

        return own_problem(spec, masks=masks)
    if spec == NONE or spec in PRESETS:
        return None
    hint = did_you_mean(spec, (NONE, *PRESETS))
    return f"augment must be none, one of {', '.join(PRESETS)}, or a YAML file of transforms, got {spec!r}{hint}"


def code(spec: Spec) -> list[str]:
    """The ``module:class`` of others' code that it names."""
    if isinstance(spec, str):
        return []
    from medpfl.training.augment.own import code as own_code

    return own_code(spec)


def content(given: Spec | None) -> Spec | None:
    """What a user's word stands for: of a YAML file what is in it, since no path travels.

    Raises:
        UserError: the file cannot be read, or is no mapping.
    """
    if not isinstance(given, str) or given == NONE or given in PRESETS or not (file := at_home(given)).is_file():
        return given
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--augment {given}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"--augment {given}: wrong YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise UserError(f"--augment {given}: a YAML mapping with a list `transforms` is needed")
    return found
