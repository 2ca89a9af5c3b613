"""Why a job did not end well, in words: from what its run left, and from FLARE's records and logs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BEGUN = "begun"
"""Folder in the server's run folder of a job; has a file for each site that has taken a task: it loaded the classes."""
_REFUSED_CLASS = re.compile(r"Component '([\w.]+)'[^\n]* is not in allow_list")
_NO_TRACKER = re.compile(r"Can't load class nvflare\.app_opt\.tracking\.[\w.]+: No module named '(\w+)'")
_REPORTED = re.compile(r"due to reported failure from (\S+): ([^\n]+)")
"""What FLARE's server logs when a site tells it how the job's process there ended."""
_MARK = "NVFLARE_ERROR: "
"""What FLARE puts in front of a site's refusal."""
_SIGNATURES = {
    "unsigned job": "the job is not signed by who submitted it; submit it by `medpfl run --env prod` or `nvflare job "
    "submit`, which sign it",
    "signature verification": "the job was changed after it was signed, or signed by nobody of this project; submit "
    "it anew with a kit of this project",
}
"""What FLARE says of a job's signature, and what it means."""


_TOO_LARGE = (
    "; a site that FLARE's http driver connects takes no app above 4 MiB, which code and an embedded sample together "
    "may be: without --byoc the sites need the package installed, and the job is small"
)


def why(job: str, meta: Mapping[str, Any], workspace: Path | None, site_logs: Mapping[str, Path], reported: str) -> str:
    """Why a job did not end well: what the run itself said, or else FLARE's reason.

    Args:
        job: its id.
        meta: FLARE's record of it.
        workspace: what the server kept of it, if anything.
        site_logs: error logs of the sites that let the server have them.
        reported: lines of the server's own log about the job, if it may be read.
    """
    if workspace and (error := workspace / "error.json").exists():
        return json.loads(error.read_text())["error"]
    logs = {"the server": workspace / "error_log.txt"} if workspace else {}
    if (
        (log := logs.get("the server"))
        and log.exists()
        and (found := _NO_TRACKER.search(log.read_text(errors="replace")))
    ):
        return f"--track {found[1]}: the server has no package {found[1]}; install it there, or take --track none"
    refused = {
        where: found[1]
        for where, file in (logs | dict(site_logs)).items()
        if file.exists() and (found := _REFUSED_CLASS.search(file.read_text(errors="replace")))
    }
    if refused:
        return (
            f"{' and '.join(refused)} will not load {next(iter(refused.values()))}, which the class_allow_list of "
            "local/resources.json there must allow: `medpfl site init` lists this package's classes"
        )
    if signature := _signature(meta):
        return signature
    ended = f"FLARE ended it with {meta['status'].removeprefix('FINISHED:')}"
    if detail := _detail(meta):
        return f"{ended}: {detail}{_TOO_LARGE if 'deployment timeout' in detail else ''}"
    if "FAILED_TO_RUN" in meta["status"]:
        return (
            f"{ended}: a site could not start the job's process, for instance with GPUs that are not there; the "
            "server's log.txt says which site and why, at `Failed to start job`"
        )
    sites = dict(_REPORTED.findall(reported))
    if sites:
        ended += ": " + ", ".join(f"the job's process at {site} ended ({reason})" for site, reason in sites.items())
    begun = {file.name for file in (workspace / BEGUN).glob("*")} if workspace else set()
    deployed = {str(detail).partition(":")[0] for detail in meta.get("job_deploy_detail") or []} - {"server"}
    if "ABORTED" in meta["status"] or (begun and (set(sites) or deployed) <= begun):
        return f"{ended}; log.txt of the job at server and sites says why"
    return (
        f"{ended}; no task was done{' there' if sites else ''}. A likely cause is a class_allow_list in "
        "local/resources.json without this package's classes, which `medpfl site init` lists: "
        f"{job}/error_log.txt in the kit of {' and '.join(sites) or 'the site'} says it"
    )


def _signature(meta: Mapping[str, Any]) -> str:
    """Who refuses the job for its signature, if that is what ended it."""
    details = [str(detail) for detail in meta.get("job_deploy_detail") or []]
    for said, meaning in _SIGNATURES.items():
        if by := [detail.partition(":")[0] for detail in details if said in detail]:
            return f"refused by {' and '.join('the server' if where == 'server' else where for where in by)}: {meaning}"
    return ""


def _detail(meta: Mapping[str, Any]) -> str:
    """What FLARE noted of sites and schedule that went wrong."""
    details = [d for d in meta.get("job_deploy_detail") or [] if not str(d).endswith(": OK")]
    if not details and "SCHEDULE" in meta["status"]:
        details = (meta.get("schedule_history") or [])[-1:]
    return "; ".join(str(detail).replace(_MARK, "") for detail in details)
