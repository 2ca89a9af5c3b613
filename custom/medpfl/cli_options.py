"""The options that `run`, `compare` and `export` have in common, and the configuration that they make."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from medpfl.errors import UserError

if TYPE_CHECKING:
    from medpfl.config import RunConfig


@dataclass
class Options:
    """What the command line said, before it is checked."""

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
        bool, typer.Option("--official", help="Keep the data set's own training/validation/test parts.")
    ] = False
    holdout: Annotated[
        float | None,
        typer.Option(help="Share of the images that no site gets, for FedImpres to start from.", show_default="0"),
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
        typer.Option(help="samples, similarity, similarity-classifier, similarity-running, uniform, identity."),
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
    large_updates: Annotated[
        str | None,
        typer.Option(help="Updates far larger than the others': refuse, clip or accept.", show_default="refuse"),
    ] = None
    large_factor: Annotated[
        float | None,
        typer.Option(help="How many times the others' median an update may be.", show_default="100"),
    ] = None

    def config(self, algorithm: str, defaults: Mapping[str, Any] | None = None, **changes: Any) -> RunConfig:
        """The checked configuration, with defaults for what was not said. Raises UserError for what is wrong."""
        from medpfl.config import make_config
        from medpfl.data.kinds import kind_of
        from medpfl.data.sites import fixed_sites

        given = {"algorithm": algorithm} | self._fields()
        given |= changes
        given |= {k: v for k, v in (defaults or {}).items() if given[k] is None}
        data = given["data"] or "organamnist-sample"
        if what := {"scans": "CT scans", "folders": "image folders"}.get(kind_of(data, given["data_args"])):
            if self.partition not in (None, "natural"):
                raise UserError(f"--partition {self.partition}: {what} are their own centres'; leave it out")
            given["partition"] = "natural"
        if self.sites is None and given["partition"]:
            given["sites"] = fixed_sites(data, given["partition"], given["data_args"], given["held_out"] or 0)
        return make_config(**given)

    def said(self) -> dict[str, Any]:
        """The fields of a configuration that the command line speaks of."""
        return {
            name: value
            for name, value in self._fields().items()
            if value is not None and value is not False and value != {}
        }

    def _fields(self) -> dict[str, Any]:
        return {
            "data": self._data(),
            "data_args": key_values(self.data_arg, "--data-arg"),
            "pooling": self.pooling,
            "model": self.model,
            "model_args": key_values(self.model_arg, "--model-arg"),
            **_sites(self.sites),
            "rounds": self.rounds,
            "local_epochs": self.local_epochs,
            "partition": self._partition(),
            "fractions": _fractions(self.fractions),
            "train_fraction": self.train_fraction,
            "official": self.official,
            "holdout": self.holdout,
            "held_out": int(self.held_out) if (self.held_out or "").isdecimal() else self.held_out,
            "personal": self.personal,
            "mixing": self.mixing,
            "settings": self._settings(),
            "device": self.device,
            "seed": self.seed,
            "select_by": self.select_by,
            "min_sites": self.min_sites,
            "timeout": self.timeout,
            "grace": self.grace,
            "large_updates": self.large_updates,
            "large_factor": self.large_factor,
        }

    def _data(self) -> str | None:
        from medpfl.data.kinds import meant

        if not self.data or not (path := Path(self.data)).exists():
            return self.data
        # A folder may happen to be called like a data set that is meant.
        if path.is_dir() and meant(self.data) != path:
            return self.data
        # Sites run in other folders: a file is named by its whole path.
        return str(path.resolve())

    def _settings(self) -> dict[str, Any]:
        settings = key_values(self.settings, "--set")
        for name, words in (("pretrain", ("pooled",)), ("start", ("noise", "holdout"))):
            if isinstance(path := settings.get(name), str) and path not in words:
                settings[name] = str(Path(path).resolve())
        return settings

    def _partition(self) -> str | None:
        if self.partition and self.partition.startswith("file:"):
            return f"file:{Path(self.partition.removeprefix('file:')).resolve()}"
        return self.partition


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
            if f.name not in without
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
            command(options=Options(**{p.name: values.pop(p.name) for p in common}), **values)

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


def _sites(given: str | int | None) -> dict[str, Any]:
    """``sites`` and ``names`` of a number or of names with commas between."""
    if given is None:
        return {"sites": None, "names": None}
    text = str(given).strip()
    if text.removeprefix("-").isdecimal():
        return {"sites": int(text), "names": None}
    names = tuple(name.strip() for name in text.split(","))
    return {"sites": len(names), "names": names}


def _fractions(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        parts = tuple(float(part) for part in text.split(","))
    except ValueError:
        parts = ()
    if len(parts) != 3:
        raise UserError(f"--fractions {text}: give three shares, e.g. 0.5,0.1,0.4 for training, validation and test")
    return parts
