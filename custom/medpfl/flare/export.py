"""A configuration as a FLARE job folder."""

from __future__ import annotations

import os
from pathlib import Path

from medpfl.assemble import Federation
from medpfl.config import RunConfig
from medpfl.data.catalog import find, open_dataset
from medpfl.data.ct.manifest import find_manifest, named_classes
from medpfl.data.ct.source import Scans
from medpfl.data.folders.source import Folders
from medpfl.data.kinds import find_folder, is_ct, is_folders, kind_of
from medpfl.data.medmnist_sets import known_set, official_md5
from medpfl.data.own_function import OwnData
from medpfl.data.partitioned import PartitionedImages
from medpfl.data.sites import open_source
from medpfl.errors import UserError
from medpfl.flare.kit import read_job
from medpfl.flare.recipes import PersonalizedRecipe
from medpfl.messages import STATISTICS
from medpfl.statefile import fingerprint


def export_job(config: RunConfig, job: Path, *, byoc: bool = False, track: str | None = None, gpus: int = 0) -> Path:
    """Writes a job folder, replacing a job of the same name there.

    Args:
        config: the run; made :func:`startable`.
        job: the folder; its last part is the job's name.
        byoc: carry this package's code in the job.
        track: see :class:`medpfl.flare.recipes.PersonalizedRecipe`.
        gpus: GPUs every site must give.

    Returns:
        The job folder.
    """
    config = startable(config)
    recipe = PersonalizedRecipe(config, name=job.name, experiment=job.name, byoc=byoc, track=track, gpus=gpus)
    job.parent.mkdir(parents=True, exist_ok=True)
    recipe.export(str(job.parent))
    return job


def describe(job: Path) -> list[str]:
    """What a job folder that :func:`export_job` has written takes, goes to and has sent, in a few lines."""
    made = read_job(job)
    config = made.config
    who = ", ".join(config.names) or f"all that are connected ({config.min_sites or config.sites} needed)"
    statistics = [name for name in made.allowed if name.startswith(STATISTICS)]
    tensors = len(made.allowed) - len(statistics)
    sent = f"{tensors or 'no'} tensor{'' if tensors == 1 else 's'}"
    return [
        f"Data: {_data(config)}",
        f"Sites: {who}; each sends {sent}{' and its statistics' if statistics else ''}",
    ]


def _data(config: RunConfig) -> str:
    source = open_source(config)
    if isinstance(source, OwnData):
        return f"what the function {config.data} returns at each site"
    if isinstance(source, PartitionedImages):
        classes = source.dataset.n_classes
        return f"data set {config.data!r}, {classes} classes, the whole set at server and sites ({config.partition})"
    what = {Scans: "CT scans", Folders: "pictures"}.get(type(source), "images in npz files")
    classes = ", ".join(f"{label} {name}" for label, name in enumerate(source.inputs().classes))
    return f"each site's own {what} {config.data!r}, classes {classes}"


def startable(config: RunConfig) -> RunConfig:
    """The configuration as the job of a whole run carries it, where server and sites could begin it.

    Raises:
        UserError: as :func:`portable`; or it names data that nothing is known of; or f would be pretrained on sites'
            own data, which no server has.
    """
    config = portable(config)
    kind = kind_of(config.data, config.data_args)
    if kind == "set" and not (known_set(config.data.lower()) or Path(config.data).suffix):
        _require_here(config.data)
    if not config.needs_pretraining:
        return config
    if config.all_settings["pretrain"] == "pooled":
        _require_pooled(config)
        return config
    return _naming_pretrained(config)


def _naming_pretrained(config: RunConfig) -> RunConfig:
    """With the fingerprint of f, by which sites know it, where the file is here; else whoever exports gives it."""
    if config.pretrained or not Path(str(config.all_settings["pretrain"])).is_file():
        return config
    f = Federation.of(config.model_copy(update={"device": "cpu"})).given_pretrained()
    return config.model_copy(update={"pretrained": fingerprint(f)})


def _require_here(data: str) -> None:
    try:
        find(data)
    except UserError as error:
        raise UserError(
            f"{error}; for CT scans that the sites have under this name give --data-arg classes=A,B, for pictures "
            "--data-arg channels=rgb (or grey) too"
        ) from None


def _require_pooled(config: RunConfig) -> None:
    if not isinstance(open_source(config), PartitionedImages):
        raise UserError(
            f"{config.algorithm} needs a pretrained model f, and the sites' own data are not pooled to pretrain it: "
            "give --set pretrain=PATH, a checkpoint that the server has there, or use f-fedap, which needs none"
        )


def portable(config: RunConfig) -> RunConfig:
    """The configuration as a job may carry it.

    Jobs travel to sites, paths do not: a file of an official data set becomes the data set's name, CT scans become
    their manifest's name (or the name they were found by) and classes, and image folders the folder's name and
    classes; every site finds that name in its own folders (:func:`medpfl.data.catalog.folders`).

    Raises:
        UserError: the configuration names files that no other machine would have, or centres to hold out.
    """
    if config.held_out:
        raise UserError(f"--held-out {config.held_out}: only a simulation can test held-out centres; leave it out")
    if (kind := kind_of(config.data, config.data_args)) in ("scans", "folders"):
        config = _scans_by_name(config) if kind == "scans" else _folders_by_name(config)
    elif os.sep in config.data:
        config = config.model_copy(update={"data": _official_name(config.data)})
    if config.partition.startswith("file:"):
        raise UserError("--partition file: a job cannot carry a path; use a partition that is drawn from the seed")
    return config


def _folders_by_name(config: RunConfig) -> RunConfig:
    """The configuration of image folders without their path, with their classes and what tells them from scans."""
    name, source = config.data, Folders(config)
    classes = named_classes(config.data_args)
    if is_folders(config.data):
        classes = source.layout.classes
        if find_folder(config.data) == Path(config.data).expanduser():
            name = source.layout.root.resolve().name
    if not name.strip(" .") or any(sign in name for sign in "/\\:"):
        raise UserError(
            f"{config.data}: a job names the folder, and sites cannot look for {name!r} in $MEDPFL_DATA: "
            "give a folder whose name has no / \\ and :"
        )
    told = {"classes": list(classes), "channels": source.reading.channels}
    return config.model_copy(update={"data": name, "data_args": config.data_args | told})


def _scans_by_name(config: RunConfig) -> RunConfig:
    """The configuration of CT scans without their path, and with their classes."""
    name, classes = config.data, named_classes(config.data_args)
    if is_ct(config.data):
        manifest = Scans(config).manifest
        classes = manifest.classes
        if find_manifest(config.data) == Path(config.data).expanduser():
            name = manifest.name
    if not name.strip(" .") or any(sign in name for sign in "/\\:") or name.lower().endswith(".json"):
        raise UserError(
            f"{config.data}: a job names the scans, and sites cannot look for {name!r} in $MEDPFL_DATA: "
            'give the manifest a "name" without / \\ : and .json'
        )
    return config.model_copy(update={"data": name, "data_args": config.data_args | {"classes": list(classes)}})


def _official_name(path: str) -> str:
    dataset = open_dataset(path)
    name = Path(path).stem
    if official_md5(name) != dataset.md5:
        raise UserError(
            f"{path}: a job cannot carry a path, and this is not an official data set's file; "
            "export with a name of `medpfl data list` and put the file into $MEDPFL_DATA as NAME.npz where the job runs"
        )
    return name
