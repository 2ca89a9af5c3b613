"""medpfl: personalized federated learning for medical imaging on NVIDIA FLARE.

    import medpfl

    run = medpfl.run("fedbn", sites=5, rounds=20)
    run.table(), run.models["site-1"], run.report()
    medpfl.load("runs/fedbn").predictions("site-1")
    medpfl.compare(["fedavg", "fedap:lambda=0.8"], seeds=3).table()

See :mod:`medpfl.runs.api`. Importing this package imports neither torch nor FLARE; the first use of a name does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from medpfl.core.home import name_the_user
from medpfl.core.version import __version__

if TYPE_CHECKING:
    from medpfl.core.errors import UserError
    from medpfl.core.site_data import ImageTensors, SiteLoaders
    from medpfl.runs.api import Comparison, Run, compare, load, run

__all__ = ["Comparison", "ImageTensors", "Run", "SiteLoaders", "UserError", "__version__", "compare", "load", "run"]
_OF_A_SITES_CODE = {"ImageTensors": "core.site_data", "SiteLoaders": "core.site_data", "UserError": "core.errors"}
"""What code of others' needs in a job too, which leaves the rest of these names at home."""

name_the_user()


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"medpfl.{_OF_A_SITES_CODE.get(name, 'runs.api')}")
    return globals().setdefault(name, getattr(module, name))


def __dir__() -> list[str]:
    return __all__
