"""A site's own policy, asked before it trains: would its filters let out what the job sends?"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from nvflare.apis.fl_constant import FilterKey, FLContextKey
from nvflare.apis.fl_context import FLContext

from medpfl.flare.transport.filter import AllowListFilter
from medpfl.models.cost import NetworkTooLarge
from medpfl.site.many_values import TooManyValues
from medpfl.site.words import FORBIDDEN

logger = logging.getLogger(__name__)


class SiteForbids(Exception):
    """The site does not allow what the job does. The text may leave the site: it has nothing of its data or folders.

    Args:
        text: why, in words of :mod:`medpfl.site.words`.
        names: of the run's tensors, which the text may hold.
    """

    def __init__(self, text: str, names: frozenset[str] = frozenset()):
        super().__init__(text)
        self.names = names


def too_large(error: NetworkTooLarge) -> SiteForbids:
    """A network's refusal, with what lies behind it in the site's own log."""
    if error.__cause__ is not None:
        logger.warning("%s: %s", error, error.__cause__)
    return SiteForbids(str(error))


def too_many(error: TooManyValues) -> SiteForbids:
    """What a job would make of the data, refused; how much that is stays in the site's own log."""
    logger.warning("%s", error)
    return SiteForbids(error.told)


def check_policy(fl_ctx: FLContext, algorithm: str, leaving: Mapping[str, list[int] | None]) -> None:
    """Raises SiteForbids, with a name, if a list in the site's ``privacy.json`` lacks a tensor that would leave.

    Args:
        fl_ctx: of the task; FLARE keeps the scope in it whose filters it will apply to the answers.
        algorithm: the job's, for the message.
        leaving: shapes by name, as :meth:`medpfl.engine.federation.Federation.leaving` gives them.
    """
    scope = fl_ctx.get_prop(FLContextKey.SCOPE_OBJECT)
    filters = scope.task_result_filters[FilterKey.OUT] if scope else []
    for own in filters:
        if isinstance(own, AllowListFilter) and (names := own.refuses(leaving)):
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise SiteForbids(FORBIDDEN(names[0], more, algorithm), frozenset(leaving))
