"""Writes the job folders beside this file, and the class allow-list that a simulator workspace needs for them.

A test keeps both in step with the code. Run with `make jobs`.
"""

from pathlib import Path

from medpfl.config import make_config
from medpfl.flare.export import export_job
from medpfl.flare.recipes import allow_package

ALGORITHMS = ("fedavg", "fedbn", "fedap", "d-fedap", "f-fedap")


def make_jobs(folder: Path) -> list[Path]:
    """One job an algorithm: five sites, the OrganAMNIST images that come with the package."""
    configs = [make_config(algorithm=name, sites=5, rounds=10) for name in ALGORITHMS]
    return [export_job(config, folder / f"organamnist-{config.algorithm}") for config in configs]


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    for job in make_jobs(here):
        print(job)
    allow_package(here.parent / "app_config" / "simulator" / "local")
