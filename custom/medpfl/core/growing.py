"""A list that grows at its end, as a run's rounds do, in a JSON text that is written after every step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


class Growing:
    """Texts of JSON values with one list that grows: an item is encoded once, however often it is written.

    Items are told by identity and must not be changed.
    """

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._lines: list[str] = []

    def text(self, value: Mapping[str, Any], name: str, *, indent: int | None = None) -> str:
        """The whole of a mapping, with an item of the list ``value[name]`` a line; NaN and infinity are refused.

        Args:
            value: a JSON value, not empty.
            name: of the list, which comes first where nothing is indented.
            indent: of all but the list's items.

        Raises:
            ValueError: a number is not finite.
        """
        whole = {**value, name: None} if indent else {name: None, **{k: v for k, v in value.items() if k != name}}
        rest = json.dumps(whole, indent=indent, allow_nan=False)
        # Only a name of the outermost mapping stands there: within, lines are further in.
        start = f"\n{' ' * indent}" if indent else "{"
        before, after = rest.split(f"{start}{json.dumps(name)}: null", 1)
        return f"{before}{start}{json.dumps(name)}: {self._list(value[name])}{after}"

    def _list(self, items: Sequence[Any]) -> str:
        known = next((k for k, (a, b) in enumerate(zip(self._items, items, strict=False)) if a is not b), None)
        if known is None:
            known = min(len(self._items), len(items))
        del self._items[known:], self._lines[known:]
        self._items += items[known:]
        self._lines += [json.dumps(item, allow_nan=False) for item in items[known:]]
        return "[\n" + ",\n".join(self._lines) + "\n]"
