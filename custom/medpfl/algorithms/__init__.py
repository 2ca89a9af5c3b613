"""The published methods by name."""

from __future__ import annotations

import difflib

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.fedap import D_FEDAP, F_FEDAP, FEDAP
from medpfl.algorithms.fedavg import FEDAVG
from medpfl.algorithms.fedbn import FEDBN
from medpfl.algorithms.fedimpres import FEDIMPRES
from medpfl.algorithms.fedper import FEDPER
from medpfl.algorithms.fedprox import FEDPROX
from medpfl.algorithms.lg_fedavg import LG_FEDAVG
from medpfl.algorithms.local import LOCAL
from medpfl.algorithms.vit_heads import VIT_HEADS
from medpfl.errors import UserError

ALGORITHMS = {
    a.name: a for a in (LOCAL, FEDAVG, FEDPROX, FEDBN, FEDPER, LG_FEDAVG, FEDAP, D_FEDAP, F_FEDAP, VIT_HEADS, FEDIMPRES)
}


def algorithm(name: str) -> Algorithm:
    """The method of that name; UserError with the nearest names if there is none."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    near = difflib.get_close_matches(name, ALGORITHMS, n=2) or list(ALGORITHMS)
    raise UserError(f"unknown algorithm {name!r}: did you mean {' or '.join(near)}? (`medpfl algorithms` lists them)")
