"""Scripts that take hours are not run here: what they take from the package is there, and takes what they give it."""

import ast
import importlib
import inspect
import runpy
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path for folder in ("benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))


def taken(tree):
    """By the name in the script: what it imports from this package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "medpfl":
            module = importlib.import_module(node.module)
            for name in node.names:
                yield name.asname or name.name, getattr(module, name.name)


def fits(function, call):
    """Whether a function takes the arguments of a call, as far as they can be counted."""
    if any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords):
        return True
    try:
        inspect.signature(function).bind(*call.args, **{one.arg: one for one in call.keywords})
    except TypeError:
        return False
    return True


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_script_calls_takes_its_arguments(script):
    tree = ast.parse(script.read_text())
    known = dict(taken(tree))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    wrong = [ast.unparse(call) for call in calls if call.func.id in known and not fits(known[call.func.id], call)]
    assert not wrong


def test_a_call_with_an_argument_too_few_does_not_fit():
    def function(a, b, *, c=0):
        return a, b, c

    for text, fitting in [("f(1, 2)", True), ("f(1)", False), ("f(1, b=2, c=3)", True), ("f(1, 2, d=3)", False)]:
        assert fits(function, ast.parse(text, mode="eval").body) is fitting


def test_readmes_picture_is_of_the_records():
    made = runpy.run_path(str(ROOT / "benchmarks" / "sites_picture.py"))["picture"]()
    assert (ROOT / "docs" / "images" / "organamnist-sites.svg").read_text() == made


def test_sites_below_training_alone_are_counted_by_holms_procedure():
    """Of four the least p is held against a fourth of the level, the next one against a third; the first above ends."""
    significant = runpy.run_path(str(ROOT / "benchmarks" / "regimes_records.py"))["significant"]
    for p, number in (
        ([0.3, 0.01, 0.04, 0.02], 1),
        ([0.013, 0.0166, 0.02, 0.3], 0),
        ([0.05, 0.025, 0.01, 0.016], 4),
        ([], 0),
    ):
        assert significant(np.array(p)) == number
