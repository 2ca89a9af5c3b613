"""The options that `run`, `compare` and `export` have in common, and the configuration that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer

from medpfl.config.fields import DATA, FAULTS, METHOD, OPTIONS, PLACE, RUN, TRAINING, default_in_words, flag_of
from medpfl.core.errors import UserError
from medpfl.core.settings import extra, value_of

if TYPE_CHECKING:
    from medpfl.config.run import RunConfig

PANELS = ("", DATA, METHOD, TRAINING, RUN, PLACE, FAULTS)
"""The headings of ``--help``, in their order; what has none stands first."""
_PRESET = typer.Option(
    help="YAML file of options by name, e.g. of app_config/presets; what the command line says goes first.",
    show_default=False,
)
_TEXT = ("sites", "fractions", "held_out")
"""Fields that a command line has as text, which is read below."""


class Options:
    """What the command line said, before it is checked; what it did not say, a preset may.

    Args:
        preset: a file of fields.
        without: fields that the command does not take.
        line: :data:`medpfl.config.fields.OPTIONS` as typer reads them; None for what was not said.
    """

    def __init__(self, preset: Path | None = None, without: Sequence[str] = (), **line: Any):
        self.preset, self.without = preset, without
        mappings = {name: key_values(line.get(name), flag_of(name)) for name in OPTIONS if _is_mapping(name)}
        self.line = dict.fromkeys(OPTIONS) | line | mappings

    def config(self, algorithm: str) -> RunConfig:
        """The checked configuration. Raises UserError for what is wrong."""
        from medpfl.runs.asked import config_of

        return config_of(algorithm, self.fields, self.naming_preset)

    def configs(self, algorithms: Sequence[str], seeds: str) -> list[tuple[str, RunConfig]]:
        """A comparison's (:func:`medpfl.runs.asked.configs_of`). Raises UserError for what is wrong."""
        from medpfl.runs.asked import configs_of

        return configs_of(algorithms, seeds, self.fields, self.naming_preset)

    def of_a_run(self) -> Options:
        """The same, with a preset that may say whatever a run has."""
        found = copy(self)
        found.without = ()
        return found

    @contextmanager
    def naming_preset(self) -> Iterator[None]:
        """Adds to a UserError that there was a preset, where the mistake may be."""
        try:
            yield
        except UserError as error:
            raise UserError(f"{error} (with --preset {self.preset})" if self.preset else str(error)) from None

    def said(self) -> dict[str, Any]:
        """The fields of a configuration that the command line and its preset speak of."""
        return {name: value for name, value in self.fields.items() if value is not None and value != {}}

    @cached_property
    def fields(self) -> dict[str, Any]:
        """Fields of a configuration: the command line's or else the preset's, None or empty where neither says any.

        Of ``data_args``, ``model_args`` and ``settings`` each entry counts by itself. Paths in a preset are what they
        would be on the command line. Raises UserError for a preset that cannot be used.
        """
        from medpfl.runs.asked import as_meant

        preset = self._preset()
        fields = {name: preset.get(name) if value is None else value for name, value in self.line.items()}
        fields |= {name: preset.get(name, {}) | value for name, value in self.line.items() if isinstance(value, dict)}
        return as_meant(fields | {"fractions": _fractions(fields["fractions"])})

    def _preset(self) -> dict[str, Any]:
        from medpfl.config.preset import read_preset

        if self.preset is None:
            return {}
        return read_preset(self.preset, [name for name in OPTIONS if name not in self.without])


def takes_options(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the fields of a run as options of its own, and hands them to it as ``options``.

    Args:
        without: fields that the command does not take.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        declared = signature(command, eval_str=True).parameters
        own = [p.replace(kind=Parameter.KEYWORD_ONLY) for name, p in declared.items() if name != "options"]
        names = [name for name in OPTIONS if name not in without]
        parameters = sorted([*map(_of_field, names), *own, _parameter("preset", Path, _PRESET)], key=_place)

        @wraps(command)
        def with_options(**values: Any) -> None:
            said = {name: values.pop(name) for name in ("preset", *names)}
            command(options=Options(**said, without=without), **values)

        with_options.__signature__ = Signature(parameters)
        with_options.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_options

    return decorate


def _of_field(name: str) -> Parameter:
    """A field as an option, None unless the user gives it."""
    field, flag = OPTIONS[name], extra(OPTIONS[name], "flag")
    declared = (field.annotation, *get_args(field.annotation))
    plain = str if name in _TEXT else next((kind for kind in (bool, int, float) if kind in declared), str)
    option = typer.Option(
        *filter(None, [flag]),
        help=field.description,
        show_default=default_in_words(name) or False,
        rich_help_panel=extra(field, "panel") or None,
    )
    return _parameter(name, list[str] if _is_mapping(name) else plain, option)


def _parameter(name: str, kind: Any, option: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option])


def _is_mapping(name: str) -> bool:
    return get_origin(OPTIONS[name].annotation) is dict


def _place(parameter: Parameter) -> tuple[bool, int]:
    """What must be given goes first, then what stands first in ``--help``."""
    option = get_args(parameter.annotation)[-1]
    return parameter.default is not Parameter.empty, PANELS.index(option.rich_help_panel or "")


def key_values(items: list[str] | None, option: str) -> dict[str, Any]:
    """KEY=VALUE items as a dict; values are read as JSON where they are JSON. UserError names a malformed item."""
    values = {}
    for item in items or []:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise UserError(f"{option} {item}: give KEY=VALUE")
        values[key] = value_of(text)
    return values


def _fractions(given: str | list[float] | None) -> tuple[float, ...] | None:
    if given is None:
        return None
    try:
        parts = tuple(float(part) for part in (given.split(",") if isinstance(given, str) else given))
    except ValueError:
        parts = ()
    if len(parts) != 3:
        raise UserError(f"--fractions {given}: give three shares, e.g. 0.5,0.1,0.4 for training, validation and test")
    return parts
