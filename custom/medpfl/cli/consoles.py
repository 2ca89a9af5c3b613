"""Where commands speak: what was asked for on standard output, progress aside from it."""

from rich.console import Console
from rich.table import Table

console, aside = Console(emoji=False), Console(emoji=False, stderr=True)


def say(line: object, on: Console = console) -> None:
    """A line as it is, however long: a path stays whole."""
    on.print(str(line), markup=False, highlight=False, soft_wrap=True)


def listing(*heads: str) -> Table:
    """A table without lines, whose cells are folded."""
    table = Table(box=None, pad_edge=False)
    for head in heads:
        table.add_column(head, overflow="fold")
    return table
