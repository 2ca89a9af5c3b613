"""Several algorithms on the same splits and seeds: their runs, and the paired table over them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal

from medpfl.algorithms import LOCAL, algorithm, mechanisms, taken_up
from medpfl.config.run import RunConfig
from medpfl.config.settings import Accepted, accepted
from medpfl.core import one_file
from medpfl.core.errors import RunEnded, UserError
from medpfl.core.quiet import said_once
from medpfl.core.settings import value_of
from medpfl.core.whole_file import write_text
from medpfl.engine.federation import Federation
from medpfl.engine.progress import Watch
from medpfl.models import takes_argument
from medpfl.report.compare_table import write_comparison
from medpfl.report.latex import latex_table
from medpfl.report.page import write_report
from medpfl.report.side_by_side import compare
from medpfl.report.sites_csv import sites_csv
from medpfl.report.unfinished import Unfinished, unfinished_words
from medpfl.runs.experiment import Env, run_experiment
from medpfl.runs.folder import JOB, RESULTS, holds_simulation

logger = logging.getLogger(__name__)

_FORMS = ("json", "md", "csv", "tex")
Kind = Literal["comparison", "sweep"]


@dataclass(frozen=True)
class How:
    """How the runs of a comparison are made, whichever they are.

    Attributes:
        progress: shows a run's progress, from a title and its options.
        env: engine for all.
        threads: sites at once.
        overwrite: run everything again.
        together: see :func:`medpfl.runs.experiment.run_experiment`.
        forgotten: likewise; None measures it for all if one of the methods is against forgetting.
    """

    progress: Callable[[str, RunConfig], AbstractContextManager[Watch]]
    env: Env
    threads: int | None = None
    _: KW_ONLY
    overwrite: bool = False
    together: bool | None = None
    forgotten: bool | None = None


@dataclass(frozen=True)
class Variant:
    """An algorithm, possibly with choices changed, as ``NAME:mixing=uniform`` or ``NAME:lambda=0.8``.

    Attributes:
        text: as given, what a file has by its module; names the folder of its runs.
        algorithm: the algorithm's name.
        choices: ``personal``, ``mixing``, ``model`` and ``use``, where they are changed.
        settings: settings of this variant alone.
    """

    text: str
    algorithm: str
    choices: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Variant:
        """Reads ``ALGORITHM[:KEY=VALUE[,KEY=VALUE]]``, the algorithm perhaps as :func:`~medpfl.algorithms.taken_up`.

        Raises:
            UserError: it is not of that form, or there is no such method.
        """
        text = taken_up(text)
        name, colon, rest = text.partition(":")
        choices: dict[str, str] = {}
        settings: dict[str, Any] = {}
        for item in rest.split(",") if colon else ():
            key, equals, value = item.partition("=")
            if not equals or not value:
                raise UserError(f"{text!r}: give ALGORITHM or ALGORITHM:KEY=VALUE, e.g. fedap:mixing=uniform")
            if key in choices or key in settings:
                raise UserError(f"{text!r}: {key} is there twice; give it once")
            if key == "model" and (known := one_file.by_module(value, "model")) != value:
                text = text.replace(item, f"model={known}")  # where the file lies is nobody else's business
                value = known
            if key in ("personal", "mixing", "model", "use"):
                choices[key] = value
            else:
                settings[key] = value_of(value)
        return cls(text, name, choices, settings)

    @property
    def folder(self) -> str:
        """The text as a folder name."""
        return "".join(c if c.isalnum() or c in "-.=" else "_" for c in self.text)


def with_local(variants: Sequence[Variant], model: str) -> list[Variant]:
    """The variants, with plain local training of every model among them in front, unless it is there.

    Local training with settings of its own, such as further steps, is a variant as others are.

    Args:
        variants: as given.
        model: of the variants that name none.
    """
    models = dict.fromkeys(v.choices.get("model", model) for v in variants)
    plain = (v for v in variants if v.algorithm == LOCAL.name and not v.settings and v.choices.keys() <= {"model"})
    there = {v.choices.get("model", model) for v in plain}
    missing = [Variant.parse(LOCAL.name if m == model else f"{LOCAL.name}:model={m}") for m in models if m not in there]
    return [*missing, *variants]


def settings_of(variants: Sequence[Variant], common: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each variant's settings: its own, and those of the common ones that have a meaning for it.

    What some methods do and others could do too (the switch of a mechanism, such as ``mu``) is set for the former
    alone, so that it stays a comparison of the two.

    Raises:
        UserError: a common setting has a meaning for none of them, or one of them has a setting by two names.
    """
    known = [_accepted(v, common) for v in variants]
    takes = {name: _takers(name, variants, known) for name in common}
    # What a method is not given turns nothing on in it, and then that mechanism's other settings mean nothing there.
    known = [_accepted(v, {n: x for n, x in common.items() if i in takes[n]}) for i, v in enumerate(variants)]
    alone = [_named(v, of) for v, of in zip(variants, known, strict=True)]
    found: list[dict[str, Any]] = [{} for _ in variants]
    for name, value in common.items():
        own = [_own_name(name, of) for of in known]
        takers = _takers(name, variants, known)
        for i in takers:
            _put(found[i], own[i], value, variants[i])
        if not takers:
            near = next(filter(None, (of.near(name) for of in known)), "")
            raise UserError(f"setting {name!r}: none of {', '.join(v.text for v in variants)} has such a setting{near}")
    return [common | own for common, own in zip(found, alone, strict=True)]


def _accepted(variant: Variant, common: Mapping[str, Any]) -> Accepted:
    given = {**common, **variant.settings}
    return accepted(algorithm(variant.algorithm), variant.choices.get("personal"), variant.choices.get("mixing"), given)


def _takers(name: str, variants: Sequence[Variant], known: Sequence[Accepted]) -> list[int]:
    """Which variants a common setting is for."""
    own = [_own_name(name, of) for of in known]
    alone = [_named(v, of) for v, of in zip(variants, known, strict=True)]
    takers = [i for i, mine in enumerate(own) if mine and not _only_addable(mine, alone[i], variants[i])]
    return takers or [i for i, mine in enumerate(own) if mine and variants[i].algorithm != LOCAL.name]


def _named(variant: Variant, known: Accepted) -> dict[str, Any]:
    """A variant's settings by the names that its algorithm has for them."""
    named: dict[str, Any] = {}
    for name, value in variant.settings.items():
        _put(named, _own_name(name, known) or name, value, variant)
    return named


def _put(settings: dict[str, Any], name: str, value: Any, variant: Variant) -> None:
    if name in settings:
        raise UserError(
            f"{name} is given twice for {variant.algorithm}, by its name and by the paper's symbol: give it once, or "
            f"for it alone, as {variant.algorithm}:{name}=VALUE"
        )
    settings[name] = value


def _only_addable(setting: str, alone: Mapping[str, Any], variant: Variant) -> bool:
    """Whether a method could have a setting, is published without it, and the variant alone has none either."""
    published = {part.settings_class for part in algorithm(variant.algorithm).mechanisms}
    switches = {name: part.settings_class for part in mechanisms().values() for name in part.switches()}
    return setting in switches and switches[setting] not in published and setting not in alone


def _own_name(setting: str, known: Accepted) -> str | None:
    """What an algorithm calls a setting; None if it has no such one. Two papers call theirs lambda."""
    name = known.meant(setting, {})
    return name if name in known.kinds else None


def model_arguments_of(models: Sequence[str], common: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By model: those of the arguments that it has.

    Raises:
        UserError: an argument that none of the models has.
    """
    for argument in common:
        if not any(takes_argument(model, argument) for model in models):
            raise UserError(f"--model-arg {argument}: none of {', '.join(models)} has such an argument")
    return {m: {k: v for k, v in common.items() if takes_argument(m, k)} for m in models}


def run_comparison(runs: Sequence[tuple[str, RunConfig]], out: Path, how: How) -> dict[str, Any]:
    """Runs every configuration in a folder of its own, then writes comparison.json, .md, .csv and .tex and report.html.

    A comparison that was stopped goes on: finished runs are read, an unfinished one resumes. A run that ends early, as
    one whose loss is no number, ends no other; its method is left out with all seeds, and ``unfinished`` says so.

    Args:
        runs: folder name and configuration of every run; they may differ in algorithm and seed.
        out: folder; a run is in ``NAME/seed-S``.
        how: they are made.

    Raises:
        UserError: a run cannot be made, the folder holds runs with other settings, or no method's runs came to an end.
    """
    first: dict[str, str] = {}
    for name, config in runs:
        if (twin := first.setdefault(in_full(config), name)) != name:
            raise UserError(f"{name} and {twin} are the same run; give each once")
    results, unfinished = all_results(runs, out, how, "comparison")
    out_of_it = {of["run"] for of in unfinished}
    named = [(name, found) for (name, _), found in zip(runs, results, strict=True) if found and name not in out_of_it]
    ended = [found for _, found in named]
    comparison = compare(ended, unfinished)
    if others := _others(runs, out):
        logger.warning("%s: runs that lie there too and are not in this table: %s", out, ", ".join(others))
    write_comparison(comparison, out)
    write_text(out / "comparison.csv", sites_csv(named))
    write_text(out / "comparison.tex", latex_table(comparison))
    write_report(ended, out / "report.html", unfinished)
    return comparison


def _others(runs: Sequence[tuple[str, RunConfig]], out: Path) -> list[str]:
    """Finished runs of an earlier comparison in the same folder, as ``NAME/seed-S``."""
    known = {f"{name}/seed-{config.seed}" for name, config in runs}
    there = (f"{file.parent.parent.name}/{file.parent.name}" for file in out.glob(f"*/seed-*/{RESULTS}"))
    return sorted(set(there) - known)


def in_full(config: RunConfig) -> str:
    """What a run is, with what was left out for the default as if it had been given."""
    given = config.model_dump(mode="json")
    choices = {name: given[name] or default for name, default in config.choices_by_default.items()}
    return json.dumps(given | choices | {"settings": config.all_settings}, sort_keys=True)


@said_once("medpfl.data")  # of which the runs are
def all_results(
    runs: Sequence[tuple[str, RunConfig]], out: Path, how: How, kind: Kind
) -> tuple[list[dict[str, Any] | None], list[Unfinished]]:
    """The results of every run, in order, one made after another, None of those that ended early; and which these are.

    The arguments are those of :func:`run_comparison`, and which kind of tables the folder gets.

    Raises:
        UserError: a run cannot be made, or of every folder's runs one ended early.
    """
    _require_place(runs, out, kind)
    _try_out(runs, out, how.overwrite)
    for name in _tables(kind) if how.overwrite else ():
        (out / name).unlink(missing_ok=True)
    forgotten = any(config.resists_forgetting for _, config in runs) if how.forgotten is None else how.forgotten
    results: list[dict[str, Any] | None] = []
    unfinished: list[Unfinished] = []
    for i, (name, config) in enumerate(runs, 1):
        title = f"[{i}/{len(runs)}] {name}, seed {config.seed}"
        with how.progress(title, config) as watch:
            try:
                found = run_experiment(
                    config,
                    out / name / f"seed-{config.seed}",
                    env=how.env,
                    threads=how.threads,
                    resume=not how.overwrite,
                    overwrite=how.overwrite,
                    together=how.together,
                    forgotten=forgotten,
                    watch=watch,
                )
                why = _missing(found)
                again = f"; remove {out / name / f'seed-{config.seed}'} to have it made again" if why else ""
            except RunEnded as error:
                why, again = str(error), ""
        if why:
            logger.warning("%s ended early, the others go on: %s%s", title, why, again)
            unfinished.append({"run": name, "seed": config.seed, "why": why})
        results.append(None if why else found)
    if {name for name, _ in runs} == {of["run"] for of in unfinished}:
        raise UserError(unfinished_words(unfinished))
    return results, unfinished


def _missing(results: dict[str, Any]) -> str:
    """Which sites did not answer the test, so that means are over the others; empty where there is none."""
    last = {f["site"]: f["reason"] for f in results["failures"]}
    return "; ".join(f"{name} has no test: {last.get(name, 'no answer')}" for name in results.get("unanswered", ()))


def _tables(kind: Kind) -> list[str]:
    """What a comparison or a sweep leaves beside its runs' folders."""
    return ["report.html", *(f"{kind}.{form}" for form in _FORMS)]


def _require_place(runs: Sequence[tuple[str, RunConfig]], out: Path, kind: Kind) -> None:
    """UserError if the folder is something else's, and has what the tables of such a kind would write over."""
    if holds_simulation(out) or (out / JOB).exists():
        raise UserError(f"{out} holds a run; a {kind} has one folder for each: choose another --out")
    other: Kind = "sweep" if kind == "comparison" else "comparison"
    if (out / f"{other}.json").exists():
        raise UserError(f"{out} holds a {other}, and a {kind} would write over its report.html; choose another --out")
    begun = any((out / name).is_dir() for name, _ in runs)
    if not begun and (out / f"{kind}.json").exists():
        raise UserError(f"{out} holds a {kind}, and none of its runs is one of these; choose another --out")
    if not begun and (taken := next((name for name in _tables(kind) if (out / name).exists()), None)):
        raise UserError(f"{out} is no {kind}'s folder, and one would write over its {taken}; choose another --out")


def _try_out(runs: Sequence[tuple[str, RunConfig]], out: Path, overwrite: bool) -> None:
    """Builds each variant's model once, so that one which cannot be is named before the others are trained."""
    tried = set()
    for name, config in runs:
        begun = not overwrite and (out / name / f"seed-{config.seed}" / RESULTS).exists()
        if name not in tried and not begun:
            try:
                Federation.of(config).given_pretrained()
            except UserError as error:
                raise UserError(f"{name}: {error}") from None
        tried.add(name)
