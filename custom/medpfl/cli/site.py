"""``medpfl site``: prepares a hospital's FLARE startup kit."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from medpfl.cli.audit import audit
from medpfl.cli.consoles import aside, console, say
from medpfl.cli.named_path import named_path
from medpfl.cli.review import ledger, review
from medpfl.core.errors import UserError

if TYPE_CHECKING:
    from medpfl.config.run import RunConfig
    from medpfl.data.finding import Finding
    from medpfl.flare.job.folder import Job
    from medpfl.site.policy import SitePolicy

site_app = typer.Typer(help="A hospital's FLARE startup kit.", no_args_is_help=True)
site_app.command("audit")(audit)


@site_app.command("init")
def init(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The startup kit: the folder with startup/ and local/.")],
    data: Annotated[
        list[str] | None,
        typer.Option(help="NAME=PATH: where the data are that jobs call NAME; or PATH. Repeatable."),
    ] = None,
    job: Annotated[
        Path | None,
        typer.Option(
            help="Job folder: only what it sends may leave this site, and the data it names must be as it says."
        ),
    ] = None,
    new_list: Annotated[
        bool,
        typer.Option(
            "--new-list",
            help="With --job: its list of what may leave takes the place of that of the default scope.",
        ),
    ] = False,
    allow_byoc: Annotated[
        bool, typer.Option("--allow-byoc", help="Let jobs bring code that runs at this site; without it none may.")
    ] = False,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE of the site's policy, e.g. least_patients=30 or measures=none. Repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes and write nothing.")] = False,
) -> None:
    """Let this package's jobs run here, limit what may leave, and say where the data are.

    Exit code 1 if data are not there, cannot be used or are not as the job says, or if the site's own list of what may
    leave refuses the job. Changes files in KIT/local alone, and never loosens what the site has restricted but with
    --new-list.
    """
    from medpfl.flare.admin.enough import site_name
    from medpfl.flare.admin.kit import plan_kit
    from medpfl.flare.admin.kit_policy import policy_fields
    from medpfl.flare.job.folder import read_job
    from medpfl.report.terminal import print_findings
    from medpfl.site.local_file import read_site_manifest

    named = dict(named_path(item) for item in data or [])
    wanted, fields = read_job(job) if job else None, policy_fields(policy or [])
    plan = plan_kit(kit, named, wanted, byoc=allow_byoc, new_list=new_list, policy=fields)
    usable, counts = True, {"least_patients", "measures", "verdict"} & {*fields}
    known = read_site_manifest(kit / "local") | named
    for name in dict.fromkeys((*named, *(known if counts else ()), *([wanted.config.data] if wanted else ()))):
        described = wanted if wanted and wanted.config.data == name else None
        with aside.status(f"Reading {escape(name)}"):
            found = _findings(known[name], described and described.config) if name in named else []
            if name in known and all(finding.level != "error" for finding in found):
                found += _enough(plan.policy, known[name], site_name(kit), described)
        if found:
            say(f"{name}: {known[name]}")
        usable &= print_findings(found, console)
    if not usable:
        say("Nothing was written: put that right first.")
        raise typer.Exit(1)
    for line in plan.changes:
        say(line)
    for line in plan.notes:
        say(f"note: {line}")
    if not plan.changes:
        say("Nothing was written." if plan.refusals else "Nothing to change.")
    elif dry_run:
        say("Nothing was written (--dry-run).")
    else:
        plan.write()
        say(f"Written to {kit / 'local'}; restart FLARE there if it runs.")
    for line in plan.refusals:
        say(
            f"refused: {line}; --new-list puts its list in the place of that one, and an earlier job is refused; or "
            f"add to it in {kit / 'local' / 'privacy.json'}"
        )
    if plan.refusals:
        raise typer.Exit(1)


site_app.command("review")(review)
site_app.command("ledger")(ledger)


def _findings(path: Path, job: RunConfig | None) -> list[Finding]:
    """What a check of the data found, and whether they are as the job that names them says."""
    from medpfl.data.check import check
    from medpfl.data.finding import Finding

    if not path.exists():
        return [Finding("error", f"there is no {path}; give NAME=PATH, e.g. chest-ct=/data/ct")]
    if job is None:
        return [*check(path), *_several_centres(path, {})]
    from medpfl.data.fit import check_fit, other_kind

    fit = other_kind(job, path) or check_fit(job, path)
    if any(finding.level == "error" for finding in fit):
        return fit
    return [*check(path, job.data_args), *_several_centres(path, job.data_args), *fit]


def _enough(policy: SitePolicy, path: Path, site: str, job: Job | None) -> list[Finding]:
    """Whether the data are of enough patients for what leaves by the policy, and the job makes no more of them than it.

    Too few for the job's updates is an error, and so are too many values.

    Args:
        policy: the site's.
        path: the data.
        site: its name.
        job: that takes them, if one is given.
    """
    from medpfl.data.finding import Finding
    from medpfl.flare.admin.enough import patients_here, too_few_to_send, values_here, verdict_stays
    from medpfl.site.many_values import too_many_values

    if job and (many := too_many_values(policy, values_here(path, site, job.config))):
        return [Finding("error", many)]
    patients = patients_here(path, site, job and job.config)
    found = []
    if (few := too_few_to_send(policy, patients)) and (job is None or job.allowed):
        found.append(Finding("error" if job else "warning", few))
    if (stays := verdict_stays(policy, patients)) and (job is None or job.chooses):
        found.append(Finding("warning", stays))
    return found


def _several_centres(path: Path, data_args: Mapping[str, Any]) -> list[Finding]:
    """An error if the data are several centres': a site is one."""
    from medpfl.data.finding import Finding
    from medpfl.data.kinds.kind import CentreKind
    from medpfl.data.kinds.registry import kind_of

    names: tuple[str, ...] = ()
    with suppress(UserError):  # the check has said what is wrong
        if isinstance(kind := kind_of(str(path), {}), CentreKind):
            _, names = kind.centres(str(path), data_args)
    if len(names) < 2:
        return []
    return [Finding("error", f"{path} has {len(names)} centres, and a site is one: give the data of one, {names[0]}")]
