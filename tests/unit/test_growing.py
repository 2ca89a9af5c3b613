"""A list that grows in a JSON text which is written after every step."""

import json
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medpfl.core import growing
from medpfl.core.growing import Growing

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=3), JSON, max_size=3), st.lists(JSON, max_size=4), st.sampled_from([None, 1, 2])
)
def test_it_is_the_value_whatever_else_has_the_name(rest, items, indent):
    value = {"before": {"rounds": None, "x": '\n "rounds": null'}, **rest, "rounds": items, "rounds ": None}
    text = Growing().text(value, "rounds", indent=indent)
    assert json.loads(text) == value
    if indent:
        assert list(json.loads(text)) == list(value)


@given(st.data())
def test_after_every_change_it_is_what_a_new_one_says(data):
    rounds, items = Growing(), []
    for _ in range(6):
        items = [
            *items[: data.draw(st.integers(0, len(items)))],
            *data.draw(st.lists(JSON.map(lambda x: [x]), max_size=3)),
        ]
        assert rounds.text({"a": 1, "items": items}, "items") == Growing().text({"a": 1, "items": items}, "items")


def test_what_was_encoded_is_not_encoded_again(monkeypatch):
    rounds, items = Growing(), [{"n": 1}, {"n": 2}]
    rounds.text({"items": items}, "items")
    encode = Mock(wraps=json.dumps)
    monkeypatch.setattr(growing, "json", Mock(dumps=encode))
    last = {"n": 3}
    rounds.text({"items": [*items, last]}, "items")
    assert [call.args[0] for call in encode.call_args_list if call.args[0] in (*items, last)] == [last]


def test_what_is_no_number_is_refused():
    for value in ({"x": float("nan"), "items": []}, {"items": [float("inf")]}):
        with pytest.raises(ValueError):
            Growing().text(value, "items")
