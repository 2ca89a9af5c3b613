"""Networks of other packages, and whose code a network's name stands for. Nothing is imported to know either."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points

from medpfl.core.errors import UserError

GROUP = "medpfl.networks"
"""Entry points of other packages: a network's name, and the class or factory that makes it."""


@dataclass(frozen=True)
class InstalledNetwork:
    """A network that an installed package adds.

    Attributes:
        spec: ``module:name`` of its class or factory.
        package: the package.
    """

    spec: str
    package: str


@cache
def installed_networks() -> Mapping[str, InstalledNetwork]:
    """All of them by name.

    Raises:
        UserError: a name that cannot be one, or that two packages give.
    """
    found: dict[str, InstalledNetwork] = {}
    for entry in entry_points(group=GROUP):
        package = entry.dist.name if entry.dist else "a package"
        if ":" in entry.name or not entry.attr:
            raise UserError(
                f"network {entry.name!r} of {package}, {entry.value}: an entry point is NAME = module:name, with no "
                "colon in NAME"
            )
        if entry.name in found:
            raise UserError(f"network {entry.name!r} of {package}: {found[entry.name].package} has one of that name")
        found[entry.name] = InstalledNetwork(f"{entry.module}:{entry.attr}", package)
    return found


def code_of(name: str) -> str:
    """``module:name`` of the code of others that a network's name stands for; empty for this package's and MONAI's."""
    if ":" in name:
        return "" if name.startswith("monai:") else name
    other = installed_networks().get(name)
    return other.spec if other else ""
