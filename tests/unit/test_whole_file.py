"""Files are whole, on the disk when a caller says so, and their owner's alone from the first moment on."""

import os
import stat
from pathlib import Path

import pytest
import torch
from tiny import config

from medpfl.core.messages import Update
from medpfl.core.server_state import ServerState
from medpfl.core.whole_file import write_bytes
from medpfl.server.checkpoint import save_checkpoint
from medpfl.site.book import Book
from medpfl.site.contract import Record
from medpfl.site.ledger import Ledger
from medpfl.site.seal import Seal
from medpfl.site.store import DiskStore

SEAL = Seal(bytes(range(32)), "here")


@pytest.fixture
def disk(monkeypatch):
    """What was waited for and renamed, in order: ``("on disk", name, content)``, ``("renamed", from, to)``."""
    done, sync, replace = [], os.fsync, os.replace

    def synced(handle):
        sync(handle)
        place = Path(os.readlink(f"/proc/self/fd/{handle}"))
        done.append(("on disk", place.name, None if place.is_dir() else place.read_bytes()))

    def renamed(old, new):
        replace(old, new)
        done.append(("renamed", Path(old).name, Path(new).name))

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    return done


@pytest.fixture
def open_to_all():
    """A process that makes files that anybody may read and write."""
    before = os.umask(0)
    yield
    os.umask(before)


def on_disk(done, name):
    """Whether the last of that name was in full on the disk, and after it its folder."""
    synced = [i for i, (what, file, _) in enumerate(done) if what == "on disk" and name in file]
    return bool(synced) and any(what == "on disk" and content is None for what, _, content in done[synced[-1] :])


def test_all_of_a_file_is_on_the_disk_before_it_has_its_name_and_then_the_name(tmp_path, disk):
    write_bytes(tmp_path / "file", b"all of it")
    (first, temporary, content), rename, folder = disk
    assert (first, content) == ("on disk", b"all of it")
    assert rename == ("renamed", temporary, "file")
    assert folder == ("on disk", tmp_path.name, None)


def test_who_does_not_ask_for_it_does_not_wait(tmp_path, disk):
    write_bytes(tmp_path / "file", b"all of it", durable=False)
    assert [what for what, *_ in disk] == ["renamed"]


@pytest.mark.parametrize("mask", [0, 0o777])
def test_a_file_is_its_owners_alone_before_there_is_anything_in_it(tmp_path, monkeypatch, mask):
    made, really = [], os.open

    def opened(path, flags, mode=0o777, **more):
        handle = really(path, flags, mode, **more)
        made.append(stat.S_IMODE(os.fstat(handle).st_mode))
        return handle

    monkeypatch.setattr(os, "open", opened)
    before = os.umask(mask)
    try:
        write_bytes(tmp_path / "file", b"private", durable=False, mode=0o600)
    finally:
        os.umask(before)
    assert made == [0o600 & ~mask]
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


@pytest.mark.parametrize("durable", [True, False])
def test_a_servers_checkpoint(tmp_path, disk, durable):
    for round_ in (1, 2):
        save_checkpoint(tmp_path / "server.safetensors", config(), ServerState(round=round_), durable=durable)
        assert on_disk(disk, "server.next") is durable
        assert (disk[-1][0] == "on disk") is durable  # the names that it has in the end
        disk.clear()


@pytest.mark.parametrize("durable", [True, False])
def test_a_sites_state(tmp_path, disk, durable):
    DiskStore(tmp_path, durable).put("personal", 1, {"weight": torch.ones(3)})
    assert on_disk(disk, "personal-000001") is durable


@pytest.mark.parametrize("seal", [SEAL, None])
def test_a_sites_record_of_what_it_was_asked(tmp_path, disk, open_to_all, seal):
    Book(tmp_path, seal).write(Record("contract", "somebody"))
    [file] = [file for file in tmp_path.iterdir() if file.is_file()]
    assert on_disk(disk, file.name) is (seal is not None)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_an_entry_of_the_ledger_is_on_the_disk_before_what_it_tells_of_leaves(tmp_path, disk, open_to_all):
    entry = dict.fromkeys(("job", "submitter", "contract", "experiment", "data", "task"), "x") | {"run": 1, "round": 1}
    Ledger(tmp_path, SEAL).append(entry, Update("site-1", 1))
    synced = [name for what, name, content in disk if what == "on disk" and content and content.endswith(b"\n")]
    assert synced[0] == "ledger.jsonl" and on_disk(disk, "ledger.head")
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
