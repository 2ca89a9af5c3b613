"""Warnings are back when the last of the threads that read quietly has ended."""

import threading
import warnings

import pytest

from medpfl.core.quiet import quiet


def test_blocks_of_two_threads_leave_the_filters_as_they_were():
    before, inside, may_end = list(warnings.filters), threading.Event(), threading.Event()

    def first():
        with quiet():
            inside.set()
            may_end.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(10)
    with quiet():
        may_end.set()
        thread.join()
        warnings.warn("not heard", stacklevel=1)  # an error in these tests, were it heard
    assert warnings.filters == before
    with pytest.warns(UserWarning, match="heard"):
        warnings.warn("heard", stacklevel=1)


def test_an_error_within_ends_it():
    before = list(warnings.filters)
    with pytest.raises(ValueError), quiet():
        raise ValueError
    assert warnings.filters == before
