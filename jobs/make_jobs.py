"""Writes the job folders beside this file, and the class allow-list that a simulator workspace needs for them.

A test keeps both in step with the code. Run with `make jobs`.
"""

from pathlib import Path

from medpfl.config.run import make_config
from medpfl.flare.job.export import export_job
from medpfl.flare.job.recipes import allow_package
from medpfl.flare.transport.tracking import DEFAULT

ALGORITHMS = ("fedavg", "fedbn", "fedap", "d-fedap", "f-fedap", "vit-heads")
EMPHYSEMA = ["no emphysema", "emphysema"]


def make_jobs(folder: Path) -> list[Path]:
    """Jobs on the sample that comes with the package, on BloodMNIST, on the phantom cohort, and for hospitals' CT."""
    jobs = {f"organamnist-{name}": make_config(algorithm=name, sites=5, rounds=10) for name in ALGORITHMS}
    jobs["phantom-vit-heads"] = make_config(
        algorithm="vit-heads",
        data="phantom-ct",
        data_args={"classes": EMPHYSEMA, "size": 32, "slices": 8},
        model_args={"patch_size": 8},
        partition="natural",
        sites=6,
        rounds=10,
        settings={"batch_size": 16},
        select_by="auroc",
    )
    jobs["chest-ct-vit-heads"] = make_config(
        algorithm="vit-heads",
        data="chest-ct",
        data_args={"classes": EMPHYSEMA, "size": 224, "slices": 32},
        model="vit-small",
        partition="natural",
        sites=3,
        select_by="auroc",
    )
    jobs["bloodmnist-fedimpres"] = make_config(
        algorithm="fedimpres",
        data="bloodmnist",
        data_args={"pad": 32},
        partition="fedimpres-0.005",
        sites=8,
        holdout=0.1,
        settings={"start": "holdout"},
    )
    return [export_job(config, folder / name, track=DEFAULT) for name, config in jobs.items()]


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    for job in make_jobs(here):
        print(job)
    allow_package(here.parent / "app_config" / "simulator" / "local")
