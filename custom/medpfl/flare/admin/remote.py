"""Jobs at a FLARE system, through an administrator's startup kit: submit, follow, fetch, and its refusals in words."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nvflare.fuel.flare_api.api_spec import (
    AuthenticationError,
    AuthorizationError,
    CommandError,
    InternalError,
    InvalidJobDefinition,
    JobNotFound,
    JobNotRunning,
    NoConnection,
    NoReply,
    SessionClosed,
    SubmitTokenJobDeleted,
    TargetType,
)
from nvflare.fuel.flare_api.flare_api import Session

from medpfl.core.errors import RunEnded, UserError, first_line
from medpfl.engine.progress import Progress, Watch
from medpfl.flare.admin.connected import Refused, connected_sites, require_sites
from medpfl.flare.admin.startup_kit import AdminKit
from medpfl.flare.job.recipes import PackageRecipe, deploy_to
from medpfl.flare.transport import endings
from medpfl.flare.transport.controller import STATS

_RESULTS = "results.json"
_FAILED = (NoConnection, SessionClosed, NoReply, InternalError, AuthenticationError, RuntimeError)
"""What FLARE's session raises when something goes wrong on the way or at the server."""


class Unknown(UserError):
    """A job that FLARE's server does not have."""


class Ended(RunEnded):
    """A job that ended without its results."""


class Lost(Ended):
    """A job that FLARE's record shows as running and that can run no more."""


class System:
    """A FLARE system as one of its administrators sees it.

    Args:
        kit: the administrator's startup kit.
        patience: seconds to wait for the server's answer.
        again: in words, what follows a job that goes on, and submits one anew that was lost.
    """

    def __init__(self, kit: Path, *, patience: float = 10.0, again: str = "the same command with --resume"):
        self.kit = AdminKit(kit)
        self.patience = patience
        self.again = again

    @property
    def folder(self) -> Path:
        """The kit's folder."""
        return self.kit.folder

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Logs in and out again. UserError if the server does not answer, does not take the kit, or fails meanwhile."""
        session = self.kit.log_in(self.patience)
        try:
            yield session
        except (*_FAILED, AuthorizationError) as error:
            raise UserError(
                f"--kit {self.kit.given}: FLARE's server does not do its part: {first_line(error)}"
            ) from None
        finally:
            session._close_ignore_errors()

    def connected(self) -> list[str]:
        """Names of the sites that are connected now."""
        with self.session() as session:
            return connected_sites(session)

    def find(self, token: str) -> str | None:
        """The id of the job that was submitted with a token; None if none was, or it was deleted."""
        with self.session() as session:
            try:
                jobs = session.list_jobs(submit_token=token)
            except SubmitTokenJobDeleted:
                return None
        return jobs[0]["job_id"] if jobs else None

    def submit(self, recipe: PackageRecipe, sites: list[str], token: str | None = None) -> str:
        """Submits a recipe's job, for its sites alone, if enough of them are there.

        Args:
            recipe: the job.
            sites: names of the sites that are to take part.
            token: by which :meth:`find` finds the job, whatever happens to the answer.

        Returns:
            The job's id.

        Raises:
            Refused: the server has not taken the job.
            UserError: it may have taken it.
        """
        with TemporaryDirectory() as folder:
            recipe.export(folder)
            job = Path(folder) / recipe.name
            deploy_to(job, sites)
            return self._submit(job, sites, recipe.config.min_sites, token)

    def _submit(self, job: Path, sites: list[str], need: int, token: str | None) -> str:
        with self.session() as session:
            require_sites(connected_sites(session), sites, need)
            try:
                return session.submit_job(str(job), submit_token=token)
            except AuthorizationError:
                raise Refused(
                    f"{self.kit.user} may not submit jobs: use a kit of a lead or project administrator"
                ) from None
            except (InvalidJobDefinition, CommandError) as error:
                raise Refused(f"FLARE's server refuses the job: {first_line(error)}") from None
            except InternalError as error:
                raise UserError(f"FLARE's server refuses the job: {first_line(error)}") from None

    def has_failed(self, job: str, folder: Path) -> bool:
        """Whether a job has ended without finishing its run; Unknown if the server does not know it.

        To FLARE a job has failed too whose process at a site ended badly once the run was over. So its results tell,
        which are fetched into the folder.
        """
        with self.session() as session:
            try:
                status = self._meta(session, job)["status"]
            except JobNotFound:
                raise Unknown(f"FLARE's server knows no job {job}") from None
            except Lost:
                return True
        if not status.startswith("FINISHED") or status == "FINISHED:COMPLETED":
            return False
        return _results(self.fetch(job, folder), _RESULTS) is None

    def follow(self, job: str, watch: Watch, *, pause: float = 2.0, give_up: float = 600.0) -> dict[str, Any]:
        """Watches a job until it has ended.

        Args:
            job: its id.
            watch: told of its progress, and that the server does not answer.
            pause: seconds between looks.
            give_up: seconds without any answer of the server after which it is no longer asked.

        Returns:
            FLARE's record of the job (``meta``).

        Raises:
            Lost: the server was started again meanwhile, which ends the job.
        """
        heard, last = time.monotonic(), Progress("submitted", 0)
        while True:
            try:
                with self.session() as session:
                    while True:
                        meta = self._meta(session, job)
                        heard = time.monotonic()
                        if meta["status"].startswith("FINISHED"):
                            return meta
                        watch(last := _progress(session, job, meta))
                        time.sleep(pause)
            except JobNotFound:
                raise Unknown(f"FLARE's server knows no job {job}") from None
            except Lost:
                raise
            except UserError as error:
                if time.monotonic() - heard > give_up:
                    raise UserError(
                        f"no answer from the FLARE server for {give_up:.0f} s ({first_line(error)}); the job may go "
                        f"on: {self.again} follows it"
                    ) from None
                watch(replace(last, phase="unreachable", note=f"it is asked for up to {give_up / 60:.0f} min"))
                time.sleep(pause)

    def _meta(self, session: Session, job: str) -> dict[str, Any]:
        """FLARE's record of a job.

        Raises:
            Lost: the server was started after the job. FLARE 2.9 does not go on with such a job and leaves it RUNNING.
        """
        meta = session.get_job_meta(job)
        if meta["status"] in ("DISPATCHED", "RUNNING") and meta.get("start_time"):
            started = session.get_system_info().server_info.start_time
            if started > datetime.fromisoformat(meta["start_time"]).timestamp():
                raise Lost(
                    f"job {job} was lost when FLARE's server was started anew at "
                    f"{datetime.fromtimestamp(started):%H:%M}; {self.again} submits it again"
                )
        return meta

    def complete(
        self, job: str, folder: Path, watch: Watch, *, pause: float = 2.0, results_file: str = _RESULTS
    ) -> dict[str, Any]:
        """Follows a job to its end and fetches its results.

        Args:
            job: its id.
            folder: what the server kept of the job is put there, in a folder named by the job's id.
            watch: told of its progress.
            pause: seconds between looks.
            results_file: what the job writes in its run folder.

        Returns:
            The file's content.

        Raises:
            Ended: the job did not end well; the message says why.
            Unknown: the server does not have it.
            UserError: the server does not answer, or does not give the results to this user.
        """
        meta = self.follow(job, watch, pause=pause)
        workspace = self.fetch(job, folder)
        if (results := _results(workspace, results_file)) is None:
            raise Ended(f"job {job}: {self._why(job, meta, workspace)}")
        return results

    def fetch(self, job: str, folder: Path) -> Path | None:
        """Downloads what the server kept of an ended job; None if that is nothing.

        It is put into the folder as a whole, in the place of what an earlier fetch left.

        Returns:
            The server's run folder, with results.json.
        """
        place, coming = folder / job, folder / f".{job}.part"
        shutil.rmtree(coming, ignore_errors=True)  # a kill left it
        with self.session() as session:
            try:
                # FLARE copies from the kit, and into a folder of that name if there is one.
                came = Path(session.download_job_result(job, str(coming)))
            except AuthorizationError:
                raise UserError(f"{self.kit.user} may not download the results of job {job}") from None
            except JobNotFound:
                raise UserError(f"FLARE's server no longer has job {job}") from None
        if not came.is_dir():
            return None
        shutil.rmtree(place, ignore_errors=True)
        came.rename(place)
        shutil.rmtree(coming, ignore_errors=True)
        workspace = place / "workspace"
        return workspace if workspace.is_dir() else None

    def _why(self, job: str, meta: dict[str, Any], workspace: Path | None) -> str:
        with self.session() as session:
            try:
                folder = Path(session.download_job_components(job) or "/-")
            except (*_FAILED, AuthorizationError, JobNotFound):
                folder = Path("/-")
        logs = {file.name.removeprefix("ERRORLOG_"): file for file in sorted(folder.rglob("ERRORLOG_*"))}
        return endings.why(job, meta, workspace, logs, self._reported(job))

    def _reported(self, job: str) -> str:
        """What the server's own log says of the job's failure; only users of the server's organisation may read it."""
        with self.session() as session:
            try:
                return session.grep_target("server", pattern=f"Failing job {job}", file="log.txt")
            except (*_FAILED, AuthorizationError):
                return ""


def _results(workspace: Path | None, name: str) -> dict[str, Any] | None:
    """Of a run that is finished; None if it is not."""
    file = workspace / name if workspace else None
    results = json.loads(file.read_text()) if file and file.exists() else {}
    return results if results.get("status") == "finished" else None


def _progress(session: Session, job: str, meta: dict[str, Any]) -> Progress:
    if meta["status"] != "RUNNING":
        history = meta.get("schedule_history") or [""]
        note = history[-1].partition(": ")[2]  # after its time
        return Progress("submitted", 0, note="" if note == "scheduled" else note)
    try:
        stats = session.show_stats(job, TargetType.SERVER).get("server")
    except (JobNotFound, JobNotRunning, InternalError, AuthorizationError):
        stats = None  # its process is not there yet, or no more
    found = stats.get(STATS) if isinstance(stats, dict) else None
    return Progress(**found) if found else Progress("submitted", 0)
