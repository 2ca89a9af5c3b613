"""Which runs can be compared pair by pair, and what tells them apart."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any

from medpfl.config.fields import CIRCUMSTANCES
from medpfl.core.errors import UserError
from medpfl.report.measures import of_task
from medpfl.report.reading import Results
from medpfl.report.words import algorithm_name

# They say where and when a run was made, not what it computes.
_CIRCUMSTANCES = CIRCUMSTANCES | {
    *("algorithm", "seed", "out", "experiment", "resume", "threads", "intra_op_threads", "kit")
}
# Runs that differ in these may test as many other cases at each site.
_DIVIDING = ("official", "fold", "patient", "folders", "train_counts")
# The objective and the server's steps follow from settings; a label begins with the model where there are several.
_NAMED_OTHERWISE = frozenset({"objective", "server", "model"})


def name_of(run: Results) -> str:
    """What messages call a run."""
    return f"{run['algorithm']} (seed {run['config'].get('seed')})"


def _on_data(run: Results) -> str:
    return f"{name_of(run)} on {run['data']['name']}"


def grouped(runs: list[Results]) -> dict[str, dict[Any, Results]]:
    """Label to the group's runs by seed. Runs that differ in any setting but the seed are different groups."""
    settings: dict[str, dict[str, str]] = {}
    members: dict[str, dict[Any, Results]] = defaultdict(dict)
    every = [settings_of(run) for run in runs]
    keys = [_key(run, options) for run, options in zip(runs, every, strict=True)]
    seeds = [run["config"].get("seed") for run in runs]
    twice = {key for (key, _), times in Counter(zip(keys, seeds, strict=True)).items() if times > 1}
    for run, options, key, seed in zip(runs, every, keys, seeds, strict=True):
        # What should not touch figures tells runs apart where nothing else does: how long a server waits may.
        if key in twice:
            options |= dict(_flat({name: run["config"].get(name) for name in sorted(CIRCUMSTANCES)}))
            key = _key(run, options)
        settings[key] = options
        if seed in members[key]:
            raise UserError(f"{name_of(run)} is there twice with the same settings; give each run once.")
        members[key][seed] = run

    namesakes: dict[str, list[str]] = defaultdict(list)
    for key, by_seed in members.items():
        namesakes[next(iter(by_seed.values()))["algorithm"]].append(key)
    names, apart = {}, {}
    several_models = len({options["model"] for options in settings.values()}) > 1
    for key, by_seed in members.items():
        algorithm, own = next(iter(by_seed.values()))["algorithm"], settings[key]
        names[key] = algorithm_name(algorithm)
        apart[key] = [own["model"]] if several_models else []
        alike, every_group = ([settings[other] for other in keys] for keys in (namesakes[algorithm], members))
        apart[key] += _told_apart_by(algorithm, own, alike, every_group)
    labels = {key: _label(names[key], apart[key]) for key in members}
    for alike in _same(labels):
        for key, more in zip(alike, _apart([settings[key] for key in alike]), strict=True):
            labels[key] = _label(names[key], apart[key] + more)
    if alike := next(iter(_same(labels)), None):
        raise UserError(f"{len(alike)} groups of runs would all be called {labels[alike[0]]!r}: give one of them")
    return {labels[key]: by_seed for key, by_seed in members.items()}


def _key(run: Results, options: dict[str, str]) -> str:
    return json.dumps([run["algorithm"], options], sort_keys=True)


def _label(name: str, options: list[str]) -> str:
    return f"{name} ({', '.join(options)})" if options else name


def _same(labels: dict[str, str]) -> list[list[str]]:
    """Keys that have one label."""
    found: dict[str, list[str]] = defaultdict(list)
    for key, label in labels.items():
        found[label].append(key)
    return [keys for keys in found.values() if len(keys) > 1]


def _apart(groups: list[dict[str, str]]) -> list[list[str]]:
    """What tells groups apart that nothing else does: options that some of them lack, too.

    Those at which nothing happens are left out where the others do.
    """
    names = [name for name in sorted({n for own in groups for n in own}) if len({own.get(name) for own in groups}) > 1]
    every = [[f"{name}={own[name]}" for name in names if name in own] for own in groups]
    some = [
        [f"{name}={own[name]}" for name in names if name in own and own[name] not in _neutral(name)] for own in groups
    ]
    return some if len({tuple(options) for options in some}) == len(groups) else every


@cache
def _neutral(option: str) -> frozenset[str]:
    """The values of an option, as flat text, at which it does what a run does without it."""
    from medpfl.algorithms import mechanisms
    from medpfl.config.run import RunConfig

    fields = [RunConfig.model_fields, *(part.settings_class.model_fields for part in mechanisms().values())]
    return frozenset(text for of in fields if option in of for _, text in _flat({option: of[option].default}))


@cache
def _trained() -> dict[str, str]:
    """How sites train where nobody says anything, as flat text."""
    from medpfl.training.settings import Training

    return dict(_flat({name: field.default for name, field in Training.model_fields.items()}))


def _told_apart_by(
    algorithm: str, own: dict[str, str], alike: list[dict[str, str]], every_group: list[dict[str, str]]
) -> list[str]:
    """The options by which a group differs from the published method or, where a method says nothing, from others.

    Of its own method; or of any, in how sites train and in what a mechanism adds that not all have.
    """
    from medpfl.algorithms import algorithms, mechanisms
    from medpfl.config.settings import own_defaults

    switches = {name for part in mechanisms().values() for name in part.switches()}
    published: dict[str, str] = {}
    if known := algorithms().get(algorithm):
        settings = own_defaults(known, {k: v for k, v in own.items() if k == "optimizer"})
        personal = known.personal.format(**{k: own.get(k, v) for k, v in settings.items()})
        published = dict(_flat({"personal": personal, "mixing": known.mixing.name, "use": known.use, **settings}))
    options = []
    for option, value in sorted(own.items()):
        # An option that only some have follows from another one, which is named; unless it is itself a mechanism's.
        values = {other[option] for other in alike if option in other}
        added = option in switches and any(option not in other for other in alike)
        off = option in switches and value in _neutral(option)
        if option in switches or option in _trained():
            elsewhere = {other.get(option) for other in every_group}
            added = added or (len(elsewhere) > 1 and value != _trained().get(option))
        differs = option in published or ((len(values) > 1 or added) and not off)
        if option not in _NAMED_OTHERWISE and differs and published.get(option) != value:
            options.append(f"{option}={value}")
    # It moves no figure but where sites choose, which is named: sites train alone beside what is trained further, too.
    return [o for o in options if not o.startswith("alone=")]


def settings_of(run: Results) -> dict[str, str]:
    """Everything that decides what the run computes, but the seed, as flat text."""
    config = {key: value for key, value in run["config"].items() if key not in _CIRCUMSTANCES}
    # What identifies the data is compared on its own, with a message that names it.
    for key in ("data", "partition", "sites"):
        config.pop(key, None)
    inner = Counter(name for value in config.values() if isinstance(value, dict) for name in value)
    twice = {name for name, times in inner.items() if times > 1}
    return dict(_flat(config, twice)) | dict(_flat(_choices(run)))


def _choices(run: Results) -> dict[str, Any]:
    """What the method is made of, in the words of this version.

    A method whose personal part is any batch norm was published here with the word for a network that has some: of such
    a network both are the same.
    """
    from medpfl.algorithms import algorithms

    choices, known = run.get("choices") or {}, algorithms().get(run["algorithm"])
    if known and known.personal == "any-batch-norm" and not run["config"].get("personal"):
        return choices | ({"personal": known.personal} if choices.get("personal") == "batch-norm" else {})
    return choices


def _flat(tree: dict[str, Any], twice: Collection[str] = (), above: str = "") -> Iterator[tuple[str, str]]:
    """Values by name; of one in two mappings, such as the channels of data and model, with the mapping's."""
    for name, value in tree.items():
        key = f"{above}.{name}" if above and name in twice else name
        if isinstance(value, dict):
            yield from _flat(value, twice, name)
        elif isinstance(value, str):
            yield key, value
        else:
            yield key, json.dumps(value)


def check_tasks(runs: list[Results]) -> None:
    """UserError if runs are of different tasks, or have different measures."""
    one = runs[0]
    for other in runs[1:]:
        tasks = [run["config"].get("task", "classification") for run in (one, other)]
        if tasks[0] != tasks[1]:
            raise UserError(
                f"{_on_data(one)} and {_on_data(other)} cannot be compared: one is of {tasks[0]}, the other of "
                f"{tasks[1]}, which is judged by other measures. Compare runs of one task."
            )
        names = [[m.name for m in of_task(run) if not m.further] for run in (one, other)]
        if names[0] != names[1]:
            raise UserError(
                f"{_on_data(one)} and {_on_data(other)} cannot be compared: their measures are {shown(names[0])} and "
                f"{shown(names[1])}. Compare runs with the same measures."
            )


def check_pairs(groups: dict[str, dict[Any, Results]]) -> None:
    """UserError if groups differ in data, partition, sites, seeds or splits; it names the first difference."""
    first_label, first_group = next(iter(groups.items()))
    first = next(iter(first_group.values()))
    for by_seed in groups.values():
        for run in by_seed.values():
            for what, mine, theirs in (
                ("data", first["data"].get("name"), run["data"].get("name")),
                ("checksum of the data", first["data"].get("md5"), run["data"].get("md5")),
                ("partition", first["data"].get("partition"), run["data"].get("partition")),
                ("number of sites", len(first["data"]["sites"]), len(run["data"]["sites"])),
                ("sites", sorted(first["data"]["sites"]), sorted(run["data"]["sites"])),
                *((f"{name}, by which parts are made:", _said(first, name), _said(run, name)) for name in _DIVIDING),
            ):
                if mine != theirs:
                    raise _cannot_pair(name_of(first), name_of(run), f"{what} {shown(mine)} and {shown(theirs)}")
    for label, by_seed in groups.items():
        if set(by_seed) != set(first_group):
            raise _cannot_pair(first_label, label, f"seeds {shown(list(first_group))} and {shown(list(by_seed))}")
        for seed, run in by_seed.items():
            _check_split(first_group[seed], run)


def _said(run: Results, name: str) -> Any:
    """What a run's configuration says by that name, of data too; ``nothing`` where it is not said."""
    said = {**run["config"], **(run["config"].get("data_args") or {})}.get(name)
    return "nothing" if said in (None, "", {}) or said is False else said


def _check_split(one: Results, other: Results) -> None:
    for site, counts in one["data"]["sites"].items():
        for part in ("train", "validation", "test", "classes"):
            mine, theirs = counts.get(part), other["data"]["sites"][site].get(part)
            if mine != theirs:
                what = f"{part} at {site}:"
                raise _cannot_pair(name_of(one), name_of(other), f"split ({what} {shown(mine)} and {shown(theirs)})")


def shown(value: Any) -> str:
    """A value as messages and notes show it."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def _cannot_pair(one: str, other: str, difference: str) -> UserError:
    return UserError(
        f"{one} and {other} cannot be paired: they differ in {difference}. "
        "Compare runs on the same data, partition, sites and seeds."
    )
