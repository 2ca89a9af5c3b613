"""For notebooks and programs: ``medpfl.run``, ``medpfl.load`` and ``medpfl.compare``.

    >>> import medpfl, torch
    >>> run = medpfl.run("fedbn", sites=2, rounds=2, train_fraction=0.2, settings={"lr": 0.05})
    >>> run
    FedBN: 0... mean accuracy over 2 sites, ... training alone (worst site ...)

    >>> run.results["final"]["selected"]["sites"]["site-1"]["n"]
    760
    >>> run.models["site-2"](torch.zeros(3, 1, 28, 28)).shape
    torch.Size([3, 11])
    >>> run.report().name
    'report.html'

The names are the command line's (``medpfl run --help``), with ``_`` for ``-``; mistakes raise
:class:`~medpfl.core.errors.UserError` in its words.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from difflib import get_close_matches
from functools import partial
from numbers import Integral
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from torch import nn

from medpfl.algorithms import DEFAULT, algorithms, taken_up
from medpfl.algorithms.base import Algorithm
from medpfl.config.named_code import named_code
from medpfl.config.run import RunConfig, make_config
from medpfl.core.errors import UserError
from medpfl.core.home import at_home
from medpfl.core.one_file import by_module
from medpfl.core.permitted_code import permit
from medpfl.core.site_data import SiteData
from medpfl.data.sites import whole_path
from medpfl.engine.progress import Watch, watch_nothing
from medpfl.report.progress import progress_of
from medpfl.report.reading import load_results
from medpfl.runs.asked import as_meant, config_of, configs_of
from medpfl.runs.comparison import How, run_comparison
from medpfl.runs.experiment import Env, run_experiment
from medpfl.runs.own_code import method_spec, spec_of
from medpfl.runs.seeds import Seeds
from medpfl.runs.shown import Comparison, Run, Swept
from medpfl.runs.sweep import Sweep, run_sweep

Data = str | os.PathLike | Callable[..., SiteData]
Model = str | Callable[..., nn.Module]


_OF_THE_COMMAND_LINE = {
    "preset": "give its options as arguments",
    "experiment": "out=... names a run's folder",
    "join": "`medpfl run --join FOLDER` takes the folder that out=... named",
    "kit": "real sites have `medpfl run --env prod`",
    "gpus": "real sites have `medpfl run --env prod`",
    "byoc": "real sites have `medpfl run --env prod`",
}
"""Options of ``medpfl run`` that no argument has, and what there is in their place."""


def run(
    algorithm: str | Algorithm = DEFAULT,
    *,
    data: Data | None = None,
    model: Model | None = None,
    sites: int | Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    out: str | os.PathLike | None = None,
    env: Env = "inprocess",
    threads: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    new_test: bool | None = None,
    forgetting: bool | None = None,
    track: str | None = None,
    quiet: bool = False,
    **fields: Any,
) -> Run:
    """Trains one algorithm.

    Args:
        algorithm: one of ``medpfl algorithms``; by default FedBlend. A method of your own, an
            :class:`~medpfl.algorithms.base.Algorithm` at the top level of a module or notebook, or ``module:NAME``.
        data: a data set's name, a file or a folder; or a function ``(site, seed, **data_args)`` that returns
            :class:`medpfl.SiteLoaders` or :class:`medpfl.ImageTensors`. By default the sample of OrganAMNIST.
        model: a network's name; or a class or function that returns a ``torch.nn.Module``, called with ``model_args``
            and with what it asks for of ``in_channels``, ``num_classes`` and ``image_size``.
        sites: how many, or their names.
        settings: of training and of the method (``medpfl algorithms NAME``), e.g. ``{"lr": 0.05, "lambda": 0.8}``.
        out: the run's folder. None takes a temporary one, which is there as long as the object that is returned, at
            most until Python ends (:meth:`~medpfl.runs.shown.Run.save` keeps it).
        env: this process, FLARE's simulator (``sim``) or FLARE's POC (``poc``). A function or class of a notebook's
            own is for this process alone.
        threads: sites at once.
        resume: go on with what is in the folder; a finished run with the same settings is only read.
        overwrite: throw away what is in the folder.
        new_test: test the average of all sites' models too; None does so if it is cheap.
        forgetting: measure what local training makes models forget; None does so where the method is against it.
        track: ``tensorboard``, ``mlflow`` or ``wandb``, with ``sim`` and ``poc``.
        quiet: no progress, which is otherwise shown on a terminal and in a notebook.
        fields: further ones of :class:`medpfl.config.run.RunConfig`, such as ``rounds``, ``seed``, ``partition``,
            ``model_args``, ``data_args`` or ``train_fraction``.

    Raises:
        UserError: what is wrong, in a line.

    >>> def hospital(site, seed):
    ...     images = torch.rand(8, 1, 16, 16)
    ...     return medpfl.ImageTensors(
    ...         images=dict.fromkeys(["train", "validation", "test"], images),
    ...         labels=dict.fromkeys(["train", "validation", "test"], torch.arange(8) % 2),
    ...     )
    >>> class Net(torch.nn.Sequential):
    ...     def __init__(self, width):
    ...         super().__init__(torch.nn.Flatten(), torch.nn.Linear(256, width), torch.nn.Linear(width, 2))
    >>> own = {"data": hospital, "model": Net, "model_args": {"width": 4}}
    >>> medpfl.run("fedper", **own, sites=["north", "south"], rounds=1).models["north"][1]
    Linear(in_features=256, out_features=4, bias=True)
    >>> medpfl.run("fedbn", mu=0.1)
    Traceback (most recent call last):
        ...
    medpfl.core.errors.UserError: mu=0.1: no option; a setting ... goes into settings={'mu': 0.1}
    """
    if not isinstance(algorithm, str | Algorithm):
        raise UserError(f"run({algorithm!r}): give one algorithm's name; medpfl.compare takes several")
    algorithm = _named(algorithm, env)
    asked = _asked(env, threads, data=data, model=model, sites=sites, settings=settings, **fields)
    with _folder(out) as (folder, temporary):
        config = config_of(algorithm, asked)
        with _shown(quiet, config.algorithm, config) as watch:
            results = run_experiment(
                config,
                folder,
                env=env,
                threads=threads,
                resume=resume,
                overwrite=overwrite,
                together=new_test,
                forgotten=forgetting,
                track=track,
                watch=watch,
            )
    return Run(results, folder, temporary, config)


def load(
    folder: str | os.PathLike,
    *,
    algorithm: str | Algorithm | None = None,
    data: Data | None = None,
    model: Model | None = None,
) -> Run:
    """A finished run of a simulation again, whether this session, another one or the command line made it.

    Nothing is trained and nothing written. Code that a file names is not imported for that: who loads hands it over.

    Args:
        folder: the run's, of a comparison ``VARIANT/seed-S`` in its folder; or the results.json in it.
        algorithm: the method, where it is one of your own that is not installed; as :func:`run` takes it.
        data: where the data are by now, or the function that gave them; by default the run's own name or path.
        model: the class or function that made the network, where it is your own.

    Raises:
        UserError: it is no folder of a run of this version, the run has not ended, or it is of code that is not handed
            over.

    >>> made = medpfl.run("fedbn", sites=2, rounds=1, train_fraction=0.1)
    >>> again = medpfl.load(made.folder)
    >>> again.results == made.results, again.predictions("site-1")[0].shape
    (True, (760, 11))
    """
    results = load_results(folder := at_home(folder))
    folder = folder.parent if folder.is_file() else folder
    if algorithm is not None and (name := taken_up(_named(algorithm, "inprocess"))) != results["algorithm"]:
        raise UserError(f"{folder}: that run is of {results['algorithm']}, not {name}")
    if results["algorithm"] not in algorithms():
        raise UserError(
            f"{folder}: that run is of {results['algorithm']}, which is not installed: give it, algorithm=..."
        )
    try:
        config = make_config(**results["config"] | {"algorithm": results["algorithm"]})
    except UserError as error:
        raise UserError(f"{folder}: no run of this version of the package: {error}") from None
    given = {"data": data, "model": model}
    given = {name: by_module(_text(thing, name), name) for name, thing in given.items() if thing is not None}
    if own := next((w for w, s in named_code(config) if w not in given and s == getattr(config, w, "")), ""):
        raise UserError(f"{folder}: that run's {own} is {getattr(config, own)}, code of your own: give it, {own}=...")
    if "data" in given:
        given["data"] = whole_path(given["data"])
    config = config.model_copy(update=given)
    permit(*(spec.partition(":")[0] for what, spec in named_code(config) if what in ("data", "model")))
    return Run(results, folder, None, config)


def compare(
    algorithms: Sequence[str | Algorithm],
    *,
    seeds: Seeds = 3,
    data: Data | None = None,
    model: Model | None = None,
    sites: int | Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    out: str | os.PathLike | None = None,
    env: Env = "inprocess",
    threads: int | None = None,
    overwrite: bool = False,
    new_test: bool | None = None,
    forgetting: bool | None = None,
    sweep: str | Sequence[str] | None = None,
    quiet: bool = False,
    **fields: Any,
) -> Comparison | Swept:
    """Trains algorithms on the same splits and seeds and compares them pair by pair; local is always among them.

    Args:
        algorithms: names, or variants such as ``fedap:lambda=0.8`` and ``fedprox:mu=0.1,personal=batch-norm``; methods
            of your own as in :func:`run`, with settings ``module:NAME:mu=0.1``.
        seeds: how many, from 0, each with a partition of its own; or which, as a list or ``3..9``.
        data: see :func:`run`.
        model: see :func:`run`; a variant may name another.
        sites: see :func:`run`.
        settings: each goes to the algorithms that have it.
        out: the folder, in which finished runs are used again; None as with :func:`run`.
        env: see :func:`run`.
        threads: sites at once.
        overwrite: run everything again.
        new_test: see :func:`run`.
        forgetting: see :func:`run`.
        sweep: compare at each value of a setting or of another option (:class:`~medpfl.runs.sweep.Sweep`), such as
            ``lambda=0,0.5,1``; with several at every value of each with every one of the others. What is returned is
            then a :class:`~medpfl.runs.shown.Swept`.
        quiet: see :func:`run`.
        fields: see :func:`run`, but for ``seed``, ``personal`` and ``mixing``, which a variant has.

    Raises:
        UserError: what is wrong, in a line.

    >>> found = medpfl.compare(["fedavg", "fedprox:mu=1"], seeds=1, sites=2, rounds=1, train_fraction=0.1)
    >>> [group["label"] for group in found.results["groups"]]
    ['Local training', 'FedAvg', 'FedProx (mu=1)']
    >>> found.run("fedprox:mu=1", seed=0).predictions("site-1")[0].shape
    (760, 11)
    """
    if isinstance(algorithms, str):
        raise UserError(f"compare({algorithms!r}): give a list of algorithms, e.g. [{algorithms!r}]")
    if not algorithms:
        raise UserError("compare([]): give a method at least; local training is compared with it")
    if wrong := next((text for text in algorithms if not isinstance(text, str | Algorithm)), None):
        raise UserError(f"compare([{wrong!r}]): algorithms are text, e.g. ['fedavg', 'fedap:lambda=0.8']")
    algorithms = [_named(given, env) for given in algorithms]
    sweeps = [sweep] if isinstance(sweep, str) else sweep
    if sweeps is not None and not (
        isinstance(sweeps, list | tuple) and sweeps and all(isinstance(text, str) for text in sweeps)
    ):
        raise UserError(f"sweep={sweep!r}: give text as the command line takes it, e.g. 'lambda=0,0.5,1', or several")
    for name in ("seed", "personal", "mixing"):
        if name in fields:
            hint = "seeds=[...] says which" if name == "seed" else f"a variant has it, e.g. fedap:{name}=..."
            raise UserError(f"{name}={fields[name]!r}: not of a whole comparison: {hint}")
    asked = _asked(env, threads, data=data, model=model, sites=sites, settings=settings, **fields)
    with _folder(out) as (folder, temporary):
        how = How(partial(_shown, quiet), env, threads, overwrite=overwrite, together=new_test, forgotten=forgetting)
        if sweeps is not None:
            return Swept(run_sweep(algorithms, Sweep.grid(sweeps), seeds, asked, folder, how), folder, temporary)
        runs = configs_of(algorithms, seeds, asked)
        return Comparison(run_comparison(runs, folder, how), folder, temporary, runs)


def _named(algorithm: str | Algorithm, env: str) -> str:
    """A method as text."""
    return algorithm if isinstance(algorithm, str) else method_spec(algorithm, elsewhere=env != "inprocess")


def _text(thing: Any, what: str, *, elsewhere: bool = False) -> Any:
    """Data or a network as the command line names them."""
    if callable(thing):
        return spec_of(thing, what, elsewhere=elsewhere)
    return os.fspath(thing) if isinstance(thing, os.PathLike) else thing


def _asked(env: str, threads: int | None, **given: Any) -> dict[str, Any]:
    """All fields of a configuration, None for those of which nothing is said."""
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, Integral)):
        raise UserError(f"threads={threads!r}: give a whole number, or None for as many as there are cores")
    if env not in ("inprocess", "sim", "poc"):
        raise UserError(f"env={env!r}: use inprocess, sim or poc; real sites have `medpfl run --env prod`")
    known = [name for name in RunConfig.model_fields if name not in ("algorithm", "names")]
    for name, value in given.items():
        if name in _OF_THE_COMMAND_LINE:
            raise UserError(f"{name}={value!r}: the command line's alone; here {_OF_THE_COMMAND_LINE[name]}")
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}? A" if close else "a"
            raise UserError(
                f"{name}={value!r}: no option; {hint} setting of training or of the method goes into "
                f"settings={{{name!r}: {value!r}}}"
            )
    if isinstance(given.get("held_out"), list | tuple):
        given["held_out"] = ",".join(map(str, given["held_out"]))
    for name in ("data", "model"):
        given[name] = _text(given[name], name, elsewhere=env != "inprocess")
    maps = {name: given.get(name) or {} for name in ("data_args", "model_args", "settings")}
    for name, value in maps.items():
        if not isinstance(value, Mapping):
            raise UserError(f"{name}={value!r}: give a dict of names and values")
    return as_meant({**dict.fromkeys([*known, "names"]), **given, **{name: dict(v) for name, v in maps.items()}})


@contextmanager
def _folder(out: str | os.PathLike | None) -> Iterator[tuple[Path, TemporaryDirectory | None]]:
    """The folder of a run, and its owner if it is a temporary one, which goes at once where the run fails."""
    if out is not None:
        if not isinstance(out, str | os.PathLike):
            raise UserError(f"out={out!r}: give a folder's path")
        yield at_home(out), None
        return
    temporary = TemporaryDirectory(prefix="medpfl-")
    try:
        yield Path(temporary.name), temporary
    except BaseException:
        temporary.cleanup()
        raise


def _shown(quiet: bool, title: str, config: RunConfig) -> AbstractContextManager[Watch]:
    console = Console(emoji=False)
    if quiet or not (console.is_terminal or console.is_jupyter):
        return nullcontext(watch_nothing)
    return progress_of(console, title, config)
