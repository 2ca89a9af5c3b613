"""The record of what left: whole, in order, and noticed when it is not."""

import errno
import json
import multiprocessing
import os
import time

import pytest
import torch

from medpfl.core.messages import Update
from medpfl.site.ledger import _TAIL, Ledger, Served
from medpfl.site.seal import Seal, SealBroken

KEY = bytes(range(32))


def ledger(folder, key=KEY):
    return Ledger(folder, Seal(key, "ledger"))


def entry(**fields):
    said = {
        "job": "j",
        "submitter": "a",
        "contract": "c",
        "experiment": "e",
        "run": 1,
        "data": "ct",
        "task": "train",
        "round": 1,
    }
    return said | fields


def update(value=1.0):
    return Update("site-1", 1, {"weight": torch.full((3,), value)}, {"train_loss": 0.5}, 0.1)


def filled(folder, number=4):
    found = ledger(folder)
    for round_ in range(number):
        found.append(entry(round=round_), update(round_))
    return found


def test_what_left_is_read_back(tmp_path):
    entries = list(filled(tmp_path).entries())
    assert [(e["n"], e["round"]) for e in entries] == [(1, 0), (2, 1), (3, 2), (4, 3)]
    assert (entries[0]["tensors"], entries[0]["numbers"], entries[0]["data"]) == (["weight"], ["train_loss"], "ct")
    assert entries[0]["bytes"] > 12
    assert len({e["digest"] for e in entries}) == 4


def edited(lines, change):
    match change:
        case "changed":
            lines[1] = lines[1].replace('"round": 1', '"round": 9')
        case "taken out":
            del lines[1]
        case "moved":
            lines[1], lines[2] = lines[2], lines[1]
        case "cut off":
            del lines[3]
        case "all but one cut off":
            del lines[1:]
        case "put in":
            lines.insert(2, json.dumps(json.loads(lines[1]) | {"n": 3}))
        case "no entry":
            lines[2] = "{}"
    return lines


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("changed", "line 2: ledger.jsonl is not as this site wrote it"),
        ("taken out", "line 2: an entry before it is missing"),
        ("moved", "line 2: an entry before it is missing"),
        ("cut off", "some were cut off"),
        ("all but one cut off", "some were cut off"),
        ("put in", "line 3"),
        ("no entry", "line 3: it is no entry"),
    ],
)
def test_any_change_breaks_the_chain(tmp_path, change, words):
    found = filled(tmp_path)
    lines = edited(found.file.read_text().splitlines(), change)
    found.file.write_text("\n".join(lines) + "\n")
    with pytest.raises(SealBroken, match=words):
        list(found.entries())
    if change in ("cut off", "all but one cut off"):
        with pytest.raises(SealBroken, match="not the one that its head names"):
            found.append(entry(), update())


def test_a_ledger_that_is_gone_is_not_begun_again(tmp_path):
    found = filled(tmp_path)
    found.file.unlink()
    with pytest.raises(SealBroken, match="it is gone"):
        found.append(entry(), update())


def test_an_emptied_ledger_is_not_gone_on_with(tmp_path):
    found = filled(tmp_path)
    found.file.write_bytes(b"")
    with pytest.raises(SealBroken, match="its entries are gone"):
        found.append(entry(), update())
    assert found.file.read_bytes() == b""


def test_anothers_key_reads_nothing(tmp_path):
    filled(tmp_path)
    with pytest.raises(SealBroken, match=r"ledger\.head is not as this site wrote it"):
        list(ledger(tmp_path, bytes(32)).entries())


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_an_entry_that_a_kill_left_unfinished_had_not_left(tmp_path, cut):
    found = filled(tmp_path, 2)
    whole = found.file.read_bytes()
    found.append(entry(round=7), update())
    with open(found.file, "ab") as file:
        file.truncate(len(whole) + cut)
    (tmp_path / "ledger.head").write_bytes((tmp_path / "ledger.head").read_bytes())
    # The head is written after the entry, so at a kill in the entry it still names the one before.
    found._write_head(2, json.loads(whole.splitlines()[-1])["seal"])
    assert [e["round"] for e in found.entries()] == [0, 1]
    found.append(entry(round=8), update())
    assert [e["round"] for e in found.entries()] == [0, 1, 8]


def test_a_kill_between_an_entry_and_its_head_is_mended(tmp_path):
    found = filled(tmp_path, 2)
    head = (tmp_path / "ledger.head").read_bytes()
    found.append(entry(round=7), update())
    (tmp_path / "ledger.head").write_bytes(head)
    assert len(list(found.entries())) == 3
    found.append(entry(round=8), update())
    assert len(list(found.entries())) == 4


def test_a_disk_too_full_for_the_head_costs_no_more_than_the_answers(tmp_path, monkeypatch):
    """An entry may fit into the last block of its file where no new file does."""
    found = filled(tmp_path, 2)
    with monkeypatch.context() as full:

        def none_left(path, *_, **__):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

        full.setattr("medpfl.site.ledger.write_bytes", none_left)
        for round_ in (2, 3, 4):
            with pytest.raises(OSError, match="No space left"):
                found.append(entry(round=round_), update())
    found.append(entry(round=5), update())
    assert [e["round"] for e in found.entries()] == [0, 1, 2, 5]


def test_a_last_entry_that_lost_its_end_of_line_is_not_removed(tmp_path):
    """An editor takes it off; the entry is of something that left."""
    found = filled(tmp_path)
    whole = found.file.read_bytes()
    found.file.write_bytes(whole[:-1])
    with pytest.raises(SealBroken, match="not the one that its head names"):
        found.append(entry(), update())
    assert found.file.read_bytes() == whole[:-1]
    found.file.write_bytes(whole)
    found.append(entry(), update())
    assert len(list(found.entries())) == 5


@pytest.mark.parametrize("line", [b"{}", b"[]", b"1", b"\xff", b""])
def test_a_last_line_that_is_no_entry_is_said(tmp_path, line):
    found = filled(tmp_path)
    with open(found.file, "ab") as file:
        file.write(line + b"\n")
    with pytest.raises(SealBroken, match=r"ledger\.jsonl: its last line is no entry"):
        found.append(entry(), update())
    with pytest.raises(SealBroken, match="line 5: it is no entry"):
        found.served("ct", "c", "e", 1, verify=False)


def _append(folder, number):
    for round_ in range(number):
        ledger(folder).append(entry(round=round_), update())


def test_the_entry_of_a_network_of_very_many_tensors_is_gone_on_from(tmp_path):
    """Its names alone would fill megabytes; whatever the length of an entry, the next one follows it."""
    found = ledger(tmp_path)
    names = [f"{'layer.' * 60}{k}" for k in range(3000)]
    found.append(entry(), Update("site-1", 1, {name: torch.zeros(1) for name in names}, {}, 0.1))
    found.append(entry(round=2), update())
    first, second = found.entries()
    assert (len(first["tensors"]), first["tensors"][-1], second["round"]) == (1001, "and 2000 more", 2)
    assert found.file.stat().st_size > 4 * _TAIL  # more than is read at first


@pytest.mark.slow
def test_jobs_side_by_side_write_one_chain(tmp_path):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_append, args=(tmp_path, 10)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [e["n"] for e in ledger(tmp_path).entries()] == list(range(1, 21))


def test_it_is_read_whole_while_a_job_writes(tmp_path, monkeypatch):
    found, plain = filled(tmp_path), Ledger._lines
    reading = found.entries()
    next(reading)
    found.append(entry(), update())
    assert len(list(reading)) == 3  # what was there when the reading began

    def then_another(ledger):
        lines = plain(ledger)
        if len(lines) == 5:
            ledger.append(entry(), update())
        return lines

    monkeypatch.setattr(Ledger, "_lines", then_another)
    assert len(list(found.entries())) == 6


def test_what_a_data_set_has_served(tmp_path):
    found = ledger(tmp_path)
    for said in (
        {"task": "prepare"},
        {},
        {"contract": "d", "task": "prepare"},
        {"run": 2},
        {"experiment": "f"},
        {"data": "mr"},
    ):
        found.append(entry(**said), update())
    assert found.served("ct", "c", "e", 1) == Served(experiments=3, rounds=3, known=True)
    assert found.served("ct", "c", "g", 1) == Served(experiments=4, rounds=3, known=False)
    assert found.served("mr", "c", "e", 1) == Served(experiments=0, rounds=1, known=True)


def test_what_this_process_has_read_and_written_is_not_read_again(tmp_path, monkeypatch):
    """Of ten thousand entries it takes a second in each round, and more memory than a site may have left."""
    found = filled(tmp_path)
    assert found.served("ct", "c", "e", 1, verify=False) == Served(0, 4, True)
    monkeypatch.setattr(Ledger, "_lines", lambda _: pytest.fail("the ledger was read"))
    for rounds in (5, 6):
        found.append(entry(experiment="f"), update())
        assert found.served("CT", "c", "e", 1, verify=False) == Served(1, rounds, True)


def test_what_others_have_written_or_changed_is_read(tmp_path):
    found, other = filled(tmp_path), ledger(tmp_path)

    def served():
        return found.served("ct", "c", "e", 1, verify=False).rounds

    assert served() == 4
    other.append(entry(), update())
    assert served() == 5
    other.append(entry(), update())
    found.append(entry(), update())  # which is not to hide the other's
    assert served() == 7
    whole = found.file.read_bytes()
    found.file.write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))
    assert served() == 3
    with pytest.raises(SealBroken, match="not the one that its head names"):
        found.append(entry(), update())
    found.file.write_bytes(b"{" + whole)
    with pytest.raises(SealBroken, match="line 1: it is no entry"):
        served()
    found.file.unlink()
    assert served() == 0
    with pytest.raises(SealBroken, match="it is gone"):
        found.append(entry(), update())


def test_a_change_that_keeps_the_length_is_read(tmp_path):
    found = filled(tmp_path)
    assert found.served("ct", "c", "e", 1, verify=False).rounds == 4
    time.sleep(0.05)  # a file system's clock has ticks
    found.file.write_bytes(found.file.read_bytes().replace(b'"task": "train"', b'"task"; "train"', 1))
    with pytest.raises(SealBroken, match="line 1: it is no entry"):
        found.served("ct", "c", "e", 1, verify=False)


def test_data_are_opened_once_for_a_run_and_for_no_more_runs_than_they_may_serve(tmp_path):
    found, other = ledger(tmp_path), entry(experiment="f", task="open")
    for _ in range(2):
        found.open(entry(task="open"), most=1)
    assert found.open(other, most=1) == Served(experiments=1, rounds=0, known=False)
    assert found.served("ct", "c", "f", 1).known is False
    assert found.open(other, most=0).experiments == 1
    assert found.open(entry(run=2, task="open"), most=2) == Served(experiments=2, rounds=0, known=False)
    assert [(e["task"], e["experiment"]) for e in found.entries()] == [("open", "e"), ("open", "f")]


def test_an_entry_in_the_place_of_a_later_one_is_noticed(tmp_path):
    """Who can write, and has no key, puts back what a restored copy of the folder has replaced since."""
    book = filled(tmp_path, 1)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    book.append(entry(round=2), update(2.0))
    replaced = book.file.read_bytes()
    for name, content in before.items():
        (tmp_path / name).write_bytes(content)
    ledger(tmp_path).append(entry(round=2), update(3.0))
    assert len(list(ledger(tmp_path).entries())) == 2

    book.file.write_bytes(replaced)

    with pytest.raises(SealBroken, match="its head says otherwise"):
        list(ledger(tmp_path).entries())
    with pytest.raises(SealBroken, match="its last entry is not the one that its head names"):
        ledger(tmp_path).append(entry(round=3), update())
