"""One setting swept over values: a comparison at each, and a curve over them for every method.

A weight, local epochs and rounds that change together, the number of sites, a partition: whatever a run can be told. A
run of which a value changes nothing, because its method has no such setting, is made once and drawn at all values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import chain, product
from pathlib import Path
from typing import Any

from medpfl.config.run import RunConfig
from medpfl.core import one_file
from medpfl.core.errors import UserError
from medpfl.core.settings import Value, value_of
from medpfl.core.whole_file import write_text
from medpfl.report.compare_table import markdown_table
from medpfl.report.page import write_sweep_report
from medpfl.report.sweep import Sweeping, Swept, sweep_csv, sweep_note, sweep_notes, sweep_rows, swept
from medpfl.report.sweep_chosen import chosen_note, chosen_rows, with_chosen
from medpfl.report.words import algorithm_name
from medpfl.runs.asked import Fields, configs_of, variants_of
from medpfl.runs.comparison import How, Variant, all_results, in_full
from medpfl.runs.seeds import Seeds

FIELDS = ("sites", "rounds", "participation", "local_epochs", "partition", "train_fraction", "holdout", "model", "use")
"""What can be swept besides settings."""
NEW_DATA = frozenset({"sites", "partition", "train_fraction", "holdout"})
"""What gives sites other data: a site's name at one value and at the next are two sites."""
_MOST = 100
_EXAMPLES = "e.g. lambda=0,0.5,1 or lambda=0..1..0.25 or local_epochs+rounds=1+20,2+10"


@dataclass(frozen=True)
class Sweep:
    """What is swept.

    Attributes:
        names: of settings and of :data:`FIELDS`; several change together.
        values: at each point one for each name; networks of files by their modules.
    """

    names: tuple[str, ...]
    values: tuple[tuple[Value, ...], ...]

    @classmethod
    def grid(cls, texts: Sequence[str]) -> Sweep:
        """Every value of each of several sweeps with every one of the others; of one it is that sweep.

        Raises:
            UserError: see :meth:`parse`; or two sweep the same, or there are more than a hundred points.
        """
        parts = [cls.parse(text) for text in texts]
        names = tuple(name for part in parts for name in part.names)
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UserError(f"--sweep: {twice} is swept twice; give all its values in one, {_EXAMPLES}")
        values = tuple(tuple(chain(*point)) for point in product(*(part.values for part in parts)))
        if len(values) > _MOST:
            raise UserError(f"--sweep: {' and '.join(texts)} are {len(values)} points together; {_MOST} is the most")
        return cls(names, values)

    @classmethod
    def parse(cls, text: str) -> Sweep:
        """Reads ``NAME=V,V,...``, where ``FROM..TO..STEP`` stands for values, or ``NAME+NAME=V+V,V+V,...``.

        Raises:
            UserError: it is none of these, or there are fewer than two different values.
        """
        head, equals, tail = text.partition("=")
        names = tuple(name.strip().replace("-", "_") for name in head.split("+"))
        if not equals or not all(names) or len(set(names)) < len(names):
            raise UserError(f"--sweep {text}: give NAME=VALUES, {_EXAMPLES}")
        values: list[tuple[Value, ...]] = []
        for item in tail.split(","):
            parts = item.strip().split("+")
            if len(names) == 1:
                several = ".." in item and "/" not in item  # as a path may have it
                values += [(value,) for value in (_range(text, item) if several else [value_of(item.strip())])]
            elif len(parts) == len(names):
                values.append(tuple(value_of(part.strip()) for part in parts))
            else:
                raise UserError(f"--sweep {text}: {item!r} gives {len(parts)} values for {' and '.join(names)}")
        if "model" in names:  # where a file lies is nobody else's business
            at = names.index("model")
            values = [(*p[:at], one_file.by_module(p[at], "model"), *p[at + 1 :]) for p in values]
        if any(value == "" for point in values for value in point) or len(set(values)) < max(2, len(values)):
            raise UserError(f"--sweep {text}: give at least two different values, each once, {_EXAMPLES}")
        if len(values) > _MOST:
            raise UserError(f"--sweep {text}: {len(values)} values; {_MOST} is the most")
        return cls(names, tuple(values))

    @property
    def sweeping(self) -> Sweeping:
        """The same as reports have it."""
        return Sweeping(self.names, self.values, other_sites=not NEW_DATA.isdisjoint(self.names))

    def fields(self, value: Sequence[Value], common: Fields) -> dict[str, Any]:
        """A run's fields at one value; UserError for what neither is swept nor a setting could be."""
        fields = {**common, "settings": dict(common["settings"])}
        for name, one in zip(self.names, value, strict=True):
            if name in FIELDS:
                fields |= {name: one} | ({"names": None} if name == "sites" else {})
            elif name in RunConfig.model_fields:
                raise UserError(f"--sweep {name}: settings can be swept, and {', '.join(FIELDS)}")
            else:
                fields["settings"][name] = one
        return fields


def _range(text: str, item: str) -> list[Value]:
    """The lower end and what follows in steps up to the higher one; whole numbers need no step."""
    try:
        ends = [Decimal(part) for part in item.strip().split("..")]
        start, stop, step = ends if len(ends) == 3 else (*ends, Decimal(1))
        if not all(end.is_finite() for end in ends):
            raise ValueError(item)
    except (InvalidOperation, ValueError):
        raise UserError(f"--sweep {text}: {item!r} is no FROM..TO..STEP, {_EXAMPLES}") from None
    whole = all(end == end.to_integral_value() for end in (start, stop, step))
    if not (start < stop and step > 0) or (len(ends) < 3 and not whole):
        raise UserError(f"--sweep {text}: {item!r}: from the lower end to the higher in steps above 0, {_EXAMPLES}")
    if (stop - start) / step > _MOST:
        raise UserError(f"--sweep {text}: {item!r} has more than {_MOST} values")
    count = int((stop - start) / step)
    exact = (start + k * step for k in range(count + 1))
    return [int(value) if value == value.to_integral_value() else float(value) for value in exact]


def run_sweep(
    algorithms: Sequence[str],
    sweep: Sweep,
    seeds: Seeds,
    fields: Fields,
    out: Path,
    how: How,
    *,
    said_in: Callable[[], AbstractContextManager] = nullcontext,
) -> Swept:
    """Runs a comparison at every value, then writes sweep.json, sweep.csv, sweep.md and report.html.

    A sweep that was stopped goes on: finished runs are read, an unfinished one resumes. A run that ends early, as with
    a learning rate that is too high, ends no other; its method has no figures at that value (``unfinished``).

    Args:
        algorithms: see :func:`medpfl.runs.asked.configs_of`.
        sweep: what is swept.
        seeds: see :func:`~medpfl.runs.seeds.seeds_of`.
        fields: of all runs, see :func:`medpfl.runs.asked.config_of`.
        out: folder; a run is in ``VARIANT/NAME=VALUE/seed-S``, or in ``VARIANT/seed-S`` where no value changes it.
        how: they are made.
        said_in: see :func:`medpfl.runs.asked.configs_of`.

    Returns:
        The content of sweep.json (:func:`medpfl.report.sweep.swept`).

    Raises:
        UserError: a run cannot be made, the folder holds runs with other settings, or no method's runs came to an end.
    """
    points = [configs_of(algorithms, seeds, sweep.fields(value, fields), said_in) for value in sweep.values]
    if len({tuple(dict.fromkeys(name for name, _ in runs)) for runs in points}) > 1:
        raise UserError(
            "a sweep of model with a variant that names one: local training of both would be there at some values "
            "alone; leave model out of --sweep, or the variants' models"
        )
    plan = _folders(sweep.sweeping, points)
    every = {(name, config.seed): (name, config) for runs in plan for name, config in runs}
    results, unfinished = all_results(list(every.values()), out, how, "sweep")
    made = dict(zip(every, results, strict=True))
    at_each = [_by_method(runs, made) for runs in plan]
    variants, _ = variants_of(algorithms, sweep.fields(sweep.values[0], fields))
    found = with_chosen(swept(sweep.sweeping, _methods(variants), at_each, unfinished), at_each)
    write_sweep(found, out)
    return found


def write_sweep(found: Swept, folder: Path) -> None:
    """Writes sweep.json, sweep.csv, sweep.md and report.html."""
    write_text(folder / "sweep.json", json.dumps(found, indent=1, allow_nan=False) + "\n")
    write_text(folder / "sweep.csv", sweep_csv(found))
    heads, rows = chosen_rows(found)
    chosen = markdown_table(heads, rows, chosen_note(found)) if rows else chosen_note(found)
    figures = markdown_table(*sweep_rows(found), sweep_note(found), *sweep_notes(found))
    write_text(folder / "sweep.md", "\n".join([figures, chosen]))
    write_sweep_report(found, folder / "report.html")


def _folders(
    sweeping: Sweeping, points: Sequence[Sequence[tuple[str, RunConfig]]]
) -> list[list[tuple[str, RunConfig]]]:
    """By value the runs' folders and configurations; a run that is the same at all values has one folder."""
    same = {name for name, config in points[0] if all((name, config) in runs for runs in points)}
    found, known, there = [], {}, {}
    for index, runs in enumerate(points):
        at = sweeping.folder(index)
        for i, (name, config) in enumerate(runs):
            if twin := next((other for other, known in runs[:i] if in_full(known) == in_full(config)), None):
                raise UserError(f"{name} and {twin} are the same run at {sweeping.label(index)}; give each once")
        # Where some of what is swept changes nothing a run is there already.
        where = [known.setdefault((name, in_full(config)), f"{name}/{at}") for name, config in runs]
        for folder, (_, config) in zip(where, runs, strict=True):
            if there.setdefault((folder, config.seed), in_full(config)) != in_full(config):
                raise UserError(
                    f"two of the sweep's runs would have one folder, {folder}, whose name has _ for signs of paths: "
                    "give a file another name"
                )
        found.append([(name if name in same else at_, config) for at_, (name, config) in zip(where, runs, strict=True)])
    return found


def _by_method(
    runs: Sequence[tuple[str, RunConfig]], made: Mapping[tuple[str, int], dict[str, Any] | None]
) -> dict[int, list[dict[str, Any]]]:
    """By a method's place its runs at a value, in the order of the seeds; no method with one that ended early."""
    found: dict[int, list[dict[str, Any]]] = {}
    for i, name in enumerate(dict.fromkeys(name for name, _ in runs)):
        own = [made[name, config.seed] for other, config in runs if other == name]
        if ended := [run for run in own if run is not None] if None not in own else []:
            found[i] = ended
    return found


def _methods(variants: Sequence[Variant]) -> list[tuple[str, str]]:
    """Label and algorithm; a label is a title, and what is changed of it."""

    def label(variant: Variant) -> str:
        changed = variant.text.partition(":")[2].replace(",", ", ")
        return algorithm_name(variant.algorithm) + (f" ({changed})" if changed else "")

    return [(label(variant), variant.algorithm) for variant in variants]
