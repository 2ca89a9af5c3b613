"""Whether a hospital's own data are what a job says, before the job comes."""

from __future__ import annotations

from pathlib import Path

from medpfl.config.run import RunConfig
from medpfl.core.errors import UserError
from medpfl.data.finding import Finding
from medpfl.data.kinds.registry import kind_of, said_kind, taken_for
from medpfl.data.sites import open_source


def other_kind(config: RunConfig, own: Path) -> list[Finding]:
    """An error if a job does not take data of this kind, whatever they hold.

    Args:
        config: the job's.
        own: where the site has the data that the job names.
    """
    here, takes = kind_of(str(own), {}), taken_for(said_kind(config.data_args))
    if here in takes:
        return []
    return [Finding("error", f"{own}: {here.form}; the job takes {' or '.join(kind.form for kind in takes)}")]


def check_fit(config: RunConfig, own: Path) -> list[Finding]:
    """Whether classes, channels and size are the job's, by the rules of a run; no picture or scan is decoded.

    Args:
        config: the job's.
        own: where the site has the data that the job names, of a kind that the job takes.

    Returns:
        What does not fit, as an error; or what the job makes of the data.
    """
    try:
        classes = open_source(config, own).fitting_classes(config.data)
    except UserError as error:
        return [Finding("error", str(error))]
    listed = ", ".join(f"{label} {name}" for label, name in enumerate(classes))
    return [Finding("ok", f"as the job says; its classes: {listed}")]
