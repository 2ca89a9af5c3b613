"""What is to be changed in a startup kit, collected before anything is written."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_IMODE
from typing import Any

from medpfl.core.errors import UserError
from medpfl.core.whole_file import write_bytes
from medpfl.site.policy import HOSPITAL, SitePolicy
from medpfl.site.seal import make_key

RESOURCES = "resources.json"


@dataclass
class KitPlan:
    """What is to be changed.

    Attributes:
        changes: one line each, with what was there before.
        notes: what the site should know and this does not change.
        refusals: why the site's own policy, which is kept, refuses the job.
        contents: new content by file.
        keys: ``local`` folders that get a key.
        policy: the site's, as it is after the changes.
    """

    changes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    contents: dict[Path, dict[str, Any]] = field(default_factory=dict)
    keys: list[Path] = field(default_factory=list)
    policy: SitePolicy = HOSPITAL

    def change(self, file: Path, content: dict[str, Any], what: str, before: str, after: str) -> None:
        """Adds a change to a file."""
        self.contents[file] = content
        self.changes.append(f"{file.name}: {what}: {before} -> {after}")

    def write(self) -> None:
        """Writes the files, each as a whole; UserError if one cannot be written."""
        for local in self.keys:
            make_key(local)
        for file, content in self.contents.items():
            like = file if file.exists() else file.with_name(RESOURCES + ".default")
            try:
                mode = S_IMODE(like.stat().st_mode) if like.exists() else None
                write_bytes(file, (json.dumps(content, indent=2) + "\n").encode(), mode=mode)
            except OSError as error:
                raise UserError(f"{file}: cannot be written: {error.strerror}") from None
