"""A finished run, comparison or sweep as objects: their figures, tables and models."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from rich.table import Table as RichTable
from torch import nn

from medpfl.algorithms.base import Algorithm
from medpfl.config.run import RunConfig
from medpfl.core.errors import TornFile, UserError
from medpfl.core.home import at_home
from medpfl.core.near import did_you_mean
from medpfl.core.site_data import PARTS, Part
from medpfl.core.statefile import read_state
from medpfl.data.sites import open_source
from medpfl.engine.first_model import seeded_model
from medpfl.models.blend import restored
from medpfl.report.compare_table import comparison_rows
from medpfl.report.headline import summary
from medpfl.report.page import table_html
from medpfl.report.page_parts import Table as PageTable
from medpfl.report.page_tables import site_table
from medpfl.report.reading import load_results
from medpfl.report.run_table import run_table
from medpfl.report.sweep import sweep_rows
from medpfl.report.terminal import comparison_table, sweep_table
from medpfl.runs.comparison import Variant
from medpfl.runs.own_code import method_spec

_WIDTH = 100


class Shown:
    """A table: text where it is printed, HTML where a notebook shows it."""

    def __init__(self, text: RichTable, page: PageTable):
        self._text, self._page = text, page

    def __repr__(self) -> str:
        lines = StringIO()
        Console(file=lines, width=_WIDTH, force_jupyter=False).print(self._text)
        return "\n".join(line.rstrip() for line in lines.getvalue().splitlines())

    def _repr_html_(self) -> str:
        return table_html(self._page)


class Models(Mapping[str, nn.Module]):
    """By site, the network with the weights that the site uses; each is made when it is first asked for.

    On the CPU, in eval mode. Inputs are what training gave it: float32 in [-1, 1], (B, C, H, W).

    Raises:
        KeyError: there is no model of that site.
        UserError: its file is damaged, or is of another network or other data.
    """

    def __init__(self, folder: Path, config: RunConfig, temporary: TemporaryDirectory | None):
        self._folder, self._config = folder, config
        self._temporary = temporary  # there as long as this is, too
        self._made: dict[str, nn.Module] = {}

    def __getitem__(self, site: str) -> nn.Module:
        if site not in self._made:
            if site not in list(self):
                raise KeyError(f"no model of {site!r}: there are {', '.join(self) or 'none'}")
            model = seeded_model(self._config, open_source(self._config), torch.device("cpu"))
            file = self._folder / f"{site}.safetensors"
            try:
                self._made[site] = restored(model, read_state(file)[0]).eval()
            except TornFile as error:
                raise UserError(str(error)) from None
            except RuntimeError as error:  # other names or shapes
                raise UserError(f"{file}: not the weights of {self._config.model} for these data") from error
        return self._made[site]

    def __iter__(self) -> Iterator[str]:
        there = {file.stem for file in self._folder.glob("*.safetensors")}
        return (name for name in self._config.site_names if name in there)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"models of {', '.join(self)}"


class _Kept(ABC):
    """What a finished piece of work left in a folder.

    Attributes:
        results: its figures.
        folder: where its files are. One that the user did not name goes when this object does.
    """

    def __init__(self, results: dict[str, Any], folder: Path, temporary: TemporaryDirectory | None):
        self.results, self.folder = results, folder
        self._temporary = temporary

    def report(self) -> Path:
        """The page about it, one self-contained HTML file."""
        return self.folder / "report.html"

    @abstractmethod
    def table(self) -> Shown:
        """Its figures as a table."""

    def save(self, folder: str | Path) -> Path:
        """Copies all its files to a folder, which must not be there or be empty.

        Raises:
            UserError: something is in it.
        """
        target = at_home(folder)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UserError(f"{target}: something is there; choose another folder")
        shutil.copytree(self.folder, target, dirs_exist_ok=True)
        return target

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


class Run(_Kept):
    """A finished run: what :func:`medpfl.run` and :func:`medpfl.load` give.

    Attributes:
        results: the content of results.json.
        folder: where its files are. One that the user did not name goes when this object does.
        models: by site, the network with the weights that the site uses (:class:`Models`).
    """

    def __init__(self, results: dict[str, Any], folder: Path, temporary: TemporaryDirectory | None, config: RunConfig):
        super().__init__(results, folder, temporary)
        self.models = Models(folder / "models", config, temporary)
        self._config = config

    def predictions(self, site: str, part: Part = "test") -> Any:
        """What the model that a site uses predicts on the site's own samples, case by case, in their order.

        Args:
            site: its name.
            part: ``test``, ``validation``, or ``train`` as it is without augmentation.

        Returns:
            Probabilities (cases, classes) and labels (cases,), for several labels a sample both (cases, labels); of
            masks what the measures are made of (:mod:`medpfl.tasks.segmentation`). A case is what the measures count:
            of scans a patient.

        Raises:
            UserError: there is no such site or part, the data or the site's model are not here, or the site has no such
                samples.
        """
        if not self.models:
            raise UserError(f"{self.folder}: no site's model is in it; real sites keep theirs")
        if site not in list(self.models):
            hint = did_you_mean(str(site), self.models)
            raise UserError(f"no site {site!r}{hint}: it has {', '.join(self.models)}")
        if part not in PARTS:
            raise UserError(f"part={part!r}: use {', '.join(PARTS)}")
        model, data = self.models[site], open_source(self._config).site(site, torch.device("cpu"))
        if not data.samples(part):
            raise UserError(f"{site} has no {part} samples")
        return self._config.learned.predict(model, data, part)

    def table(self) -> Shown:
        """One row for every site: its test measures at the selected round; then mean and worst."""
        return Shown(run_table(self.results, _WIDTH), site_table(self.results))

    def __repr__(self) -> str:
        return summary(self.results)


class Comparison(_Kept):
    """A finished comparison: what :func:`medpfl.compare` gives.

    Attributes:
        results: the content of comparison.json.
        folder: where its files are, each run's in ``VARIANT/seed-S``. One that the user did not name goes when this
            object does.
    """

    def __init__(
        self,
        results: dict[str, Any],
        folder: Path,
        temporary: TemporaryDirectory | None,
        runs: Sequence[tuple[str, RunConfig]] = (),
    ):
        super().__init__(results, folder, temporary)
        self._runs = {(name, config.seed): config for name, config in runs}

    def run(self, variant: str | Algorithm, seed: int | None = None) -> Run:
        """One of its runs, with its models and predictions.

        Args:
            variant: as :func:`medpfl.compare` was given it, or as its folder is called.
            seed: of the run; by default the comparison's first.

        Raises:
            UserError: it has no such run, or that run ended early.
        """
        names = [*dict.fromkeys(name for name, _ in self._runs)]
        variant = variant if isinstance(variant, str) else method_spec(variant, elsewhere=False)
        name = variant if variant in names else Variant.parse(variant).folder
        if name not in names:
            raise UserError(f"no run of {variant!r}{did_you_mean(name, names)}: it has {', '.join(names)}")
        seeds = [s for of, s in self._runs if of == name]
        if (seed := seeds[0] if seed is None else seed) not in seeds:
            raise UserError(f"no run of {variant!r} with seed {seed}: it has {', '.join(map(str, seeds))}")
        folder = self.folder / name / f"seed-{seed}"
        return Run(load_results(folder), folder, self._temporary, self._runs[name, seed])

    def table(self) -> Shown:
        """One row for every variant: means over sites and seeds, and the differences to local training."""
        page = PageTable("Algorithms compared", *comparison_rows(self.results))
        return Shown(comparison_table(self.results, _WIDTH), page)

    def __repr__(self) -> str:
        return repr(self.table())


class Swept(_Kept):
    """A finished sweep: what :func:`medpfl.compare` gives with ``sweep``.

    Attributes:
        results: the content of sweep.json.
        folder: where its files are, each run's in ``VARIANT/NAME=VALUE/seed-S``. One that the user did not name goes
            when this object does.
    """

    def table(self) -> Shown:
        """One row for every variant and value: means over sites and seeds, and the difference to local training."""
        return Shown(sweep_table(self.results), PageTable("The swept setting", *sweep_rows(self.results)))

    def __repr__(self) -> str:
        return repr(self.table())
