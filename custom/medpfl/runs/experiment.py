"""One run from a configuration to files: results.json, history.csv, models, partition, report."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from medpfl.config.named_code import permit_named
from medpfl.config.run import RunConfig
from medpfl.core.errors import UserError
from medpfl.core.growing import Growing
from medpfl.core.lock import run_folder
from medpfl.core.memory import keep_freed_memory
from medpfl.core.server_state import ServerState
from medpfl.core.statefile import write_state
from medpfl.core.whole_file import write_text
from medpfl.data.kinds.npz.partitioned import PartitionedImages
from medpfl.data.kinds.registry import kind_of
from medpfl.data.sites import open_source
from medpfl.data.source import checksum
from medpfl.data.uneven import before_a_run, require_test_cases
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import parallel_sites, run_in_process
from medpfl.engine.progress import Watch, watch_nothing
from medpfl.engine.results import build_results, write_results
from medpfl.report.history import history_csv
from medpfl.report.page import write_report
from medpfl.runs.folder import (
    RESULTS,
    checkpoint_in,
    finished_before,
    require_one_wish,
    require_own_folder,
    state_before,
)
from medpfl.runs.forgetting import NOT_MEASURED, forgetting
from medpfl.runs.new_test import NO_TEST, new_test
from medpfl.runs.running_statistics import NOT_HELD_AGAINST, running_statistics
from medpfl.server.checkpoint import as_recorded, load_checkpoint
from medpfl.server.rounds import Plan
from medpfl.site.book import Book
from medpfl.site.delivery import CARD, DETAIL
from medpfl.site.ending import final_state
from medpfl.site.guard import Guarded
from medpfl.site.store import DiskStore

logger = logging.getLogger(__name__)

Env = Literal["sim", "poc", "inprocess"]


def run_experiment(
    config: RunConfig,
    out: Path,
    *,
    env: Env,
    threads: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    together: bool | None = None,
    forgotten: bool | None = None,
    track: str | None = None,
    watch: Watch = watch_nothing,
) -> dict[str, Any]:
    """Runs, or goes on with, one experiment and writes its folder.

    Args:
        config: the run.
        out: the experiment's folder.
        env: FLARE's simulator, FLARE's POC, or this process.
        threads: sites at once; by default all in the simulator, one a core in this process. Always all in the POC.
        resume: go on where an earlier call with the same settings stopped; a finished one is only read.
        overwrite: throw away what is in the folder.
        together: test the average of all sites' models too (:mod:`medpfl.runs.new_test`); None does so if it is cheap.
        forgotten: measure what local training makes models forget (:mod:`medpfl.runs.forgetting`); None does so where
            the method's aim is to have less of it, and it is cheap.
        track: ``tensorboard``, ``mlflow`` or ``wandb``, in the simulator or POC.
        watch: told of the run's progress.

    Returns:
        The content of results.json.

    Raises:
        UserError: the folder holds something else, the settings make no sense, or the run cannot go on.
    """
    keep_freed_memory()
    permit_named(config)
    require_one_wish(resume, overwrite)
    if track and env == "inprocess":
        raise UserError(f"--track {track}: FLARE's receivers do the tracking; use --env sim, poc or prod")
    require_own_folder(out)
    with run_folder(out):
        if resume:
            config = as_recorded(checkpoint_in(out), config)
        started = time.perf_counter()
        # What the file holds is part of what the run is: the folder has it, and not where the file was.
        begun = Federation.of(config) if config.init or overwrite else None
        looked_at = _looked_at(begun) if begun and overwrite else None  # before anything is thrown away
        earlier = state_before(begun.config if begun else config, out, resume, overwrite) or ServerState()
        if earlier.phase == "done" and (finished := finished_before(config, out)) is not None:
            _require_same_data(config, finished, out)
            _restored(config, finished, earlier, out)
            return _completed(config, finished, out, _wanted(config, together, forgotten))
        federation = begun or Federation.of(config)
        described = looked_at or _looked_at(federation)
        for words in before_a_run(config.learned, described, config.select_by, mixes=config.mixes):
            logger.warning("%s", words)
        if isinstance(federation.source, PartitionedImages):
            federation.source.partition.save(out / "partition.json")
        if env in ("sim", "poc"):
            plan, state, start = _in_flare(env, config, federation, earlier, out, threads, watch, track)
        else:
            workers = threads or os.cpu_count() or 1
            plan, state, start = _in_process(federation, described, earlier, out, workers, watch, started)
        seconds = {"total": earlier.seconds + time.perf_counter() - started, "start": start}
        results = build_results(plan, state, env=env, data=federation.source.describe(), seconds=seconds)
        _write_models(config, state, out)
        results["notes"] += _not_left(out / "state", state)
        if details := _details(out / "state", state):
            results["detail"] = details
        write_results(out / RESULTS, results)
        write_text(out / "history.csv", history_csv(results))
        write_report([results], out / "report.html")
        return _with_further_tests(federation, results, out, _wanted(config, together, forgotten))


def _looked_at(federation: Federation) -> dict[str, Any]:
    """What describes a run's data; UserError where they, or f, are not there or cannot be used."""
    federation.given_pretrained()  # a wrong file is named before any process starts
    federation.source.prepare()
    described = federation.source.describe()
    require_test_cases(described, federation.config)
    return described


_REASONS = {"running_statistics": NOT_HELD_AGAINST, "new": NO_TEST, "forgetting": NOT_MEASURED}
"""Of further tests, how a note begins that says why there are none."""


def _wanted(config: RunConfig, together: bool | None, forgotten: bool | None) -> dict[str, bool | None]:
    """Of the further tests those that a run has: if asked, True, or None for if they are cheap."""
    if forgotten is None and not config.resists_forgetting:
        forgotten = False
    statistics = None if config.mixer.by_statistics else False
    wanted = {"running_statistics": statistics, "new": together, "forgetting": forgotten}
    return {part: yes for part, yes in wanted.items() if yes is not False}


def _completed(
    config: RunConfig, finished: dict[str, Any], out: Path, wanted: Mapping[str, bool | None]
) -> dict[str, Any]:
    """Finished results with the further tests that they lack, as after a kill: those asked for, or where data are."""
    missing = _missing(finished, wanted)
    if not missing:
        return finished
    try:
        return _with_further_tests(Federation.of(config), finished, out, missing)
    except UserError as error:
        if any(missing.values()):
            raise
        logger.warning("%s: %s not tested further: %s", out, config.algorithm, error)
        return finished


def _missing(finished: dict[str, Any], wanted: Mapping[str, bool | None]) -> dict[str, bool | None]:
    """Of these those that finished results have not, nor, unless they were asked for, a note why not."""

    def said(part: str) -> bool:
        return any(note.startswith(_REASONS[part]) for note in finished["notes"])

    return {part: yes for part, yes in wanted.items() if part not in finished and (yes or not said(part))}


def _require_same_data(config: RunConfig, finished: dict[str, Any], out: Path) -> None:
    """UserError if data that are still here are others than those of finished results."""
    if not kind_of(config.data, config.data_args).is_here(config.data):
        return
    now, then = checksum(open_source(config)), finished["data"].get("md5")
    if None not in (now, then) and now != then:
        raise UserError(
            f"{out} has results of other data: the checksum of {config.data} was {then}, now it is {now}; give "
            "--overwrite to have the run made again, or another --out"
        )


def _with_further_tests(
    federation: Federation, results: dict[str, Any], out: Path, wanted: Mapping[str, bool | None]
) -> dict[str, Any]:
    """The results with tests that need all sites' data in one place, or with notes why there are none; written again.

    Args:
        federation: of the finished run.
        results: of the run.
        out: its folder.
        wanted: of ``running_statistics``, ``new`` and ``forgetting`` those that are: True, or None for if it is cheap.
    """
    measured: dict[str, Callable[[bool], Any]] = {
        "running_statistics": lambda _: running_statistics(federation, out / "models"),
        "new": lambda asked: new_test(federation, out / "models", asked=asked),
        "forgetting": lambda asked: forgetting(federation, out / "state", asked=asked),
    }
    for part, asked in wanted.items():
        found = measured[part](bool(asked))
        notes = [note for note in results["notes"] if not note.startswith(_REASONS[part])]
        results = results | ({"notes": [*notes, found]} if isinstance(found, str) else {"notes": notes, part: found})
        write_report([results], out / "report.html")
        write_results(out / RESULTS, results)  # last: it says that the test is there
    return results


def _in_process(
    federation: Federation,
    described: dict[str, Any],
    earlier: ServerState,
    out: Path,
    threads: int,
    watch: Watch,
    started: float,
) -> tuple[Plan, ServerState, float]:
    begun = time.perf_counter()
    plan = federation.plan()
    folder = out / "state"
    sites = {n: _site(federation, n, folder / n) for n in federation.config.site_names}
    (folder / "server").mkdir(parents=True, exist_ok=True)
    workers = parallel_sites(sites, federation.model(), federation.device, threads)
    start = time.perf_counter() - begun

    rounds = Growing()

    def write(state: ServerState) -> None:
        seconds = {"total": state.seconds, "start": start}
        write_results(
            out / RESULTS, build_results(plan, state, env="inprocess", data=described, seconds=seconds), rounds
        )

    state = run_in_process(
        plan,
        sites,
        federation.model,
        workers=workers,
        earlier=earlier,
        checkpoint=folder / "server",
        watch=watch,
        after_step=write,
        started=started,
    )
    return plan, state, start


def _site(federation: Federation, name: str, folder: Path) -> Guarded:
    try:
        site = federation.site(name, DiskStore(folder, durable=False))
        return federation.guarded(site, book=Book(folder))
    except UserError:
        raise
    except Exception as error:  # the user's own function may raise anything
        raise UserError(f"data of {name}: {type(error).__name__}: {error}") from error


def _in_flare(
    env: Env,
    config: RunConfig,
    federation: Federation,
    earlier: ServerState,
    out: Path,
    threads: int | None,
    watch: Watch,
    track: str | None,
) -> tuple[Plan, ServerState, float]:
    sites = federation.config.sites
    if env == "poc" and threads:
        raise UserError("--threads: in a POC every site is a process of its own; leave it out")
    if threads and threads > sites:
        raise UserError(f"--threads {threads}: there are only {sites} sites to run side by side")
    state, start = earlier, 0.0
    if earlier.phase != "done":
        begun = time.perf_counter()
        # Only these engines need FLARE, whose import takes a second.
        if env == "poc":
            from medpfl.flare.launch.poc import run_in_poc

            results = run_in_poc(config, out, watch=watch, track=track)
        else:
            from medpfl.flare.launch.simulator import simulate

            results = simulate(config, out, threads=threads or sites, watch=watch, track=track)
        state = load_checkpoint(checkpoint_in(out), federation.config)
        at_work = state.seconds - earlier.seconds - results["seconds"]["start"]
        start = time.perf_counter() - begun - at_work
    plan = Plan(
        federation.config, federation.split, federation.initial_shared, federation.channels, start=federation.start
    )
    return plan, state, start


def _restored(config: RunConfig, finished: Mapping[str, Any], state: ServerState, out: Path) -> None:
    """What is gone of a finished run's files, but for its results and its page, is written again."""
    if not (out / "history.csv").exists():
        write_text(out / "history.csv", history_csv(finished))
    _write_models(config, state, out, missing=True)


def _write_models(config: RunConfig, state: ServerState, out: Path, *, missing: bool = False) -> None:
    """Every simulated site's own model, as it was selected, for whoever wants to look at it; or what is missing."""
    folder = out / "models"
    folder.mkdir(exist_ok=True)
    for name, metrics in (state.final or {}).items():
        file = folder / f"{name}.safetensors"
        if missing and file.exists():
            continue
        round_ = metrics["tested"]["selected"]
        model = final_state(DiskStore(out / "state" / name, durable=False), round_)
        if model is not None:
            info = {"model": config.model, "site": name, "round": round_}
            write_state(file, model, durable=False, info=info)


def _details(folder: Path, state: ServerState) -> dict[str, Any]:
    """By simulated site what it has seen of its own test: in a simulation everything is in one hand."""
    found = {}
    for name in state.final or {}:
        file = folder / name / "selected" / DETAIL
        try:
            found[name] = json.loads(file.read_bytes())
        except FileNotFoundError:
            pass
        except ValueError:
            logger.warning("%s is damaged and left out of the results", file)
    return found


def _not_left(folder: Path, state: ServerState) -> list[str]:
    """Which simulated sites have no model to use in their folders, as after a disk was full; it is not made again."""
    without = [name for name in state.final or {} if not (folder / name / "selected" / CARD).exists()]
    if not without:
        return []
    return [
        f"No model with its card and bundle in the folder of {', '.join(without)}: it could not be written there, "
        "or was removed. models/ has the weights; --overwrite makes the run anew."
    ]
