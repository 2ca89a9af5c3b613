"""A federation of three hospitals on one machine, with all that a real one has: certificates, TLS, processes, own data.

    python examples/rehearsal.py [FOLDER] [--short]

provisions startup kits, gives every hospital its own folder with its own CT scans (made by the computer), starts the
server and the hospitals, runs ViT-heads on the scans and FedAP on real slices, fetches the results, lists the models
that each hospital then has, and stops everything. The commands are printed as they are run.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import yaml

from medpfl.flare.launch.poc import free_port, started
from medpfl.report.words import count

PROJECT = Path(__file__).parents[1] / "app_config" / "project.yml"
HOSPITALS = ["north-hospital", "south-clinic", "east-institute"]
ADMIN = "admin@example.org"
MARK = ".rehearsal"
CLASSES = 'classes=["no emphysema", "emphysema"]'


def main() -> None:
    """The rehearsal."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs/rehearsal"), help="is made anew")
    parser.add_argument("--short", action="store_true", help="fewer patients and rounds")
    arguments = parser.parse_args()
    folder, begun = arguments.folder.resolve(), time.monotonic()
    if folder.exists() and not (folder / MARK).exists():
        sys.exit(f"{folder} exists and is of no earlier rehearsal: name a folder that can be made anew")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    kits = provision(folder)
    hospitals = hospital_folders(folder, patients=24 if arguments.short else 96)
    rounds = ["--rounds", "2" if arguments.short else "10"]
    run("medpfl", "site", "init", kits / "localhost", quiet=True)
    for name, scans in hospitals.items():
        # So few patients would send nothing by a hospital's default.
        policy = ["--policy", "least_patients=2"]
        run("medpfl", "site", "init", kits / name, "--data", f"phantom-ct={scans}", *policy, quiet=True)
    environment = {name: {"XDG_CACHE_HOME": str(scans.parent / "cache")} for name, scans in hospitals.items()}
    sites = [kits / name for name in HOSPITALS]
    say("starting the server and the hospitals")
    with started(kits / ADMIN, kits / "localhost", sites, environment):
        submit = ["--env", "prod", "--kit", kits / ADMIN, "--sites", ",".join(HOSPITALS), *rounds]
        scans = ["--data", "phantom-ct", "--data-arg", CLASSES, "--data-arg", "size=32", "--data-arg", "slices=8"]
        scans += ["--model-arg", "patch_size=8", "--set", "batch_size=16", "--select-by", "auroc"]
        run("medpfl", "run", "vit-heads", *scans, *submit, "--experiment", "scans", "--out", folder / "scans")
        slices = ["--train-fraction", 0.2] if arguments.short else []
        run("medpfl", "run", "fedap", *slices, *submit, "--experiment", "slices", "--out", folder / "slices")
    say("stopped")
    summary(folder, kits)
    print(f"{time.monotonic() - begun:.0f} s", flush=True)


def provision(folder: Path) -> Path:
    """Startup kits for all who are in the project, whose server listens at a port that is free here."""
    project = yaml.safe_load(PROJECT.read_text())
    project["participants"][0]["fed_learn_port"] = free_port()
    file = folder / "project.yml"
    file.write_text(yaml.safe_dump(project, sort_keys=False))
    run("nvflare", "provision", "-p", file, "-w", folder / "federation", quiet=True)
    return folder / "federation" / project["name"] / "prod_00"


def hospital_folders(folder: Path, patients: int) -> dict[str, Path]:
    """A folder for each hospital with the scans of one centre and a manifest of its own."""
    run("medpfl", "data", "phantom", folder / "cohort", "--patients", patients, "--matrix", 64, quiet=True)
    manifest = json.loads((folder / "cohort" / "manifest.json").read_text())
    found = {}
    for name, centre in zip(HOSPITALS, manifest["centres"], strict=False):
        own = folder / "hospitals" / name / "phantom-ct"
        own.mkdir(parents=True)
        shutil.move(folder / "cohort" / centre["folder"], own / centre["folder"])
        (own / "manifest.json").write_text(json.dumps(manifest | {"centres": [centre]}, indent=1))
        found[name] = own
    shutil.rmtree(folder / "cohort")  # no hospital sees another's
    return found


def summary(folder: Path, kits: Path) -> None:
    """Prints each run's figures by hospital, and the models in each hospital's workspace."""
    for experiment in ("scans", "slices"):
        results = json.loads((folder / experiment / "results.json").read_text())
        kept = json.loads((folder / experiment / "job.json").read_text())["experiment"]  # the name at the hospitals
        print(f"\n{results['algorithm']}: {folder / experiment / 'report.html'}")
        for name in HOSPITALS:
            tested = results["final"]["selected"]["sites"][name]
            models = sorted((kits / name / "medpfl" / kept / name).glob("model-*.safetensors"))
            size = sum(model.stat().st_size for model in models) / 1e6
            kept_models = f"{count(len(models), 'model')}, {size:.1f} MB"
            print(f"  {name}: accuracy {tested['accuracy']:.3f} on {tested['n']}, {kept_models}")
        at_server = list((kits / "localhost").rglob("model-*.safetensors"))
        print(f"  server: {count(len(at_server), 'model')} of hospitals")


def run(program: str, *arguments: object, quiet: bool = False) -> None:
    """Runs a command of this Python's environment and shows it; its output too, unless all goes well quietly."""
    words = [str(argument) for argument in arguments]
    say(shlex.join([program, *words]))
    module = {"medpfl": "medpfl.cli.main", "nvflare": "nvflare.cli"}[program]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if quiet else {}
    done = subprocess.run([sys.executable, "-m", module, *words], text=True, **output)
    if done.returncode:
        sys.exit(f"{program} ended with {done.returncode}\n{done.stdout or ''}")


def say(line: str) -> None:
    """Prints a step."""
    print(f"$ {line}", flush=True)


if __name__ == "__main__":
    main()
