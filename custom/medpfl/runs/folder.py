"""A run's folder: what is in it, and whether a run may write there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from medpfl.config.run import RunConfig
from medpfl.core.errors import UserError
from medpfl.core.lock import LOCK
from medpfl.core.server_state import ServerState
from medpfl.engine.inprocess import CHECKPOINT
from medpfl.report.reading import load_results
from medpfl.server.checkpoint import changed_code, checkpoint_exists, load_checkpoint

RESULTS = "results.json"
JOB = "job.json"
"""What a folder of a run at a real federation keeps of its job (:mod:`medpfl.runs.real_sites`)."""
JOIN_JOB = "join-job.json"
"""The same of a job by which sites join, until its results are fetched (:mod:`medpfl.runs.join_job`)."""
_FOLDERS = ("state", "models", "flare", "joined", "flare-join")
_FILES = (RESULTS, JOB, JOIN_JOB, "history.csv", "report.html", "partition.json", "flare.log", "join.json")


def require_own_folder(out: Path) -> None:
    """What has the name of a run's file must be a run's: nothing of anybody else's is written over.

    A run's folder has its lock from the first moment on; one that was copied without it has a checkpoint, results or
    a job.

    Raises:
        UserError: the folder is no run's, and has something of such a name.
    """
    if (out / LOCK).exists() or checkpoint_exists(checkpoint_in(out)) or (out / JOB).exists() or _has_results(out):
        return
    if taken := next((name for name in (*_FOLDERS, *_FILES) if (out / name).exists()), None):
        raise UserError(f"{out} is no run's folder, and a run would write over {taken} in it; choose another --out")


def require_one_wish(resume: bool, overwrite: bool) -> None:
    """UserError if a run is both to go on and to begin anew."""
    if resume and overwrite:
        raise UserError("--resume and --overwrite: a run goes on or begins anew; give one of them")


def _has_results(out: Path, *, finished: bool = False) -> bool:
    try:
        load_results(out, finished=finished)
    except UserError:
        return False
    return True


def checkpoint_in(out: Path) -> Path:
    """Where the server of a run on this machine keeps its state."""
    return out / "state" / "server" / CHECKPOINT


def holds_simulation(out: Path) -> bool:
    """Whether a folder has the results of a run on this machine, or what one that was interrupted left.

    What a real federation sent of a job by which sites joined lies in ``flare`` too, and is no such run.
    """
    left = (RESULTS, "state", "flare.log", "flare/project.yml")
    return not (out / JOB).exists() and any((out / name).exists() for name in left)


def _never_begun(out: Path) -> bool:
    """Whether all that a folder has of a run is what one left to which no site said hello."""
    made = ("models", "joined", "join.json", JOIN_JOB, "report.html", "history.csv")
    return holds_simulation(out) and not any((out / name).exists() for name in made)


def clear_folder(out: Path) -> None:
    """Removes all that a run of any kind writes into its folder; of what is kept elsewhere, the link to it.

    Raises:
        UserError: something cannot be removed, and a new run would go on from it.
    """
    for place in (out / name for name in (*_FOLDERS, *_FILES)):
        try:
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            else:
                place.unlink(missing_ok=True)
        except OSError as error:
            which = f"{Path(error.filename).name}: " if error.filename else ""
            raise UserError(
                f"{place}: cannot be removed ({which}{error.strerror or error}); remove it or choose another --out"
            ) from None


def state_before(config: RunConfig, out: Path, resume: bool, overwrite: bool) -> ServerState | None:
    """The state that a run is gone on from; None where it begins, for which the folder is made ready.

    Raises:
        UserError: it holds another run, or one that is not to be gone on with; or a finished run's state is gone, so
            that nobody can say whether it is the same.
    """
    checkpoint, results = checkpoint_in(out), out / RESULTS
    before = any((checkpoint_exists(checkpoint), results.exists(), (out / JOB).exists()))
    if (overwrite and (before or holds_simulation(out))) or (not before and _never_begun(out)):
        clear_folder(out)
        return None
    if (out / JOB).exists():
        raise UserError(
            f"{out} holds a run at a real federation: go on with it by --env prod --resume, give --overwrite alone, or "
            "choose another --out"
        )
    if before and not resume:
        raise UserError(f"{out} already holds a run: give --resume to go on with it, --overwrite, or another --out")
    if not checkpoint_exists(checkpoint):
        if _has_results(out, finished=True):
            raise UserError(
                f"{out} has results and no state to go on from: `medpfl report` reads them; remove the folder to have "
                "the run made again, or choose another --out"
            )
        return None
    return load_checkpoint(checkpoint, config)


def finished_before(config: RunConfig, out: Path) -> dict[str, Any] | None:
    """The results of a run that has ended, if they are there as a whole, with its page.

    They have a note if others' code that they were made with has changed since.

    Args:
        config: of the run.
        out: its folder.
    """
    results = out / RESULTS
    if not (out / "report.html").exists() or not results.exists() or _is_left_behind(results):
        return None
    found = load_results(out)
    changed = changed_code((found.get("environment") or {}).get("code") or {}, config)
    found["notes"] += [words for words in changed.values() if words not in found["notes"]]
    return found


def _is_left_behind(results: Path) -> bool:
    """Whether a file is no JSON, as after a loss of power, or of before the run's end, as of a disk that was full then.

    What a finished run's has is made again from its state.
    """
    try:
        found = json.loads(results.read_bytes())
    except (ValueError, RecursionError):
        return True
    return isinstance(found, dict) and found.get("status") == "running"
