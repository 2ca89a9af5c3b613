"""Whose a picture is, by a job's regular expression and the file's name.

The expression is RE2's: its time grows with the length of name and expression, never exponentially, as that of Python's
``re`` can. What RE2 lacks for that (references to groups, looking ahead and behind) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import re2
from pydantic import AfterValidator

from medpfl.core.errors import UserError
from medpfl.data.patients import Sample, count_people

USUAL = "^([^_]+)_"
"""Of names that begin with the patient, up to the first underscore."""

LONGEST = 200
"""Characters of an expression."""

_MEMORY = 2**18
"""Bytes of a compiled expression; bounds what repetitions inside repetitions can make of a short one."""

_ASCII = {"d": str.isdecimal, "s": str.isspace, "w": str.isalnum, "b": str.isalnum}
"""What these classes stand for; in RE2 their characters are ASCII alone."""


@lru_cache(maxsize=8)
def compiled(expression: str) -> Any:
    """The expression, as RE2 reads it.

    Raises:
        ValueError: it is none, it is too long, or it has no group that could be the patient.
    """
    if len(expression) > LONGEST:
        raise ValueError(f"{expression[:40]!r}... has {len(expression)} characters; at most {LONGEST} are allowed")
    options = re2.Options()
    options.max_mem, options.log_errors = _MEMORY, False
    try:
        found = re2.compile(expression, options)
    except (re2.error, UnicodeError) as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error, re2.error) else "it is no text"
        raise ValueError(f"{expression!r} is no regular expression for RE2, {_remedy(reason)}") from None
    if not found.groups:
        raise ValueError(f"{expression!r} has no group in parentheses that is the patient, e.g. {USUAL!r}")
    return found


def _remedy(reason: str) -> str:
    if "perl operator" in reason or "escape sequence" in reason:
        return f"which has no backreferences or look-around ({reason}); say it with groups, e.g. '^([^_]+)_'"
    return f"({reason})"


def patient_in(file: Path, expression: str) -> str:
    """What the expression's first group finds in the file's name.

    Raises:
        UserError: nothing; or the name has characters beyond ASCII that the expression's ``\\w``, ``\\d``, ``\\s`` or
            ``\\b`` would mean in Python and do not in RE2.
    """
    argument = f"--data-arg patient={expression}"
    try:
        found = compiled(expression).search(file.name)
    except UnicodeError:
        raise UserError(f"{file}: the name is no UTF-8 text, and {argument} is to read it; rename the file") from None
    for letter in re.findall(r"\\(.)", expression.lower()):
        if letter in _ASCII and any(_ASCII[letter](c) for c in file.name if not c.isascii()):
            raise UserError(
                f"{file}: {argument}: its \\{letter} knows ASCII alone, and the name has more; "
                "say what to look for in brackets, e.g. '^([^_]+)_'"
            )
    if not found or found[1] is None:
        raise UserError(f"{file}: {argument} finds no patient in the file's name")
    return found[1]


def keeping_together(centres: Iterable[Collection[Path]]) -> str:
    """What keeps a patient's files together, in words: :data:`USUAL` where it makes sense of these names.

    It does where it finds several patients at every centre, and several files of one somewhere.

    Args:
        centres: the files of each.
    """
    try:
        counts = [(len({patient_in(file, USUAL) for file in files}), len(files)) for files in centres]
    except UserError:
        counts = []
    if all(patients > 1 for patients, _ in counts) and any(patients < files for patients, files in counts):
        return f"where files' names begin with the patient, --data-arg 'patient={USUAL}' keeps them together"
    return (
        "if several files are of one patient, --data-arg patient=EXPRESSION, a regular expression whose group is the "
        "patient in a file's name, keeps them together"
    )


def all_of_one(pictures: int, noun: str, centre: str, expression: str) -> str:
    """Words for a centre whose files are all one patient's by an expression."""
    return f"all {pictures:,} {noun} of {centre} are one patient by patient={expression!r}: is the expression right?"


def level_of_one(centres: Iterable[Collection[Sample]]) -> str:
    """How bad it is that all files of a centre are one patient's: an error where they are everywhere.

    Nothing is left to test on there. Of several centres one may have a single patient.

    Args:
        centres: the samples of each.
    """
    alone = [count_people(samples) == 1 for samples in centres if len(samples) > 1]
    return "error" if all(alone) else "warning"


def _none_or_with_a_group(expression: str) -> str:
    if expression:
        compiled(expression)
    return expression


PatientPattern = Annotated[str, AfterValidator(_none_or_with_a_group)]
"""An expression in a job's arguments; empty for none."""
