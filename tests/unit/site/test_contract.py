"""What a site answers, in which order and how often."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import config

from medpfl.core.channels import Channel, Entry
from medpfl.core.messages import Message
from medpfl.core.parameters import StateError
from medpfl.engine.federation import Federation
from medpfl.site.contract import Contract, Record, admitted, digest, place

ROUNDS = 4
CONTRACT = Contract(config("fedbn", rounds=ROUNDS))
TEST = ROUNDS + 2


def asked(task, round_=0, value=0.0, **info):
    return Message(task, round_, {"weight": torch.full((2,), value)}, info)


HONEST = [asked("prepare"), *(asked("train", r, r) for r in range(1, ROUNDS + 1))]
HONEST += [asked("validate", ROUNDS), asked("test", ROUNDS, selected_round=2)]


def after(*messages, contract=CONTRACT, repeats=3, channels=()):
    record = Record(contract.hash)
    for message in messages:
        record = replace(admitted(record, contract, message, repeats, channels), greeted=True)  # it was done
    return record


def channels_of(contract):
    return list(Federation.of(contract.config).channels)


def test_an_honest_run_is_answered_as_a_whole():
    record = after(*HONEST)
    assert sorted(record.answered) == list(range(TEST + 1))
    assert (record.run, record.repeats, record.last) == (1, 0, TEST)


@pytest.mark.parametrize("done", range(1, len(HONEST) + 1))
def test_a_server_one_step_behind_gets_its_answers(done):
    """The last question again, and the one before it, as from a checkpoint that was not written."""
    messages = HONEST[:done]
    again = messages[-2:] if done > 2 else messages[-1:]
    assert after(*messages, *again, repeats=0).last == after(*messages).last


@pytest.mark.parametrize("done", [1, len(HONEST)])
def test_the_same_question_is_answered_so_often_but_a_round_counts_elsewhere(done):
    """Each answer is an entry of the ledger, which all jobs of the site read."""
    record = after(*HONEST[:done])
    for _ in range(ROUNDS + 100):
        record = admitted(record, CONTRACT, HONEST[done - 1], 3)
    with pytest.raises(StateError, match="asked so again 104 times at most"):
        admitted(record, CONTRACT, HONEST[done - 1], 3)
    rounds = after(*HONEST[:2])
    assert admitted(rounds, CONTRACT, HONEST[1], 3) == rounds


def test_a_job_of_a_million_rounds_has_not_as_many_answers():
    contract = replace(CONTRACT, config=CONTRACT.config.model_copy(update={"rounds": 10**6}))
    record = replace(after(HONEST[0], contract=contract), again=10_100)
    with pytest.raises(StateError, match="asked so again 10100 times at most"):
        admitted(record, contract, HONEST[0], 3)


def test_a_hello_that_was_not_done_is_none():
    """What lies at the site is another run's then."""
    for before in (Record(CONTRACT.hash), after(*HONEST)):
        record = admitted(before, CONTRACT, HONEST[0], 3)
        with pytest.raises(StateError, match=r"task 'train' before the hello: .* begin a new experiment"):
            admitted(record, CONTRACT, HONEST[1], 3)
        assert admitted(record, CONTRACT, HONEST[0], 0).answered == record.answered


def test_rounds_that_a_site_missed_are_no_hindrance():
    assert after(HONEST[0], HONEST[3], *HONEST[5:]).last == TEST


@pytest.mark.parametrize(
    ("before", "message", "words"),
    [
        ([], asked("train", 1), "task 'train' before the hello"),
        ([], asked("test", ROUNDS), "task 'test' before the hello"),
        (HONEST[:2], asked("train", ROUNDS + 1), f"round {ROUNDS + 1} of {ROUNDS} does not exist"),
        (HONEST[:2], asked("train", 0), f"round 0 of {ROUNDS} does not exist"),
        (HONEST[:2], asked("validate", 2), f"round 2 of {ROUNDS} does not exist"),
        (HONEST[:2], asked("test", 1), f"round 1 of {ROUNDS} does not exist"),
        (HONEST[:4], HONEST[1], "task 'train' of round 1 is out of order here: 3 was the last"),
        (HONEST, HONEST[4], f"task 'train' of round {ROUNDS} is out of order here: {ROUNDS} was the last"),
        (HONEST, asked("train", 1, 99.0), "out of order here"),
    ],
)
def test_what_is_out_of_order_is_refused(before, message, words):
    with pytest.raises(StateError, match=words):
        after(*before, message)


def test_other_questions_in_the_same_place_are_counted_over_the_whole_run():
    """Weights of the server's choice, to be validated again and again, give an answer a few times at most."""
    probes = [asked("validate", ROUNDS, value) for value in range(1, 961)]
    record, answered = after(*HONEST[:-1]), 0
    for probe in probes:
        try:
            record = admitted(record, CONTRACT, probe, 3)
            answered += 1
        except StateError as error:
            assert "repeats 3 times in a run at most" in str(error)
    assert answered == 3
    assert admitted(record, CONTRACT, HONEST[-1], 3).last == TEST


def test_a_round_whose_noise_is_accounted_for_once_is_answered_once():
    """Another answer with noise of its own would be a release that epsilon does not count."""
    noised = Contract(config("fedbn", rounds=ROUNDS, settings={"update_clip": 1.0, "update_noise": 1.0}))
    record = after(*HONEST[:3], contract=noised)
    assert admitted(record, noised, HONEST[2], 3) == record  # the same question
    with pytest.raises(StateError, match="has answered task 'train' of round 2, and repeats 0 times"):
        admitted(record, noised, asked("train", 2, 0.5), 3)
    assert admitted(after(*HONEST[:3]), CONTRACT, asked("train", 2, 0.5), 3).repeats == 1


def test_statistics_are_given_once_and_again_only_at_the_cost_of_repeats():
    contract = Contract(config("f-fedap", rounds=ROUNDS))
    channels = channels_of(contract)
    early = replace(HONEST[1], info={"asked": ["statistics"]})
    with pytest.raises(StateError, match="statistics are due in round 2 at the earliest"):
        after(HONEST[0], early, contract=contract, channels=channels)
    record, given_ = after(*HONEST[:2], contract=contract, channels=channels), 0
    for round_ in range(2, ROUNDS + 1):
        message = asked("train", round_, round_, asked=["statistics"])
        try:
            record = admitted(record, contract, message, 1, channels)
            given_ += 1
        except StateError as error:
            assert "statistics were given already" in str(error)
    assert given_ == 2


def test_what_is_due_later_is_not_given_earlier():
    """Also of a channel that goes to the server in every round."""
    entries = {"a": Entry((2,), (torch.float32,))}
    channels = [Channel("late", True, entries, ("train",), "numbers", from_round=2)]
    first, second = asked("train", 1, 1, asked=["late"]), asked("train", 2, 2, asked=["late"])
    with pytest.raises(StateError, match="late are due in round 2 at the earliest"):
        after(HONEST[0], first, channels=channels)
    assert after(*HONEST[:2], second, channels=channels).once == {}


def test_many_pretrained_models_get_no_statistics_each():
    """255 hellos, each with another f, were 255 sets of statistics."""
    contract = Contract(config("fedap", rounds=ROUNDS))
    channels = channels_of(contract)
    record, answered = Record(contract.hash), 0
    for value in range(255):
        try:
            record = admitted(record, contract, asked("prepare", 0, value, asked=["statistics"]), 3, channels)
            answered += 1
        except StateError:
            pass
    assert answered == 4


def test_a_hello_after_training_begins_another_run():
    record = after(*HONEST[:3], HONEST[0])
    assert (record.run, record.last, record.repeats) == (2, 0, 0)


def test_the_hash_is_the_runs_and_not_the_machines():
    same = CONTRACT.config.model_copy(update={"device": "cuda", "timeout": 1.0, "min_sites": 2})
    assert Contract(same).hash == CONTRACT.hash
    alone = CONTRACT.config.model_copy(update={"min_sites": 1})  # one site's update would reach the others as it is
    assert Contract(alone).hash != CONTRACT.hash
    pooled, told = (config("fedap", settings=given) for given in ({}, {"pretrain": "/somewhere/f.pt"}))
    assert Contract(told).hash == Contract(pooled).hash != CONTRACT.hash
    for change in ({"rounds": 5}, {"seed": 1}, {"pretrained": "sha256:" + "0" * 64}, {"settings": {"lr": 0.2}}):
        assert Contract(CONTRACT.config.model_copy(update=change)).hash != CONTRACT.hash
    assert Contract(CONTRACT.config, CONTRACT.config).hash != CONTRACT.hash
    others = [CONTRACT.config.model_copy(update={"data": name}) for name in ("organs", "registry")]
    assert len({Contract(CONTRACT.config, other).hash for other in others}) == 2


def test_a_question_is_all_that_it_asks_and_brings():
    first = asked("train", 1, 1.0, best_round=0)
    others = [asked("train", 2, 1.0, best_round=0), asked("train", 1, 1.5, best_round=0), asked("train", 1, 1.0)]
    assert len({digest(m) for m in (first, *others)}) == 4
    assert digest(first) == digest(asked("train", 1, 1.0, best_round=0))


_ANY = st.builds(
    asked,
    st.sampled_from(["prepare", "train", "follow", "validate", "test"]),
    st.integers(0, ROUNDS + 1),
    st.sampled_from([0.0, 1.0, 2.0]),
)


@pytest.mark.parametrize("participation", [1.0, 0.67])
@given(st.lists(_ANY, max_size=60))
def test_whatever_is_asked_a_run_gives_no_more_than_its_rounds_and_its_repeats(participation, messages):
    """Distinct questions that were answered in one run: at most one a place, and the repeats."""
    contract = Contract(config("fedbn", rounds=ROUNDS, participation=participation))
    record, answered = Record(contract.hash), {}
    for message in messages:
        try:
            record = admitted(record, contract, message, 2)
        except StateError:
            continue
        where = place(contract.config, message)
        answered.setdefault(record.run, set()).add((where, digest(message)))
        assert record.repeats <= 2
        assert Record.from_json(record.to_json()) == record
    for questions in answered.values():
        assert len(questions) <= len({where for where, _ in questions}) + 2
