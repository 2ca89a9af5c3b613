"""Where server and sites keep what outlives a job."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from medpfl.core.errors import UserError
from medpfl.core.whole_file import write_bytes
from medpfl.site.local_file import read_object

_ENDED = "ended.json"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_ENDING = re.compile(r"\.[A-Za-z]+$")
"""Of what lies beside the experiments' folders, such as the ledger: a folder in its place would end all later jobs."""


def check_experiment(name: str) -> str:
    """The name if it may be a folder's; a job must not choose one outside the folder that is kept for experiments.

    Raises:
        UserError: it has other characters, begins with a dot, or ends as a file does.
    """
    if not _NAME.fullmatch(name) or _ENDING.search(name):
        raise UserError(
            f"experiment {name!r}: server and sites keep a folder of that name; use letters, digits, . _ - and no dot "
            "in front, and no ending like a file's"
        )
    return name


def state_folder(workspace: Callable[[], str], state_dir: str | None, experiment: str) -> Path:
    """The folder of an experiment.

    Args:
        workspace: gives that of the server or the site.
        state_dir: of a simulation; by default ``medpfl`` in the workspace.
        experiment: its name, or the job's id.
    """
    return Path(state_dir or Path(workspace()) / "medpfl") / check_experiment(experiment)


def require_owner(folder: Path, submitter: str, *, claim: bool) -> None:
    """Refuses an experiment at the server that is another submitter's.

    Args:
        folder: the server's, of the experiment.
        submitter: of the job; empty in a simulation.
        claim: one that is nobody's becomes this one's; else it is only read.

    Raises:
        UserError: it is another's.
    """
    file = folder / "owner.json"
    if not file.exists():
        if claim:
            write_bytes(file, json.dumps({"submitter": submitter}).encode(), mode=0o600)
    elif read_object(file).get("submitter") != submitter:
        raise UserError(
            f"experiment {folder.parent.name!r} is another submitter's at this server; submit under another experiment "
            "name"
        )


def note_end(folder: Path, run: Path) -> None:
    """Notes in the server's folder of an experiment in which job's run folder its results are."""
    write_bytes(folder / _ENDED, json.dumps({"run": str(run)}).encode(), mode=0o600)


def is_stored(folder: Path, run: Path) -> bool:
    """Whether FLARE has stored the results of the job that ended an experiment, as far as can be seen.

    It takes a job's run folder away once they are in its store: where it is still there, the server was killed before.

    Args:
        folder: the server's, of the experiment.
        run: the present job's run folder; in the simulator it is the last one's, too.
    """
    file = folder / _ENDED
    last = Path(read_object(file)["run"]) if file.exists() else run
    return last == run or not last.exists()


def folder_name(folder: Path) -> str:
    """A folder's own name as an experiment's, other characters replaced."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", folder.resolve().name) or "run"
