"""The audit's files, in a folder for the site alone: ``audit.json``, and pictures of what came back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from medpfl.audit.finding import Finding
from medpfl.audit.images import write_pairs
from medpfl.core.errors import UserError
from medpfl.core.numbers_in_words import count
from medpfl.core.whole_file import write_bytes
from medpfl.site.policy import AuditThresholds, SitePolicy

FILE = "audit.json"


def passed(findings: list[Finding]) -> bool:
    """Whether no attack went beyond its limit and all had their time."""
    return all(finding.verdict in ("passes", "not tried") for finding in findings)


def require_own_folder(folder: Path) -> None:
    """Makes the report's folder, 0700, before minutes of attacks.

    Raises:
        UserError: it cannot be made, or it is there, not empty, and no report's.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        own = (folder / FILE).exists()
        if any(folder.iterdir()) and not own:
            raise UserError(f"--out {folder}: it holds something else than an audit's report: give a folder of its own")
        folder.chmod(0o700)
        if not own:
            write_bytes(folder / FILE, b"{}\n", mode=0o600)  # also after a kill it is the report's
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written: {error.strerror}") from None


def write_audit(
    folder: Path,
    findings: list[Finding],
    *,
    job: str,
    site: str,
    policy: SitePolicy,
    thresholds: AuditThresholds,
    seconds: float,
) -> Path:
    """Writes the report and the pictures into the report's folder (:func:`require_own_folder`), for its owner alone.

    Raises:
        UserError: the folder cannot be written.
    """
    content: dict[str, Any] = {
        "job": job,
        "site": site,
        "passed": passed(findings),
        "seconds": round(seconds, 1),
        "policy": policy.model_dump(),
        "thresholds": thresholds.model_dump(),
        "attacks": [finding.as_json() for finding in findings],
    }
    try:
        for finding in findings:
            picture = folder / f"{finding.attack.replace(' ', '-')}.png"
            picture.unlink(missing_ok=True)  # of an earlier audit
            write_pairs(finding.pairs, picture)
        write_bytes(folder / FILE, (json.dumps(content, indent=2) + "\n").encode(), mode=0o600)
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written: {error.strerror}") from None
    return folder / FILE


def lines_of(finding: Finding) -> list[str]:
    """An attack in words: the verdict, what was tried, what came back, and the words of refusals."""
    head = f"{finding.attack}: {finding.verdict}"
    if not finding.was_tried:
        return [f"{head}: {finding.tried}"]
    lines = [
        f"{head} ({finding.limit})",
        f"  tried: {finding.tried}; the site answered {_answered(finding)} question{'s' * (finding.asked != 1)}",
        f"  came back: {finding.came_back}",
    ]
    return lines + [f"  refused {count(times, 'time')}: {words}" for words, times in finding.refusals.items()]


def summary(findings: list[Finding], seconds: float) -> list[str]:
    """All attacks together: how many, what that does not prove, and whether the job passes.

    Args:
        findings: of all attacks.
        seconds: of the processor.
    """
    tried = [finding for finding in findings if finding.was_tried]
    failed = [finding.attack for finding in findings if not passed([finding])]
    asked = [finding for finding in tried if finding.asked]
    unanswered = [finding.attack for finding in asked if not finding.answered]
    lines = [
        f"{count(len(tried), 'attack')} of {len(findings)} tried in {seconds:.0f} s of the processor.",
        "An attack that fails here is no proof that a better one would.",
    ]
    if unanswered:
        which = "all of them" if len(unanswered) == len(asked) else ", ".join(unanswered)
        lines.append(f"The site refused every question of {which}: that shows its refusals, and nothing of the job.")
    return [*lines, f"Fails: {', '.join(failed)}." if failed else "Passes: every attack stayed within its limit."]


def markdown_row(finding: Finding) -> str:
    """A finding as a row of a Markdown table: attack, what was tried, answers, what came back, verdict."""
    cells = (finding.attack, finding.tried, _answered(finding), finding.came_back, finding.verdict)
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def _answered(finding: Finding) -> str:
    return f"{finding.answered} of {finding.asked}" if finding.asked else "-"
