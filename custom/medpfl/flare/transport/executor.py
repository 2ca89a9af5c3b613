"""FLARE's site side: hands every task to the site's own code and answers in all cases."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from medpfl.core.memory import RoundEnd, keep_freed_memory

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from medpfl.config.run import RunConfig
    from medpfl.core.messages import Message
    from medpfl.engine.federation import Federation
    from medpfl.flare.transport.place import Place
    from medpfl.site.guard import Guarded

TASKS = ("prepare", "train", "follow", "validate", "test")


class PersonalizedExecutor(Executor):
    """A site of a personalized federation. Its personal state lives in a folder of its own and is never sent.

    Args:
        run_config: :class:`medpfl.config.run.RunConfig` as a dict, the same as the controller's.
        experiment: name that outlives the job, for the site's state.
        state_dir: where the site's state lives; by default a folder in the site's workspace, outside the job's.
    """

    tasks: Sequence[str] = TASKS

    def __init__(self, run_config: dict, experiment: str = "", state_dir: str | None = None):
        super().__init__()
        self.run_config = run_config
        self.experiment = experiment
        self.state_dir = state_dir
        self._ready: tuple[Guarded, nn.Module] | None = None
        self._tidy_up = RoundEnd()
        self._one_at_a_time = threading.Lock()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Does one task. Called by FLARE, by several threads if the server sends tasks besides: they share a model."""
        if task_name not in self.tasks:
            from medpfl.site.words import UNKNOWN_TASK

            return self._refused(fl_ctx, UNKNOWN_TASK())
        with self._one_at_a_time:
            if abort_signal.triggered:
                return make_reply(ReturnCode.TASK_ABORTED)
            return self._execute(task_name, shareable, fl_ctx)

    def _execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        # Imported here: a job's processes should not pay for torch before they have work.
        from medpfl.core.messages import Failure, Withheld
        from medpfl.flare.transport.filter import GATE
        from medpfl.flare.transport.payload import REASON, message_of, update_to_shareable
        from medpfl.flare.transport.policy import SiteForbids
        from medpfl.site.answer import answer
        from medpfl.site.store import StateNotKept
        from medpfl.site.words import CANNOT_BEGIN

        try:
            site, model = self._site(fl_ctx, partial(message_of, task_name, shareable))
            message = message_of(task_name, shareable)
        except (SiteForbids, StateNotKept) as error:
            refusal = self._refused(fl_ctx, str(error), getattr(error, "names", frozenset()))
            if (said := refusal.get_header(REASON)) != str(error):  # as of another package's channels
                self.log_warning(fl_ctx, f"cannot begin task {task_name}: {error}", fire_event=False)
            self.log_error(fl_ctx, f"cannot begin task {task_name}: {said}")
            return refusal
        except Exception as error:
            # Texts of such errors may name files or patients. FLARE may stream a site's error log to the server, so
            # they go to the site's other log, and the error log has the kind of error alone.
            text = f"cannot begin task {task_name}: {type(error).__name__}: {error}"
            self.log_warning(fl_ctx, text, fire_event=False)  # a job's components may listen to log events
            self.log_error(fl_ctx, f"cannot begin task {task_name}: {type(error).__name__}")
            return self._refused(fl_ctx, CANNOT_BEGIN(type(error).__name__))
        reply = answer(site, message, model)
        self._tidy_up()
        if isinstance(reply, Failure):
            # Of what the server says is shared a site names where they disagree, which it looks at nowhere else.
            split = message.info.get("split") if message.task in ("prepare", "statistics", "join") else ()
            theirs = frozenset(map(str, split if isinstance(split, list) else ())) | frozenset(message.tensors)
            told = reply.told if isinstance(reply, Withheld) else reply.reason
            refusal = self._refused(fl_ctx, told, theirs)
            if (said := refusal.get_header(REASON)) != reply.reason:
                self.log_warning(fl_ctx, f"task {task_name} failed: {reply.reason}", fire_event=False)
            self.log_error(fl_ctx, f"task {task_name} of round {message.round} failed: {said}")
            return refusal
        fl_ctx.set_prop(GATE, (site.gate, task_name), private=True, sticky=False)
        return update_to_shareable(reply)

    def _site(self, fl_ctx: FLContext, first: Callable[[], Message]) -> tuple[Guarded, nn.Module]:
        if self._ready is None:
            import torch

            from medpfl.config.run import RunConfig
            from medpfl.flare.transport.place import Place
            from medpfl.flare.transport.policy import too_many
            from medpfl.flare.transport.trust import check_job, require_as_written
            from medpfl.site.many_values import TooManyValues

            keep_freed_memory()
            require_as_written(self._written(), fl_ctx)
            config = RunConfig(**self.run_config)
            check_job(config, self.state_dir, fl_ctx)
            # Not of the contract: more than there are cores would only cost, and very many end the process.
            torch.set_num_threads(min(config.intra_op_threads, os.cpu_count() or 1))
            place = Place.of(fl_ctx, self.state_dir, self.experiment)
            try:
                self._ready = self._begin(config, place, fl_ctx, first)
            except TooManyValues as error:
                raise too_many(error) from error
        return self._ready

    def _written(self) -> dict[str, Any]:
        """The arguments that the job's file has."""
        return {"run_config": self.run_config}

    def _begin(
        self, config: RunConfig, place: Place, fl_ctx: FLContext, first: Callable[[], Message]
    ) -> tuple[Guarded, nn.Module]:
        """The site and a model of the run.

        Args:
            config: the run.
            place: the site.
            fl_ctx: of the first task.
            first: gives its message.
        """
        from medpfl.flare.transport.policy import check_policy

        contract = place.contract(config)
        place.opens(contract)
        federation = self._federation(config, place, first, place.own.get(config.data))
        check_policy(fl_ctx, config.algorithm, federation.leaving())
        site = federation.site(place.name, place.store(), place.policy, place.secret)
        return place.guarded(federation, site, federation.source, contract), federation.model()

    def _federation(
        self, config: RunConfig, place: Place, first: Callable[[], Message], own: Path | None = None
    ) -> Federation:
        """The run's parts at this site, with the start weights that came."""
        from medpfl.core.parameters import StateError
        from medpfl.engine.federation import Federation
        from medpfl.flare.transport.policy import SiteForbids, too_large
        from medpfl.models.cost import NetworkTooLarge
        from medpfl.site.start import start_at_site

        try:
            start = start_at_site(config, place.store(), first(), place.name) if config.init else None
            return Federation.of(config, own, start, place.policy.network)
        except StateError as error:
            raise SiteForbids(str(error)) from None
        except NetworkTooLarge as error:
            raise too_large(error) from error

    def _refused(self, fl_ctx: FLContext, reason: str, more: frozenset[str] = frozenset()) -> Shareable:
        """An answer with a reason of the list of words, which the site's filter then lets pass."""
        from medpfl.flare.transport.filter import GATE
        from medpfl.site.gate import Gate

        gate = self._ready[0].gate if self._ready else Gate({})
        words = gate.reason(reason, more)
        fl_ctx.set_prop(GATE, (gate, None), private=True, sticky=False)
        return _refusal(words)


def _refusal(reason: str) -> Shareable:
    from medpfl.flare.transport.payload import REASON

    return make_reply(ReturnCode.EXECUTION_EXCEPTION, headers={REASON: reason})
