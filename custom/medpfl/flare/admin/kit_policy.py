"""What ``medpfl site init`` does for a site's own policy: the key, the fields of the policy, approved contracts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medpfl.core.errors import UserError
from medpfl.core.settings import value_of
from medpfl.flare.admin.kit_plan import KitPlan
from medpfl.flare.job.folder import Job
from medpfl.site.local_file import read_content
from medpfl.site.policy import HOSPITAL, SitePolicy, policy_of
from medpfl.site.seal import FILE as KEY
from medpfl.site.seal import read_key


def give_key(plan: KitPlan, local: Path) -> None:
    """A key of the site's own, where it has none."""
    if read_key(local) is None:
        plan.keys.append(local)
        plan.changes.append(f"{KEY}: the key that seals state, models and ledger: none -> a new one")


def set_policy(plan: KitPlan, file: Path, said: Mapping[str, Any], job: Job | None) -> None:
    """Fields of the policy in ``medpfl.json``, and the contract of a job among those that are approved.

    Args:
        plan: gets the changes.
        file: the kit's ``local/medpfl.json``.
        said: fields by name, as the site wants them.
        job: the only job that the site takes, besides those that it has approved already.

    Raises:
        UserError: a field is unknown or out of range.
    """
    content = plan.contents.get(file) or read_content(file)
    before = content.get("policy", {})
    if not isinstance(before, dict):
        raise UserError(f'{file}: policy must be an object, e.g. {{"measures": "coarse"}}')
    after = before | dict(said)
    if job is not None:
        approved = after.get("approved", [])
        after["approved"] = [*approved, *([job.contract] if job.contract not in approved else [])]
        after["jobs"] = "approved"
    plan.policy = policy_of(after, HOSPITAL, str(file))
    if least := plan.policy.least_patients:
        plan.notes.append(
            f"no update of fewer than {least} training patients will leave: with fewer, this site takes no part "
            "(--policy least_patients=N)"
        )
    for name in after:
        if before.get(name) == after[name]:
            continue
        content["policy"] = after
        default = HOSPITAL.model_dump(mode="json")[name]
        was = json.dumps(before.get(name, default)) + ("" if name in before else " (default)")
        plan.change(file, content, f"policy, {name}", was, _shown(after[name]))


def _shown(value: Any) -> str:
    return ", ".join(str(entry)[:12] for entry in value) if isinstance(value, list) else json.dumps(value)


def policy_fields(items: list[str]) -> dict[str, Any]:
    """Fields from NAME=VALUE; UserError for a name that a policy does not have."""
    found: dict[str, Any] = {}
    for item in items:
        name, equals, text = item.partition("=")
        if not equals or name not in SitePolicy.model_fields:
            known = ", ".join(SitePolicy.model_fields)
            raise UserError(f"--policy {item}: give NAME=VALUE with a name of: {known}")
        found[name] = value_of(text)
    return found
