"""Jobs at a FLARE system, through an administrator's startup kit: submit, follow, fetch, and its refusals in words."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import datetime, timezone
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cryptography import x509
from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.common.excepts import ConfigError
from nvflare.fuel.flare_api.api_spec import (
    AuthenticationError,
    AuthorizationError,
    CommandError,
    InternalError,
    InvalidJobDefinition,
    JobNotFound,
    JobNotRunning,
    NoClientsAvailable,
    NoConnection,
    NoReply,
    SessionClosed,
    TargetType,
)
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.tool.kit.kit_config import StartupKitConfigError, resolve_admin_user_and_dir_from_startup_kit

from medpfl.engine.progress import Progress, Watch
from medpfl.errors import UserError
from medpfl.flare.controller import STATS
from medpfl.flare.recipes import PackageRecipe

_FAILED = (NoConnection, SessionClosed, NoReply, InternalError, AuthenticationError, RuntimeError)
"""What FLARE's session raises when something goes wrong on the way or at the server."""
_REFUSED_CLASS = re.compile(r"Component '([\w.]+)'[^\n]* is not in allow_list")

_NO_TRACKER = re.compile(r"Can't load class nvflare\.app_opt\.tracking\.[\w.]+: No module named '(\w+)'")


class System:
    """A FLARE system as one of its administrators sees it.

    Args:
        kit: the administrator's startup kit.
        patience: seconds to wait for the server's answer.
    """

    def __init__(self, kit: Path, *, patience: float = 10.0):
        self.kit = kit
        self.patience = patience
        try:
            self.user, folder = resolve_admin_user_and_dir_from_startup_kit(str(kit))
            self.folder = Path(folder)
            certificate = x509.load_pem_x509_certificate((self.folder / "startup" / "client.crt").read_bytes())
        except (StartupKitConfigError, OSError, ValueError) as error:
            raise UserError(
                f"--kit {kit}: no administrator's startup kit ({_first_line(error)}); give the folder of a user who "
                "may submit jobs, as `nvflare provision` made it"
            ) from None
        if certificate.not_valid_after_utc < datetime.now(timezone.utc):
            raise UserError(
                f"--kit {kit}: its certificate expired on {certificate.not_valid_after_utc:%Y-%m-%d}; ask for a new kit"
            )

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Logs in and out again. UserError if the server does not answer, does not take the kit, or fails meanwhile."""
        # FLARE's network layer reports every try to connect; what came of it is said below.
        logging.getLogger("nvflare").setLevel(logging.CRITICAL)
        try:
            with redirect_stdout(StringIO()):  # it says "Connecting to FLARE ..." each time
                session = new_secure_session(self.user, str(self.folder), timeout=self.patience, auto_login_max_tries=1)
        except NoConnection:
            raise UserError(
                f"--kit {self.kit}: no answer from the FLARE server at {self._address()} within {self.patience:.0f} s: "
                "is it running, can this machine reach it, and is the kit of the same project?"
            ) from None
        except (AuthenticationError, AuthorizationError, InternalError, FLCommunicationError) as error:
            raise UserError(
                f"--kit {self.kit}: the FLARE server at {self._address()} does not take it: {_first_line(error)}"
            ) from None
        except (ConfigError, RuntimeError, ValueError, OSError) as error:
            raise UserError(f"--kit {self.kit}: not complete: {_first_line(error)}") from None
        try:
            yield session
        except (*_FAILED, AuthorizationError) as error:
            raise UserError(f"--kit {self.kit}: FLARE's server does not do its part: {_first_line(error)}") from None
        finally:
            session._close_ignore_errors()

    def submit(self, recipe: PackageRecipe, sites: list[str]) -> str:
        """Submits a recipe's job if enough of its sites are there.

        Args:
            recipe: the job.
            sites: names of the sites that are to take part.

        Returns:
            The job's id.
        """
        need = recipe.config.min_sites or len(sites)
        with TemporaryDirectory() as folder:
            recipe.export(folder)
            return self._submit(Path(folder) / recipe.name, sites, need)

    def _submit(self, job: Path, sites: list[str], need: int) -> str:
        with self.session() as session:
            connected = connected_sites(session)
            if len(present := [s for s in sites if s in connected]) < need:
                absent = [s for s in sites if s not in connected]
                others = [s for s in connected if s not in sites]
                raise UserError(
                    f"{len(present)} of {len(sites)} sites are connected and {need} are needed: {', '.join(absent)} "
                    f"{'is' if len(absent) == 1 else 'are'} missing"
                    + (f" (there are also {', '.join(others)})" if others else "")
                    + ("; name those that are meant: --sites NAME,NAME" if others else "; start them")
                    + ", or give --min-sites"
                )
            try:
                return session.submit_job(str(job))
            except AuthorizationError:
                raise UserError(
                    f"{self.user} may not submit jobs: use a kit of a lead or project administrator"
                ) from None
            except (InvalidJobDefinition, InternalError, CommandError) as error:
                raise UserError(f"FLARE's server refuses the job: {_first_line(error)}") from None

    def has_failed(self, job: str) -> bool:
        """Whether a job has ended without finishing its run; UserError if the server does not know it."""
        with self.session() as session:
            try:
                status = session.get_job_meta(job)["status"]
            except JobNotFound:
                raise UserError(f"FLARE's server knows no job {job}: give --overwrite to begin anew") from None
        return status.startswith("FINISHED") and status != "FINISHED:COMPLETED"

    def follow(self, job: str, watch: Watch, *, pause: float = 2.0, give_up: float = 600.0) -> dict[str, Any]:
        """Watches a job until it has ended.

        Args:
            job: its id.
            watch: told of its progress.
            pause: seconds between looks.
            give_up: seconds without any answer of the server after which it is no longer asked.

        Returns:
            FLARE's record of the job (``meta``).
        """
        heard = time.monotonic()
        while True:
            try:
                with self.session() as session:
                    while True:
                        meta = session.get_job_meta(job)
                        heard = time.monotonic()
                        if meta["status"].startswith("FINISHED"):
                            return meta
                        watch(_progress(session, job, meta))
                        time.sleep(pause)
            except JobNotFound:
                raise UserError(f"FLARE's server knows no job {job}") from None
            except UserError as error:
                if time.monotonic() - heard > give_up:
                    raise UserError(
                        f"no answer from the FLARE server for {give_up:.0f} s ({_first_line(error)}); the job may go "
                        "on: follow it with --resume"
                    ) from None
                time.sleep(pause)

    def complete(
        self, job: str, folder: Path, watch: Watch, *, pause: float = 2.0, results_file: str = "results.json"
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
            UserError: the job did not end well; the message says why.
        """
        meta = self.follow(job, watch, pause=pause)
        workspace = self.fetch(job, folder)
        file = workspace / results_file if workspace else None
        results = json.loads(file.read_text()) if file and file.exists() else {}
        if results.get("status") != "finished":
            raise UserError(f"job {job}: {self._why(job, meta, workspace)}")
        return results

    def fetch(self, job: str, folder: Path) -> Path | None:
        """Downloads what the server kept of an ended job; None if that is nothing.

        Returns:
            The server's run folder, with results.json.
        """
        with self.session() as session:
            try:
                workspace = Path(session.download_job_result(job, str(folder))) / "workspace"
            except AuthorizationError:
                raise UserError(f"{self.user} may not download the results of job {job}") from None
            except JobNotFound:
                raise UserError(f"FLARE's server no longer has job {job}") from None
        return workspace if workspace.is_dir() else None

    def _why(self, job: str, meta: dict[str, Any], workspace: Path | None) -> str:
        """In words, why a job did not end well: what the run itself said, or else FLARE's reason."""
        if workspace and (error := workspace / "error.json").exists():
            return json.loads(error.read_text())["error"]
        logs = {"the server": workspace / "error_log.txt"} if workspace else {}
        if (log := logs.get("the server")) and log.exists() and (found := _NO_TRACKER.search(log.read_text())):
            return f"--track {found[1]}: the server has no package {found[1]}; install it there, or take --track none"
        refused = {
            where: found[1]
            for where, file in (logs | self._site_logs(job)).items()
            if file.exists() and (found := _REFUSED_CLASS.search(file.read_text(errors="replace")))
        }
        if refused:
            return (
                f"{' and '.join(refused)} will not load {next(iter(refused.values()))}, which the class_allow_list of "
                'local/resources.json there must allow: add "medpfl."'
            )
        status = meta["status"].removeprefix("FINISHED:")
        return f"FLARE ended it with {status}{_detail(meta) or '; log.txt of the job at server and sites says why'}"

    def _site_logs(self, job: str) -> dict[str, Path]:
        """Error logs of the sites that let the server have them."""
        with self.session() as session:
            try:
                folder = Path(session.download_job_components(job) or "/-")
            except (*_FAILED, AuthorizationError, JobNotFound):
                return {}
        return {file.name.removeprefix("ERRORLOG_"): file for file in sorted(folder.rglob("ERRORLOG_*"))}

    def _address(self) -> str:
        admin = json.loads((self.folder / "startup" / "fed_admin.json").read_text())["admin"]
        return f"{admin.get('host', '?')}:{admin.get('port', '?')}"


def connected_sites(session: Session) -> list[str]:
    """Names of the sites that are connected to the server."""
    try:
        return sorted(client.name for client in session.get_connected_client_list())
    except NoClientsAvailable:
        return []


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


def _detail(meta: dict[str, Any]) -> str:
    """What FLARE noted of sites and schedule that went wrong."""
    details = [d for d in meta.get("job_deploy_detail") or [] if not str(d).endswith(": OK")]
    if not details and "SCHEDULE" in meta["status"]:
        details = (meta.get("schedule_history") or [])[-1:]
    return f": {'; '.join(map(str, details))}" if details else ""


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
