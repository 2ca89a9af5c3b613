"""Reads what a job would do at a site from its folder, before anybody consents."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.job_def import ALL_SITES

from medpfl.config.named_code import named_code
from medpfl.core.errors import UserError
from medpfl.core.permitted_code import is_function
from medpfl.engine.federation import Federation
from medpfl.flare.admin.enough import patients_here, site_name, values_here
from medpfl.flare.admin.reviewed import Leaving, Review
from medpfl.flare.job.classes import AT_SERVER, AT_SITE
from medpfl.flare.job.folder import as_sites_read, read_job
from medpfl.flare.job.sent import as_it_sends
from medpfl.models.cost import Limits
from medpfl.site.contract import Contract
from medpfl.site.local_file import FILE, local_of, permit_code, read_content, read_object, read_site_manifest
from medpfl.site.policy import HOSPITAL
from medpfl.site.unlike_training import unusual

_REVEALS = {
    "update": "from updates: whether given images were in training, properties of the site's cases, and parts of "
    "images where an update rests on few of them",
    "numbers": "from numbers: how many cases the site has, how well models do on them, and through that something of "
    "its classes",
}


def review(folder: Path, limits: Limits = HOSPITAL.network, local: Path | None = None) -> Review:
    """Reads a job folder. Nothing of it is run.

    Args:
        folder: the job's.
        limits: on its network.
        local: of the site's kit, whose file lists the code of others that it permits and says where its data are: of
            those that the job takes the patients are counted.

    Raises:
        NetworkTooLarge: the network is beyond them, so that it is not built here either.
        UserError: it is no job of this package, or lists as what may leave what it does not send.
    """
    job, meta = read_job(folder), read_object(folder / "meta.json")
    server_files, site_files = (
        sorted(folder.glob(f"*/config/config_fed_{side}.json")) for side in ("server", "client")
    )
    at_server, at_sites = ([read_object(file) for file in files] for files in (server_files, site_files))
    code = sorted(file for file in folder.glob("*/custom/**/*") if file.is_file())
    known = {folder / "meta.json", *server_files, *site_files, *code}
    arguments = next(e["executor"]["args"] for e in at_sites[0]["executors"])
    config = job.run
    here = None if local is None else read_site_manifest(local).get(job.config.data)
    site = "" if local is None else site_name(local.parent)
    newcomers = as_sites_read(arguments["newcomers"]) if "newcomers" in arguments else None
    if config.init and not config.init.startswith("sha256:"):
        raise UserError(f"{job.name}: names the file of start weights, {config.init!r}; a job gives their fingerprint")
    if local is not None:
        permit_code(local, config)
    named = tuple(dict.fromkeys((*named_code(config), *(named_code(newcomers) if newcomers else ()))))
    contract, joining = Contract(config, newcomers), newcomers is not None
    classes = {
        "sites": tuple(dict.fromkeys(name for content in at_sites for name in _classes(content))),
        "server": tuple(dict.fromkeys(name for content in at_server for name in _classes(content))),
    }
    foreign = [name for name in classes["sites"] if name not in AT_SITE]
    foreign += [name for name in classes["server"] if name not in AT_SERVER]
    _, federation = as_it_sends(job, limits)
    network = federation.model()
    return Review(
        job=job.name,
        contract=contract,
        sites=_for_whom(meta),
        classes=classes,
        foreign=tuple(foreign),
        code=tuple(str(file.relative_to(folder)) for file in code),
        named=named,
        unlisted=tuple(_unlisted(named, local, {file.relative_to(folder).parts[2:] for file in code})),
        unread=tuple(
            str(f.relative_to(folder)) for f in sorted(folder.rglob("*")) if not f.is_dir() and f not in known
        ),
        gpus=max(map(_whole, _values(meta.get("resource_spec", {}), "num_of_gpus")), default=0),
        launchers=tuple(sorted(_launchers(meta))),
        leaving=tuple(_leaving(federation, joining)),
        parameters=sum(p.numel() for p in network.parameters()),
        steering=next((channel.name for channel in federation.channels if channel.steers), ""),
        unusual=unusual(network),
        public=federation.public and not joining,
        patients=patients_here(here, site, job.config) if here else None,
        values=values_here(here, site, job.config) if here else None,
    )


def not_for(found: Review, kit: Path) -> list[str]:
    """What keeps a job from being run at a site that its policy does not say: whom it is for, and which data it takes.

    Args:
        found: of the job.
        kit: the site's.
    """
    notes = []
    if (name := site_name(kit)) and not {name, ALL_SITES} & set(found.sites):
        notes.append(f"it is not for this site, {name}")
    data = read_content(local_of(kit) / FILE)["data"]
    if not (found.public or is_function(found.contract.data) or found.contract.data in data):
        notes.append(f"this site has no data that it calls {found.contract.data!r}: it has {', '.join(data) or 'none'}")
    return notes


def _unlisted(
    named: Sequence[tuple[str, str]], local: Path | None, brought: Collection[tuple[str, ...]]
) -> Iterator[str]:
    """The modules of others' code that a job names, does not bring, and the site does not list."""
    listed = read_content(local / FILE).get("code", []) if local is not None else []
    for module in dict.fromkeys(spec.partition(":")[0] for _, spec in named):
        *folders, last = module.split(".")
        files = (*folders, f"{last}.py"), (*folders, last, "__init__.py")
        if module not in listed and not any(file in brought for file in files):
            yield module


def _leaving(federation: Federation, joining: bool) -> Iterator[Leaving]:
    config, gate = federation.config, federation.gate(joining=joining)
    if gate.shared:
        shapes = {name: list(shape) for name, (shape, _) in gate.shared.items()}
        sent = sum(t.nbytes for t in federation.initial_shared.values())
        yield Leaving("the shared part of its model", "train", config.rounds, shapes, sent, _REVEALS["update"])
    for channel in gate.channels:
        shapes = {name: list(entry.shape) for name, entry in channel.named.items()}
        task = "statistics" if joining else next(task for task in channel.tasks if task != "statistics")
        times = 1 if channel.once or joining else config.rounds
        yield Leaving(channel.what, task, times, shapes, channel.nbytes, channel.reveals)
    if joining:
        yield Leaving(
            "measures before and after adapting, of two epochs, or of each with measures=full",
            "join",
            1,
            {},
            0,
            _REVEALS["numbers"],
        )
        return
    yield Leaving("numbers of its samples", "prepare", 1, {}, 0, _REVEALS["numbers"])
    numbers = "training loss, and measures on validation data"
    yield Leaving(numbers, "train", config.rounds, {}, 0, _REVEALS["numbers"])
    if config.turnout.draws:
        yield Leaving("measures on validation data", "follow", config.rounds, {}, 0, _REVEALS["numbers"])
    yield Leaving("measures on validation data", "validate", 1, {}, 0, _REVEALS["numbers"])
    tested = "measures on test data of two models, and on validation data of what it uses, if its policy has verdict"
    yield Leaving(tested, "test", 1, {}, 0, _REVEALS["numbers"])


def _for_whom(meta: Mapping[str, Any]) -> tuple[str, ...]:
    targets = meta.get("deploy_map") or {}
    if not isinstance(targets, dict) or not all(isinstance(names, list) for names in targets.values()):
        raise UserError("meta.json: not a job of this package: deploy_map is not as FLARE writes it")
    return tuple(str(name) for names in targets.values() for name in names if name != "server")


def _classes(content: Any) -> Iterator[str]:
    """Every class that a configuration names, at any depth: FLARE builds one also where it has no ``args``."""
    if isinstance(content, Mapping):
        yield from (content[key] for key in ("path", "class_path", "name") if isinstance(content.get(key), str))
        for key, value in content.items():
            if key != "run_config" and key != "newcomers":
                yield from _classes(value)
    elif isinstance(content, list):
        for value in content:
            yield from _classes(value)


def _whole(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise UserError(f"meta.json: num_of_gpus must be a whole number, not {str(number)[:80]!r}")
    return number


def _launchers(meta: Mapping[str, Any]) -> set[str]:
    """What a job says of how its process is started, at any site: a container's image is code, too."""
    spec = meta.get("resource_spec")
    of_sites = [site for site in spec.values() if isinstance(site, Mapping)] if isinstance(spec, Mapping) else []
    ways = {str(key) for site in of_sites for key, value in site.items() if isinstance(value, Mapping)}
    return {str(key) for key in meta if "launcher" in str(key)} | ways - {"process"}


def _values(content: Any, wanted: str) -> Iterator[Any]:
    if isinstance(content, Mapping):
        for key, value in content.items():
            if key == wanted:
                yield value
            else:
                yield from _values(value, wanted)


def require_job(folder: Path) -> Path:
    """The folder; UserError if there is none."""
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; give a job's, as `medpfl export` writes it")
    return folder
