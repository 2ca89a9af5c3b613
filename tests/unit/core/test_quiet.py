"""Warnings are back when the last of the threads that read quietly has ended; what was said is not said again."""

import logging
import threading
import warnings

import pytest

from medpfl.core.quiet import quiet, said_once, traced_once


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


def test_what_a_package_logs_is_said_once_in_a_block(capsys, monkeypatch):
    def said(name, *messages):
        for message in messages:
            logging.getLogger(name).warning("%s", message)
        return capsys.readouterr().err.split()

    with monkeypatch.context() as patch:
        patch.setattr(logging.getLogger(), "handlers", [])  # as where a program has none of its own
        with said_once("some.data"):
            assert said("some.data.folders", "a", "b", "a") == ["a", "b"]
            assert said("some.data.folders", "a") == []
            assert said("some.data", "a") == ["a"]  # another says it
            assert said("some.database", "a", "a") == ["a", "a"]
        assert said("some.data.folders", "a", "a") == ["a", "a"]
        with said_once("some.data"):
            assert said("some.data.folders", "a") == ["a"]
        patch.setattr(logging, "lastResort", None)
        with said_once("some.data"):
            pass


def test_where_an_error_came_from_is_logged_once_in_a_block(caplog):
    logger = logging.getLogger("some.site")

    def fails(how):
        try:
            if how == "there":
                raise KeyError("x")
            raise IndexError(how)
        except LookupError as error:
            logger.warning("%s", how, exc_info=error)

    def traced(*hows):
        caplog.clear()
        for how in hows:
            fails(how)
        return [(record.getMessage(), record.exc_info is not None) for record in caplog.records]

    with traced_once("some.site"):
        # What is said of an error is not where it was; another one's place is.
        assert traced("a", "b", "there", "a") == [("a", True), ("b", False), ("there", True), ("a", False)]
        logger.warning("no error", exc_info=True)
        logger.warning("no error")
    assert traced("a", "a") == [("a", True), ("a", True)]
    with traced_once("some.site"):
        assert traced("a") == [("a", True)]
    assert logger.filters == []
