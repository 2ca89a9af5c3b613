"""``medpfl site audit``: attacks of a malicious server on this site, offline, on its own data."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medpfl.cli.consoles import console, say
from medpfl.cli.flags import written
from medpfl.cli.named_path import named_path
from medpfl.core.errors import UserError

if TYPE_CHECKING:
    from medpfl.audit.run import Audit
    from medpfl.config.run import RunConfig
    from medpfl.site.policy import AuditThresholds, SitePolicy


def audit(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="The job folder, as `medpfl export` writes it.")],
    data: Annotated[
        list[str] | None, typer.Option(help="NAME=PATH: where the data are that the job calls NAME; or PATH.")
    ] = None,
    kit: Annotated[
        Path | None, typer.Option(help="The site's kit, for its policy and data; else a hospital's default policy.")
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(help="Whose part of the data, where the job divides one set.", show_default="the job's first"),
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=0.1, help="Minutes of the processor; an attack not begun by then fails.")
    ] = 10.0,
    out: Annotated[
        Path,
        typer.Option(parser=written("--out"), help="Folder of the report and of pictures of patients; it stays here."),
    ] = Path("audit"),
) -> None:
    """Attack this site's own code with a job, as a malicious server would, and say what comes back.

    Nothing leaves this machine. Exit code 1 if an attack finds more than the limits allow.
    """
    from medpfl.audit.report import lines_of, passed, require_own_folder, summary, write_audit
    from medpfl.flare.job.folder import read_job
    from medpfl.site.local_file import local_of, permit_code, read_policy, read_site_manifest
    from medpfl.site.policy import HOSPITAL

    read = read_job(job)
    config = read.config
    if read.joining:
        raise UserError(
            f"{job}: sites join a finished run by it, and the attacks here are on sites of a run: none can be tried"
        )
    if config.init:
        raise UserError(
            f"{job}: its run begins with start weights, which are the server's and not in the folder: no attack can be "
            "tried without them"
        )
    named = dict(named_path(item) for item in data or [])
    if unknown := [name for name in named if name != config.data]:
        raise UserError(f"--data {unknown[0]}: the job's data are called {config.data}: {config.data}=PATH")
    policy, begun = HOSPITAL, time.process_time()
    if kit is not None:
        local = local_of(kit)
        policy = read_policy(local, rehearsal=False)
        permit_code(local, config)
        named = read_site_manifest(local) | named
    thresholds = policy.audit
    attacks = open_audit(config, named.get(config.data), site, policy, thresholds, 60 * minutes)
    require_own_folder(out)
    with console.status("Attacking") as status:
        attacks.watch = lambda name: status.update(f"Attacking: {name}")
        findings = attacks.run()
    seconds = time.process_time() - begun
    file = write_audit(
        out, findings, job=job.name, site=attacks.site, policy=policy, thresholds=thresholds, seconds=seconds
    )
    for line in (line for finding in findings for line in lines_of(finding)):
        say(line)
    for line in summary(findings, seconds):
        say(line)
    say(f"Report and pictures, for this site alone: {file.parent}")
    if not passed(findings):
        raise typer.Exit(1)


def open_audit(
    config: RunConfig,
    own: Path | None,
    site: str | None,
    policy: SitePolicy,
    thresholds: AuditThresholds,
    seconds: float,
) -> Audit:
    """The audit of a site of a run, on the CPU with the run's own number of threads.

    Raises:
        NetworkTooLarge: the network is beyond the policy's limits.
        TooManyValues: what the run makes of the data is.
        UserError: the run has no such site, the data cannot be used or are no images of one class each, or the site has
            no training sample.
    """
    import torch

    from medpfl.audit.run import Audit
    from medpfl.engine.federation import Federation
    from medpfl.site.many_values import read_data

    torch.set_num_threads(config.intra_op_threads)
    config = config.model_copy(update={"device": "cpu"})
    name = site or config.site_names[0]
    if name not in config.site_names:
        raise UserError(f"--site {name}: the job has {', '.join(config.site_names)}")
    if not config.learned.one_class:
        raise UserError(
            f"{config.data}: {config.task}, and the attacks here look for images of one class each: none can "
            "be tried, which says nothing of what an update gives away"
        )
    federation = Federation.of(config, own, limits=policy.network)
    held = read_data(policy, federation.source, name, federation.device)
    if not held.samples("train"):
        raise UserError(f"{name} has no training sample: there is nothing to attack")
    inputs = federation.source.inputs()
    if inputs is not None and inputs.kind == "series":
        raise UserError(
            f"{config.data}: time series, and the attacks here look for images: none can be tried, which says nothing "
            "of what an update gives away"
        )
    return Audit(federation, name, held, policy, thresholds, seconds)
