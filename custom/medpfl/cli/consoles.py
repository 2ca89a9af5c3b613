"""Where commands speak: what was asked for on standard output, progress aside from it."""

from rich.console import Console

console, aside = Console(emoji=False), Console(emoji=False, stderr=True)
