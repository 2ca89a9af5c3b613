"""What a guarded site writes down of a run: its record, its experiments and rounds, the ledger."""

import logging
from dataclasses import replace

import pytest
import torch
from test_guard import KEY, Guarded

from medpfl.config.run import make_config
from medpfl.core.messages import Failure
from medpfl.core.parameters import StateError
from medpfl.site.account import Account
from medpfl.site.book import Book
from medpfl.site.contract import Contract
from medpfl.site.ledger import Ledger
from medpfl.site.policy import SitePolicy


def test_a_record_outlives_the_process(tmp_path):
    Guarded(folder=tmp_path / "a").hello().train(1)
    again = Guarded(folder=tmp_path / "a")
    assert "out of order" not in str(again.ask("train", 2))
    words = Guarded(folder=tmp_path / "a").refused(
        "train", 1, again.federation.initial_shared | {"fc1.bias": torch.ones(6)}
    )
    assert "start weights are not the contract's" in words


def test_anothers_job_does_not_get_at_an_experiment(tmp_path, caplog):
    Guarded(folder=tmp_path / "a", submitter="alice/h1").hello().train(1)
    kept = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    mallory = Guarded(folder=tmp_path / "a", submitter="mallory/h2")
    for task in ("prepare", "train", "test"):
        words = mallory.refused(task, task == "train", selected_round=1)
        assert words == "contract: the experiment belongs to another submitter here; choose another name"
    other = Guarded(folder=tmp_path / "a", submitter="alice/h1", rounds=4)
    assert "belongs to another contract here" in other.refused("prepare")
    assert {file: file.read_bytes() for file in kept} == kept


def test_a_record_that_was_tampered_with_is_no_record(tmp_path, caplog):
    folder = tmp_path / "a"
    Guarded(folder=folder, key=KEY).hello().train(1)
    file = folder / "contract.json"
    file.write_text(file.read_text().replace('"repeats": 0', '"repeats": -9'))
    with caplog.at_level(logging.WARNING):
        words = Guarded(folder=folder, key=KEY).refused("train", 2)
    assert words == "contract: the record of this run at the site is damaged; begin a new experiment"
    assert "contract.json is not as this site wrote it" in caplog.text


def test_a_run_that_begins_anew_archives_the_models_and_counts_as_an_experiment(tmp_path):
    policy = SitePolicy(experiments=1)
    first = Guarded(folder=tmp_path / "a", key=KEY, policy=policy).hello()
    first.train(1)
    words = first.refused("prepare")
    assert words == "policy: the data have served 1 experiments, which is the limit (experiments)"
    other = Guarded("fedavg", folder=tmp_path / "b", key=KEY, policy=policy)
    assert "(experiments)" in other.refused("prepare")


def test_a_refused_hello_begins_no_run_on_what_an_earlier_one_left(tmp_path):
    first = Guarded(folder=tmp_path / "a", rounds=2).hello()
    for round_ in (1, 2):
        first.train(round_, None if round_ == 1 else first.near())
    for task in ("validate", "test"):
        shared = first.near() if task == "validate" else {}
        assert not isinstance(first.ask(task, 2, shared, selected_round=2), Failure)
    kept = {file: file.read_bytes() for file in tmp_path.rglob("*.safetensors")}
    assert tmp_path / "a" / "selected" / "model.safetensors" in kept
    again = Guarded(folder=tmp_path / "a", rounds=2)
    assert "disagree on what is shared" in again.refused("prepare", split=["nonsense"])
    assert "before the hello" in again.refused("train", 1)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.safetensors")} == kept
    again.hello().train(1)
    assert (tmp_path / "a" / "archive" / "1" / "selected" / "card.json").exists()


def test_runs_that_begin_at_once_are_counted(tmp_path):
    """Each is asked while the other is at its work, and so before that has left a trace in the ledger."""
    policy, said = SitePolicy(experiments=1), []
    first = Guarded(folder=tmp_path / "a", key=KEY, policy=policy)
    second = Guarded("fedavg", folder=tmp_path / "b", key=KEY, policy=policy)
    party = first.site.party
    handle = type(party).handle

    def meanwhile(message, model):
        said.append(second.refused("prepare"))
        return handle(party, message, model)

    party.handle = meanwhile
    first.hello()
    assert said == ["policy: the data have served 1 experiments, which is the limit (experiments)"]
    party.handle = lambda message, model: handle(party, message, model)
    first.train(1)


def test_a_hello_that_the_contract_refuses_takes_no_experiment(tmp_path):
    policy = SitePolicy(experiments=1)
    Guarded(folder=tmp_path / "a", key=KEY, policy=policy).ask_hello(shared={"x/y": torch.ones(2)})
    Guarded(folder=tmp_path / "c", key=KEY, policy=policy).hello()


def test_what_a_site_refuses_once_its_data_are_at_work_is_an_experiment(tmp_path):
    """By the network's last layer, say, a server tries how many classes they have."""
    policy = SitePolicy(experiments=1)
    for _ in range(2):
        refused = Guarded(folder=tmp_path / "a", key=KEY, policy=policy)
        refused.ask_hello(split=["nonsense" * 100])
    opened, *entries = refused.site.account.ledger.entries()
    assert [entry["task"] for entry in (opened, *entries)] == ["open", "prepare", "prepare"]
    for entry in entries:
        assert "disagree on what is shared" in entry["refused"]
        assert len(entry["refused"]) == 300
    assert "(experiments)" in Guarded(folder=tmp_path / "b", key=KEY, policy=policy).refused("prepare")


def test_a_round_that_failed_is_a_round(tmp_path):
    guarded = Guarded(folder=tmp_path / "a", key=KEY, policy=SitePolicy(rounds=2)).hello()
    handle, guarded.site.party.handle = guarded.site.party.handle, raising(StateError("no update"))
    for _ in range(2):
        assert guarded.refused("train", 1) == "no update"
    guarded.site.party.handle = handle
    assert "(rounds)" in guarded.refused("train", 1)


def test_what_the_gate_holds_back_is_an_experiment(tmp_path):
    """Statistics that are not finite are held back, and a server's weights can make that a question about one pixel."""
    policy = SitePolicy(experiments=1)
    held = Guarded("f-fedap", folder=tmp_path / "a", key=KEY, policy=policy)
    handle = held.site.party.handle
    held.site.party.handle = lambda message, model: replace(
        handle(message, model), metrics={"samples": {"train": float("nan")}}
    )
    assert "may not leave" in held.refused("prepare")
    assert "(experiments)" in Guarded(folder=tmp_path / "b", key=KEY, policy=policy).refused("prepare")


def test_a_run_that_began_goes_on_where_another_may_not_begin(tmp_path):
    guarded = Guarded(folder=tmp_path / "a", key=KEY, policy=SitePolicy(experiments=1), rounds=1).hello()
    update = guarded.train(1)
    assert "(experiments)" in guarded.refused("prepare")
    assert not isinstance(guarded.ask("validate", 1, update.tensors), Failure)


def test_of_two_names_none_is_used_up_where_the_other_has_no_room(tmp_path):
    run, newcomers = (make_config(algorithm="fedavg", data=name) for name in ("theirs", "ours"))
    account = Guarded(folder=tmp_path / "a", key=KEY, policy=SitePolicy(experiments=1)).site.account
    Account(account.ledger, account.policy, Contract(run), "first", "job").open(1)
    with pytest.raises(StateError, match=r"\(experiments\)"):
        Account(account.ledger, account.policy, Contract(run, newcomers), "second", "job").open(1)
    assert [entry["data"] for entry in account.ledger.entries()] == ["theirs"]


def test_a_run_counts_from_when_the_data_are_opened_for_it(tmp_path):
    guarded = Guarded(folder=tmp_path / "a", key=KEY, policy=SitePolicy(experiments=1))
    for _ in range(2):
        guarded.site.account.open(1)
    with pytest.raises(StateError, match=r"\(experiments\)"):
        replace(guarded.site.account, experiment="b").open(1)
    guarded.hello().train(1)
    assert [entry["task"] for entry in guarded.site.account.ledger.entries()] == ["open", "prepare", "train"]


def test_what_cannot_be_recorded_takes_no_experiment(tmp_path):
    policy = SitePolicy(experiments=1)
    site = Guarded(folder=tmp_path / "a", key=KEY, policy=policy)
    (tmp_path / "ledger.jsonl").mkdir()
    assert "the site's ledger cannot be read" in site.refused("prepare")
    (tmp_path / "ledger.jsonl").rmdir()
    Guarded(folder=tmp_path / "b", key=KEY, policy=policy).hello()


@pytest.mark.parametrize("owner", [Ledger, Book])
def test_a_run_whose_answer_could_not_be_recorded_goes_on(tmp_path, monkeypatch, owner):
    site = Guarded(folder=tmp_path / "a", key=KEY, policy=SitePolicy(experiments=1))
    with monkeypatch.context() as broken:
        broken.setattr(owner, "append" if owner is Ledger else "write", full_disk)
        site.refused("prepare")
    site.hello().train(1)


def full_disk(*_, **__):
    raise OSError(28, "No space left on device")


def raising(error):
    def fail(*_):
        raise error

    return fail


def test_a_slow_answer_of_one_run_changes_nothing_of_the_next(tmp_path):
    first, slow, next_ = (Guarded(folder=tmp_path / "a", key=KEY) for _ in range(3))
    party, handle = slow.site.party, type(slow.site.party).handle

    def overtaken(message, model):
        first.hello().train(1)
        assert "disagree on what is shared" in next_.refused("prepare", split=["nonsense"])
        return handle(party, message, model)

    party.handle = overtaken
    assert slow.refused("prepare") == "contract: another run has begun here meanwhile"
    assert "before the hello" in next_.refused("train", 1)


def test_the_same_run_under_another_name_counts_too(tmp_path):
    policy = SitePolicy(experiments=1)
    Guarded(folder=tmp_path / "a", key=KEY, policy=policy).hello()
    assert "(experiments)" in Guarded(folder=tmp_path / "b", key=KEY, policy=policy).refused("prepare")


def test_two_processes_of_one_job_share_one_record(tmp_path):
    first, second = (Guarded(folder=tmp_path / "a", policy=SitePolicy(repeats=0)) for _ in range(2))
    first.hello().train(1)
    words = second.refused("train", 1, {k: t + 1e-9 for k, t in second.federation.initial_shared.items()})
    assert "repeats 0 times" in words


def test_rounds_are_limited_by_data_set(tmp_path):
    guarded = Guarded(folder=tmp_path / "a", key=KEY, policy=SitePolicy(rounds=2)).hello()
    guarded.train(1)
    guarded.train(2, guarded.near())
    assert "the data have served 2 rounds, which is the limit (rounds)" in guarded.refused("train", 3, guarded.near())


def test_experiments_that_began_before_share_one_limit_of_rounds(tmp_path):
    policy = SitePolicy(rounds=2)
    begun = [Guarded(folder=tmp_path / name, key=KEY, policy=policy).hello() for name in "abc"]
    begun[0].train(1)
    begun[1].train(1)
    assert "(rounds)" in begun[2].refused("train", 1)


def test_what_left_is_in_the_ledger(tmp_path):
    guarded = Guarded(folder=tmp_path / "a", key=KEY, submitter="alice/h1").hello()
    update = guarded.train(1)
    entries = list(guarded.site.account.ledger.entries())
    assert [(e["task"], e["round"], e["submitter"], e["data"]) for e in entries] == [
        ("open", 0, "alice/h1", "tiny:site_data"),
        ("prepare", 0, "alice/h1", "tiny:site_data"),
        ("train", 1, "alice/h1", "tiny:site_data"),
    ]
    assert entries[2]["tensors"] == sorted(update.tensors)
    assert entries[0]["contract"] == Contract(guarded.federation.config).hash


def test_nothing_leaves_where_the_ledger_cannot_be_written(tmp_path):
    guarded = Guarded(folder=tmp_path / "a", key=KEY).hello()
    (tmp_path / "ledger.jsonl").rename(tmp_path / "elsewhere")
    (tmp_path / "ledger.jsonl").mkdir()
    assert guarded.refused("train", 1) == "policy: the site's ledger cannot be written, so nothing leaves"


@pytest.mark.parametrize("policy", [SitePolicy(), SitePolicy(rounds=9)])
@pytest.mark.parametrize("line", [None, b"{}\n", b"\xff\n", b"[]\n", b"\n"])
def test_nothing_leaves_where_the_ledger_is_not_as_it_was(tmp_path, policy, line):
    guarded = Guarded(folder=tmp_path / "a", key=KEY, policy=policy).hello()
    with open(tmp_path / "ledger.jsonl", "ab") as file:
        file.truncate(0 if line is None else None)
        file.write(line or b"")
    assert guarded.refused("train", 1) == "policy: the site's ledger is not as the site wrote it, so nothing leaves"


def test_statistics_that_were_asked_for_too_far_away_are_not_given():
    """They are once a run: a site that was refused for its distance may still give them."""
    guarded = Guarded("f-fedap", policy=SitePolicy(largest_jump=10), rounds=10).hello()
    (channel,) = [channel.name for channel in guarded.federation.channels if channel.once]
    for round_ in range(1, 5):
        guarded.train(round_, guarded.near() if round_ > 1 else None)
    far = {k: t + 50 for k, t in guarded.last.items()}
    for round_ in range(5, 9):
        assert "largest_jump" in guarded.refused("train", round_, far, asked=[channel])
    record = guarded.site.book.read(guarded.site.contract)
    assert (record.once, record.repeats) == ({}, 0)
    assert not isinstance(guarded.ask("train", 9, guarded.near(), asked=[channel]), Failure)
    assert guarded.site.book.read(guarded.site.contract).once == {channel: 1}
