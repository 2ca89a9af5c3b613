"""What holds for the modules of the whole package."""

import ast
import importlib
import re
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import medpfl
from medpfl.config.run import make_config
from medpfl.flare.job.export import export_job

ROOT = Path(medpfl.__file__).parent


def test_no_module_imports_itself_by_way_of_others():
    circle = find_circle(imports_of(ROOT))
    assert circle is None, f"modules import each other in a circle: {' -> '.join(circle or [])}"


def test_a_circle_is_found_wherever_the_import_stands(tmp_path):
    package = tmp_path / "toy"
    (package / "room").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "room" / "__init__.py").write_text("")
    (package / "top.py").write_text("from toy.room import desk\n")
    (package / "room" / "desk.py").write_text("def sit():\n    import toy.room.chair\n")
    chair = package / "room" / "chair.py"
    chair.write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from toy.top import name\n")
    circle = find_circle(imports_of(package))
    arrows = ["toy.top -> toy.room.desk", "toy.room.desk -> toy.room.chair", "toy.room.chair -> toy.top"]
    assert sorted(f"{a} -> {b}" for a, b in pairwise(circle)) == sorted(arrows)
    chair.write_text("from . import table\n")
    assert imports_of(package)["toy.room.chair"] == {"toy.room"}  # it has no table
    assert find_circle(imports_of(package)) is None


def test_only_the_folder_of_that_name_knows_flare():
    knowing = [file for file in ROOT.rglob("*.py") if re.search(r"^\s*(from|import) nvflare\b", file.read_text(), re.M)]
    assert {file.relative_to(ROOT).parts[0] for file in knowing} == {"flare"}


def test_what_a_job_brings_of_this_package_fits_one_message_and_needs_nothing_of_what_it_leaves(tmp_path):
    data = {"data": "sarcoma-sample", "task": "segmentation", "partition": "natural", "sites": 3}
    job = export_job(make_config(algorithm="fedbn", **data), tmp_path / "job", byoc=True)
    [package] = job.rglob("custom/medpfl")
    assert [file.name for file in package.rglob("*.npz")] == ["sarcoma-mr-sample.npz"]
    # FLARE puts each file's signature beside it.
    sizes = [file.stat().st_size + 512 for file in (job / "app").rglob("*") if file.is_file()]
    assert sum(sizes) < 4 * 2**20
    whole, brought = imports_of(ROOT), imports_of(package)
    left = whole.keys() - brought.keys()
    assert {name.split(".")[1] for name in left} == {"__main__", "audit", "cli", "report", "runs"}
    brought.pop("medpfl")  # whose names are looked up when they are used
    assert [(module, sorted(whole[module] & left)) for module in brought if whole[module] & left] == []


def imports_of(package: Path) -> dict[str, set[str]]:
    """Which modules of a package each of its modules names in an import, also in functions and for type checkers.

    That a module's import runs the ``__init__.py`` of the folders that it lies in does not count.
    """
    files = {_name(file, package): file for file in package.rglob("*.py")}
    return {module: _imports(module, file, files) for module, file in files.items()}


def _name(file: Path, package: Path) -> str:
    return ".".join(file.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")


def _imports(module: str, file: Path, known: dict[str, Path]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                levels = node.level - (file.name == "__init__.py")
                base = ".".join([*module.split(".")[: len(module.split(".")) - levels], *filter(None, [base])])
            # A name may be a module of the package or something in its __init__.py.
            found |= {name if (name := f"{base}.{alias.name}") in known else base for alias in node.names}
    return (found & known.keys()) - {module}


def find_circle(imports: dict[str, set[str]]) -> list[str] | None:
    """A circle in which each module imports the next, the first of them again at its end; None if there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return error.args[1][::-1]
    return None


def test_what_docstrings_name_is_there():
    named = {
        (str(file.relative_to(ROOT)), name)
        for file in ROOT.rglob("*.py")
        for name in re.findall(r":(?:func|class|mod|data|meth|attr|exc):`~?(medpfl\.[\w.]+)`", file.read_text())
    }
    assert len(named) > 100
    assert [(file, name) for file, name in sorted(named) if not _is_there(name)] == []


def _is_there(name: str) -> bool:
    parts = name.split(".")
    for last in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:last]))
        except ModuleNotFoundError:
            continue
        *owners, attribute = parts[last:] or [None]
        for owner in owners:
            found = getattr(found, owner, None)
        return attribute is None or hasattr(found, attribute) or attribute in getattr(found, "__annotations__", {})
    return False
