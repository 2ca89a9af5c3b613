"""A configuration as a FLARE job folder."""

from __future__ import annotations

import os
from pathlib import Path

from medpfl.config import RunConfig
from medpfl.data.catalog import open_dataset
from medpfl.data.ct.manifest import is_ct, open_manifest
from medpfl.data.medmnist_sets import official_md5
from medpfl.errors import UserError
from medpfl.flare.recipes import PersonalizedRecipe


def export_job(config: RunConfig, job: Path, *, byoc: bool = False) -> Path:
    """Writes a job folder, replacing a job of the same name there.

    Jobs travel to sites, paths do not: a file of an official data set becomes the data set's name, and CT scans become
    their manifest's name and classes; every site finds that name in its own folders
    (:func:`medpfl.data.catalog.folders`).

    Args:
        config: the run.
        job: the folder; its last part is the job's name.
        byoc: carry this package's code in the job.

    Returns:
        The job folder.

    Raises:
        UserError: the configuration names files that no other machine would have.
    """
    if is_ct(config.data):
        manifest = open_manifest(config.data)
        arguments = config.data_args | {"classes": list(manifest.classes)}
        config = config.model_copy(update={"data": manifest.name, "data_args": arguments})
    elif os.sep in config.data:
        config = config.model_copy(update={"data": _official_name(config.data)})
    if config.partition.startswith("file:"):
        raise UserError("--partition file: a job cannot carry a path; use a partition that is drawn from the seed")
    recipe = PersonalizedRecipe(config, name=job.name, experiment=job.name, byoc=byoc)
    job.parent.mkdir(parents=True, exist_ok=True)
    recipe.export(str(job.parent))
    return job


def _official_name(path: str) -> str:
    dataset = open_dataset(path)
    name = Path(path).stem
    if official_md5(name) != dataset.md5:
        raise UserError(
            f"{path}: a job cannot carry a path, and this is not an official data set's file; "
            "export with a name of `medpfl data list` and put the file into $MEDPFL_DATA as NAME.npz where the job runs"
        )
    return name
