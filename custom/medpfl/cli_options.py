"""The options that `run`, `compare` and `export` have in common, and the configuration that they make."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from medpfl.errors import UserError

if TYPE_CHECKING:
    from medpfl.config import RunConfig


@dataclass
class Options:
    """What the command line said, before it is checked; what it did not say, a preset may."""

    preset: Annotated[
        Path | None,
        typer.Option(
            help="YAML file of options by name, e.g. of app_config/presets; what the command line says goes first.",
            show_default=False,
        ),
    ] = None
    data: Annotated[
        str | None,
        typer.Option(
            help="Data set name, file, or folder of CT scans or pictures (`medpfl data list`).", show_default="sample"
        ),
    ] = None
    data_arg: Annotated[
        list[str] | None,
        typer.Option(
            "--data-arg",
            help="KEY=VALUE. CT: size, slices, window, spacing, lung_crop, e.g. window=[-1000,400]; pictures: size, "
            "fit, channels, patient; npz: pad.",
        ),
    ] = None
    pooling: Annotated[
        str | None, typer.Option(help="Over a scan's slices: mean or attention.", show_default="mean")
    ] = None
    model: Annotated[
        str | None, typer.Option(help="Network (`medpfl models`).", show_default="lenet5, or the method's")
    ] = None
    model_arg: Annotated[
        list[str] | None, typer.Option("--model-arg", help="KEY=VALUE for the network; repeatable.")
    ] = None
    sites: Annotated[
        str | None, typer.Option(help="Number of sites, or their names: north,south,east.", show_default="20")
    ] = None
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of training and mixing.", show_default="20, or the method's")
    ] = None
    local_epochs: Annotated[
        int | None, typer.Option(help="Epochs a site trains in a round.", show_default="1, or the method's")
    ] = None
    partition: Annotated[
        str | None,
        typer.Option(
            "--partition",
            help="How images are divided: dirichlet:A, equal-dirichlet:A, iid, natural, fedimpres-A, file:PATH.",
            show_default="equal-dirichlet:0.1 (folders: their centres)",
        ),
    ] = None
    fractions: Annotated[
        str | None,
        typer.Option(help="Shares of a site's images: training,validation,test.", show_default="0.5,0.1,0.4"),
    ] = None
    train_fraction: Annotated[
        float | None, typer.Option(help="Share of each site's training images that is used.", show_default="1")
    ] = None
    official: Annotated[
        bool | None,
        typer.Option(help="Keep the data set's own training/validation/test parts.", show_default="no-official"),
    ] = None
    holdout: Annotated[
        float | None,
        typer.Option(help="Share of the images that no site gets, for FedImpres to start from.", show_default="0"),
    ] = None
    pretrained: Annotated[
        str | None,
        typer.Option(
            help="sha256:FINGERPRINT of the model f, by which sites know it, where the file is not here.",
            show_default=False,
        ),
    ] = None
    held_out: Annotated[
        str | None,
        typer.Option(
            help="Centres that only test the models: how many (the last ones), or their names.", show_default="0"
        ),
    ] = None
    personal: Annotated[
        str | None,
        typer.Option(
            help="What stays at the sites: nothing, batch-norm, top:K, below-top:K, heads:P, modules:A,B; joined by +."
        ),
    ] = None
    mixing: Annotated[
        str | None,
        typer.Option(
            help="samples, similarity, similarity-classifier, similarity-running, uniform, identity, median, "
            "trimmed-mean."
        ),
    ] = None
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE: lr, batch_size, lambda, mu, ...; repeatable.")
    ] = None
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.", show_default="auto")] = None
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.", show_default="0")] = None
    select_by: Annotated[
        str | None,
        typer.Option(help="Validation measure that selects the round.", show_default="accuracy"),
    ] = None
    min_sites: Annotated[int | None, typer.Option(help="Quorum of a round.", show_default="half of the sites")] = None
    timeout: Annotated[float | None, typer.Option(help="Seconds to wait for a site.", show_default="3600")] = None
    grace: Annotated[
        float | None,
        typer.Option(help="Seconds for stragglers once the quorum is met.", show_default="10 x the quorum's"),
    ] = None
    largest_weight: Annotated[
        float | None,
        typer.Option(
            help="By samples: how many times the median site's number a site's counts at most.", show_default="10"
        ),
    ] = None
    weight_cap: Annotated[
        float | None,
        typer.Option(help="By similarity or uniform: the most another site may weigh in a mix.", show_default="1"),
    ] = None
    large_updates: Annotated[
        str | None,
        typer.Option(help="Updates far larger than the others': clip, refuse or accept.", show_default="clip"),
    ] = None
    large_factor: Annotated[
        float | None,
        typer.Option(help="How many times the others' median an update may be.", show_default="5"),
    ] = None
    without: tuple[str, ...] = ()
    """Fields that the command does not take; no option itself."""

    def config(self, algorithm: str, defaults: Mapping[str, Any] | None = None, **changes: Any) -> RunConfig:
        """The checked configuration, with defaults for what was not said. Raises UserError for what is wrong."""
        from medpfl.config import make_config
        from medpfl.data.kinds import kind_of
        from medpfl.data.sites import fixed_sites
        from medpfl.named_code import permit_named

        given = {"algorithm": algorithm} | self._fields
        given |= changes
        given |= {k: v for k, v in (defaults or {}).items() if given[k] is None}
        data, partition = given["data"] or "organamnist-sample", given["partition"]
        if what := {"scans": "CT scans", "folders": "image folders"}.get(kind_of(data, given["data_args"])):
            if partition not in (None, "natural"):
                raise UserError(f"--partition {partition}: {what} are their own centres'; give natural or leave it out")
            given["partition"] = "natural"
        if given["sites"] is None and given["partition"]:
            given["sites"] = fixed_sites(data, given["partition"], given["data_args"], given["held_out"] or 0)
        with self.naming_preset():
            config = make_config(**given)
        permit_named(config)
        return config

    @contextmanager
    def naming_preset(self) -> Iterator[None]:
        """Adds to a UserError that there was a preset, where the mistake may be."""
        try:
            yield
        except UserError as error:
            raise UserError(f"{error} (with --preset {self.preset})" if self.preset else str(error)) from None

    def said(self) -> dict[str, Any]:
        """The fields of a configuration that the command line and its preset speak of."""
        return {name: value for name, value in self._fields.items() if value is not None and value != {}}

    @cached_property
    def _fields(self) -> dict[str, Any]:
        """Fields of a configuration: the command line's or else the preset's, None or empty where neither says any.

        Of ``data_args``, ``model_args`` and ``settings`` each entry counts by itself. Paths in a preset are what they
        would be on the command line. Raises UserError for a preset that cannot be used.
        """
        line, preset = self._line(), self._preset()
        fields = {name: preset.get(name) if value is None else value for name, value in line.items()}
        fields |= {name: preset.get(name, {}) | value for name, value in line.items() if isinstance(value, dict)}
        held_out = fields["held_out"]
        return fields | {
            "data": _whole_path(fields["data"]),
            **_sites(fields["sites"]),
            "partition": _partition(fields["partition"]),
            "fractions": _fractions(fields["fractions"]),
            "held_out": int(held_out) if str(held_out).isdecimal() else held_out,
            "settings": _settings(fields["settings"]),
        }

    def _line(self) -> dict[str, Any]:
        """What the command line says, by the names that a configuration and a preset have for it."""
        return {
            "data": self.data,
            "data_args": key_values(self.data_arg, "--data-arg"),
            "pooling": self.pooling,
            "model": self.model,
            "model_args": key_values(self.model_arg, "--model-arg"),
            "sites": self.sites,
            "rounds": self.rounds,
            "local_epochs": self.local_epochs,
            "partition": self.partition,
            "fractions": self.fractions,
            "train_fraction": self.train_fraction,
            "official": self.official,
            "holdout": self.holdout,
            "held_out": self.held_out,
            "personal": self.personal,
            "mixing": self.mixing,
            "settings": key_values(self.settings, "--set"),
            "device": self.device,
            "seed": self.seed,
            "select_by": self.select_by,
            "min_sites": self.min_sites,
            "timeout": self.timeout,
            "grace": self.grace,
            "largest_weight": self.largest_weight,
            "weight_cap": self.weight_cap,
            "large_updates": self.large_updates,
            "large_factor": self.large_factor,
        }

    def _preset(self) -> dict[str, Any]:
        from medpfl.preset import read_preset

        if self.preset is None:
            return {}
        return read_preset(self.preset, [name for name in self._line() if name not in self.without])


def takes_options(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the fields of :class:`Options` as options of its own, and hands them to it as ``options``.

    Args:
        without: fields that the command does not take.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(Options, include_extras=True)
        common = [
            Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
            for f in fields(Options)
            if f.name not in ("without", *without)
        ]
        hints = get_type_hints(command, include_extras=True)
        own = [
            p.replace(annotation=hints[p.name], kind=Parameter.KEYWORD_ONLY)
            for p in signature(command).parameters.values()
        ]
        first = [p for p in own if p.default is Parameter.empty and p.name != "options"]
        rest = [p for p in own if p.default is not Parameter.empty]

        @wraps(command)
        def with_options(**values: Any) -> None:
            options = Options(**{p.name: values.pop(p.name) for p in common}, without=without)
            command(options=options, **values)

        parameters = [*first, *common, *rest]
        with_options.__signature__ = Signature(parameters)
        with_options.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_options

    return decorate


def key_values(items: list[str] | None, option: str) -> dict[str, Any]:
    """KEY=VALUE items as a dict; values are read as JSON where they are JSON. UserError names a malformed item."""
    values = {}
    for item in items or []:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise UserError(f"{option} {item}: give KEY=VALUE")
        try:
            values[key] = json.loads(text)
        except json.JSONDecodeError:
            values[key] = text
    return values


def _whole_path(data: str | None) -> str | None:
    from medpfl.data.kinds import meant

    if not data or not (path := Path(data)).exists():
        return data
    # A folder may happen to be called like a data set that is meant.
    if path.is_dir() and meant(data) != path:
        return data
    # Sites run in other folders: a file is named by its whole path.
    return str(path.resolve())


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    settings = dict(given)
    for name, words in (("pretrain", ("pooled",)), ("start", ("noise", "holdout"))):
        if isinstance(path := settings.get(name), str) and path not in words:
            settings[name] = str(Path(path).resolve())
    return settings


def _partition(given: str | None) -> str | None:
    if given and given.startswith("file:"):
        return f"file:{Path(given.removeprefix('file:')).resolve()}"
    return given


def _sites(given: str | int | list[str] | None) -> dict[str, Any]:
    """``sites`` and ``names`` of a number, or of names in a list or with commas between."""
    if given is None:
        return {"sites": None, "names": None}
    text = str(given).strip()
    if text.removeprefix("-").isdecimal():
        return {"sites": int(text), "names": None}
    names = tuple(given) if isinstance(given, list) else tuple(name.strip() for name in text.split(","))
    return {"sites": len(names), "names": names}


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
