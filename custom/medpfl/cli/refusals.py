"""Options that do not go together, refused in words."""

from __future__ import annotations

from typing import Any

from medpfl.core.errors import UserError


def require_known(env: str, *known: str) -> None:
    """UserError for a place to run at that a command does not have."""
    if env not in known:
        raise UserError(f"--env {env}: use {', '.join(known[:-1])} or {known[-1]}")


def refuse(options: dict[str, Any], why: str) -> None:
    """UserError for the first of the options, by name, that is given."""
    for name, value in options.items():
        if value:
            raise UserError(f"{name} {why}; leave it out")
