"""The methods, mixings and mechanisms that are known: this package's and those of others' packages."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from itertools import chain
from typing import TypeVar

from medpfl.algorithms.apfl import APFL
from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.declared import problem
from medpfl.algorithms.ditto import DITTO
from medpfl.algorithms.fedap import D_FEDAP, F_FEDAP, FEDAP
from medpfl.algorithms.fedavg import FEDAVG
from medpfl.algorithms.fedbabu import FEDBABU
from medpfl.algorithms.fedblend import FEDBLEND
from medpfl.algorithms.fedbn import FEDBN
from medpfl.algorithms.fedcurv import FEDCURV
from medpfl.algorithms.fedimpres import FEDIMPRES
from medpfl.algorithms.fedopt import FEDADAM, FEDAVGM, FEDYOGI
from medpfl.algorithms.fedper import FEDPER
from medpfl.algorithms.fedprox import FEDPROX
from medpfl.algorithms.fedreg import FEDREG
from medpfl.algorithms.fedrep import FEDREP
from medpfl.algorithms.fedvss import FEDVSS
from medpfl.algorithms.fine_tuning import FineTuning
from medpfl.algorithms.label_prior import LabelPrior
from medpfl.algorithms.lg_fedavg import LG_FEDAVG
from medpfl.algorithms.local import LOCAL
from medpfl.algorithms.mechanism import Mechanism
from medpfl.algorithms.mixing import Equal, Identity, Samples, Uniform
from medpfl.algorithms.mixing_kinds import Mixing
from medpfl.algorithms.robust import Median, TrimmedMean
from medpfl.algorithms.scaffold import SCAFFOLD
from medpfl.algorithms.update_privacy import UpdatePrivacy
from medpfl.algorithms.vhl import VHL
from medpfl.algorithms.vit_heads import VIT_HEADS
from medpfl.core import one_file
from medpfl.core.errors import UserError
from medpfl.core.installed import installed
from medpfl.core.settings import named_fields
from medpfl.training.settings import Training

OWN = (LOCAL, FEDAVG, FEDPROX, FEDBN, FEDPER, LG_FEDAVG, FEDAP, D_FEDAP, F_FEDAP, VIT_HEADS, FEDIMPRES)
OWN += (DITTO, APFL, FEDREP, SCAFFOLD, FEDBABU, FEDCURV, FEDREG, VHL, FEDVSS, FEDAVGM, FEDADAM, FEDYOGI)
OWN += (FEDBLEND,)
DEFAULT = FEDBLEND.name
"""What is run where no method is named."""
FOR_ALL = (FineTuning,)
"""Mechanisms that any method can have."""
LAST = (LabelPrior, UpdatePrivacy)
"""Likewise, of what the others make of a model, and of an update: nothing comes after the noise."""
GROUP = "medpfl.methods"
"""Entry points of other packages: each an :class:`~medpfl.algorithms.base.Algorithm`."""

Thing = TypeVar("Thing", bound=type[Mechanism])


@cache
def algorithms() -> Mapping[str, Algorithm]:
    """All methods by name, this package's first.

    Raises:
        UserError: another package's entry point, or what was :func:`taken_up`, cannot be loaded, is no method, has the
            name of one that is there, or its parts do not fit together.
    """
    found = {a.name: a for a in OWN}
    for name, where, method in chain(installed(GROUP), one_file.loaded()):
        if not isinstance(method, Algorithm):
            raise UserError(f"{where}: it must be a medpfl Algorithm, not {type(method).__name__}")
        if method.name in found:
            raise UserError(f"{where}: there is a method {method.name!r} already; give it another name")
        if wrong := problem(method, name, OWN, (*FOR_ALL, *LAST)):
            raise UserError(f"{where}: {wrong}")
        found[method.name] = method
    return found


def algorithm(name: str) -> Algorithm:
    """The method of that name; UserError with the nearest names if there is none."""
    known = algorithms()
    if name in known:
        return known[name]
    head, colon, settings = name.partition(":")
    if colon and head in known:
        raise UserError(f"algorithm {name!r}: settings of one run are given by --set, here {settings}")
    if name.endswith(".py"):
        raise UserError(f"algorithm {name!r}: say which method of the file, {name}:NAME, with an Algorithm's name")
    near = _by_another_name(name) or difflib.get_close_matches(name, known, n=2)
    meant = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
    own = "one of another package is there where that is installed, one of a file is FILE.py:NAME"
    raise UserError(f"unknown algorithm {name!r}: {meant} (`medpfl algorithms` lists them; {own})")


def _by_another_name(given: str) -> list[str]:
    """The methods whose name or title it is but for capitals, blanks and hyphens, else those whose paper has it so."""

    def squeezed(text: str) -> str:
        return "".join(filter(str.isalnum, text.lower()))

    asked, known = squeezed(given), algorithms()
    called = [name for name, method in known.items() if asked in (squeezed(name), squeezed(method.title))]
    return called or [name for name, method in known.items() if asked and asked in squeezed(method.paper)]


def taken_up(given: str) -> str:
    """A method's name, with the settings that a user gave it; one of a file is known by that name from now on.

    Args:
        given: a method, ``module:NAME`` or ``FILE.py:NAME``, and perhaps ``:KEY=VALUE``.

    Raises:
        UserError: what stands there is no method, or none that can be known beside the others.
    """
    if not (parts := one_file.parted(given, algorithms())):
        return given
    spec, method = one_file.found(parts[0], algorithms())
    if not any(method is known for known in algorithms().values()):  # a notebook may define it anew
        before = one_file.remembered()
        try:
            _remember([*dict.fromkeys([*before, spec])])
            mechanisms()
        except UserError:
            _remember(before)
            raise
    return method.name + parts[1]


def _remember(specs: Sequence[str]) -> None:
    one_file.remember(specs)
    for known in (algorithms, mixings, mechanisms, origin):
        known.cache_clear()


@cache
def mixings() -> Mapping[str, type[Mixing]]:
    """All mixings by name."""
    plain = (Identity, Samples, Equal, Uniform, Median, TrimmedMean)
    return _by_name((*plain[:2], *(a.mixing for a in algorithms().values()), *plain[2:]))


@cache
def mechanisms() -> Mapping[str, type[Mechanism]]:
    """All mechanisms by name, in the order in which they take effect: those for every method first."""
    own = [m for a in algorithms().values() for m in a.mechanisms if m not in LAST]
    found = _by_name((*FOR_ALL, *own, *LAST))
    parts = (*found.values(), *mixings().values())
    _by_name(parts)  # what a part keeps and what travels for it is found by its name
    _require_own_settings(parts)
    return found


RESERVED = {"personal", "model", "received", "sent", "optimizer", "finished", "used", "data", "best", "init"}
RESERVED |= {"alone", "alone_best", "alone_loss", "alone_finished", "alone_optimizer"}
"""Names under which a site keeps states of its own (:mod:`medpfl.site.store`, :mod:`medpfl.site.rival`,
:mod:`medpfl.site.start`): no part of a method is called so."""
_OF_A_ROUND = {"round", "seconds", "participants", "unused", "following", "sites"}
"""Nor as what the record of a round has beside what parts report."""
_OF_RESULTS = {"schema", "status", "algorithm", "title", "measures", "choices", "further", "each_round", "heads"}
_OF_RESULTS |= {"init", "privacy", "pretrained", "config", "environment", "data", "rounds", "selected_round"}
_OF_RESULTS |= {"selected_rounds", "selection", "final", "reference", "verdict", "mixing", "traffic", "seconds"}
_OF_RESULTS |= {"unanswered", "failures", "notes", "detail", "running_statistics", "new", "forgetting"}
"""Nor, where it shows something at the end, as what results have beside that."""


def _by_name(things: tuple[Thing, ...]) -> dict[str, Thing]:
    """UserError if two have one name: another package's would stand in for this one's in every method."""
    found: dict[str, Thing] = {}
    for thing in things:
        shows = thing.shown is not Mechanism.shown
        if thing.name in RESERVED | _OF_A_ROUND | (_OF_RESULTS if shows else set()):
            raise UserError(f"{thing.__module__}:{thing.__name__}: the name {thing.name!r} is taken; give it another")
        if (other := found.setdefault(thing.name, thing)) is not thing:
            both = " and ".join(f"{t.__module__}:{t.__name__}" for t in (other, thing))
            raise UserError(f"{both} are both called {thing.name!r}: give the other package's another name")
    return found


def _require_own_settings(kinds: Sequence[type[Mechanism]]) -> None:
    """UserError if two of mechanisms, mixings and local training have a setting of one name: which would --set mean?"""
    owners: dict[str, type[Mechanism]] = {}
    of_training = named_fields(Training)
    for kind in kinds:
        if taken := next((name for name in named_fields(kind.settings_class) if name in of_training), ""):
            where = f"{kind.__module__}:{kind.__name__}"
            raise UserError(f"{where}: its setting {taken!r} is called as one of local training: give it another name")
        for name in named_fields(kind.settings_class):
            other = owners.setdefault(name, kind)
            both_mix = issubclass(kind, Mixing) and issubclass(other, Mixing)
            if not both_mix and other.settings_class is not kind.settings_class:
                both = " and ".join(f"{k.__module__}:{k.__name__}" for k in (other, kind))
                raise UserError(f"{both} both have a setting {name!r}: give the other package's another name")


@cache  # all that is installed is read for it, and a run asks at every step
def origin(name: str) -> str:
    """The module of others that a method is from; empty for this package's own."""
    if any(own.name == name for own in OWN):
        return ""
    if module := next((entry.module for entry in entry_points(group=GROUP) if entry.name == name), ""):
        return module
    return next((spec.partition(":")[0] for named, spec, _ in one_file.loaded() if named == name), "")
