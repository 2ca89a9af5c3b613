"""The last gate before a site's answer leaves: only listed keys pass."""

from __future__ import annotations

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from medpfl.flare.payload import INFO

ALLOWED_META = {INFO, "current_round", "total_rounds"}
ALLOWED_INFO = {"metrics", "sent_bytes", "received_bytes", "seconds"}
ALLOWED_METRICS = {"samples", "validation", "train_loss", "test", "tested"}


class AllowListFilter(DXOFilter):
    """Refuses an answer that holds any key that is not listed: nothing leaves by oversight.

    A job carries it with the keys that its algorithm shares; a site can put one of its own into its ``privacy.json``,
    which no job can loosen.

    Args:
        allowed: exact names of the tensors that may leave; a name that ends with ``/`` allows all that begin with it.
    """

    def __init__(self, allowed: list[str]):
        kinds = [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF, DataKind.METRICS, DataKind.ANALYTIC]
        super().__init__(supported_data_kinds=kinds, data_kinds_to_filter=[DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
        self.allowed = list(allowed)
        self._exact = {name for name in self.allowed if not name.endswith("/")}
        self._prefixes = tuple(name for name in self.allowed if name.endswith("/"))

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Passes the answer unchanged or raises. Called by FLARE, which then sends nothing of it."""
        names = [n for n in dxo.data if n not in self._exact and not n.startswith(self._prefixes or ("\0",))]
        info = dxo.meta.get(INFO, {})
        names += [f"info {k}" for k in info if k not in ALLOWED_INFO]
        names += [f"metric {k}" for k in info.get("metrics", {}) if k not in ALLOWED_METRICS]
        if names:
            raise ValueError(f"privacy: {names[0]!r} may not leave this site ({len(names)} such keys)")
        return None
