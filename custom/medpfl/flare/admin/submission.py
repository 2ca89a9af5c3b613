"""A job's note: what a folder on this machine keeps of a job at a FLARE system, so that it is submitted once."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

from medpfl.core.errors import Interrupted, UserError
from medpfl.engine.results import write_json
from medpfl.flare.admin.connected import Refused
from medpfl.flare.admin.remote import System
from medpfl.flare.job.recipes import PackageRecipe


def submit_once(system: System, recipe: PackageRecipe, note: dict[str, Any], file: Path) -> None:
    """Submits a job and keeps its note: before, too, so that state which it leaves at server and sites is found.

    Until the server's answer is there, the note has the ``token`` by which the server knows the job if it has it.

    Args:
        system: where.
        recipe: the job.
        note: gets FLARE's id of the job as ``job``.
        file: where the note is kept; as it was if the server refuses the job.

    Raises:
        Interrupted: the user stopped it, and the server may have the job.
    """
    before = read_note(file)
    note["token"] = secrets.token_hex(16)
    write_json(file, note)
    try:
        note["job"] = system.submit(recipe, recipe.config.site_names, note["token"])
    except Refused:
        if before is None:
            file.unlink()
        else:
            write_json(file, before)
        raise
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped while the job was being submitted: {system.again} follows it if the server has it, and submits "
            "it if not"
        ) from None
    del note["token"]
    write_json(file, note)


@contextmanager
def going_on(system: System, job: str, kit: Path) -> Iterator[None]:
    """Interrupted, with what to do, where the user no longer follows a job that goes on without this process."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"job {job} goes on at the server: {system.again} follows it again, `nvflare job abort {job} "
            f"--startup-kit {quote(str(kit))} --force` stops it"
        ) from None


def settled_note(system: System, file: Path) -> dict[str, Any] | None:
    """A note whose ``job`` is FLARE's id or null, where the server has none; None if there is no note."""
    note = read_note(file)
    if note and (token := note.get("token")):  # the server's answer to the last submission is not known
        note["job"] = system.find(token) or note["job"]
        del note["token"]
        write_json(file, note)
    return note


def read_note(file: Path) -> dict[str, Any] | None:
    """A note, of whatever version; None if there is none.

    Raises:
        UserError: the file is damaged.
    """
    if not file.is_file():
        return None
    try:
        note = json.loads(file.read_text())
    except ValueError as error:
        raise UserError(f"{file} is damaged: {error}") from None
    if not isinstance(note, dict) or not {"job", "experiment", "config"} <= note.keys():
        raise UserError(f"{file} is damaged: job, experiment and config are needed")
    return note
