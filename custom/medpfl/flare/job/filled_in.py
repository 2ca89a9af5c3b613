"""What FLARE fills in where a job's configuration is read: a site's environment, or values of its own. Quick to import.

FLARE does so before any class of the job is made: the names of tasks, and which classes there are, may follow from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from nvflare.apis.fl_constant import SystemVarName


def filled_in(content: Mapping[str, Any]) -> str:
    """The first text of a job's configuration in which FLARE puts values of a site's, or of its own; empty if none."""
    system = [name for name in vars(SystemVarName) if name.isupper()]
    names = "|".join(re.escape(str(name)) for name in (*system, *content))
    reference = re.compile(rf"\{{\s*(?:[$@]|(?:{names})(?!\w))|\$\{{")
    return next((text for text in _texts(content) if reference.search(text)), "")


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, Mapping | list):
        for value in content.values() if isinstance(content, Mapping) else content:
            yield from _texts(value)
