"""What another package's method declares, looked at when it is loaded: what is wrong would do nothing, or fail late."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from inspect import getattr_static, getfile, getmembers, isfunction, signature
from pathlib import Path
from string import Formatter
from types import FunctionType
from typing import Any, Literal, get_args, get_origin

from medpfl.algorithms import mechanism, mixing_kinds
from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.mechanism import REPLACED, Measuring, Mechanism, Rule
from medpfl.algorithms.mixing_kinds import Mixing
from medpfl.core.gain import Use
from medpfl.core.near import did_you_mean
from medpfl.core.reasons import MECHANISM
from medpfl.core.settings import Settings, checked, defaults, extra, named_fields
from medpfl.training.settings import Training

_REPLACED, _USES = tuple(REPLACED), get_args(Use)
_FORMS: tuple[tuple[str, Any, str], ...] = (
    ("personal", str, "a text, as 'nothing'"),
    ("mechanisms", tuple, "a tuple of classes, as (MyMechanism,)"),
    *((field, Mapping, "a dictionary") for field in ("settings", "under_sgd", "schedule", "training")),
)
"""Of an algorithm's fields."""


def problem(method: Algorithm, entry: str, own: Sequence[Algorithm], for_all: Sequence[type[Mechanism]]) -> str:
    """Why another package's method would not be what it says; empty if nothing is wrong.

    Args:
        method: as its entry point gives it.
        entry: the entry point's name.
        own: this package's methods.
        for_all: mechanisms that any method can have.
    """
    if method.name != entry:
        return f"the method is called {method.name!r}; call the entry point so, too"
    for field, kind, form in _FORMS:
        if not isinstance(found := getattr(method, field), kind):
            return f"{field} must be {form}, not {found!r}"
    if not (isinstance(method.mixing, type) and issubclass(method.mixing, Mixing)):
        return f"mixing must be a class of Mixing, such as medpfl.algorithms.mixing.Samples, not {method.mixing!r}"
    for part in method.mechanisms:
        if not (isinstance(part, type) and issubclass(part, Mechanism)):
            return f"mechanisms must be classes of Mechanism, not {part!r}"
    for part in (*method.mechanisms, method.mixing):
        if wrong := _of_part(part, own):
            return wrong
    if not isinstance(getattr(method.mixing, "what", None), str):
        return f"{method.mixing.__name__} does not say what it is: say what = '...' in it, a line"
    kinds = (*method.mechanisms, *for_all, method.mixing)
    known = {name for kind in kinds for name in named_fields(kind.settings_class)}
    known |= {name for _, name, _, _ in Formatter().parse(method.personal) if name}
    training = set(named_fields(Training))
    where = {"settings": known, "under_sgd": known | training - {"optimizer"}, "training": training}
    for field, names in where.items():
        if strange := [name for name in getattr(method, field) if name not in names]:
            whose = {"training": "local training"}.get(field, "its mechanisms or mixing")
            there = did_you_mean(strange[0], names)
            if strange[0] in training:
                there = "; what is of local training stands in 'training'"
            return f"{field!r} sets {strange[0]!r}, which is no setting of {whose}{there}"
    if method.use not in _USES:
        return f"use={method.use!r} is none of {', '.join(_USES)}{did_you_mean(str(method.use), _USES)}"
    by_name = {name: kind.settings_class for kind in kinds for name in named_fields(kind.settings_class)}
    given = {**method.settings, **method.under_sgd, **method.training}
    return _unfit({name: (by_name.get(name, Training), value) for name, value in given.items()})


def _of_part(part: type[Mechanism], own: Sequence[Algorithm]) -> str:
    """What is wrong with a mechanism or a mixing; empty for nothing."""
    name = part.__name__
    if misspelt := _misspelt(part):
        return f"{name} has {misspelt[0]!r}, which nothing calls; did you mean {misspelt[1]!r}?"
    if not isinstance(getattr(part, "name", None), str):
        return f"{name} has no name: say name = '...' in it"
    if not re.fullmatch(MECHANISM, part.name):
        return f"{name} is called {part.name!r}: use small letters, digits, - and _, a letter first, 41 at most"
    if not (isinstance(part.settings_class, type) and issubclass(part.settings_class, Settings)):
        return f"{name} has settings_class={part.settings_class!r}: use a class of medpfl.core.settings.Settings"
    if strange := [each for each in part.switches() if each not in named_fields(part.settings_class)]:
        return f"{name} is turned on by {strange[0]!r}, which is none of its settings"
    if not isinstance(part.replaces, tuple) or any(each not in _REPLACED for each in part.replaces):
        said = f"{name} has replaces = {part.replaces!r}"
        return f"{said}: use a tuple of some of {', '.join(map(repr, _REPLACED))}, as ('train',)"
    if not isinstance(part.numbers, Mapping) or not all(map(_is_range, part.numbers.values())):
        return f"{name} has numbers = {part.numbers!r}: use a dictionary of (least, most) by name, the class's own"
    if part.newcomer is not None and not isinstance(part.newcomer, Rule):
        return f"{name} has newcomer = {part.newcomer!r}: use a Rule('what a joining site gets', 'why')"
    if lacking := getattr(part, "__abstractmethods__", None):
        return f"{name} lacks {', '.join(sorted(lacking))}"
    if misfit := _misfit(part):
        return f"{name}: {misfit}"
    if getattr(part, "common", False) and getattr(part, "weighs_sites", False):
        return f"{name} says common = True and weighs_sites = True: the cap on others' weights gives each site its own"
    for each, field in named_fields(part.settings_class).items():
        if field.is_required():
            return f"{name}: its setting {each!r} has no default: say setting(DEFAULT, 'what it is')"
        if not _is_plain(field.annotation):
            return f"{name}: its setting {each!r} is {field.annotation}: use float, int, str or a Literal of words"
    if wrong := _unfit({n: (part.settings_class, value) for n, value in defaults(part.settings_class).items()}):
        return f"{name}: by default its {wrong}"
    return _ambiguous(part, own)


def _is_range(said: Any) -> bool:
    pair = isinstance(said, tuple | list) and len(said) == 2
    return pair and all(isinstance(number, int | float) for number in said) and said[0] <= said[1]


def _misfit(part: type[Mechanism]) -> str:
    """Which of its hooks cannot be called as a run calls it, some only at its end; empty if all can."""
    made = object.__new__(part)
    for name, hook in _hooks(part).items():
        of_class, own = isinstance(hook, classmethod), getattr_static(part, name)
        whose, *given = signature(hook.__func__ if of_class else hook).parameters
        found = None if isinstance(own, property) else getattr(part if of_class else made, name)
        if not callable(found):
            return f"its {name} must be a method, not {own!r}"
        try:
            taken = signature(found)
            taken.bind(*given, **({"updates": None} if name == "matrix" and "updates" in taken.parameters else {}))
        except (TypeError, ValueError) as error:
            more = ", and 'updates' if it is made of this round's" if name == "matrix" else ""
            return f"its {name} must take ({', '.join([whose, *given])}){more}: {error}"
    return ""


def _hooks(part: type[Mechanism]) -> dict[str, FunctionType | classmethod]:
    """What a run calls of a mechanism, as this package defines it."""
    ours = [kind for kind in part.__mro__ if kind.__module__ in (mechanism.__name__, mixing_kinds.__name__)]
    members = {name: member for kind in reversed(ours) for name, member in vars(kind).items() if name[0] != "_"}
    return {name: member for name, member in members.items() if isinstance(member, FunctionType | classmethod)}


def _is_plain(annotation: Any) -> bool:
    words = get_origin(annotation) is Literal and all(isinstance(word, str) for word in get_args(annotation))
    return words or annotation in (float, int, str)


def _unfit(values: Mapping[str, tuple[type[Settings], Any]]) -> str:
    """Which value is none for its setting, in words; empty if all are. What fills in a personal part is not looked at.

    Args:
        values: by setting, with the class that has it.
    """
    for name, (kind, value) in values.items():
        if name in named_fields(kind):
            try:
                checked(kind, {name: value})
            except ValueError as error:
                return str(error)
    return ""


def _ambiguous(part: type[Mechanism], own: Sequence[Algorithm]) -> str:
    """Why a paper's symbol cannot stand for a setting: in every run it is the name of another one; empty if it can."""
    listed = [kind.settings_class for a in own for kind in a.mechanisms if kind.listed and kind is not part]
    taken = {name for kind in (Training, *listed) for name in named_fields(kind)}
    for name, field in named_fields(part.settings_class).items():
        if (symbol := extra(field, "symbol")) in taken and symbol != name:
            return (
                f"{part.__name__}: the symbol {symbol!r} of its setting {name!r} is the name of another setting, which "
                f"--set {symbol}=... would mean: say it in the help, and leave the symbol out"
            )
    return ""


def _misspelt(part: type[Mechanism]) -> tuple[str, str] | None:
    """A method that is called nearly as one of a mechanism's and takes as much: it would silently do nothing.

    Not one that its own file calls, nor one of a package without source code.
    """
    hooks = {name: f for name, f in getmembers(Measuring, isfunction) if not name.startswith("_")}
    for kind in part.__mro__:
        own = {} if issubclass(Measuring, kind) else vars(kind)
        for name, method in own.items():
            near = difflib.get_close_matches(name, hooks, n=1, cutoff=0.8)
            if not near or name in hooks or name.startswith("_") or not isfunction(method):
                continue
            if _takes(method) == _takes(hooks[near[0]]) and not _is_called(name, kind):
                return name, near[0]
    return None


def _takes(method: FunctionType) -> int:
    return len(signature(method).parameters)


def _is_called(name: str, kind: type) -> bool:
    """Whether the file of a class speaks of a method of that name; where it is not there, perhaps."""
    try:
        return bool(re.search(rf"\.{name}\b", Path(getfile(kind)).read_text(encoding="utf-8")))
    except (TypeError, OSError):
        return True
