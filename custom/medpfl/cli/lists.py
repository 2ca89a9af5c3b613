"""``medpfl algorithms`` and ``medpfl models``: what there is to choose from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from medpfl.cli.consoles import console, listing

if TYPE_CHECKING:
    from medpfl.algorithms.base import Algorithm


def algorithms(
    name: Annotated[
        str | None, typer.Argument(help="A method, for its settings one by one.", show_default=False)
    ] = None,
) -> None:
    """List the algorithms; or say of one what is personal, how updates are mixed, and its settings."""
    from medpfl.algorithms import algorithm, taken_up
    from medpfl.algorithms import algorithms as known
    from medpfl.config.settings import own_defaults
    from medpfl.core.settings import defaults
    from medpfl.training.settings import Training

    if name is not None:
        _print_settings(algorithm(taken_up(name)))
        return
    table = listing("algorithm", "what it does", "paper")
    for a in known().values():
        table.add_row(a.name, a.summary, a.paper)
    console.print(table)
    training = defaults(Training)
    usual = ", ".join(f"{k}={v}" for k, v in training.items())
    console.print(f"Training, for all: {usual}. Change any with --set KEY=VALUE.")
    console.print("The settings of one, with their meaning: medpfl algorithms NAME")
    for a in known().values():
        own = [f"{k.replace('_', ' ')} {v}" for k, v in a.schedule.items()]
        own += [f"{k}={v}" for k, v in own_defaults(a).items() if k in training]
        if own:
            console.print(f"{a.name} brings its own defaults: {', '.join(own)}.")


def _print_settings(method: Algorithm) -> None:
    from medpfl.config.settings import accepted, described

    console.print(f"{method.title} ({method.paper}): {method.summary}.", highlight=False)
    console.print(f"Personal: {method.personal}. Mixing: {method.mixing.name}.", highlight=False)
    table = listing("--set", "default", "symbol", "what")
    for setting, default, symbol, what in described(method):
        table.add_row(setting, str(default), symbol, what)
    console.print(table)
    if method.under_sgd:
        otherwise = accepted(method, None, None, {"optimizer": "adam"}).defaults
        console.print(f"Without SGD: {', '.join(f'{name}={otherwise[name]}' for name in method.under_sgd)}.")


def models() -> None:
    """List the networks."""
    from medpfl.models import model_rows

    table = listing("model", "what", "input", "paper")
    for row in model_rows():
        table.add_row(row.name, row.what, row.input, row.paper)
    console.print(table)
