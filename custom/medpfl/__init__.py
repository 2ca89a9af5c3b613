"""medpfl: personalized federated learning for medical imaging on NVIDIA FLARE.

    import medpfl

    run = medpfl.run("fedbn", sites=5, rounds=20)
    run.table(), run.models["site-1"], run.report()
    medpfl.load("runs/fedbn").predictions("site-1")
    medpfl.compare(["fedavg", "fedap:lambda=0.8"], seeds=3).table()

See :mod:`medpfl.runs.api`. Importing this package imports neither torch nor FLARE; the first use of a name does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from medpfl.core.home import name_the_user
from medpfl.core.version import __version__

if TYPE_CHECKING:
    from medpfl.core.errors import UserError
    from medpfl.core.site_data import ImageTensors, SiteLoaders
    from medpfl.runs.api import Comparison, Run, compare, load, run

__all__ = ["Comparison", "ImageTensors", "Run", "SiteLoaders", "UserError", "__version__", "compare", "load", "run"]

name_the_user()


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from medpfl.core import errors, site_data
    from medpfl.runs import api

    room = next(module for module in (errors, site_data, api) if hasattr(module, name))
    return globals().setdefault(name, getattr(room, name))


def __dir__() -> list[str]:
    return __all__
