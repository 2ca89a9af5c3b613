"""A configuration as a FLARE job folder."""

from __future__ import annotations

from pathlib import Path

from medpfl.algorithms import mixings
from medpfl.config.run import RunConfig
from medpfl.core.errors import UserError
from medpfl.core.statefile import fingerprint
from medpfl.data.kinds.npz.partitioned import PartitionedImages
from medpfl.data.kinds.registry import kind_of
from medpfl.data.sites import open_source
from medpfl.engine.federation import Federation
from medpfl.flare.job.folder import place_for, read_job, write_job
from medpfl.flare.job.recipes import PersonalizedRecipe


def gpus_of(config: RunConfig, given: int | None) -> int:
    """How many GPUs FLARE must give a site: as the user says, else one where the device is a GPU."""
    return int(config.device.startswith("cuda")) if given is None else given


def export_job(config: RunConfig, job: Path, *, byoc: bool = False, track: str | None = None, gpus: int = 0) -> Path:
    """Writes a job folder, replacing a job of the same name there.

    Args:
        config: the run; made :func:`startable`.
        job: the folder; its last part is the job's name.
        byoc: carry this package's code in the job.
        track: see :class:`medpfl.flare.job.recipes.PersonalizedRecipe`.
        gpus: GPUs every site must give.

    Returns:
        The job folder.

    Raises:
        UserError: as :func:`startable`, :func:`place_for` and :func:`write_job`.
    """
    config, job = startable(config), place_for(job)
    recipe = PersonalizedRecipe(config, name=job.name, experiment=job.name, byoc=byoc, track=track, gpus=gpus)
    return write_job(recipe, job)


def describe(job: Path) -> list[str]:
    """What a job folder that :func:`export_job` has written takes, goes to and has sent, in a few lines."""
    made = read_job(job)
    config = made.config
    who = ", ".join(config.names) or f"all that are connected ({config.min_sites or config.sites} needed)"
    beside = " and ".join(dict.fromkeys(name.partition("/")[0] for name in made.allowed if "/" in name))
    tensors = sum("/" not in name for name in made.allowed)
    sent = f"{tensors or 'no'} tensor{'' if tensors == 1 else 's'}"
    source = open_source(config)
    lines = [
        f"Data: {source.in_words()}",
        f"Sites: {who}; each sends {sent}{beside and f' and its {beside}'}",
    ]
    if config.mixer.under_model and not config.pretrained and not isinstance(source, PartitionedImages):
        lines.append(
            "Model f: its file is not on this machine, so the job has no fingerprint of it, and hospitals refuse it: "
            "export where the file is, or give --pretrained"
        )
    return lines


def startable(config: RunConfig) -> RunConfig:
    """The configuration as the job of a whole run carries it, where server and sites could begin it.

    Raises:
        UserError: as :func:`portable`; or it names data that nothing is known of; or f would be pretrained on sites'
            own data, which no server has.
    """
    config = portable(config)
    if unknown := kind_of(config.data, config.data_args).unknown(config.data):
        raise UserError(unknown)
    if not config.mixer.under_model:
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
    return config.model_copy(update={"pretrained": f"sha256:{fingerprint(f)}"})


def _require_pooled(config: RunConfig) -> None:
    if not isinstance(open_source(config), PartitionedImages):
        without = [kind.name for kind in mixings().values() if kind.least_updates > 1 and not kind.under_model]
        raise UserError(
            f"{config.algorithm} needs a pretrained model f, and the sites' own data are not pooled to pretrain it: "
            "give --set pretrain=PATH, a checkpoint that the server has there, or a mixing that needs none "
            f"({', '.join(without)})"
        )


def portable(config: RunConfig) -> RunConfig:
    """The configuration as a job may carry it.

    Jobs travel to sites, paths do not: a file of an official data set becomes the data set's name, CT scans become
    their manifest's name (or the name they were found by) and classes, and image folders the folder's name and
    classes; every site finds that name in its own folders (:func:`medpfl.data.places.folders`).

    Raises:
        UserError: the configuration names files that no other machine would have, or centres to hold out.
    """
    if config.held_out:
        raise UserError(f"--held-out {config.held_out}: only a simulation can test held-out centres; leave it out")
    config = kind_of(config.data, config.data_args).portable(config)
    if config.partition.startswith("file:"):
        raise UserError("--partition file: a job cannot carry a path; use a partition that is drawn from the seed")
    return config
