import multiprocessing
import os

import pytest

from medpfl.core.process import is_gone, this_process

FORK = multiprocessing.get_context("fork")


def named(folder, names, ends):
    names.put(this_process(folder))
    names.close()
    names.join_thread()
    ends.wait(60)
    os._exit(9)


@pytest.fixture
def other(tmp_path):
    """A process that is known in the folder, its name there, and what lets it be killed."""
    this_process(tmp_path)
    names, ends = FORK.Queue(), FORK.Event()
    process = FORK.Process(target=named, args=(tmp_path, names, ends))
    process.start()
    yield names.get(timeout=60), lambda: (ends.set(), process.join())
    process.kill()


def test_a_process_has_one_name_in_a_folder_and_is_not_gone(tmp_path):
    name = this_process(tmp_path)
    assert this_process(tmp_path / ".") == name
    assert not is_gone(tmp_path, name)
    (tmp_path / "other").mkdir()
    assert this_process(tmp_path / "other") != name


def test_another_process_is_gone_once_it_was_killed_and_leaves_no_file(tmp_path, other):
    name, kill = other
    assert name != this_process(tmp_path)
    assert not is_gone(tmp_path, name)
    kill()
    assert is_gone(tmp_path, name)
    assert is_gone(tmp_path, name)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_child_that_ends_takes_nothing_from_its_parent(tmp_path, other):
    _, kill = other
    kill()
    assert not is_gone(tmp_path, this_process(tmp_path))


def test_the_first_to_come_clears_away_what_others_left(tmp_path):
    (tmp_path / "process-left.lock").touch()
    (tmp_path / "process-folder.lock").mkdir()
    this_process(tmp_path)
    assert not (tmp_path / "process-left.lock").exists()
