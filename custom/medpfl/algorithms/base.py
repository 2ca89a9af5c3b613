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
        personal: declaration of what stays at the site (:func:`medpfl.declarations.parse_declaration`); the name of a
            setting in braces, such as ``{layers}``, is filled in from it.
        mixing: one of :data:`medpfl.server.mixing.MIXINGS`.
        settings: the method's own settings with their defaults.
        schedule: fields of a run that the paper fixes, such as ``rounds``; defaults where the user says nothing.
        training: settings of local training that the paper fixes, likewise.
    """

    name: str
    title: str
    paper: str
    summary: str
    personal: str
    mixing: str
    settings: Mapping[str, Value] = field(default_factory=dict)
    schedule: Mapping[str, Value] = field(default_factory=dict)
    training: Mapping[str, Value] = field(default_factory=dict)
