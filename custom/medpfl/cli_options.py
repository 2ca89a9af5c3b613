"""The options that `run`, `compare` and `export` have in common, and the configuration that they make."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from medpfl.errors import UserError

if TYPE_CHECKING:
    from medpfl.config import RunConfig

Data = Annotated[str | None, typer.Option(help="Data set name or file (`medpfl data list`).", show_default="sample")]
Model = Annotated[str | None, typer.Option(help="Network (`medpfl models`).", show_default="lenet5")]
ModelArg = Annotated[list[str] | None, typer.Option("--model-arg", help="KEY=VALUE for the network; repeatable.")]
Sites = Annotated[int | None, typer.Option(help="Number of simulated sites.", show_default="20")]
Rounds = Annotated[int | None, typer.Option(help="Rounds of training and mixing.", show_default="20")]
LocalEpochs = Annotated[int | None, typer.Option(help="Epochs a site trains in a round.", show_default="1")]
PartitionOption = Annotated[
    str | None,
    typer.Option(
        "--partition",
        help="How images are divided: dirichlet:A, equal-dirichlet:A, iid, natural, fedimpres-A, file:PATH.",
        show_default="equal-dirichlet:0.1",
    ),
]
Fractions = Annotated[
    str | None,
    typer.Option(help="Shares of a site's images: training,validation,test.", show_default="0.5,0.1,0.4"),
]
TrainFraction = Annotated[
    float | None, typer.Option(help="Share of each site's training images that is used.", show_default="1")
]
Official = Annotated[bool, typer.Option("--official", help="Keep the data set's own training/validation/test parts.")]
HeldOut = Annotated[
    str | None,
    typer.Option(help="Centres that only test the models: how many (the last ones), or their names.", show_default="0"),
]
Personal = Annotated[
    str | None,
    typer.Option(
        help="What stays at the sites: nothing, batch-norm, top:K, below-top:K, heads:P, modules:A,B; joined by +."
    ),
]
Mixing = Annotated[
    str | None,
    typer.Option(help="samples, similarity, similarity-classifier, similarity-running, uniform, identity."),
]
Set = Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE: lr, batch_size, lambda, mu, ...; repeatable.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.", show_default="auto")]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random.", show_default="0")]
SelectBy = Annotated[
    str | None,
    typer.Option(help="Validation measure that selects the round.", show_default="accuracy"),
]
MinSites = Annotated[int | None, typer.Option(help="Quorum of a round.", show_default="half of the sites")]
Timeout = Annotated[float | None, typer.Option(help="Seconds to wait for a site.", show_default="3600")]
Grace = Annotated[
    float | None, typer.Option(help="Seconds for stragglers once the quorum is met.", show_default="10 x the quorum's")
]


@dataclass
class Options:
    """What the command line said, before it is checked. Fields are the options above."""

    data: str | None
    model: str | None
    model_arg: list[str] | None
    sites: int | None
    rounds: int | None
    local_epochs: int | None
    partition: str | None
    fractions: str | None
    train_fraction: float | None
    official: bool
    held_out: str | None
    personal: str | None
    mixing: str | None
    settings: list[str] | None
    device: str | None
    seed: int | None
    select_by: str | None
    min_sites: int | None
    timeout: float | None
    grace: float | None

    def config(self, algorithm: str, defaults: Mapping[str, Any] | None = None, **changes: Any) -> RunConfig:
        """The checked configuration, with defaults for what was not said. Raises UserError for what is wrong."""
        from medpfl.config import make_config
        from medpfl.data.sites import fixed_sites

        fields = {
            "algorithm": algorithm,
            "data": self._data(),
            "model": self.model,
            "model_args": key_values(self.model_arg, "--model-arg"),
            "sites": self.sites,
            "rounds": self.rounds,
            "local_epochs": self.local_epochs,
            "partition": self._partition(),
            "fractions": _fractions(self.fractions),
            "train_fraction": self.train_fraction,
            "official": self.official,
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
        }
        fields |= changes
        fields |= {k: v for k, v in (defaults or {}).items() if fields[k] is None}
        if self.sites is None and fields["partition"]:
            fixed = fixed_sites(fields["data"] or "organamnist-sample", fields["partition"])
            fields["sites"] = fixed and fixed - (fields["held_out"] or 0)
        return make_config(**fields)

    def _data(self) -> str | None:
        # Sites run in other folders: a file is named by its whole path.
        return str(Path(self.data).resolve()) if self.data and Path(self.data).exists() else self.data

    def _settings(self) -> dict[str, Any]:
        settings = key_values(self.settings, "--set")
        if isinstance(path := settings.get("pretrain"), str) and path != "pooled":
            settings["pretrain"] = str(Path(path).resolve())
        return settings

    def _partition(self) -> str | None:
        if self.partition and self.partition.startswith("file:"):
            return f"file:{Path(self.partition.removeprefix('file:')).resolve()}"
        return self.partition


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
