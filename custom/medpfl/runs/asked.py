"""From what a user asks for, by the names of a run's fields, to checked configurations: of commands and of programs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from medpfl.algorithms import LOCAL, taken_up
from medpfl.algorithms import algorithm as method
from medpfl.config.named_code import permit_named
from medpfl.config.run import RunConfig, make_config, published_defaults
from medpfl.core import one_file
from medpfl.core.home import whole
from medpfl.core.permitted_code import permit
from medpfl.data.kinds.npz.catalog import SAMPLE
from medpfl.data.kinds.registry import kind_of
from medpfl.data.sites import as_data_say, task_for, whole_path
from medpfl.models.installed import code_of
from medpfl.runs.comparison import Variant, model_arguments_of, settings_of, with_local
from medpfl.runs.seeds import Seeds, seeds_of
from medpfl.tasks import tasks
from medpfl.training.augment import augmenter, content

logger = logging.getLogger(__name__)

Fields = Mapping[str, Any]
"""Of :class:`~medpfl.config.run.RunConfig`; None where the user says nothing."""


def as_meant(fields: Fields) -> dict[str, Any]:
    """The fields with whole paths, ``sites`` that are names as ``names``, and a number of held-out centres as such.

    A network and a function of data that are given by their file are named by its module.
    Paths in settings and the partition's, which variants and sweeps have too, :func:`config_of` makes whole.
    """
    held_out = fields["held_out"]
    return {
        **fields,
        "data": whole_path(one_file.by_module(fields["data"], "data")),
        "model": one_file.by_module(fields["model"], "model"),
        **_sites(fields["sites"]),
        "held_out": int(held_out) if str(held_out).isdecimal() else held_out,
        "init": fields["init"] and whole(fields["init"]),
        "augment": content(fields["augment"]),
    }


def config_of(algorithm: str, fields: Fields, said_in: Callable[[], AbstractContextManager] = nullcontext) -> RunConfig:
    """The checked configuration; the code that it names is permitted.

    Args:
        algorithm: the method.
        fields: of :func:`as_meant`. Partition and number of sites are the data's where they have centres of their own.
        said_in: in which the configuration is checked, to say of a mistake where it may stand.

    Raises:
        UserError: what is wrong.
    """
    algorithm = taken_up(algorithm)
    given = as_data_say(algorithm, fields)
    with said_in():
        config = make_config(algorithm=algorithm, **given)
    permit_named(config)
    augmenter(config.augment)  # a transform that cannot be made is named before any site begins
    return config


def _network(fields: Fields) -> str:
    """What is trained where neither user nor method names a network: the data's, else the task's."""
    data, data_args = fields["data"] or SAMPLE, fields["data_args"] or {}
    task = task_for(data, data_args, fields["task"]) or "classification"
    return kind_of(data, data_args).network(data, data_args) or tasks()[task].network


def variants_of(algorithms: Sequence[str], fields: Fields) -> tuple[list[Variant], str]:
    """A comparison's variants, local training of every network among them; and the network where a variant names none.

    Args:
        algorithms: see :func:`configs_of`.
        fields: likewise.
    """
    variants = [Variant.parse(text) for text in dict.fromkeys(algorithms)]
    schedule, _ = published_defaults([v.algorithm for v in variants])
    usual = fields["model"] or schedule.get("model") or _network(fields)
    return with_local(variants, usual), usual


def configs_of(
    algorithms: Sequence[str],
    seeds: Seeds,
    fields: Fields,
    said_in: Callable[[], AbstractContextManager] = nullcontext,
) -> list[tuple[str, RunConfig]]:
    """A comparison's runs, each with its folder's name: the variants and local training, under each seed.

    Args:
        algorithms: as :meth:`~medpfl.runs.comparison.Variant.parse` reads them.
        seeds: see :func:`~medpfl.runs.seeds.seeds_of`.
        fields: see :func:`config_of`; settings and arguments of models go to those that have them.
        said_in: likewise.

    Raises:
        UserError: what is wrong.
    """
    every = seeds_of(seeds)
    variants, usual = variants_of(algorithms, fields)
    schedule, training = published_defaults([v.algorithm for v in variants])
    models = [v.choices.get("model", usual) for v in variants]
    permit(*(spec.partition(":")[0] for model in models if (spec := code_of(model))))
    with said_in():
        each = settings_of(variants, training | fields["settings"])
        arguments = model_arguments_of(list(dict.fromkeys(models)), fields["model_args"])
    taken = {name: value for name, value in schedule.items() if fields[name] is None}
    if told := taken | {name: value for name, value in training.items() if name not in fields["settings"]}:
        whose = next(v.algorithm for v in variants if method(v.algorithm).schedule or method(v.algorithm).training)
        said = ", ".join(f"{name} {value}" for name, value in told.items())
        logger.warning("All run as %s was published, unless you say otherwise: %s", whose, said)
    fields = {**fields, **taken}
    # What shares nothing has one model, and nothing to choose from, unless the user asks for that; nor is it drawn.
    apart = [method(v.algorithm).shares_nothing for v in variants]
    asked = [v.choices.get("use") or (None if no else fields["use"]) for v, no in zip(variants, apart, strict=True)]
    uses = [use or method(v.algorithm).use for use, v in zip(asked, variants, strict=True)]

    def made(i: int, seed: int, alone: str | None) -> RunConfig:
        own = {"settings": each[i], "model_args": arguments[models[i]], "alone": alone, "use": asked[i]}
        own |= {"participation": None} if apart[i] else {}
        return config_of(variants[i].algorithm, {**fields, "seed": seed, **own, **variants[i].choices}, said_in)

    # Local training is among the runs. Beside a run it is trained again where its sites choose between the two, or
    # train on at the end: then the model trained alone does so, too.
    beside = [fields.get("alone") or ("no" if use == "received" else None) for use in uses]
    if fields.get("alone") is None:
        beside = [None if _judged_longer(made(i, 0, alone)) else alone for i, alone in enumerate(beside)]
    return [(v.folder, made(i, seed, beside[i])) for seed in every for i, v in enumerate(variants)]


def _judged_longer(config: RunConfig) -> bool:
    return bool(config.further) and config.algorithm != LOCAL.name


def _sites(given: str | int | Sequence[str] | None) -> dict[str, Any]:
    """``sites`` and ``names`` of a number, or of names in a list or with commas between."""
    if given is None:
        return {"sites": None, "names": None}
    if isinstance(given, list | tuple):
        return {"sites": len(given), "names": tuple(given)}
    text = str(given).strip()
    if text.removeprefix("-").isdecimal():
        return {"sites": int(text), "names": None}
    names = tuple(name.strip() for name in text.split(","))
    return {"sites": len(names), "names": names}
