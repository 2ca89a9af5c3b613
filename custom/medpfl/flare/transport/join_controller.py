"""FLARE's server side of sites that join a finished run: reads the run's checkpoint, and leaves it as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from medpfl.core.errors import UserError
from medpfl.core.messages import Failure, Message, Update
from medpfl.engine.federation import Federation
from medpfl.engine.newcomers import JOINED, finished, joined_results
from medpfl.engine.progress import Progress
from medpfl.engine.results import write_json
from medpfl.flare.transport.controller import PersonalizedController
from medpfl.flare.transport.state import require_owner, state_folder
from medpfl.flare.transport.trust import submitter
from medpfl.server.checkpoint import CHECKPOINT, checkpoint_exists, difference
from medpfl.server.newcomer import Welcome


class JoinController(PersonalizedController):
    """Lets sites join a run that has ended at this server, and writes ``join.json`` into the job's run folder.

    Args:
        run_config: :class:`medpfl.config.run.RunConfig` of the run as a dict.
        newcomers: names of the sites that join.
        epochs: how long they adapt, at most.
        experiment: the run's name at this server.
        state_dir: where its checkpoint lives; by default a folder in the server's workspace.
    """

    if_in_use = "wait for it to end, or abort it"

    def __init__(
        self,
        run_config: dict,
        newcomers: list[str],
        epochs: int,
        experiment: str = "",
        state_dir: str | None = None,
    ):
        super().__init__(run_config, experiment, state_dir)
        self.newcomers = newcomers
        self.epochs = epochs

    def _folder(self) -> Path:
        root = self.engine.get_workspace().get_root_dir
        folder = state_folder(root, self.state_dir, self.experiment) / "server"
        if not checkpoint_exists(folder / CHECKPOINT):
            raise UserError(f"this server has no experiment {self.experiment!r}, so no site can join it")
        require_owner(folder, submitter(self.fl_ctx), claim=False)
        return folder

    def _go_through(self, federation: Federation, file: Path, started: float) -> None:
        where = f"experiment {self.experiment!r}"
        config, server = finished(file, where)
        if config.init and federation.config.init and config.init != federation.config.init:
            raise UserError(
                f"{where} at this server began from other start weights ({config.init[:19]}...) than "
                f"{self.run_config['init']} has ({federation.config.init[:19]}...): give their file with --init"
            )
        if found := difference(config.model_dump(mode="json"), federation.config):
            raise UserError(f"{where} at this server is a run with {found}: join with the folder of that run")
        plan = federation.plan(steps=False)
        # All newcomers are awaited: no quorum, after which some would be left out.
        without_quorum = replace(plan, config=plan.config.model_copy(update={"grace": plan.config.timeout}))
        self.current_round = self.num_rounds = server.round

        def exchange(messages: Mapping[str, Message]) -> list[Update | Failure]:
            self._progress = Progress("join", 0, expected=len(messages))
            return self._exchange(without_quorum, messages)

        found = Welcome(plan, server, federation.input_format(), self.epochs).run(self.newcomers, exchange)
        results = joined_results(plan, server, federation.model(), self.epochs, found)
        write_json(Path(self.get_run_dir()) / JOINED, results)
        self.info(f"medpfl: {', '.join(found)} joined {where}")
