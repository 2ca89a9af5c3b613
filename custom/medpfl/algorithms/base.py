"""An algorithm is a composition: what stays at the site, how the server mixes, and mechanisms with their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from medpfl.algorithms.mechanism import Mechanism
from medpfl.algorithms.mixing_kinds import Mixing
from medpfl.core.gain import Use
from medpfl.core.settings import Value


@dataclass(frozen=True)
class Algorithm:
    """One published method.

    Attributes:
        name: as on the command line.
        title: as in the paper.
        paper: citation.
        summary: one line for a list.
        personal: declaration of what stays at the site (:func:`medpfl.core.declarations.parse_declaration`); the name
            of a setting in braces, such as ``{layers}``, is filled in from it.
        mixing: how the server mixes.
        mechanisms: what else the method has; any other method can take one up by its switch.
        settings: values of settings that the method gives other defaults, and whole numbers that fill in ``personal``.
        under_sgd: likewise, of training too, where sites train by SGD.
        schedule: fields of a run that the paper fixes, such as ``rounds``; defaults where the user says nothing.
        training: settings of local training that the paper fixes, likewise; in a comparison for all methods.
        use: what a site uses at the end (:mod:`medpfl.site.choice`).
    """

    name: str
    title: str
    paper: str
    summary: str
    mixing: type[Mixing]
    personal: str = "nothing"
    mechanisms: tuple[type[Mechanism], ...] = ()
    settings: Mapping[str, Value] = field(default_factory=dict)
    under_sgd: Mapping[str, Value] = field(default_factory=dict)
    schedule: Mapping[str, Value] = field(default_factory=dict)
    training: Mapping[str, Value] = field(default_factory=dict)
    use: Use = "received"

    @property
    def shares_nothing(self) -> bool:
        """Whether every site trains alone."""
        return self.personal == "everything"

    @property
    def recipe(self) -> str:
        """Name of its FLARE recipe."""
        words = "".join(c if c.isalnum() else " " for c in self.title).split()
        return "".join(word[0].upper() + word[1:] for word in words) + "Recipe"
