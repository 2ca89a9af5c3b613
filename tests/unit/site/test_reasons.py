"""Reasons are words of a list: what is not on it stays in the site's log."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medpfl.core.reasons import Reason
from medpfl.site.words import UNKNOWN, _known, listed

NAMES = {"fc1.weight", "norm.weight [6] torch.float32 shared"}


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
        "site policy forbids 'fc1.weight' and 7 more to leave, which fedavg sends",
        "it and the server disagree on what is shared: here 'norm.weight [6] torch.float32 shared'",
        "contract: 0123456789ab is not approved at this site",
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
