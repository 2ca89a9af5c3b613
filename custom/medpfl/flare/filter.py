"""The last gate before a site's answer leaves: only listed keys pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from nvflare.apis.dxo import from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable

from medpfl.flare.payload import INFO

ALLOWED_META = {INFO}
ALLOWED_INFO = {"metrics", "sent_bytes", "received_bytes", "seconds"}
ALLOWED_METRICS = {"samples", "validation", "train_loss", "test", "tested", "restored_round"}
ALLOWED_METRICS |= {"received", "adapted", "alone", "epoch", "alone_epoch", "alone_validation"}  # of a site that joins


class AllowListFilter(Filter):
    """Refuses an answer that holds any key that is not listed: nothing leaves by oversight.

    A job carries it with the keys that its algorithm shares; a site can put one of its own into each scope of its
    ``privacy.json``, which no job can loosen. It sees answers to tasks, not federated events or streams. It is no
    ``DXOFilter``: those let answers without tensors, and what is no DXO, pass unseen.

    Args:
        allowed: exact names of the tensors that may leave; a name that ends with ``/`` allows all that begin with it.
            With shapes, ``{name: shape or None}``, a tensor of another shape is refused too: of attention heads only
            the shared rows may leave, under the name of the whole. None allows tensors of any name, and still no
            other meta entry or metric than this package's.
    """

    def __init__(self, allowed: list[str] | dict[str, list[int] | None] | None = None):
        super().__init__()
        self.allowed = allowed
        shapes = flat(allowed) if isinstance(allowed, dict) else dict.fromkeys(allowed or ())
        self._shapes = {name: shape for name, shape in shapes.items() if not name.endswith("/")}
        self._prefixes = tuple(name for name in shapes if name.endswith("/"))

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Passes the answer unchanged or raises. Called by FLARE, which then sends nothing of it.

        Raises:
            ValueError: a key may not leave; it is named.
        """
        if shareable.get_return_code() != ReturnCode.OK:
            if held := [str(key) for key in shareable if key != ReservedHeaderKey.HEADERS]:
                raise ValueError(f"privacy: {held[0]!r} may not leave this site with an error")
            return shareable
        dxo = from_shareable(shareable)
        info = dxo.meta.get(INFO, {})
        names = [name for name, array in (dxo.data or {}).items() if not self._may_leave(name, np.shape(array))]
        names += [f"meta {k}" for k in dxo.meta if k not in ALLOWED_META]
        names += [f"info {k}" for k in info if k not in ALLOWED_INFO]
        names += [f"metric {k}" for k in info.get("metrics", {}) if k not in ALLOWED_METRICS]
        if names:
            raise ValueError(f"privacy: {names[0]!r} may not leave this site ({len(names)} such keys)")
        return shareable

    def refuses(self, leaving: Mapping[str, Sequence[int] | None]) -> list[str]:
        """Names of tensors that this filter would not let leave.

        Args:
            leaving: shapes by name; a name that ends with ``/`` stands for some that begin with it, and is refused
                where none of those may leave.
        """
        return [name for name, shape in leaving.items() if not self._may_leave(name, shape)]

    def _may_leave(self, name: str, shape: Sequence[int] | None) -> bool:
        if self.allowed is None:
            return True
        if name in self._shapes:
            listed = self._shapes[name]
            return listed is None or shape is None or list(shape) == list(listed)
        if name.endswith("/") and any(listed.startswith(name) for listed in self._shapes):
            return True
        return name.startswith(self._prefixes or ("\0",))


def flat(shapes: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Shapes by name, from what ``nvflare job submit`` makes of them: the key ``a.b`` as ``b`` in an object ``a``."""
    found: dict[str, Any] = {}
    for key, value in shapes.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found
