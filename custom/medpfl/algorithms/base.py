"""An algorithm is four choices: what stays at the site, how the server mixes, what a site minimises, extra steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Value = float | int | str


@dataclass(frozen=True)
class Algorithm:
    """One published method.

    Attributes:
        name: as on the command line.
        title: as in the paper.
        paper: citation.
        summary: one line for a list.
        personal: declaration of what stays at the site (:func:`medpfl.parameters.parse_declaration`); ``{layers}`` is
            filled in from the setting of that name.
        mixing: one of :data:`medpfl.server.mixing.MIXINGS`.
        settings: the method's own settings with their defaults.
    """

    name: str
    title: str
    paper: str
    summary: str
    personal: str
    mixing: str
    settings: Mapping[str, Value] = field(default_factory=dict)
