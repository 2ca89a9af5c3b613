"""A site's key: what is not as the site wrote it is noticed."""

import os
import stat

import pytest
import torch

from medpfl.core.errors import TornFile, UserError
from medpfl.core.statefile import read_state, write_state
from medpfl.site.seal import FILE, Seal, SealBroken, make_key, read_key
from medpfl.site.store import DiskStore

KEY, OTHER = bytes(range(32)), bytes(32)
STATE = {"weight": torch.arange(6.0)}


def store(folder, key=KEY, place="experiment/site-1", encrypted=False):
    return DiskStore(folder, durable=False, seal=Seal(key, place, encrypted))


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_sealed_state_comes_back_for_its_owner(tmp_path, encrypted):
    store(tmp_path / "a", encrypted=encrypted).put("personal", 3, STATE)
    assert store(tmp_path / "a", encrypted=encrypted).get("personal", 3)["weight"].equal(STATE["weight"])
    [file] = (tmp_path / "a").glob("*.safetensors")
    assert (b"weight" in file.read_bytes()) is not encrypted


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_state_of_another_place_key_or_round_is_none(tmp_path, encrypted):
    store(tmp_path / "a", encrypted=encrypted).put("personal", 3, STATE)
    [file] = (tmp_path / "a").glob("*.safetensors")
    for key, place, name in (
        (OTHER, "experiment/site-1", file.name),
        (KEY, "other/site-1", file.name),
        (KEY, "experiment/site-1", "personal-000004.safetensors"),
    ):
        there = store(tmp_path / "b", key, place, encrypted)
        (there.folder / name).write_bytes(file.read_bytes())
        with pytest.raises(TornFile, match="damaged or another's"):
            there.get("personal", int(name[9:15]))
        (there.folder / name).unlink()


def test_a_state_that_somebody_else_wrote_is_none(tmp_path):
    """Its checksum fits; the seal does not."""
    there = store(tmp_path / "a")
    write_state(there.folder / "personal-000003.safetensors", STATE)
    with pytest.raises(TornFile, match="not as this site wrote it"):
        there.get("personal", 3)


def test_a_plain_state_among_encrypted_ones_is_none(tmp_path):
    store(tmp_path / "a", OTHER).put("personal", 3, STATE)
    with pytest.raises(TornFile):
        store(tmp_path / "a", encrypted=True).get("personal", 3)


def test_what_was_sealed_before_encryption_is_still_read(tmp_path):
    store(tmp_path / "a").put("personal", 3, STATE)
    assert store(tmp_path / "a", encrypted=True).get("personal", 3) is not None
    assert read_state(tmp_path / "a" / "personal-000003.safetensors")[0].keys() == STATE.keys()


def test_state_is_the_owners_alone(tmp_path):
    before = os.umask(0o022)
    try:
        there = store(tmp_path / "a")
        there.put("personal", 1, STATE)
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in there.folder.iterdir()}
    assert (stat.S_IMODE(there.folder.stat().st_mode), modes) == (0o700, {0o600})


def test_a_key_is_made_once_and_is_the_owners_alone(tmp_path):
    assert read_key(tmp_path) is None
    file = make_key(tmp_path)
    first = read_key(tmp_path)
    assert (len(first), stat.S_IMODE(file.stat().st_mode)) == (32, 0o600)
    make_key(tmp_path)
    assert read_key(tmp_path) == first


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        ("00" * 32, 0o604, "others may read"),
        ("00" * 32, 0o640, "others may read"),
        ("zz", 0o600, "no key of 64"),
        ("00" * 31, 0o600, "no key of 64"),
    ],
)
def test_a_key_that_is_none_or_open_to_others_is_refused(tmp_path, content, mode, words):
    (tmp_path / FILE).write_text(content)
    (tmp_path / FILE).chmod(mode)
    with pytest.raises(UserError, match=words):
        read_key(tmp_path)


def test_a_key_that_cannot_be_read_is_no_wrong_one(tmp_path, monkeypatch):
    make_key(tmp_path)
    monkeypatch.setattr("pathlib.Path.read_text", lambda *_: os.open(tmp_path / "gone", os.O_RDONLY))
    with pytest.raises(UserError, match=f"{FILE}: the site's key cannot be read: No such file"):
        read_key(tmp_path)


def test_tags_hang_on_name_place_and_content():
    seal = Seal(KEY, "a/b")
    seal.require("n", "text", seal.tag("n", "text"))
    for tag in (seal.tag("m", "text"), Seal(KEY, "a/c").tag("n", "text"), seal.tag("n", "texts"), None, ""):
        with pytest.raises(SealBroken):
            seal.require("n", "text", tag)
    assert seal.secret("x") != seal.secret("y") != Seal(OTHER, "a/b").secret("y")


def test_a_kill_leaves_a_whole_key_or_none(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", killed)
        with pytest.raises(KeyboardInterrupt):
            make_key(tmp_path)
    assert not list(tmp_path.iterdir())
    make_key(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [FILE]


def test_of_two_that_make_a_key_the_first_ones_stays(tmp_path, monkeypatch):
    link, first = os.link, []

    def late(new, file):
        file.write_text("00" * 32)
        file.chmod(0o600)
        first.append(file)
        link(new, file)

    monkeypatch.setattr(os, "link", late)
    make_key(tmp_path)
    assert first and read_key(tmp_path) == bytes(32)


def test_a_key_is_made_where_there_are_no_links(tmp_path, monkeypatch):
    def none(*_):
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", none)
    make_key(tmp_path)
    assert len(read_key(tmp_path)) == 32
