"""Numbers that sites tell, from a file: whole numbers of samples, and nothing else is taken.

CSV has a row a site and columns ``site``, ``train``, ``validation``, ``test``; ``class:NAME`` for each class, if sites
tell them. JSON has ``{"north": {"train": 73, "validation": 10, "test": 40, "classes": {"benign": 60, ...}}, ...}``.
results.json of an earlier run, or its folder, will do as well.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from medpfl.core.errors import UserError
from medpfl.data.spreadsheet import says_separator
from medpfl.report.advice.known import Measure, measured
from medpfl.report.advice.numbers import PARTS, SiteNumbers, shift_of
from medpfl.report.reading import load_results

CLASS = "class:"
_MOST = 10**9
_WHOLE = re.compile(r"[0-9]{1,10}")
_RIGHT = f"right are site, {', '.join(PARTS)}, and {CLASS}NAME for the number of a class"
_ROUNDED = 5
"""By how much a number may be off that a site has rounded to tens."""


class Told(NamedTuple):
    """What a file or a run's folder says.

    Attributes:
        sites: two or more.
        measure: by what the run's task is measured; None of a file.
        shift: False where the run dealt one data set to its sites; None where that is not known.
    """

    sites: list[SiteNumbers]
    measure: Measure | None = None
    shift: bool | None = None


def read_counts(path: Path) -> Told:
    """The sites of a file or of a run's folder.

    Raises:
        OtherTask: a run of it.
        UserError: what is wrong, with file, site and column.
    """
    if path.is_dir():
        return _of_run(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file. Give a CSV or JSON file of the sites' numbers.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not a text file in UTF-8; give CSV or JSON.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    if not text.lstrip().startswith(("{", "[")):
        return Told(_checked(path, _of_csv(path, text)))
    content = _json(path, text)
    if isinstance(content, dict) and "schema" in content:
        return _of_run(path)
    return Told(_checked(path, _of_json(path, content)))


def _of_run(path: Path) -> Told:
    results = load_results(path, finished=False)
    measure = measured(results["config"].get("task", "classification"))
    told = results["data"]["sites"]
    if not told:
        raise UserError(f"{path}: the run does not say its sites' numbers; give them as CSV or JSON")
    for name, entry in told.items():
        for part in PARTS:
            _number(path, name, part, entry.get(part) if isinstance(entry, dict) else None)
    sites = [SiteNumbers.of(name, entry, one_class=measure == "accuracy") for name, entry in told.items()]
    return Told(_checked(path, sites), measure, shift_of(results["data"].get("partition")))


def _of_csv(path: Path, text: str) -> list[SiteNumbers]:
    head, _, rest = text.lstrip().partition("\n")
    rows = csv.reader(StringIO(rest if says_separator(head) else text), delimiter=max(",;\t", key=head.count))
    try:
        lines = [[cell.strip() for cell in row] for row in rows if any(cell.strip() for cell in row)]
    except csv.Error as error:
        _wrong(path, f"line {rows.line_num}: {error}", "CSV has a row a site, with commas between")
    if not lines:
        _wrong(path, "it is empty")
    names, lines = lines[0], lines[1:]
    for name in names:
        if name not in ("site", *PARTS) and not name.startswith(CLASS):
            _wrong(path, f"column {name!r} is not known")
        if name == CLASS:
            _wrong(path, f"column {name!r} names no class")
    _once(path, "column", names)
    for needed in ("site", *PARTS):
        if needed not in names:
            _wrong(path, f"column {needed!r} is missing")
    found = []
    for line in lines:
        if len(line) != len(names):
            site = line[names.index("site")] if len(line) > names.index("site") else "?"
            _wrong(path, f"site {site!r} has {len(line)} values, and there are {len(names)} columns")
        row = dict(zip(names, line, strict=True))
        parts = [_number(path, row["site"], part, row[part]) for part in PARTS]
        told = {name: row[name] for name in names if name.startswith(CLASS)}
        # A site that may not tell its classes leaves all of them empty.
        classes = {
            n.removeprefix(CLASS): _number(path, row["site"], n, v) for n, v in told.items() if any(told.values())
        }
        found.append(SiteNumbers(row["site"], *parts, classes or None))
    return found


def _of_json(path: Path, content: Any) -> list[SiteNumbers]:
    if not isinstance(content, dict):
        _wrong(path, "it is no object of sites", 'e.g. {"north": {"train": 73, "validation": 10, "test": 40}, ...}')
    found = []
    for site, entry in content.items():
        if not isinstance(entry, dict):
            _wrong(path, f"site {site!r} is no object", '{"train": 73, "validation": 10, "test": 40}')
        for name in entry:
            if name not in (*PARTS, "classes"):
                _wrong(path, f"site {site!r}: {name!r} is not known", f"right are {', '.join(PARTS)} and classes")
        parts = [_number(path, site, part, entry.get(part)) for part in PARTS]
        classes = entry.get("classes")
        if classes is not None and not isinstance(classes, dict):
            _wrong(path, f"site {site!r}: classes is no object", 'e.g. "classes": {"benign": 60, "malignant": 13}')
        told = {name: _number(path, site, f"classes.{name}", value) for name, value in (classes or {}).items()}
        found.append(SiteNumbers(site, *parts, told or None))
    return found


def _json(path: Path, text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _once(path, "name", [name for name, _ in pairs])
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=once)
    except (json.JSONDecodeError, RecursionError, ValueError) as error:
        raise UserError(f"{path}: not JSON: {error}") from None


def _checked(path: Path, sites: list[SiteNumbers]) -> list[SiteNumbers]:
    if len(sites) < 2:
        raise UserError(f"{path}: {len(sites)} site: a federation has two or more, with a row or entry each")
    _once(path, "site", [site.name for site in sites])
    for site in sites:
        if not site.name:
            _wrong(path, "column 'site': a site has no name", "a name for each")
        if not site.train:
            raise UserError(f"{path}: site {site.name!r}, train: 0; a site that takes part has training samples")
        if site.classes is not None:
            told, slack = sum(site.classes.values()), _ROUNDED * (len(site.classes) + len(PARTS))
            all_parts = site.train + site.validation + site.test
            if not site.train - slack <= told <= all_parts + slack:
                raise UserError(
                    f"{path}: site {site.name!r}: its classes sum to {told}, and it has {site.train} samples for "
                    f"training and {all_parts} in all; give the classes' numbers of the one or the other"
                )
    return sites


def _number(path: Path, site: str, column: str, value: Any) -> int:
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST:
        return value
    shown = "nothing" if value is None or value == "" else str(value)[:40]
    raise UserError(f"{path}: site {site!r}, {column}: {shown}; a whole number of samples from 0 is needed")


def _once(path: Path, what: str, names: Iterable[str]) -> None:
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise UserError(f"{path}: {what} {twice[0]!r} is there twice; give each once")


def _wrong(path: Path, what: str, right: str = _RIGHT) -> NoReturn:
    raise UserError(f"{path}: {what}; {right}")
