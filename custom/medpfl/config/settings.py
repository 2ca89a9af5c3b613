"""Which settings a run accepts, from its mixing, its mechanisms and local training, and their values in force."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter

from medpfl.algorithms import mechanisms, mixings
from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.mechanism import Mechanism
from medpfl.core.near import did_you_mean
from medpfl.core.settings import Settings, Value, checked, defaults, extra, named_fields, setting
from medpfl.training.optimizers import OWN_TO_SOME
from medpfl.training.settings import Training


class Layers(Settings):
    """What fills in the braces of a personal part."""

    layers: int = setting(1, "weighted layers at the top", gt=0)
    p: float = setting(0.6, "share of the attention heads that are personal", ge=0, le=1)


@dataclass(frozen=True)
class Accepted:
    """The settings of a run.

    Attributes:
        kinds: classes of settings whose fields are accepted, by field.
        defaults: their values where the user gives none, by the names of ``--set``.
        in_force: mechanisms.
    """

    kinds: Mapping[str, type[Settings]]
    defaults: Mapping[str, Value]
    in_force: tuple[type[Mechanism], ...]

    def meant(self, name: str, given: Mapping[str, Value]) -> str:
        """The setting that a name stands for: its own, or the only one for which the paper has that symbol."""
        if name in self.defaults:
            return name
        kinds = {n: kind for n, kind in self.kinds.items() if n in self.defaults}
        of_symbol = [n for n, kind in kinds.items() if extra(named_fields(kind)[n], "symbol") == name]
        return of_symbol[0] if len(of_symbol) == 1 and of_symbol[0] not in given else name

    def in_full(self, given: Mapping[str, Value]) -> dict[str, Value]:
        """All values; whole numbers as such."""
        values = {name: value for name, value in given.items() if name in self.defaults}
        whole = {name for name, kind in self.kinds.items() if named_fields(kind)[name].annotation is int}
        return {name: int(v) if name in whole else v for name, v in {**self.defaults, **values}.items()}

    def of(self, kind: type[Mechanism], given: Mapping[str, Value]) -> Settings:
        """A mechanism's own."""
        values = self.in_full(given)
        return kind.settings_class(**{name: values[name] for name in named_fields(kind.settings_class)})

    def check(self, given: Mapping[str, Value]) -> None:
        """Raises ValueError, in words, if a value is out of its range."""
        for name, value in given.items():
            checked(self.kinds[name], {name: value})

    def near(self, name: str) -> str:
        """A hint at the setting that was meant, by its name or by the words that describe it; empty for none."""
        known = {n: named_fields(kind)[n].description for n, kind in self.kinds.items()}
        words = name.replace("_", " ")
        described = [n for n, said in known.items() if re.match(rf"{re.escape(words)}\b", said)]
        # The plain one of several: lr, and not finetune_lr, for learning_rate.
        return did_you_mean(min(described, key=len, default=name), known)

    def at_server(self, name: str) -> bool:
        """Whether a setting is the server's business alone."""
        return name in self.kinds and bool(extra(named_fields(self.kinds[name])[name], "at_server"))


def own_defaults(method: Algorithm, given: Mapping[str, Value] | None = None) -> dict[str, Value]:
    """The settings of a method as published, of local training those that it has a word on, beside what was given."""
    found, own = accepted(method, None, None, given or {}), {**method.under_sgd, **method.training}
    return {name: value for name, value in found.defaults.items() if found.kinds[name] is not Training or name in own}


def described(method: Algorithm) -> list[tuple[str, Value, str, str]]:
    """Each setting of a method: name, default, the paper's symbol, and what it is."""
    found = accepted(method, None, None, {})
    fields = {name: named_fields(found.kinds[name])[name] for name in found.defaults}
    return [(n, found.defaults[n], extra(f, "symbol") or "", f.description) for n, f in fields.items()]


def paths() -> dict[str, tuple[str, ...]]:
    """The settings that are paths unless they are one of some words, and those words."""
    kinds = {part.settings_class for part in (*mixings().values(), *mechanisms().values())}
    fields = {name: field for kind in kinds for name, field in named_fields(kind).items()}
    return {name: words for name, field in fields.items() if (words := extra(field, "words"))}


def accepted(method: Algorithm, personal: str | None, mixing: str | None, given: Mapping[str, Value]) -> Accepted:
    """The settings that have a meaning for a method.

    Args:
        method: the method.
        personal: the user's personal part instead of its own.
        mixing: the user's mixing instead of its own.
        given: the user's settings: one that is a switch turns a mechanism on.
    """
    kinds: dict[str, type[Settings]] = {}
    values: dict[str, Value] = {}
    in_force: list[type[Mechanism]] = []
    optimizer = given.get("optimizer", _optimizer(method))
    own_values = {**method.settings, **(method.under_sgd if optimizer == "sgd" else {})}

    def take(kind: type[Settings], names: list[str] | None = None) -> None:
        for name, default in defaults(kind).items():
            if names is None or name in names:
                kinds.setdefault(name, kind)
                values[name] = own_values.get(name, default)

    if personal is None:
        take(Layers, [name for _, name, _, _ in Formatter().parse(method.personal) if name])
    where = personal or method.personal
    rule = mixings().get(mixing or method.mixing.name)
    taken = set(named_fields(rule.settings_class)) if rule else set()
    for part in mechanisms().values():
        if not part.applies(where):
            continue
        own = part in method.mechanisms
        said = _by_symbols(part, given, taken) if own or part.listed else given
        if own or part.is_on(said):
            in_force.append(part)
            take(part.settings_class)
        elif part.listed:
            take(part.settings_class)
        else:
            take(part.settings_class, list(part.switches()))
            for name in part.switches():
                values.pop(name, None)
    if rule is not None:
        take(rule.settings_class)
    take(Training)
    return Accepted(kinds, {**values, **_training(method, given)}, tuple(in_force))


def _training(method: Algorithm, given: Mapping[str, Value]) -> dict[str, Value]:
    """The paper's settings of training; what belongs to its optimizer goes with it where the user takes another."""
    usual = _optimizer(method)
    other = given.get("optimizer", usual) != usual
    return {name: value for name, value in method.training.items() if not (other and name in OWN_TO_SOME)}


def _optimizer(method: Algorithm) -> Value:
    """With which a method's sites train where the user says nothing."""
    return method.training.get("optimizer", Training.model_fields["optimizer"].default)


def _by_symbols(part: type[Mechanism], given: Mapping[str, Value], taken: set[str]) -> dict[str, Value]:
    """What was given, with the papers' symbols as names unless the mixing has a setting of that name."""
    symbols = {extra(f, "symbol"): name for name, f in named_fields(part.settings_class).items()}
    return {symbols.get(name, name) if name not in taken else name: value for name, value in given.items()}
