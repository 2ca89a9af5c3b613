"""Whether a site has patients enough for what its policy lets leave, by its own data, before a job comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from medpfl.algorithms import LOCAL
from medpfl.config.run import RunConfig, make_config
from medpfl.core.errors import UserError
from medpfl.core.numbers_in_words import count
from medpfl.core.site_data import Part
from medpfl.data.kinds.registry import absent, kind_of
from medpfl.data.partition.spec import parse_spec
from medpfl.data.sites import open_source
from medpfl.data.source import DataSource, number_of_patients, number_of_values
from medpfl.site.coarse import chosen_by_few
from medpfl.site.local_file import read_object
from medpfl.site.policy import SitePolicy

T = TypeVar("T")


def site_name(kit: Path) -> str:
    """What a kit's site is called; empty where the kit does not say it."""
    client = kit / "startup" / "fed_client.json"
    told = read_object(client).get("client") if client.is_file() else None
    return str(told.get("fqsn", "")).rpartition(".")[2] if isinstance(told, dict) else ""


def patients_here(own: Path, site: str, config: RunConfig | None = None) -> dict[Part, int] | None:
    """Patients of a site's own data by part; None where that cannot be told. No image is decoded.

    Args:
        own: where they lie.
        site: its name.
        config: of the job that takes them; without one they are divided by the default split.
    """
    return _counted(number_of_patients, own, site, config)


def values_here(own: Path, site: str, config: RunConfig) -> int | None:
    """Values that a job makes of a site's own data, at most; None where that cannot be told. No image is decoded.

    Args:
        own: where they lie.
        site: its name.
        config: of the job that takes them.
    """
    return _counted(number_of_values, own, site, config)


def _counted(number: Callable[[DataSource, str], T], own: Path, site: str, config: RunConfig | None) -> T | None:
    if absent(str(own)) or (config and parse_spec(config.partition).kind == "file"):  # which only a simulation may name
        return None
    try:
        if config is None:  # as one of several hospitals
            task = kind_of(str(own), {}).task(str(own), {}) or None
            config = make_config(algorithm=LOCAL.name, sites=2, data=own.name, partition="natural", task=task)
        return number(open_source(config, own), site)
    except (UserError, OSError):  # a check of the data says what is wrong with them
        return None


def too_few_to_send(policy: SitePolicy, patients: Mapping[Part, int] | None) -> str:
    """Why no update of a site leaves it, in words; empty where one may, as far as numbers of patients say."""
    if patients is None or patients["train"] >= policy.least_patients:
        return ""
    return (
        f"this site has {count(patients['train'], 'training patient')}, and least_patients is {policy.least_patients}: "
        "it will send no update, and a job that it cannot answer counts among the data's experiments all the same; "
        "give more patients, or the policy least_patients=N where updates of N may leave"
    )


def verdict_stays(policy: SitePolicy, patients: Mapping[Part, int] | None) -> str:
    """Why what taking part was worth stays though the policy lets it leave, in words; empty where it does not.

    Args:
        policy: the site's.
        patients: by part, at a site that chooses what it uses by those for validation.
    """
    if not policy.verdict or patients is None or not chosen_by_few(policy, patients["validation"]):
        return ""
    return (
        f"this site has {count(patients['validation'], 'validation patient')}, and least_patients is "
        f"{policy.least_patients}: what so few choose is not told, so what taking part was worth stays here, whatever "
        "verdict is"
    )
