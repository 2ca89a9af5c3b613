"""The last gate before a site's answer leaves: a new answer is built of what may leave, and nothing else is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from medpfl.flare.transport.payload import REASON, update_of, update_to_shareable
from medpfl.site.gate import Gate
from medpfl.site.words import UNKNOWN

GATE = "medpfl_gate"
"""Property of a task's context in which the site's own code leaves the run's :class:`~medpfl.site.gate.Gate` and the
task; without the task, only the reason for a failure may leave."""

_CODES = {code for name, code in vars(ReturnCode).items() if name.isupper() and isinstance(code, str)}


class AllowListFilter(Filter):
    """Builds a site's answer anew: tensors, numbers and words of the run's schema; all else is refused or left out.

    A job carries it with the tensors that its algorithm shares; a site can put one of its own into each scope of its
    ``privacy.json``, which no job can loosen. It sees answers to tasks, not federated events or streams. It is no
    ``DXOFilter``: those let answers without tensors, and what is no DXO, pass unseen.

    Which numbers may leave, and the type of each tensor, the site's own executor says by the run's contract; an answer
    of any other executor passes only as words that it failed.

    Args:
        allowed: exact names of the tensors that may leave; a name that ends with ``/`` allows all that begin with it.
            With shapes, ``{name: shape or None}``, a tensor of another shape is refused too: of attention heads only
            the shared rows may leave, under the name of the whole. None allows what the run's contract has.
    """

    def __init__(self, allowed: list[str] | dict[str, list[int] | None] | None = None):
        super().__init__()
        self.allowed = allowed
        shapes = flat(allowed) if isinstance(allowed, dict) else dict.fromkeys(allowed or ())
        self._shapes = {name: shape for name, shape in shapes.items() if not name.endswith("/")}
        self._prefixes = tuple(name for name in shapes if name.endswith("/"))

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """A new answer with what may leave of this one. Called by FLARE, which sends nothing if this raises.

        Raises:
            ValueError: something may not leave; it is named.
        """
        gate, task = fl_ctx.get_prop(GATE) or (None, None)
        if shareable.get_return_code() != ReturnCode.OK:
            return _failure(shareable, gate)
        if task is None:
            raise ValueError("privacy: an answer of no executor that keeps a contract may not leave this site")
        try:
            update = update_of("", FLModelUtils.from_shareable(shareable))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"privacy: an answer of another form may not leave ({type(error).__name__})") from None
        refused = [name for name, t in update.tensors.items() if not self._may_leave(name, np.shape(t))]
        if refused:
            raise ValueError(f"privacy: {refused[0]!r} may not leave this site ({len(refused)} such keys)")
        try:
            passed = gate.passed(task, update)
        except (ValueError, KeyError) as error:
            raise ValueError(f"privacy: {error}") from None
        return update_to_shareable(passed)

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


def _failure(shareable: Shareable, gate: Gate | None) -> Shareable:
    """That a task failed, by one of FLARE's codes, and why, in words that the site's gate has said."""
    code, reason = shareable.get_return_code(), shareable.get_header(REASON)
    said = gate is not None and isinstance(reason, str) and gate.said(reason)
    return make_reply(
        code if code in _CODES else ReturnCode.EXECUTION_EXCEPTION, headers={REASON: reason if said else UNKNOWN}
    )


def flat(shapes: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Shapes by name, from what ``nvflare job submit`` makes of them: the key ``a.b`` as ``b`` in an object ``a``."""
    found: dict[str, Any] = {}
    for key, value in shapes.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found
