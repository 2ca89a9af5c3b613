"""Code that a configuration names as ``module:name``, or by a method or a network of another package.

A configuration may come from elsewhere. Whoever runs a command or a recipe permits what it names; at a real site the
modules are those of ``code`` in ``local/medpfl.json``, or of a job that may bring code.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from medpfl.algorithms import origin
from medpfl.core.permitted_code import is_function, permit
from medpfl.models.installed import code_of
from medpfl.training import augment

if TYPE_CHECKING:
    from medpfl.config.run import RunConfig

_DIGESTS: dict[str, str] = {}
"""Of files by module, as they were when first asked for."""


def named_code(config: RunConfig) -> Iterator[tuple[str, str]]:
    """The ``module:name`` of others' code, each after ``data``, ``model``, ``method`` or ``augmentation``."""
    if is_function(config.data):
        yield "data", config.data
    if spec := code_of(config.model):
        yield "model", spec
    for spec in augment.code(config.augment):
        yield "augmentation", spec
    if module := origin(config.algorithm):
        yield "method", f"{module}:{config.algorithm}"
    for part in (*config.parts, config.learned):
        if not (module := type(part).__module__).startswith("medpfl."):
            yield "method", f"{module}:{type(part).__name__}"


def fingerprints(config: RunConfig) -> dict[str, str]:
    """By module of others' code that a run is made of, the SHA-256 of its file as it was when first asked for."""
    modules = dict.fromkeys(spec.partition(":")[0] for _, spec in named_code(config))
    for module in modules:
        file = Path(getattr(sys.modules.get(module), "__file__", None) or "")  # nothing is imported for it
        if module not in _DIGESTS and file.is_file() and os.access(file, os.R_OK):
            _DIGESTS[module] = hashlib.sha256(file.read_bytes()).hexdigest()
    return {module: _DIGESTS[module] for module in modules if module in _DIGESTS}


def permit_named(config: RunConfig) -> None:
    """Permits what a configuration names: for whoever runs it here by a command or a program of their own."""
    permit(*(spec.partition(":")[0] for _, spec in named_code(config)))
