"""FLARE's side of a site that joins a finished run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nvflare.apis.fl_context import FLContext

from medpfl.flare.transport.executor import PersonalizedExecutor

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from medpfl.config.run import RunConfig
    from medpfl.core.messages import Message
    from medpfl.flare.transport.place import Place
    from medpfl.site.guard import Guarded

JOIN_TASKS = ("statistics", "join")


class JoinExecutor(PersonalizedExecutor):
    """A site that joins. Its model lives in a folder of its own and is never sent.

    Args:
        run_config: the run's :class:`medpfl.config.run.RunConfig` as a dict, with the newcomer's training settings.
        newcomers: another one, which says what data the newcomers have.
        experiment: the run's name, for the site's folder.
        state_dir: where that folder is; by default in the site's workspace, outside the job's.
    """

    tasks = JOIN_TASKS

    def __init__(self, run_config: dict, newcomers: dict, experiment: str = "", state_dir: str | None = None):
        super().__init__(run_config, experiment, state_dir)
        self.newcomers = newcomers

    def _written(self) -> dict[str, Any]:
        return {**super()._written(), "newcomers": self.newcomers}

    def _begin(
        self, config: RunConfig, place: Place, fl_ctx: FLContext, first: Callable[[], Message]
    ) -> tuple[Guarded, nn.Module]:
        from medpfl.config.run import RunConfig
        from medpfl.data.sites import open_source
        from medpfl.flare.transport.policy import SiteForbids, check_policy
        from medpfl.flare.transport.trust import check_job
        from medpfl.site.many_values import read_data
        from medpfl.site.newcomer import took_part
        from medpfl.site.words import TOOK_PART

        if took_part(place.folder):
            raise SiteForbids(TOOK_PART())
        theirs = RunConfig(**self.newcomers)
        check_job(theirs, self.state_dir, fl_ctx)
        contract = place.contract(config, theirs)
        place.opens(contract)
        federation = self._federation(config, place, first)
        check_policy(fl_ctx, config.algorithm, federation.leaving(joining=True))
        source = open_source(theirs, place.own.get(theirs.data))
        data = read_data(place.policy, source, place.name, federation.device)
        place.store()  # makes the folder, for the site alone
        newcomer = federation.newcomer(place.name, source, data, place.folder, secret=place.secret)
        return place.guarded(federation, newcomer, source, contract), federation.model()
