"""Exceptions: "the user can put this right", "the user wants no more of it", "the user waits no longer"."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import LogRecord


class UserError(Exception):
    """Wrong input or configuration; the message says what is wrong, where, and what would be right.

    The command line prints it as it is and exits with code 2, and of an OSError the file and the reason, and likewise
    a :class:`TornFile`. Every other exception is a defect of ours.
    """


class TornFile(RuntimeError):
    """A state file whose content is not what was written."""


class NotInOnePlace(UserError):
    """The sites' data are not together here; whoever needed them says what would do instead."""


class RunEnded(UserError):
    """A run that had begun ended early, as one whose loss is no number; of other runs it says nothing."""


class Stopped(Exception):
    """A run was ended from outside in the middle of a step; the step's result is not used."""


class Interrupted(Exception):
    """The user no longer waits for work that goes on elsewhere; the message says how to come back to it."""


def user_error_in(error: BaseException | None) -> UserError | None:
    """The UserError that an exception is, or is of: MONAI wraps what a transform raises, once for each Compose."""
    while error is not None and not isinstance(error, UserError):
        error = error.__cause__
    return error


def printable(text: str) -> str:
    """A text for a terminal, with what the terminal would obey (escape sequences, turned writing) in ``\\x1b`` form."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def printably(record: LogRecord) -> bool:
    """A filter of logs that a terminal shows: their texts may hold names of files, and those anything."""
    record.msg, record.args = printable(record.getMessage()), None
    return True


def first_line(error: BaseException) -> str:
    """What an error says first, or else its kind."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
