"""Reasons are words of a list: what is not on it stays in the site's log."""

import ast
import re
from collections import Counter
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import medpfl
from medpfl.core.reasons import Reason
from medpfl.site.words import POLICY, UNKNOWN, _known, listed

ROOT = Path(medpfl.__file__).parent
NAMES = {"fc1.weight", "norm.weight [6] torch.float32 shared", "proximal"}


@pytest.mark.parametrize(
    "reason",
    [
        "site-1 has no training sample",
        "shared entry 'fc1.weight' is missing (2 in all)",
        "shared entry 'fc1.weight' has shape [6, 1], expected [6, 16]",
        "the training loss became nan: lower the learning rate (lr=0.1) or check the data",
        "training led to weights that are not finite: lower the learning rate (lr=1e+38) or check the data",
        "the training loss became inf: lower the learning rate (lr=1e-05) or check the data",
        "the training loss became nan: lower the learning rate (lr=1e+30) or check the data",
        "the site cannot write its state: No space left on device (its log says more)",
        "the site cannot begin: UserError (its log says more)",
        "ValueError in task 'train' (the site's log says more)",
        "KeyError in the term of proximal in task 'train' (the site's log says more)",
        "what the begin of proximal gave in task 'train' is not as it must be (the site's log says more)",
        "site policy forbids 'fc1.weight' and 7 more to leave, which fedavg sends",
        "it and the server disagree on what is shared: here 'norm.weight [6] torch.float32 shared'",
        "contract: 0123456789ab is not approved at this site (there: medpfl site init KIT --job JOB)",
        "policy: the site's ledger cannot be written, so nothing leaves",
        "policy: the site's ledger is not as the site wrote it, so nothing leaves",
        "shared entry 'fc1.weight' has negative variances",
    ],
)
def test_our_own_words_leave(reason):
    assert listed(reason, NAMES) == reason


@pytest.mark.parametrize(
    "reason",
    [
        "",
        "Jane Doe, born 1961",
        "/data/Jane-Doe/scan.dcm: no such file",
        "site-1 has no training sample of Jane Doe",
        "shared entry 'Jane Doe' is missing (2 in all)",
        "shared entry 'fc1.weight' is missing (20220131199 in all)",
        "JaneDoeError in task 'train' (the site's log says more)",
        "KeyError in the term of jane-doe in task 'train' (the site's log says more)",
        "what the begin of jane-doe gave in task 'train' is not as it must be (the site's log says more)",
        "what the diagnosis of proximal gave in task 'train' is not as it must be (the site's log says more)",
        "proximal: its begin gave 'Jane Doe', not a Part",
        "site-1 has no training sample\nJane Doe",
        "the site cannot write its state: Jane Doe (its log says more)",
    ],
)
def test_all_else_stays(reason):
    assert listed(reason, NAMES) == UNKNOWN


@given(st.text(max_size=200))
def test_no_text_at_all_gets_through(text):
    assert listed(text, set()) in (UNKNOWN, text)
    if listed(text, set()) == text:
        known = [re.sub(r"[^a-z]", "", reason.text.lower()) for reason in _known()]
        assert any(re.sub(r"[^a-z]", "", text.lower())[:8] in one for one in known)


def test_a_reason_says_what_it_knows_again():
    reason = Reason("{site} (of {number}) cannot {read|write} {name}: {number}*")
    said = reason("north", 20, "write", "fc1.weight", 1e-05)
    assert said == "north (of 20) cannot write 'fc1.weight': 1e-05*"
    assert reason.pattern.fullmatch(said).groups() == ("fc1.weight",)
    for other in ("north of 20 cannot write 'fc1.weight': 1e-05*", said.replace("write", "see"), f"{said}*", said[:-1]):
        assert reason.pattern.fullmatch(other) is None
    with pytest.raises(ValueError, match="zip"):
        reason("north", 20, "write", "fc1.weight")


def test_every_reason_is_on_the_list_and_somebody_says_it_with_a_value_for_each_slot():
    known = {reason.text for reason in _known()}
    slots: dict[str, set[int]] = {}
    for file, name, reason in reasons():
        assert {reason.text, POLICY + reason.text} & known, f"{file}: {name} is not on the list"
        slots.setdefault(name, set()).add(reason.text.count("{"))
    loaded = {_name(node) for _, node in nodes(ast.Name, ast.Attribute) if isinstance(node.ctx, ast.Load)}
    assert slots.keys() - loaded == set()
    for file, call in nodes(ast.Call):
        if (name := _name(call.func)) in slots:
            assert len(call.args) in slots[name], f"{file}, line {call.lineno}: {name} has {slots[name]} slots"


STAYING = {
    "core/channels.py": 11,
    "site/newcomer.py": 2,
    "flare/transport/payload.py": 1,
}
"""How many texts of a file are on no list: for the site's log, for whoever has its data, or the server's."""


def test_what_is_raised_in_words_that_may_leave_is_a_reason():
    """A text typed where it is raised would be replaced on its way out, and nobody would learn why."""
    kinds = {
        "StateError",
        "StateNotKept",
        "LoaderError",
        "NotPlain",
        "TrainingDiverged",
        "NetworkTooLarge",
    }
    kinds |= {"SiteForbids", "Failure", "_refused"}
    calls = [(file, call) for file, call in nodes(ast.Call) if _name(call.func) in kinds]
    typed = Counter(file for file, call in calls if any(map(_is_typed, call.args)))
    assert {file: n for file, n in typed.items() if file.split("/")[0] not in ("runs", "server")} == STAYING


def _is_typed(argument):
    return isinstance(argument, ast.JoinedStr | ast.Constant) and not isinstance(getattr(argument, "value", ""), int)


@cache
def files():
    """The package's modules, parsed, by their paths."""
    return {file.relative_to(ROOT).as_posix(): ast.parse(file.read_text()) for file in ROOT.rglob("*.py")}


def reasons():
    """File, name and reason, of all that the package's modules have."""
    for file, tree in files().items():
        named = [n for n in tree.body if isinstance(n, ast.Assign) and _name(getattr(n.value, "func", n)) == "Reason"]
        module = "medpfl." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in (node.targets[0].id for node in named):
            yield file, name, getattr(import_module(module), name)


@cache
def every_node():
    return [(file, node) for file, tree in files().items() for node in ast.walk(tree)]


def nodes(*kinds):
    return [(file, node) for file, node in every_node() if isinstance(node, kinds)]


def _name(node):
    return getattr(node, "id", getattr(node, "attr", ""))
