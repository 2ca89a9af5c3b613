"""FLARE's site side: hands every task to the site's own code and answers in all cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from medpfl.memory import RoundEnd, keep_freed_memory

if TYPE_CHECKING:
    from torch import nn

    from medpfl.config import RunConfig
    from medpfl.site.worker import Party

TASKS = ("prepare", "train", "validate", "test")
_LONGEST = 500
"""Characters of a reason that may leave a site."""


class PersonalizedExecutor(Executor):
    """A site of a personalized federation. Its personal state lives in a folder of its own and is never sent.

    Args:
        run_config: :class:`medpfl.config.RunConfig` as a dict, the same as the controller's.
        experiment: name that outlives the job, for the site's state.
        state_dir: where the site's state lives; by default a folder in the site's workspace, outside the job's.
    """

    tasks: Sequence[str] = TASKS

    def __init__(self, run_config: dict, experiment: str = "", state_dir: str | None = None):
        super().__init__()
        self.run_config = run_config
        self.experiment = experiment
        self.state_dir = state_dir
        self._ready: tuple[Party, nn.Module] | None = None
        self._tidy_up = RoundEnd()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Does one task. Called by FLARE."""
        if task_name not in self.tasks:
            return _refusal(f"unknown task {task_name!r}")
        # Imported here: a job's processes should not pay for torch before they have work.
        from medpfl.flare.payload import message_of, update_to_shareable
        from medpfl.flare.policy import SiteForbids
        from medpfl.messages import Failure
        from medpfl.site.store import StateNotKept
        from medpfl.site.worker import answer

        try:
            site, model = self._site(fl_ctx)
            message = message_of(task_name, shareable)
        except (SiteForbids, StateNotKept) as error:
            self.log_error(fl_ctx, f"cannot begin task {task_name}: {error}")
            return _refusal(str(error))
        except Exception as error:
            # Texts of such errors may name files or patients. FLARE may stream a site's error log to the server, so
            # they go to the site's other log, and the error log has the kind of error alone.
            text = f"cannot begin task {task_name}: {type(error).__name__}: {error}"
            self.log_warning(fl_ctx, text, fire_event=False)  # a job's components may listen to log events
            self.log_error(fl_ctx, f"cannot begin task {task_name}: {type(error).__name__}")
            return _refusal(f"the site cannot begin: {type(error).__name__} (its log says more)")
        reply = answer(site, message, model)
        self._tidy_up()
        if isinstance(reply, Failure):
            reason = reply.reason[:_LONGEST]
            self.log_error(fl_ctx, f"task {task_name} of round {message.round} failed: {reason}")
            return _refusal(reason)
        return update_to_shareable(reply)

    def _site(self, fl_ctx: FLContext) -> tuple[Party, nn.Module]:
        if self._ready is None:
            import torch

            from medpfl.config import RunConfig
            from medpfl.data.site_manifest import read_site_manifest
            from medpfl.flare.policy import SiteForbids
            from medpfl.flare.state import state_folder
            from medpfl.flare.trust import check_job, in_one_hand

            keep_freed_memory()
            config = RunConfig(**self.run_config)
            check_job(config, self.state_dir, fl_ctx)
            if config.noise_at_sites and not in_one_hand(fl_ctx):
                # From the run's seed, which the server knows, noise protects nothing.
                raise SiteForbids("differential privacy needs noise from a secret of the site, and the site has none")
            workspace = fl_ctx.get_engine().get_workspace()
            own = read_site_manifest(Path(workspace.get_site_config_dir()))
            torch.set_num_threads(config.intra_op_threads)
            folder = state_folder(workspace.get_root_dir, self.state_dir, self.experiment or fl_ctx.get_job_id())
            self._ready = self._begin(config, own, folder / fl_ctx.get_identity_name(), fl_ctx)
        return self._ready

    def _begin(
        self, config: RunConfig, own: Mapping[str, Path], folder: Path, fl_ctx: FLContext
    ) -> tuple[Party, nn.Module]:
        """The site and a model of the run.

        Args:
            config: the run.
            own: where the site has data, by the names that jobs use.
            folder: the site's, called like it.
            fl_ctx: of the first task.
        """
        from medpfl.assemble import Federation
        from medpfl.flare.policy import check_policy
        from medpfl.site.store import DiskStore

        federation = Federation.of(config, own.get(config.data))
        check_policy(fl_ctx, config.algorithm, federation.leaving())
        return federation.site(folder.name, DiskStore(folder, durable=True)), federation.model()


def _refusal(reason: str) -> Shareable:
    from medpfl.flare.payload import REASON

    return make_reply(ReturnCode.EXECUTION_EXCEPTION, headers={REASON: reason[:_LONGEST]})
