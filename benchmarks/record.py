"""A record of what medpfl computes, to compare before and after a change of its code: bits, not opinions.

    PYTHONPATH=$PWD/custom python benchmarks/record.py OUT.json [--only 'inprocess/*'] [--workers 2]
    python benchmarks/record.py --compare BEFORE.json AFTER.json [--only PATTERN]

Runs every method and its variants, small, by the command line alone (``record_cases.py``), and keeps what a user can
see: results.json, join.json and comparison.json without times, versions and paths, history.csv, the cards, and a
fingerprint of every model. On one machine, with the same libraries, two records of the same code are equal; the second
form lists every difference by case and key, and its exit code is 1 if there is any. The package is the one that
PYTHONPATH names, of any age that knows these options.
"""

import argparse
import csv
import fnmatch
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import psutil
from record_cases import PHANTOM, Step, cases
from record_compare import compare
from record_data import FILES
from safetensors import deserialize

DROPPED = {"seconds", "environment", "source", "versions", "sha256"}
"""Keys that differ between two runs of the same code, or between machines; a model's fingerprint stands for sha256."""

KEPT = ("results.json", "join.json", "comparison.json", "history.csv", "card.json", "partition.json")
LIBRARIES = ("torch", "monai", "nvflare", "numpy", "scikit-learn", "safetensors")
LONG_TEXT = 1000
"""Longer texts, which are pictures, are kept as a fingerprint."""

PATIENCE = 600
"""Seconds that a command may take."""


def main() -> int:
    """Writes a record or compares two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--compare", action="store_true", help="list the differences of two records")
    parser.add_argument("--only", default="*", help="cases whose name fits this pattern, e.g. 'sim/*'")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="cases at once")
    options = parser.parse_args()
    if len(options.files) != 1 + options.compare:
        parser.error("give one file to write, or two after --compare")
    if options.compare:
        return compare(*(json.loads(file.read_text()) for file in options.files), options.only)
    return write(options.files[0], options.only, options.workers)


def write(out: Path, only: str, workers: int) -> int:
    """Runs the cases and writes the record; returns how many failed."""
    chosen = {name: steps for name, steps in cases().items() if fnmatch.fnmatch(name, only)}
    if not chosen:
        raise SystemExit(f"no case fits {only!r}: {', '.join(cases())}")
    # Children see these: sums must not depend on the shell, nor on what an earlier run has cached.
    for name in ("MEDPFL_DATA", "COLUMNS"):
        os.environ.pop(name, None)
    record: dict[str, Any] = {"machine": machine(), "cases": {}}
    with tempfile.TemporaryDirectory(prefix="medpfl-record-") as folder:
        work = Path(folder).resolve()
        os.environ |= {"XDG_CACHE_HOME": f"{work}/cache", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        prepare_interpreter()
        places = make_data(work, chosen)
        failed, begun = 0, time.monotonic()
        with ThreadPoolExecutor(workers) as pool:
            jobs = {pool.submit(run_case, work / "cases" / name, chosen[name], places): name for name in chosen}
            for job in as_completed(jobs):
                name, (kept, seconds) = jobs[job], job.result()
                record["cases"][name] = kept
                bad = [step for step in kept["steps"] if step["exit"] != step["expected"]]
                failed += bool(bad)
                print(f"{name}: {seconds:.0f} s", *(f"FAILED {step}" for step in bad), flush=True)
    record["cases"] = dict(sorted(record["cases"].items()))
    out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{out}: {len(chosen)} cases, {failed} failed, {time.monotonic() - begun:.0f} s")
    return min(failed, 1)


def machine() -> dict[str, Any]:
    """What bits may depend on beside the code."""
    with open("/proc/cpuinfo") as file:
        cpu = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    versions = {name: importlib.metadata.version(name) for name in LIBRARIES}
    return {"cpu": cpu, "cores": os.cpu_count(), "python": platform.python_version(), **versions}


def prepare_interpreter() -> None:
    """Says which package runs, whose commands are forked from a process that has loaded the libraries but not it."""
    spec = importlib.util.find_spec("medpfl")
    package = Path(spec.origin).parent
    print(f"medpfl in {package}", flush=True)
    paths = [str(package.parents[1] / "examples"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    sys.path.append(paths[0])
    libraries = ["scipy.stats", "sklearn.metrics", "monai.networks.nets", "pydantic", "typer"]
    multiprocessing.set_start_method("forkserver")
    multiprocessing.set_forkserver_preload(libraries)


def make_data(work: Path, chosen: dict[str, list[Step]]) -> dict[str, Path]:
    """Writes the data that the chosen cases name, and returns where."""
    commands = " ".join(step.command for steps in chosen.values() for step in steps)
    places = {name: work / "data" / file for name, (file, _) in FILES.items()} | {"phantom": work / "data" / "phantom"}
    (work / "data").mkdir()
    for name, (_, make) in FILES.items():
        if f"{{{name}}}" in commands:
            make(places[name])
    if "{phantom}" in commands and (code := run_step(PHANTOM, work / "data", places, work / "phantom.log")):
        raise SystemExit(f"data phantom: exit code {code}\n{(work / 'phantom.log').read_text()}")
    return places


def run_case(folder: Path, steps: list[Step], places: dict[str, Path]) -> tuple[dict[str, Any], float]:
    """One case: how its commands ended and what they left, and its seconds. A command that fails ends it."""
    folder.mkdir(parents=True)
    begun, log, ended = time.monotonic(), folder / "log.txt", []
    for step in steps:
        code = run_step(step, folder, places, log)
        ended.append({"exit": code, "expected": -9 if step.kill_after else 0})
        if code != ended[-1]["expected"]:
            ended[-1]["said"] = clean(log.read_text()[-500:], folder.parents[2])
            break
    return {"steps": ended, "files": kept_files(folder, places["images"].parents[1])}, time.monotonic() - begun


def run_step(step: Step, folder: Path, places: dict[str, Path], log: Path) -> int:
    """The exit code of one command in a process of its own; -9 if it was killed as the step says."""
    arguments = [part.format(case=folder, **places) for part in step.command.split()]
    process = multiprocessing.get_context().Process(target=medpfl, args=(arguments, log))
    process.start()
    deadline = time.monotonic() + PATIENCE
    if step.kill_after:
        while process.is_alive() and finished_rounds(folder / "run") < step.kill_after:
            time.sleep(0.005)
    else:
        process.join(PATIENCE)
    if process.is_alive():
        process.kill()
        process.join()
    while still_running(folder):  # what FLARE started ends by itself; it must not write into a run that goes on
        if time.monotonic() > deadline:
            raise RuntimeError(f"{folder}: processes of the command go on")
        time.sleep(0.1)
    return process.exitcode


def medpfl(arguments: list[str], log: Path) -> None:
    """The command line, in the process that this is called in."""
    with open(log, "w") as file, redirect_stdout(file), redirect_stderr(file):
        sys.argv = ["medpfl", *arguments]
        entry_point()()


def entry_point() -> Any:
    """``medpfl.cli.main:main``, or ``medpfl.cli:main`` of the time when the command line was one module."""
    try:
        return importlib.import_module("medpfl.cli.main").main
    except ModuleNotFoundError as error:
        if error.name not in ("medpfl.cli.main", "medpfl.cli"):
            raise
        return importlib.import_module("medpfl.cli").main


def finished_rounds(run: Path) -> int:
    """Rounds in the newest results.json of a run that goes on; in the simulator it lies in the server's folder."""
    for file in (run / "results.json", *run.glob("flare/*/server/simulate_job/results.json")):
        if file.exists():
            return len(json.loads(file.read_text())["rounds"])
    return 0


def still_running(folder: Path) -> list[psutil.Process]:
    """Processes whose command line names the folder."""
    every = psutil.process_iter(["cmdline"])
    return [process for process in every if any(str(folder) in part for part in process.info["cmdline"] or ())]


def kept_files(folder: Path, work: Path) -> dict[str, Any]:
    """What a user can read of all runs below the folder, by path: figures, and the models' fingerprints."""
    kept = {}
    for file in sorted(folder.rglob("*")):
        path = file.relative_to(folder)
        if {"flare", "bundle", "server"} & set(path.parts[:-1]) or not file.is_file():
            continue
        if file.suffix == ".safetensors" and ("models" in path.parts or file.stem == "model"):
            kept[str(path)] = fingerprint(file)
        elif file.name == "history.csv":
            rows = list(csv.DictReader(file.read_text().splitlines()))
            kept[str(path)] = [{key: value for key, value in row.items() if key not in DROPPED} for row in rows]
        elif file.name == "partition.json":
            content = json.dumps(json.loads(file.read_text()), sort_keys=True)
            kept[str(path)] = hashlib.sha256(content.encode()).hexdigest()
        elif file.name in KEPT:
            kept[str(path)] = clean(json.loads(file.read_text()), work)
    return kept


def clean(value: Any, work: Path) -> Any:
    """JSON without what is dropped; pictures as fingerprints, and the folder of this record as WORK."""
    if isinstance(value, dict):
        return {key: clean(inner, work) for key, inner in value.items() if key not in DROPPED}
    if isinstance(value, list):
        return [clean(inner, work) for inner in value]
    if not isinstance(value, str):
        return value
    if len(value) > LONG_TEXT:
        return f"sha256 {hashlib.sha256(value.encode()).hexdigest()}"
    return value.replace(str(work), "WORK")


def fingerprint(file: Path) -> dict[str, Any]:
    """SHA-256 over the tensors' names, types, shapes and bytes, sorted by name; and how many there are."""
    tensors = sorted(deserialize(file.read_bytes()), key=lambda tensor: tensor[0])
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tensor['dtype']} {list(tensor['shape'])} ".encode())
        digest.update(tensor["data"])
    return {"tensors": len(tensors), "sha256 of tensors": digest.hexdigest()}


if __name__ == "__main__":
    sys.exit(main())
