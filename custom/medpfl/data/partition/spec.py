"""What a user may ask for with ``--partition``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from medpfl.core.errors import UserError
from medpfl.core.home import at_home
from medpfl.data.partition.published_counts import COUNTS, NAME

Kind = Literal["dirichlet", "equal-dirichlet", "shards", "iid", "natural", "printed", "file"]

FORMS = (
    "dirichlet:A",
    "equal-dirichlet:A",
    "shards:K",
    "iid",
    "natural",
    *(f"{NAME}-{a}" for a in COUNTS),
    "file:PATH",
)
"""The right forms, for messages and help."""


@dataclass(frozen=True)
class PartitionSpec:
    """A partition as asked for.

    Attributes:
        kind: how images are given to sites.
        alpha: the Dirichlet parameter, for the two Dirichlet kinds.
        shards: of a site, for ``shards``.
        table: heading of the printed table, for ``printed``.
        path: for ``file``.
    """

    kind: Kind
    alpha: float = math.nan
    shards: int = 0
    table: str = ""
    path: Path = Path()

    def __str__(self) -> str:
        """The same text for the same partition: ``dirichlet:.10`` is ``dirichlet:0.1``."""
        if self.kind in ("dirichlet", "equal-dirichlet"):
            return f"{self.kind}:{self.alpha!r}"
        if self.kind == "shards":
            return f"shards:{self.shards}"
        return {"printed": f"{NAME}-{self.table}", "file": f"file:{self.path}"}.get(self.kind, self.kind)


def parse_spec(text: str) -> PartitionSpec:
    """Reads a ``--partition`` value.

    Raises:
        UserError: it is none of :data:`FORMS`, its alpha is not a positive number, or its shards no positive whole one.
    """
    kind, colon, value = text.partition(":")
    if kind in ("dirichlet", "equal-dirichlet") and colon:
        try:
            alpha = float(value)
        except ValueError:
            alpha = math.nan
        if not 0 < alpha < math.inf:
            raise UserError(f"partition {text!r}: {value!r} is not a positive number; right is e.g. {kind}:0.1")
        return PartitionSpec(kind, alpha=alpha)
    if kind == "shards" and colon:
        if not (value.isascii() and value.isdecimal() and len(value) < 10 and int(value)):
            raise UserError(f"partition {text!r}: {value!r} is no positive whole number; right is e.g. shards:2")
        return PartitionSpec("shards", shards=int(value))
    if kind == "file" and value:
        return PartitionSpec("file", path=at_home(value))
    if text in ("iid", "natural"):
        return PartitionSpec(text)
    if text.startswith(f"{NAME}-") and (table := text.removeprefix(f"{NAME}-")) in COUNTS:
        return PartitionSpec("printed", table=table)
    raise UserError(f"partition {text!r} is not known: use {', '.join(FORMS[:-1])} or {FORMS[-1]}")
