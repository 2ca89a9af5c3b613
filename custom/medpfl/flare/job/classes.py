"""The exact classes that this package's jobs are made of, for FLARE's class allow-lists: at a site, and at the server.

FLARE's ``ComponentPathAuthorizer`` takes an entry that ends with a dot as a prefix: ``medpfl.`` would allow every
function of the package as a component, also those that start programs.
"""

from __future__ import annotations

from nvflare.recipe.utils import TRACKING_REGISTRY

from medpfl.flare.transport.tracking import TRACKERS

PACKAGE = "medpfl"


# By name: a kit is prepared without importing what runs in it.
FILTER = "medpfl.flare.transport.filter.AllowListFilter"
AT_SITE = (
    "medpfl.flare.transport.executor.PersonalizedExecutor",
    "medpfl.flare.transport.join_executor.JoinExecutor",
    FILTER,
)
AT_SERVER = (
    "medpfl.flare.transport.controller.PersonalizedController",
    "medpfl.flare.transport.join_controller.JoinController",
    *(f"{t['receiver_module']}.{t['receiver_class']}" for t in map(TRACKING_REGISTRY.get, TRACKERS)),
)


def is_own(entry: str) -> bool:
    """Whether an entry of a class allow-list allows something of this package, and perhaps of no other."""
    return f"{entry}.".startswith(f"{PACKAGE}.")


def exact(entry: str, classes: tuple[str, ...]) -> list[str]:
    """Those of the classes that an entry of this package allows."""
    return [path for path in classes if path == entry or path.startswith(f"{entry.removesuffix('.')}.")]
