"""FLARE's server side: sends every site its own message, collects answers, and asks the rounds for the next state."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.workflows.base_fedavg import BaseFedAvg
from nvflare.widgets.info_collector import InfoCollector

from medpfl.config.run import RunConfig
from medpfl.core.errors import RunEnded, Stopped, UserError
from medpfl.core.growing import Growing
from medpfl.core.lock import claimed
from medpfl.core.memory import RoundEnd, give_back_freed_memory
from medpfl.core.messages import Failure, Message, NotAsked, Update
from medpfl.core.numbers_in_words import count
from medpfl.core.parameters import StateError
from medpfl.core.server_state import ServerState
from medpfl.engine.federation import Federation
from medpfl.engine.progress import Progress
from medpfl.engine.results import build_results, write_json, write_results
from medpfl.flare.transport.endings import BEGUN
from medpfl.flare.transport.payload import REASON, message_to_model, update_of
from medpfl.flare.transport.state import is_stored, note_end, require_owner, state_folder
from medpfl.flare.transport.tracking import keep_in, new_values, publish, stay_offline
from medpfl.flare.transport.trust import check_job, require_as_written, submitter
from medpfl.server.checkpoint import CHECKPOINT, last_state, save_checkpoint
from medpfl.server.participation import counting
from medpfl.server.rounds import Plan, advance, messages
from medpfl.server.state import require_same_pretrained
from medpfl.server.updates import in_words

STATS = "medpfl"
"""Group of the job's statistics (``show_stats``) that holds the fields of a :class:`Progress`."""
_POLL_SECONDS = 0.02
_LEAST_GRACE = 120.0
"""Seconds that stragglers get at least unless the user says otherwise."""
_NAMED_AFTER = 30.0
"""Seconds after the quorum's last answer, from which on the progress names who is still waited for.

Where the quorum lacks answers still: after the last one of those that count, and at least as long as that one took.
"""


class PersonalizedController(BaseFedAvg):
    """Runs a personalized federation on FLARE.

    Args:
        run_config: :class:`medpfl.config.run.RunConfig` as a dict.
        experiment: name that outlives the job: a job with the same one goes on after the last finished round of an
            earlier job that did not end.
        state_dir: where checkpoints live; by default a folder in the server's workspace, outside the job's run folder.
    """

    if_in_use = "wait for it to end, abort it, or submit with another experiment name"
    """What to do, in words, where another job has the experiment."""

    def __init__(self, run_config: dict, experiment: str = "", state_dir: str | None = None):
        # Quorum and errors are the rounds' business: a failing site must not end the job for the others.
        super().__init__(persistor_id="", ignore_result_error=True, task_check_period=0.05)
        stay_offline()  # FLARE makes the workflow before a receiver, which imports its tracker
        self.run_config = run_config
        self.experiment = experiment
        self.state_dir = state_dir
        self._lock = threading.Lock()
        self._replies: dict[str, Update | Failure] = {}
        self._progress = Progress("prepare", 0)
        self._measures: list[str] = []

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Says how far the run is, to whoever asks for the job's statistics; notes who takes tasks. Called by FLARE."""
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.START_RUN:
            keep_in(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id()))
        if event_type == AppEventType.BEFORE_TRAIN_TASK:
            folder = Path(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id()), BEGUN)
            with suppress(OSError):  # a full disk is said where it matters
                folder.mkdir(exist_ok=True)
                (folder / fl_ctx.get_peer_context().get_identity_name()).touch()
        if event_type == InfoCollector.EVENT_TYPE_GET_STATS:
            with self._lock:
                answered = sum(isinstance(r, Update) for r in self._replies.values())
            now = replace(self._progress, answered=answered)
            fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR).set_info(STATS, asdict(now))

    def run(self) -> None:
        """The whole workflow. Called by FLARE."""
        started = time.perf_counter()
        try:
            require_as_written({"run_config": self.run_config}, self.fl_ctx, at_server=True)
            config = RunConfig(**self.run_config)
            check_job(config, self.state_dir, self.fl_ctx, at_server=True)
            federation = Federation.of(config)
            folder = self._folder()
            with claimed(folder, f"experiment {folder.parent.name!r} is in use by another job: {self.if_in_use}"):
                self._go_through(federation, folder / CHECKPOINT, started)
        except Stopped:
            self.info("medpfl: aborted; the checkpoint holds the last finished step")
        except (UserError, OSError) as error:
            # FLARE hides exception texts; this one is meant for the user.
            self.error(f"medpfl: {error}")
            with suppress(OSError):  # a full disk must not hide that it is full
                said = {"error": str(error), "early": isinstance(error, RunEnded)}
                write_json(Path(self.get_run_dir()) / "error.json", said)
            self.panic(str(error))

    def _aborted(self) -> bool:
        return self.abort_signal.triggered

    def _go_through(self, federation: Federation, file: Path, started: float) -> None:
        run, earlier = Path(self.get_run_dir()), last_state(file, federation.config)
        ended = earlier is not None and earlier.phase == "done"
        state = ServerState() if earlier is None or (ended and is_stored(file.parent, run)) else earlier
        plan = federation.plan(stop=self._aborted)
        self._measures = federation.config.learned.everywhere
        require_same_pretrained(plan, state)
        self.num_rounds = plan.config.rounds
        ready, since = time.perf_counter() - started, started - state.seconds
        data = federation.source.describe()
        self._track(ServerState(), state)  # the rounds of an earlier job, whose receivers wrote elsewhere
        tidy_up, rounds = RoundEnd(), Growing()

        def write() -> None:
            seconds = {"total": state.seconds, "start": ready}
            results = build_results(plan, state, env="flare", data=data, seconds=seconds)
            write_results(run / "results.json", results, rounds)
            if state.phase == "done":
                note_end(file.parent, run)

        if state.phase == "done":
            write()
        while state.phase != "done" and not self._aborted():
            before, state = state, replace(self._step(plan, state), seconds=time.perf_counter() - since)
            write()  # first: a run that has ended is begun anew, and must have told its results
            save_checkpoint(file, plan.config, state, durable=True, rounds=rounds)
            self._track(before, state)
            tidy_up()
            give_back_freed_memory()

    def _track(self, before: ServerState, after: ServerState) -> None:
        with self.engine.new_context() as context:
            for value in new_values(before, after, self._measures):
                publish(context, *value)

    def _folder(self) -> Path:
        name = self.experiment or self.fl_ctx.get_job_id()
        folder = state_folder(lambda: self.engine.get_workspace().get_root_dir(), self.state_dir, name) / "server"
        folder.mkdir(parents=True, exist_ok=True)
        require_owner(folder, submitter(self.fl_ctx), claim=True)
        return folder

    def _step(self, plan: Plan, state: ServerState) -> ServerState:
        outgoing = messages(plan, state)
        self._progress = Progress(state.phase, state.round, expected=len(outgoing))
        training = state.phase == "train"
        if training:
            self.current_round = state.round + 1
            self.fl_ctx.set_prop(AppConstants.CURRENT_ROUND, self.current_round, private=True, sticky=True)
            self.event(AppEventType.ROUND_STARTED)
        started = time.perf_counter()
        replies = self._exchange(plan, outgoing)
        seconds = time.perf_counter() - started
        if training:
            self.event(AppEventType.BEFORE_AGGREGATION)
        state = advance(plan, state, replies, seconds)
        if training:
            self.event(AppEventType.AFTER_AGGREGATION)
            self.event(AppEventType.ROUND_DONE)
        self.info(f"medpfl: {state.phase}, {state.round} of {plan.config.rounds} rounds, {len(replies)} answers")
        return state

    def _exchange(self, plan: Plan, outgoing: Mapping[str, Message]) -> list[Update | Failure]:
        """One task a site, each with that site's own message; waits for all, the quorum's grace, or the timeout."""
        config = plan.config
        present = {client.name for client in self.engine.get_clients()}
        with self._lock:
            absent = {s: m for s, m in outgoing.items() if s not in present}
            self._replies = {s: NotAsked(s, m.round, "not connected") for s, m in absent.items()}
        for site, message in outgoing.items():
            if site in absent:
                continue
            self.send_model(
                task_name=message.task,
                data=message_to_model(message, config.rounds),
                targets=[site],
                min_responses=1,
                timeout=max(1, int(config.timeout)),
                callback=self._receive,
            )
        started = time.monotonic()
        task, quorum = counting(config, [message.task for message in outgoing.values()])
        goes_on = task is not None and config.turnout.draws  # without the quorum: others are drawn for the next round
        patience = names_at = None
        counted = 0
        while self.get_num_standing_tasks() and not self._aborted():
            spent = time.monotonic() - started
            with self._lock:
                there = [s for s, r in self._replies.items() if isinstance(r, Update)]
            usable = sum(s in outgoing and task in (None, outgoing[s].task) for s in there)
            if counted < quorum and usable > counted:
                counted, names_at = usable, spent + max(_NAMED_AFTER, spent if usable < quorum else 0)
                if goes_on or usable >= quorum:
                    patience = spent + (config.grace if config.grace is not None else max(_LEAST_GRACE, 10 * spent))
                self._progress = replace(self._progress, note="")
            until = config.timeout if patience is None else patience
            if names_at is not None and names_at <= spent < until:
                self._name_the_late(outgoing, until - spent, quorum - usable)
                names_at = None
            if patience is not None and spent >= patience:
                self.cancel_all_tasks()
            time.sleep(_POLL_SECONDS)
        if self._aborted():
            raise Stopped  # the sites that were still at work are no failures
        with self._lock:
            return list(self._replies.values())

    def _name_the_late(self, asked: Collection[str], seconds: float, lacking: int) -> None:
        with self._lock:
            late = ", ".join(site for site in asked if site not in self._replies)
        so_far = f"the quorum lacks {count(lacking, 'answer')}" if lacking > 0 else "the quorum has answered"
        note = f"{so_far}; up to {seconds:.0f} s more for {late}"
        self._progress = replace(self._progress, note=note)

    def _receive(self, model: FLModel) -> None:
        # FLARE calls this on its own threads, one for each answer.
        site = model.meta["client_name"]
        try:
            reply: Update | Failure = update_of(site, model)
        except StateError as error:
            reply = Failure(site, self.current_round or 0, str(error))
        with self._lock:
            self._replies[site] = reply

    def _accept_train_result(
        self, client_name: str, result: Shareable, fl_ctx: FLContext, is_unknown_task: bool = False
    ) -> bool:
        accepted = super()._accept_train_result(client_name, result, fl_ctx, is_unknown_task)
        if not is_unknown_task:
            reason = "malformed answer: FLARE can make no model of it"  # holds unless _receive is called next
            if not accepted:
                reason = result.get_header(REASON) or f"the site's task ended with {result.get_return_code()}"
            with self._lock:
                self._replies[client_name] = Failure(client_name, self.current_round or 0, in_words(reason))
        return accepted


def components_config() -> dict[str, Any]:
    """Server settings for FLARE's polling, without which a round waits 2 seconds for nothing."""
    return {"server": {"task_request_interval": 0.2}}
