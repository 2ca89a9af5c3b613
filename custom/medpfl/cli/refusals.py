"""Options that do not go together, refused in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from medpfl.core.errors import UserError

if TYPE_CHECKING:
    from medpfl.config.run import RunConfig


def require_known(env: str, *known: str) -> None:
    """UserError for a place to run at that a command does not have."""
    if env not in known:
        raise UserError(f"--env {env}: use {', '.join(known[:-1])} or {known[-1]}")


def refuse(options: dict[str, Any], why: str) -> None:
    """UserError for the first of the options, by name, that is given."""
    for name, value in options.items():
        if value:
            raise UserError(f"{name} {why}; leave it out")


def require_installed(config: RunConfig) -> None:
    """UserError for a method, a network or data of a file where a job goes to sites that have what is installed."""
    from medpfl.config.named_code import named_code

    require_of_no_file(*(spec for _, spec in named_code(config)))


def require_of_no_file(*specs: str) -> None:
    """Likewise of ``module:NAME``; of data that are none nothing is said."""
    from medpfl.core import one_file

    files = one_file.modules()
    if spec := next((spec for spec in specs if spec.partition(":")[0] in files), ""):
        module, _, name = spec.partition(":")
        raise UserError(
            f"{name} is of the file {module}, which is no installed package: sites would not find it. Put it into a "
            "package (docs/own.md), which they install, too; a network's or data's file travels in a recipe's job "
            "(docs/flare.md)"
        )
