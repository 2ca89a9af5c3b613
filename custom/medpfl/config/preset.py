"""A YAML file of options by the names that they have in ``config`` of results.json: what ``--preset`` takes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import TypeAdapter, ValidationError

from medpfl.config.fields import RunFields
from medpfl.core.errors import UserError
from medpfl.core.near import did_you_mean
from medpfl.core.one_file import is_of_a_file


class _Loader(yaml.SafeLoader):
    """Of YAML 1.1, and 5e-4 is a number; a key that is there twice is an error.

    So is a number that is not written plainly: in YAML 1.1 010 is 8 and 1:30 is 90, which nobody means.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        if twice := next((key for key, _ in node.value if keys.count(key.value) > 1), None):
            raise yaml.constructor.ConstructorError(None, None, f"{twice.value!r} is there twice", twice.start_mark)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """A number as everybody writes it."""
        if not _PLAIN.match(node.value):
            problem = f"{node.value!r} is a number in YAML, and not a plain one: write e.g. 8, 0.5 or 5e-4"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return self.construct_yaml_float(node) if node.tag.endswith("float") else self.construct_yaml_int(node)


_PLAIN = re.compile(r"[-+]?((0|[1-9]\d*)?(\.\d*)?([eE][-+]?\d+)?|\.(inf|nan))$", re.IGNORECASE)
_EXPONENT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")
for _tag in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _Loader.construct_number)
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def read_preset(file: Path, options: Sequence[str]) -> dict[str, Any]:
    """Reads a preset.

    Args:
        file: YAML, a mapping. ``data_args``, ``model_args`` and ``settings`` are mappings in it, ``sites`` is a number
            or a list of names, ``fractions`` a list.
        options: the names that may be in it.

    Returns:
        What the file says, by name; ``sites`` and ``fractions`` as they stand there.

    Raises:
        UserError: the file is no such mapping, or a name or a value in it is wrong.
    """
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), _Loader)
        json.dumps(content, default=str)  # what contains itself cannot be said
    except OSError as error:
        raise UserError(f"--preset {file}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        raise UserError(f"--preset {file}: wrong YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UserError(f"--preset {file}: a YAML mapping of options is needed, e.g. rounds: 50")
    for name in content:
        if name not in options:
            hint = did_you_mean(str(name), options)
            raise UserError(f"--preset {file}: {name!r} is no option here{hint}; there are {', '.join(options)}")
    return {name: _checked(file, name, value) for name, value in content.items()}


def _checked(file: Path, name: str, value: Any) -> Any:
    field = RunFields.model_fields[name]
    wanted = {"sites": int | list[str], "fractions": list[float]}.get(name) or Annotated[field.annotation, field]
    try:
        # As JSON, strictly: true is not 1.
        found = TypeAdapter(wanted).validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        reason = first["msg"].removeprefix("Value error, ")
        raise UserError(f"--preset {file}: {name}: {reason}, not {json.dumps(value, default=str)}") from None
    if name in ("data", "model") and is_of_a_file(found):  # it would run, and a preset may come from anybody
        words = f"{value} is code of a file: give it on the command line, --{name} {value}"
        raise UserError(f"--preset {file}: {name}: {words}")
    return found
