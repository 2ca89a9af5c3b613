"""The differences of two records of ``record.py``."""

import fnmatch
import json
from collections.abc import Iterator
from typing import Any


def compare(before: dict[str, Any], after: dict[str, Any], only: str = "*") -> int:
    """Prints every difference of two records, by case and key; returns 1 if there is any, else 0."""
    differences = [f"machine: {text}" for text in differing(before["machine"], after["machine"])]
    names = [name for name in {**before["cases"], **after["cases"]} if fnmatch.fnmatch(name, only)]
    changed = 0
    for name in names:
        found = list(differing(before["cases"].get(name), after["cases"].get(name)))
        changed += bool(found)
        differences += [f"{name}: {text}" for text in found]
    print(*differences, sep="\n", end="\n" * bool(differences))
    print(f"{len(differences)} differences, in {changed} of {len(names)} cases")
    return int(bool(differences))


_ABSENT = object()


def differing(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """A line for each leaf that is not the same; types count, and a key that one side lacks is a leaf."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            yield from differing(before.get(key, _ABSENT), after.get(key, _ABSENT), f"{path}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, pair in enumerate(zip(before, after, strict=True)):
            yield from differing(*pair, f"{path}[{i}]")
    elif type(before) is not type(after) or before != after:
        yield f"{path or '/'}: {_shown(before)} -> {_shown(after)}"


def _shown(value: Any) -> str:
    if value is _ABSENT or value is None:
        return "absent" if value is _ABSENT else "null"
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
