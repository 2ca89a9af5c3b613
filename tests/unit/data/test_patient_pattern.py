"""A job's regular expression for patients: bounded time, and for ordinary ones what Python's ``re`` finds."""

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures import config, paint

from medpfl.core.errors import UserError
from medpfl.data.kinds.folders.patient_pattern import LONGEST, patient_in
from medpfl.data.sites import open_source

CATASTROPHIC = [r"^(([a-z])+.)+[A-Z]([a-z])+$", r"(a+)+$", r"^(a|aa)+$", r"(.*)*x", r"^((a?){30}){30}x$"]
ORDINARY = [
    "^([^_]+)_",
    r"^(\d+)",
    r"(P\d{3})",
    r"^(\w+?)[-_]",
    r"^patient[-_ ]?(\d+)",
    r"(?P<patient>[A-Z]+\d+)_(left|right)",
    r"^(?:img_)?(\d+)_\d+\.(?:png|jpe?g)$",
    r"(?i)^(sub-[a-z0-9]+)",
    r"^(.+)_[lr]\.",
    r"^([^.]*)",
    r"\b(\d+)\b",
]
NAMES = st.lists(
    st.sampled_from(
        ["P001", "p", "patient-", "_", "-", " ", "12", "7", "left", "right", "l", "r", "img_", "sub-a1", "."]
    )
    | st.characters(max_codepoint=127, min_codepoint=33, exclude_characters="/"),
    min_size=1,
    max_size=8,
).map(lambda parts: "".join(parts) + ".png")


@pytest.mark.parametrize("expression", CATASTROPHIC)
def test_an_expression_that_backtracks_for_ever_ends_at_once(tmp_path, expression):
    for number in range(4):
        paint(tmp_path / "eyes" / ("ill", "well")[number % 2] / f"{'a' * 40}{number}.png", (9, 9, 9), number)
    source = open_source(config(tmp_path / "eyes", sites=1, data_args={"patient": expression}))
    started = time.perf_counter()
    with pytest.raises(UserError) as refused:
        _ = source.layout
    assert time.perf_counter() - started < 1
    assert f"--data-arg patient={expression} finds no patient in the file's name" in str(refused.value)


def test_a_name_as_long_as_a_file_system_has_takes_milliseconds():
    started = time.perf_counter()
    with pytest.raises(UserError, match="finds no patient"):
        patient_in(Path("a" * 251 + ".png"), r"^((a?){30}){30}x$")
    assert time.perf_counter() - started < 0.5


@pytest.mark.parametrize("expression", ORDINARY)
@given(name=NAMES)
def test_ordinary_expressions_find_what_pythons_do(expression, name):
    expected = re.search(expression, name)
    try:
        found = patient_in(Path(name), expression)
    except UserError as error:
        found = None
        assert "finds no patient" in str(error)
    assert found == (expected and expected[1])


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        (r"(a)\1", r"'\(a\)\\\\1' is no regular expression for RE2, which has no backreferences or look-around"),
        (r"(?=a)(b)", "which has no backreferences or look-around .*say it with groups"),
        ("(a", r"is no regular expression for RE2, \(missing \): \(a\)"),
        ("a+", "has no group in parentheses that is the patient"),
        (r"(\pL{1,99}){9}x", "is no regular expression for RE2, .pattern too large"),
        ("(a)" * LONGEST, r"'(\(a\)){13}\('... has 600 characters; at most 200 are allowed"),
    ],
)
def test_what_it_cannot_be_is_said_before_a_file_is_read(tmp_path, expression, words):
    paint(tmp_path / "eyes" / "ill" / "a.png", (9, 9, 9), 0)
    with pytest.raises(UserError, match=f"--data-arg patient: .*{words}"):
        open_source(config(tmp_path / "eyes", data_args={"patient": expression})).model_arguments()


def test_names_beyond_ascii():
    assert patient_in(Path("Müller_left.png"), "^([^_]+)_") == "Müller"
    assert patient_in(Path("Rücken_12.png"), r"(\d+)") == "12"
    with pytest.raises(UserError, match=r"patient=\(\\w\+\): its \\w knows ASCII alone, and the name has more; say"):
        patient_in(Path("Müller_left.png"), r"(\w+)")
    with pytest.raises(UserError, match=r"the name is no UTF-8 text, and --data-arg patient=.* is to read it; rename"):
        patient_in(Path("M\udcfcller_left.png"), "^([^_]+)_")
