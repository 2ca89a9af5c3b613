"""Of a share of the sites in each round: who trains, what the others do, and what is made of it."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import hello, joined, make_plan, next_values, trained, validated
from tiny import config, run, same

from medpfl.config.turnout import Turnout
from medpfl.core.messages import Failure, Update
from medpfl.core.server_state import ServerState
from medpfl.core.statefile import serialised_bytes
from medpfl.engine.verdict import drawn_rounds, missed_rounds
from medpfl.server import rounds
from medpfl.server.participation import counting, drawn
from medpfl.server.rounds import QuorumLost, QuorumNotMet, advance, messages
from medpfl.site.rival import ALONE
from medpfl.site.store import MODEL, PERSONAL

FIVE = tuple(f"site-{n}" for n in range(1, 6))


def share(participation=0.4, **fields):
    return config(**{"sites": 5, "participation": participation, **fields})


def plan(algorithm="fedavg", **fields):
    return make_plan(algorithm, **{"sites": 5, "participation": 0.4, **fields})


def met(plan, **fields):
    return joined(plan, **{"samples": (10,) * 5, **fields})


def answers(plan, state, values, accuracies=(0.5,) * 5):
    """The next state; site i trains to the i-th value if it is asked to, and tells the i-th accuracy."""
    replies = []
    for site, message in messages(plan, state).items():
        i = plan.config.places[site]
        told = accuracies[i] if state.round else None
        if message.task == "train":
            replies.append(trained(plan, site, message.round, values[i], told))
        else:
            told = validated(site, message.round, told) if state.round else None
            replies.append(told or Update(site, message.round, {}, {"validation": None}))
    return advance(plan, state, replies, 1.0)


@given(st.integers(2, 40), st.integers(0, 3), st.data())
def test_each_round_draws_as_many_of_those_who_are_there(sites, seed, data):
    least = -(-200 // sites) / 100  # a mix is of two at least
    participation = data.draw(st.floats(min(1, least), 1, exclude_max=least < 1))
    run_ = share(participation, sites=sites, seed=seed)
    there = data.draw(st.lists(st.sampled_from(run_.site_names), unique=True).map(sorted))
    for round_ in (1, 2, 7):
        found = drawn(run_, round_, there)
        assert found <= set(there)
        assert len(found) == min(len(there), int(participation * sites + 1e-9))
        assert found == drawn(run_, round_, there)


def test_who_has_not_come_yet_is_not_drawn():
    """Two of the three who are there train in each round; the others are greeted again."""
    for seed in range(8):
        run_ = plan(seed=seed)
        tasks = Counter(message.task for message in messages(run_, met(run_, samples=(10,) * 3)).values())
        assert tasks == {"train": 2, "follow": 1, "prepare": 2}


def test_every_pair_is_as_likely():
    """10 pairs of five in 2,000 rounds: 200 each on average, with a standard deviation of 13."""
    found = Counter(tuple(sorted(drawn(share(), round_, FIVE))) for round_ in range(1, 2001))
    assert set(found) == set(combinations(FIVE, 2))
    assert 140 < min(found.values()) <= max(found.values()) < 260


def test_seeds_and_rounds_draw_others():
    rounds = {seed: [drawn(share(seed=seed), round_, FIVE) for round_ in range(1, 9)] for seed in (0, 1)}
    assert rounds[0] != rounds[1]
    assert len({frozenset(found) for found in rounds[0]}) > 1


def test_a_share_of_a_third_is_as_many_as_it_says():
    assert [Turnout(10, p, 0, 1).trained for p in (0.1, 0.3, 0.7, 0.75, 0.99, 1.0)] == [1, 3, 7, 7, 9, 10]
    assert Turnout(3, 1 / 3, 0, 1).trained == 1
    assert Turnout(100, 0.29, 0, 1).trained == 29  # 0.29 * 100 is 28.999999999999996
    assert Turnout(1, 0.5, 0, 2).trained == 1


def test_the_quorum_of_a_round_is_of_those_who_train():
    assert (share(sites=20).turnout.quorum, share(sites=20).turnout.quorum_of_round) == (10, 4)
    assert counting(share(sites=20), ["train", "follow", "prepare"]) == ("train", 4)
    assert counting(share(sites=20), ["prepare"]) == (None, 10)
    assert counting(share(sites=20, min_sites=6), ["train"]) == ("train", 6)
    assert share(sites=10, mixing="median").turnout.quorum_of_round == 3  # of two updates none can be outvoted


def test_where_nothing_is_mixed_every_site_trains():
    local = config("local", sites=5, participation=0.1)
    assert not local.turnout.draws
    assert drawn(local, 1, FIVE) == set(FIVE)
    assert counting(local, ["train"]) == ("train", 3)


def test_the_others_follow():
    state = met(plan())
    sent = messages(plan(), state)
    trains = {site for site, message in sent.items() if message.task == "train"}
    assert trains == drawn(plan().config, 1, FIVE)
    assert {(m.task, m.round) for s, m in sent.items() if s not in trains} == {("follow", 1)}
    assert all(same(m.tensors, plan().initial_shared) for m in sent.values())
    assert {s: m.info for s, m in sent.items()} == {s: {"best_round": 0, "counted": []} for s in FIVE}


def test_the_mix_is_of_those_who_trained_and_reaches_all():
    state = answers(plan(), met(plan(), samples=(10, 20, 30, 40, 50)), (1, 2, 3, 4, 5))
    names = state.history[0]["participants"]
    samples, values = ([unit * (1 + FIVE.index(site)) for site in names] for unit in (10, 1))
    mean = sum(n * v for n, v in zip(samples, values, strict=True)) / sum(samples)
    assert next_values(plan(), state) == pytest.approx([mean] * 5)
    assert state.history[0]["following"] == [site for site in FIVE if site not in names]
    assert set(state.history[0]["sites"]) == set(names)
    each = serialised_bytes(plan().initial_shared)
    assert state.traffic == {"sent_bytes": 2 * each, "received_bytes": 5 * each}


def test_who_follows_with_an_earlier_own_part_is_named():
    state = answers(plan(), met(plan()), (1,) * 5)
    sent = messages(plan(), state)
    site = next(s for s, m in sent.items() if m.task == "follow")
    told = [trained(plan(), s, 2, 1, 0.5) for s, m in sent.items() if m.task == "train"]
    judged = validated(site, 2, 0.5)
    state = advance(plan(), state, [*told, replace(judged, metrics=judged.metrics | {"restored_round": 0})], 0)
    named = {f.site: f.reason for f in state.failures}
    assert named[site] == "its personal state was damaged or gone; it went on from that of round 0"


def test_a_round_is_selected_by_all():
    """Two rounds are compared over five sites, however few of them trained in both."""
    state = answers(plan(), met(plan()), (1,) * 5)
    for accuracies in ((0.5,) * 5, (0.6, 0.6, 0.6, 0.6, 0.2)):
        state = answers(plan(), state, (1,) * 5, accuracies)
    told = [{s: site["validation"]["accuracy"] for s, site in r["sites"].items()} for r in state.history[:2]]
    assert told == [dict.fromkeys(FIVE, 0.5), dict(zip(FIVE, (0.6, 0.6, 0.6, 0.6, 0.2), strict=True))]
    assert state.best_round == 2  # 2.6 against 2.5


def test_who_follows_is_none_of_the_quorum_of_a_round():
    state = met(plan())
    sent = messages(plan(), state)
    told = [Update(s, 1, {}, {"validation": None}) for s, m in sent.items() if m.task == "follow"]
    one = next(s for s, m in sent.items() if m.task == "train")
    with pytest.raises(QuorumLost, match="1 usable answer in phase 'train', the quorum is 2 of the 2 drawn of 5 site"):
        advance(plan(), state, [told[0], trained(plan(), one, 1, 1)], 0)  # nor are there three of all
    with pytest.raises(QuorumNotMet, match="2 usable answers in phase 'prepare', the quorum is 3 of 5 sites"):
        advance(plan(), ServerState(), [hello("site-1"), hello("site-2")], 0)


def test_of_too_few_who_train_those_reasons_alone_are_told():
    """Those who follow come first by name, and three reasons are told at most."""
    state = met(plan())
    trains = [site for site, message in messages(plan(), state).items() if message.task == "train"]
    told = [Failure(site, 1, f"reason of {site}") for site in FIVE if site != trains[0]]
    with pytest.raises(QuorumLost) as lost:
        advance(plan(), state, [*told, trained(plan(), trains[0], 1, 1)], 0)
    assert str(lost.value).endswith(f"2 of the 2 drawn of 5 sites ({trains[1]}: reason of {trains[1]})")


def too_few(plan, state, trains=1, value=9):
    """The next state where all who follow answer, and of the two who are drawn the first or none."""
    round_, replies, told = state.round + 1, [], 0.5 if state.round else None
    for site, message in messages(plan, state).items():
        if message.task == "follow":
            replies.append(validated(site, round_, told) if told else Update(site, round_, {}, {"validation": None}))
        elif trains:
            replies.append(trained(plan, site, round_, value, told))
            trains -= 1
    return advance(plan, state, replies, 1.0)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedavgm"])
def test_a_round_of_too_few_goes_by_without_a_mix(algorithm):
    run_ = plan(algorithm, rounds=5)
    first = answers(run_, met(run_), (1, 2, 3, 4, 5))
    after = too_few(run_, first)
    assert after.round == 2
    assert after.history[1]["participants"] == []
    assert set(after.history[1]["unused"]) == drawn(run_.config, 2, FIVE) - {after.failures[0].site}
    assert len(after.history[1]["following"]) == 3
    for site in FIVE:
        assert same(after.shared[site], first.shared[site])
    for name, kept in first.moved_by.items():
        assert same(after.moved_by[name], kept)
    [failure] = after.failures
    assert (failure.round, failure.reason) == (2, "no answer in time")
    assert failure.site in drawn(run_.config, 2, FIVE)
    tasks = {s: m.task for s, m in messages(run_, after).items()}
    assert {s for s, task in tasks.items() if task == "train"} == drawn(run_.config, 3, FIVE)
    # What is judged in it is the mix of the round before.
    assert {s for s, site in after.history[0]["sites"].items() if site["validation"]} == set(FIVE) - {failure.site}
    assert answers(run_, after, (1, 2, 3, 4, 5)).history[2]["participants"] == sorted(drawn(run_.config, 3, FIVE))
    assert drawn_rounds(run_.config, after)[1] == (
        "Too few of those who were drawn gave a usable answer in round 2: nothing was mixed, and others were drawn for "
        "the next one."
    )


def test_a_site_is_told_that_its_answer_was_not_used():
    run_ = plan(rounds=9)
    state = too_few(run_, answers(run_, met(run_), (1,) * 5))
    counted = {site: message.info["counted"] for site, message in messages(run_, state).items()}
    assert counted == {site: [1] if site in drawn(run_.config, 1, FIVE) else [] for site in FIVE}


def test_the_third_round_in_a_row_in_which_nobody_trains_ends_the_run():
    """One who is away for good is no reason, however often it is drawn."""
    run_ = plan(rounds=9)
    state = too_few(run_, too_few(run_, met(run_), trains=0), trains=0)
    assert state.round == 2
    with pytest.raises(QuorumLost, match="0 usable answers in phase 'train', the quorum is 2 of the 2 drawn of 5 site"):
        too_few(run_, state, trains=0)
    for between in (answers(run_, state, (1,) * 5), too_few(run_, state)):
        assert too_few(run_, too_few(run_, between, trains=0), trains=0).round == 5
    for _ in range(4):
        state = too_few(run_, state)
    assert state.round == 6


def test_a_last_round_of_too_few_is_judged_and_tested_like_any():
    run_ = plan(rounds=1)
    state = too_few(run_, met(run_))
    assert state.phase == "validate"
    assert {m.task for m in messages(run_, state).values()} == {"validate"}


@pytest.mark.parametrize("algorithm", ["fedbn", "scaffold", "fedcurv", "fedadam", "ditto", "f-fedap", "fedblend"])
def test_a_run_goes_on_after_a_round_of_too_few(algorithm, monkeypatch):
    """Of any method; and what a site is asked for once it gives once, also in such a round (f-FedAP's statistics)."""
    run_ = share(algorithm=algorithm, rounds=5, alone="yes", settings={"finetune_steps": 5})
    asked, states, stepped, steps = Counter(), [], [], rounds._with_steps
    monkeypatch.setattr(
        rounds, "_with_steps", lambda plan, now, *of: stepped.append(now.round) or steps(plan, now, *of)
    )

    def fail_in_two(sites):
        for name, site in sites.items():
            handle = site.handle

            def failing(message, model, name=name, handle=handle):
                if (
                    message.task == "train"
                    and message.round in (2, 3)
                    and name == max(drawn(run_, message.round, FIVE))
                ):
                    raise RuntimeError("no memory left")
                asked.update([(name, what) for what in message.info.get("asked", ())])
                return handle(message, model)

            site.handle = failing

    state, _ = run(run_, fail_in_two, after_step=states.append)
    assert [len(record["participants"]) for record in state.history] == [2, 0, 0, 2, 2]
    after = {now.round: now for now in states if now.phase == "train"}
    for site, shared in after[1].shared.items():
        assert same(shared, after[3].shared[site])
    for name, kept in after[1].moved_by.items():
        assert same(kept, after[3].moved_by[name])
    assert stepped == [1, 4]  # an impression, say, is of the models that are there still
    assert after[1].common.keys() == after[3].common.keys()
    for name, common in after[1].common.items():
        assert same(common, after[3].common[name])
    once = [times for (_, what), times in asked.items() if what == "statistics"]
    assert set(once) <= {1} and bool(once) == (algorithm == "f-fedap")
    assert len(state.final) == 5


def test_a_round_that_failed_is_asked_of_the_same_sites():
    """So who cannot answer in it ends the run again, where all fail."""
    state = met(plan())
    first = messages(plan(), state)
    with pytest.raises(QuorumLost):
        advance(plan(), state, [Failure(site, 1, "away") for site in FIVE], 0)
    assert {s: m.task for s, m in messages(plan(), state).items()} == {s: m.task for s, m in first.items()}


def test_a_site_that_fails_in_each_round_is_not_said_to_be_not_drawn():
    run_ = plan(participation=0.6)
    state = met(run_)
    for _ in range(3):
        drawn_ = drawn(run_.config, state.round + 1, FIVE)
        replies = [
            trained(run_, site, state.round + 1, 1, 0.5 if state.round else None)
            for site in FIVE
            if site in drawn_ - {"site-3"}
        ]
        state = advance(run_, state, replies, 0)
    assert any("site-3" in drawn(run_.config, round_, FIVE) for round_ in (1, 2, 3))
    assert (
        "Trained in no round, not drawn or without an answer that was used: site-3"
        in drawn_rounds(run_.config, state)[1]
    )


def test_who_follows_sends_no_model():
    state = met(plan())
    sent = messages(plan(), state)
    told = [trained(plan(), s, 1, 1000) for s in sent]
    state = advance(plan(), state, told, 0)
    assert next_values(plan(), state) == [1000.0] * 5
    refused = {f.site: f.reason for f in state.failures}
    assert set(refused) == {s for s, m in sent.items() if m.task == "follow"}
    assert all("does not belong into the answer to 'follow'" in reason for reason in refused.values())


def test_who_says_nothing_while_others_train_is_named():
    state = met(plan())
    sent = messages(plan(), state)
    told = [trained(plan(), s, 1, 1) for s, m in sent.items() if m.task == "train"]
    state = advance(plan(), state, told, 0)
    silent = [s for s, m in sent.items() if m.task == "follow"]
    assert [(f.site, f.reason) for f in state.failures] == [(s, "no answer in time") for s in silent]
    assert state.history[0]["following"] == []


@pytest.mark.parametrize("algorithm", ["fedavg", "fedbn", "ditto", "scaffold", "f-fedap", "fedblend"])
def test_a_site_that_follows_keeps_what_it_has(algorithm):
    run_ = share(algorithm=algorithm, rounds=4, alone="yes", settings={"finetune_steps": 5})
    state, sites = run(run_)
    for name, site in sites.items():
        last = max((r["round"] for r in state.history if name in r["participants"]), default=0)
        assert max(site.store.rounds(PERSONAL), default=0) == last
        assert max(site.store.rounds(MODEL)) == 4
    assert missed_rounds(state) == []
    assert len(state.final) == 5


def test_the_model_trained_alone_is_trained_in_every_round():
    rivals = [run(share(part, rounds=3, alone="yes"))[1] for part in (0.4, 1.0)]
    for name in FIVE:
        assert same(*(sites[name].store.get(ALONE, 3) for sites in rivals))


def test_a_site_that_never_trained_is_named():
    state, _ = run(share(rounds=1, alone="yes"))
    first, never = drawn_rounds(share(rounds=1, alone="yes"), state)
    assert first.startswith(
        "In a round 2 of 5 sites were drawn to train, and sites did in 0 to 1 of 1 round; the others followed"
    )
    assert first.endswith(", and the model that a site trains alone was trained in every one.")
    followed = [site for site in FIVE if site not in state.history[0]["participants"]]
    assert never == f"Trained in no round, not drawn or without an answer that was used: {', '.join(followed)}."
    assert drawn_rounds(config(sites=5), state) == []
    as_often = replace(state, history=({"participants": list(FIVE)},) * 3)
    assert drawn_rounds(share(), as_often) == [
        "In a round 2 of 5 sites were drawn to train, and each site did in 3 of 3 rounds; the others followed."
    ]
