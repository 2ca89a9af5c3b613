"""What travels besides the shared part is as its channel declares it, and how many bytes that is."""

import pytest
import torch

from medpfl.core.channels import LARGEST, Channel, Entry, carried, like, require_tensors
from medpfl.core.parameters import StateError

FLOAT = (torch.float32,)


@pytest.mark.parametrize(
    ("shape", "fits", "others"),
    [
        ((2, 3), [(2, 3)], [(3, 2), (2,), (2, 3, 1), (2, 4)]),
        ((None, 3), [(1, 3), (4, 3)], [(5, 3), (4, 2), (3,)]),
        ((-1,), [(0,), (9,)], [(9, 1), ()]),
    ],
)
def test_lengths_that_may_differ_are_as_long_as_the_longest_at_most_or_any(shape, fits, others):
    entry = Entry(shape, FLOAT, longest=4)
    for sizes in fits:
        entry.check("a", torch.zeros(sizes))
    for sizes in others:
        with pytest.raises(StateError, match="a has shape"):
            entry.check("a", torch.zeros(sizes))


def test_what_was_expected_is_told():
    with pytest.raises(StateError, match=r"a has shape \[5, 3\], expected \['at most 4', 3\]"):
        Entry((None, 3), FLOAT, longest=4).check("a", torch.zeros(5, 3))
    with pytest.raises(StateError, match=r"a has type torch.int32, expected torch.float32 or torch.int64"):
        Entry((), (torch.float32, torch.int64)).check("a", torch.tensor(1, dtype=torch.int32))


def test_any_of_the_types_will_do():
    entry = Entry((), (torch.float32, torch.int64))
    for dtype in entry.dtypes:
        entry.check("a", torch.tensor(1, dtype=dtype))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.nan, "non-finite values, or some beyond 1e"),
        (-torch.inf, "non-finite values, or some beyond 1e"),
        (2 * LARGEST, "non-finite values, or some beyond 1e"),
        (-2 * LARGEST, "non-finite values, or some beyond 1e"),
        (-1.5, "values below -1$"),
        (2.5, "values above 2$"),
    ],
)
def test_values_are_within_their_limits(value, words):
    entry = Entry((2,), FLOAT, least=-1, most=2)
    entry.check("a", torch.tensor([-1.0, 2.0]))
    with pytest.raises(StateError, match=f"a has {words}"):
        entry.check("a", torch.tensor([0.0, value]))


def test_what_may_be_nothing_below_0_is_said_so():
    with pytest.raises(StateError, match="a has negative values"):
        Entry((1,), FLOAT, least=0).check("a", torch.tensor([-1.0]))


def channel(**entries):
    return Channel("sums", True, entries, ("train",), "sums")


def test_bytes_are_those_of_the_longest():
    assert Entry((None, 3), (torch.float64,), longest=4).nbytes == 4 * 3 * 8
    assert Entry((), FLOAT).nbytes == 4
    assert channel(a=Entry((2,), FLOAT), b=Entry((3,), (torch.int64,))).nbytes == 2 * 4 + 3 * 8
    with pytest.raises(ValueError, match=r"no bound is known of \[-1, 2\]"):
        _ = Entry((-1, 2), FLOAT).nbytes


def test_all_of_a_channel_travels_and_nothing_else():
    two = channel(a=Entry((1,), FLOAT), b=Entry((1,), FLOAT))
    tensors = {"sums/a": torch.zeros(1), "sums/b": torch.zeros(1)}
    two.check(tensors)
    with pytest.raises(StateError, match="sums/c is none of what travels as 'sums'"):
        two.check(tensors | {"sums/c": torch.zeros(1)})
    with pytest.raises(StateError, match=r"sums/a is missing \(2 in all\)"):
        two.check({})
    with pytest.raises(StateError, match="sums/b has shape"):
        two.check(tensors | {"sums/b": torch.zeros(2)})


def test_lengths_that_may_differ_are_the_same_in_all_of_a_channel():
    rows = Entry((None, -1), FLOAT, longest=4)
    both = channel(a=rows, b=rows)
    both.check({"sums/a": torch.zeros(3, 1), "sums/b": torch.zeros(3, 2)})
    with pytest.raises(StateError, match=r"what travels as 'sums' has different lengths, \[2, 3\]"):
        both.check({"sums/a": torch.zeros(3, 1), "sums/b": torch.zeros(2, 1)})


def test_what_another_packages_code_gives_is_a_dictionary_of_tensors():
    require_tensors({"a": torch.zeros(1)}, "its start")
    for given, words in (
        ([1], "its start is list, not a dictionary of tensors"),
        ({1: torch.zeros(1)}, "its start has 1 as a name, int, not text"),
        ({"a": 1.0}, "its start has 'a', float, not a tensor"),
    ):
        with pytest.raises(StateError, match=words):
            require_tensors(given, "its start")


def test_messages_carry_no_gradient():
    sent = carried({"a": torch.ones(2, requires_grad=True)})
    assert not sent["a"].requires_grad and sent["a"].tolist() == [1, 1]


def test_entries_like_a_state_have_its_shapes_and_types():
    found = like({"a": torch.zeros(2, 3), "n": torch.tensor(1)}, least=0)
    assert found == {"a": Entry((2, 3), FLOAT, least=0), "n": Entry((), (torch.int64,), least=0)}
