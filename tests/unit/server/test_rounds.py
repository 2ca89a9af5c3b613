from itertools import permutations

import numpy as np
import pytest
import torch
from plans import MEANS, final_answer, hello, joined, make_plan, next_values, round_of, statistics, trained, validated
from tiny import same

from medpfl.core.messages import Failure, Update
from medpfl.core.server_state import ServerState
from medpfl.core.statefile import serialised_bytes
from medpfl.server.rounds import QuorumNotMet, advance, messages
from medpfl.server.weighing import mixing_matrix


def test_every_site_says_hello_first():
    plan = make_plan()
    first = messages(plan, ServerState())
    assert list(first) == ["site-1", "site-2", "site-3"]
    assert {m.task for m in first.values()} == {"prepare"}
    assert first["site-1"].info == {"split": plan.split.description()}
    assert first["site-1"].tensors == {}


def test_round_1_starts_from_the_seeded_model():
    plan = make_plan("fedbn")
    for message in messages(plan, joined(plan)).values():
        assert (message.task, message.round) == ("train", 1)
        assert same(message.tensors, plan.initial_shared)


def test_fedavg_is_the_mean_weighted_by_samples():
    plan = make_plan(sites=2)
    state = round_of(plan, joined(plan, samples=(10, 30)), 0, 4)
    assert next_values(plan, state) == [3.0, 3.0]
    assert state.shared["site-1"] is state.shared["site-2"]


def test_fedavg_over_those_who_answered():
    plan = make_plan()
    state = round_of(plan, joined(plan, samples=(10, 30, 60)), 0, 4, None)
    assert next_values(plan, state) == [3.0, 3.0, 3.0]
    assert state.history[0]["participants"] == ["site-1", "site-2"]
    assert [(f.site, f.reason) for f in state.failures] == [("site-3", "no answer in time")]


def test_local_training_sends_nothing():
    plan = make_plan("local")
    state = joined(plan)
    for _ in range(3):
        assert all(m.tensors == {} for m in messages(plan, state).values())
        state = round_of(plan, state, 1, 2, 3)


def test_fedap_by_hand_with_two_sites():
    plan = make_plan("fedap", sites=2, settings={"lambda": 0.75})
    state = joined(plan, means=(0.0, 5.0))
    assert messages(plan, ServerState())["site-1"].asked == ("statistics",)
    assert {name for channel in plan.channels for name in channel.named} == statistics(0.0).keys()  # batch norm's
    assert next_values(plan, round_of(plan, state, 4, 8)) == [5.0, 7.0]


def test_fedap_by_hand_with_three_sites():
    plan = make_plan("fedap", settings={"lambda": 0.5})
    state = round_of(plan, joined(plan, means=MEANS), 8, 16, 32)
    expected = [8 / 2 + 16 * 3 / 8 + 32 / 8, 8 / 3 + 16 / 2 + 32 / 6, 8 * 0.2 + 16 * 0.3 + 32 * 0.5]
    assert next_values(plan, state) == pytest.approx(expected)


def test_d_fedap_asks_for_the_classifiers_input():
    plan = make_plan("d-fedap")
    message = messages(plan, ServerState())["site-1"]
    assert message.asked == ("statistics",)
    assert {name for channel in plan.channels for name in channel.named} == statistics(0.0, layer="0").keys()
    assert same(message.tensors, plan.pretrained)


def test_uniform_mixing():
    plan = make_plan("fedbn", mixing="uniform", settings={"lambda": 0.5})
    assert next_values(plan, round_of(plan, joined(plan), 8, 16, 32)) == [4 + 12, 8 + 10, 16 + 6]


def test_an_absent_site_gets_its_own_mix_when_it_returns():
    plan = make_plan("fedap", settings={"lambda": 0.5})
    state = round_of(plan, joined(plan, means=MEANS), 8, 16, None)
    # Row 3 of W is (0.2, 0.3, 0.5): over the two who contributed it becomes (0.4, 0.6).
    expected = [8 * 4 / 7 + 16 * 3 / 7, 8 * 2 / 5 + 16 * 3 / 5, 8 * 0.4 + 16 * 0.6]
    assert next_values(plan, state) == pytest.approx(expected)


def test_a_site_whose_partners_are_all_absent_keeps_what_it_has():
    plan = make_plan("fedbn", mixing="uniform", settings={"lambda": 1.0})
    state = round_of(plan, joined(plan), 1, 2, 3)
    state = round_of(plan, state, 5, 6, None)
    assert next_values(plan, state) == [5.0, 6.0, 3.0]


def test_a_site_that_joins_late():
    plan = make_plan("fedap", settings={"lambda": 0.5})
    state = advance(plan, ServerState(), [hello("site-1", **statistics(0.0)), hello("site-2", **statistics(1.0))], 0)
    message = messages(plan, state)["site-3"]
    assert message.task == "prepare"
    replies = [trained(plan, "site-1", 1, 8), trained(plan, "site-2", 1, 16), hello("site-3", **statistics(3.0))]
    state = advance(plan, state, replies, 0)
    assert {s: m.task for s, m in messages(plan, state).items()} == dict.fromkeys(plan.config.site_names, "train")
    state = round_of(plan, state, 8, 16, 32)
    np.testing.assert_allclose(mixing_matrix(plan, state, range(3))[2], [0.2, 0.3, 0.5])
    assert next_values(plan, state)[0] == pytest.approx(14.0)


@pytest.mark.parametrize("phase", ["prepare", "train"])
def test_without_a_quorum_the_state_is_intact(phase):
    plan = make_plan()
    before = ServerState() if phase == "prepare" else joined(plan)
    replies = [hello("site-1")] if phase == "prepare" else [trained(plan, "site-1", 1, 1)]
    replies.append(Failure("site-2", 0, "the disk is full"))
    with pytest.raises(QuorumNotMet, match=f"1 usable answer in phase '{phase}', the quorum is 2 of 3") as caught:
        advance(plan, before, replies, 0)
    assert "site-2: the disk is full; site-3: no answer in time" in str(caught.value)
    assert before.round == 0
    assert before.failures == ()
    assert len(messages(plan, before)) == 3


def test_a_site_that_says_hello_late_is_none_of_a_rounds_quorum():
    """Else one site's own update could become everybody's mix."""
    plan = make_plan()
    state = advance(plan, ServerState(), [hello("site-1"), hello("site-2")], 0)
    with pytest.raises(QuorumNotMet, match="1 usable answer in phase 'train', the quorum is 2 of 3"):
        advance(plan, state, [trained(plan, "site-1", 1, 8), hello("site-3")], 0)


def test_what_several_sites_say_is_said_once():
    plan = make_plan()
    told = [Failure(f"site-{n}", 0, "no disk" if n < 3 else "no GPU") for n in (1, 2, 3)]
    with pytest.raises(QuorumNotMet, match=r"\(site-1, site-2: no disk; site-3: no GPU\)$"):
        advance(plan, ServerState(), told, 0)


def test_f_fedap_turns_after_half_of_the_rounds_and_asks_once():
    plan = make_plan("f-fedap", rounds=4, settings={"lambda": 0.5})
    state, asked, mixes = joined(plan, samples=(10, 10, 20)), [], []
    for _ in range(4):
        outgoing = messages(plan, state)
        replies = []
        for i, (site, message) in enumerate(outgoing.items()):
            extra = {}
            if message.asked:
                asked.append((site, message.round, *message.asked))
                extra = statistics(MEANS[i])
            replies.append(trained(plan, site, message.round, (8, 16, 32)[i], extra=extra))
        state = advance(plan, state, replies, 0)
        mixes.append([t["0.bias"][0].item() for t in state.shared.values()])
    assert asked == [(s, 2, "statistics") for s in plan.config.site_names]
    fedbn, fedap = [22.0] * 3, [14.0, 16.0, 22.4]
    assert mixes == [fedbn, fedbn, pytest.approx(fedap), pytest.approx(fedap)]


@pytest.mark.parametrize(("rounds", "first_half"), [(2, 1), (3, 1), (5, 2), (7, 3)])
def test_f_fedap_with_an_odd_number_of_rounds_turns_before_the_middle_one(rounds, first_half):
    """The first half is rounded down, and at least one round: the statistics come with its last update."""
    plan = make_plan("f-fedap", rounds=rounds, settings={"lambda": 0.5})
    state, asked, mixes = joined(plan, samples=(10, 10, 20)), [], []
    for _ in range(rounds):
        replies = []
        for i, (site, message) in enumerate(messages(plan, state).items()):
            asked += [message.round] if message.asked else []
            extra = statistics(MEANS[i]) if message.asked else {}
            replies.append(trained(plan, site, message.round, (8, 16, 32)[i], extra=extra))
        state = advance(plan, state, replies, 0)
        mixes.append([round(t["0.bias"][0].item(), 4) for t in state.shared.values()])
    assert asked == [first_half] * 3
    # The mix of the last FedBN round is by samples still.
    assert mixes == [[22.0] * 3] * first_half + [[14.0, 16.0, 22.4]] * (rounds - first_half)


def test_f_fedap_asks_a_site_again_that_was_absent():
    plan = make_plan("f-fedap", rounds=4)
    state = round_of(plan, joined(plan), 1, 2, 3)
    replies = [trained(plan, s, 2, 1, extra=statistics(m)) for s, m in (("site-1", 0.0), ("site-2", 1.0))]
    state = advance(plan, state, replies, 0)
    asked = {s for s, m in messages(plan, state).items() if m.asked}
    assert asked == {"site-3"}
    # Its distance is not known yet and counts as the mean of the known.
    np.testing.assert_allclose(mixing_matrix(plan, state, range(3))[2], [0.25, 0.25, 0.5])


@pytest.mark.parametrize("algorithm", ["fedap", "fedbn"])
def test_no_site_gets_anothers_tensors(algorithm):
    """Messages hold mixes of what is shared and nothing of batch norm, neither parameters nor statistics."""
    plan = make_plan(algorithm)
    state = joined(plan, means=MEANS if algorithm == "fedap" else None)
    updates = [trained(plan, s, 1, v) for s, v in zip(plan.config.site_names, (8, 16, 40), strict=True)]
    state = advance(plan, state, updates, 0)
    for message in messages(plan, state).values():
        assert set(message.tensors) == {"0.weight", "0.bias"}
        assert message.tensors["0.bias"][0].item() not in (8.0, 16.0, 40.0)
        assert message.info == {"best_round": 0, "counted": [1]}


def test_with_lambda_1_a_site_gets_back_its_own():
    plan = make_plan("fedap", settings={"lambda": 1})
    assert next_values(plan, round_of(plan, joined(plan, means=MEANS), 8, 16, 32)) == [8.0, 16.0, 32.0]


def finish(plan, state, accuracies):
    """Trains and tests; ``accuracies[r]`` is every site's validation accuracy of round r + 1."""
    for accuracy in [None, *accuracies[:-1]]:
        state = round_of(plan, state, 1, 2, 3, validation=accuracy)
    assert state.phase == "validate"
    state = advance(plan, state, [validated(s, state.round, accuracies[-1]) for s in plan.config.site_names], 0)
    assert state.phase == "test"
    return state


@pytest.mark.parametrize(
    ("accuracies", "best"),
    [([0.5, 0.9, 0.7], 2), ([0.9, 0.9, 0.1], 1), ([0.1, 0.2, 0.3], 3), ([0.0, 0.0, 0.0], 1), ([0.5, 0.5001, 0.5], 2)],
)
def test_the_round_with_the_best_validation_is_selected(accuracies, best):
    plan = make_plan()
    state = finish(plan, joined(plan), accuracies)
    assert state.best_round == best
    outgoing = messages(plan, state)
    assert {m.task for m in outgoing.values()} == {"test"}
    assert all(m.round == 3 and m.info == {"selected_round": best} and not m.tensors for m in outgoing.values())
    state = advance(plan, state, [final_answer(s, 3) for s in outgoing], 0)
    assert (state.phase, messages(plan, state)) == ("done", {})
    assert list(state.final) == plan.config.site_names
    assert [r["sites"]["site-1"]["validation"]["accuracy"] for r in state.history] == accuracies


def test_with_the_last_mix_sites_hear_which_round_is_best_so_far_and_whether_the_loss_selects():
    """Else a site could not tell whether the last round's model is the one to keep, nor tell its loss."""
    plan = make_plan(rounds=2)
    state = round_of(plan, round_of(plan, joined(plan), 1, 2, 3), 1, 2, 3, validation=0.5)
    assert (state.phase, state.best_round) == ("validate", 1)
    assert all(message.info == {"best_round": 1} for message in messages(plan, state).values())
    by_loss = make_plan(rounds=2, select_by="loss")
    state = round_of(by_loss, round_of(by_loss, joined(by_loss), 1, 2, 3), 1, 2, 3)
    assert all(m.info == {"best_round": 0, "select_by": "loss"} for m in messages(by_loss, state).values())


def test_selection_is_by_the_mean_over_sites():
    plan = make_plan(rounds=2)
    state = round_of(plan, joined(plan), 1, 2, 3)
    scores = (0.2, 0.2, 0.9)  # mean 0.433 against 0.4
    names = plan.config.site_names
    state = advance(plan, state, [trained(plan, s, 2, 1, v) for s, v in zip(names, scores, strict=True)], 0)
    state = advance(plan, state, [validated(s, 2, 0.4) for s in names], 0)
    assert state.best_round == 1


def test_of_equal_rounds_the_first_is_selected_in_whatever_order_their_scores_are_summed():
    assert sum((0.1, 0.2, 0.3)) > sum((0.3, 0.2, 0.1))
    plan = make_plan(rounds=2)
    state = round_of(plan, joined(plan), 1, 2, 3)
    told = zip(plan.config.site_names, (0.3, 0.2, 0.1), strict=True)
    state = advance(plan, state, [trained(plan, s, 2, 1, v) for s, v in told], 0)
    told = zip(plan.config.site_names, (0.1, 0.2, 0.3), strict=True)
    state = advance(plan, state, [validated(s, 2, v) for s, v in told], 0)
    assert state.best_round == 1


def test_who_is_away_when_a_round_is_judged_does_not_decide():
    """The other sites' mean is higher without the poorest one, and no site was better in that round."""
    plan = make_plan(rounds=3, min_sites=1)
    names = plan.config.site_names
    state = round_of(plan, joined(plan), 1, 2, 3)
    judged = ({names[0]: 0.8, names[1]: 0.8, names[2]: 0.4}, {names[0]: 0.7, names[1]: 0.8}, dict.fromkeys(names, 0.7))
    for round_, scores in enumerate(judged[:2], start=2):
        state = advance(plan, state, [trained(plan, s, round_, 1, v) for s, v in scores.items()], 0)
        assert state.best_round == 1
    state = advance(plan, state, [validated(s, 3, v) for s, v in judged[2].items()], 0)
    assert state.best_round == 3  # 2.1 against 2.0


def test_nor_who_comes_back():
    """With one site more the sum is larger, and both that told of the best round were better in it."""
    plan = make_plan(rounds=2, min_sites=2)
    names = plan.config.site_names
    state = round_of(plan, joined(plan), 1, 2, 3)
    state = advance(plan, state, [trained(plan, s, 2, 1, 0.8) for s in names[:2]], 0)
    state = advance(plan, state, [validated(s, 2, 0.7) for s in names], 0)
    assert state.best_round == 1


def test_without_validation_data_the_last_round_is_tested():
    plan = make_plan(rounds=2)
    state = round_of(plan, round_of(plan, joined(plan), 1, 2, 3), 1, 2, 3)
    replies = [Update(s, 2, {}, {"validation": None}) for s in plan.config.site_names]
    state = advance(plan, state, replies, 0)
    assert state.best_round == 0
    assert messages(plan, state)["site-1"].info == {"selected_round": 2}


def test_order_of_arrival_changes_no_bit():
    plan = make_plan("fedap")
    results = []
    for order in permutations(range(3)):
        generators = [torch.Generator().manual_seed(i) for i in range(3)]
        replies = [hello(s, **statistics(m)) for s, m in zip(plan.config.site_names, MEANS, strict=True)]
        state = advance(plan, ServerState(), [replies[i] for i in order], 0)
        updates = [trained(plan, s, 1, 0) for s in plan.config.site_names]
        for update, g in zip(updates, generators, strict=True):
            for tensor in update.tensors.values():
                tensor.normal_(generator=g)
        results.append(advance(plan, state, [updates[i] for i in order], 0))
    first = results[0]
    for other in results[1:]:
        np.testing.assert_array_equal(other.weights, first.weights)
        assert all(same(other.shared[s], first.shared[s]) for s in plan.config.site_names)
        assert other.history == first.history


def test_history_of_a_round():
    plan = make_plan(sites=2)
    (record,) = round_of(plan, joined(plan, samples=(1, 1)), 1, 2).history
    assert (record["round"], record["seconds"], record["participants"]) == (1, 1.5, ["site-1", "site-2"])
    assert record["sites"]["site-2"] == {
        "train_loss": 2.0,
        "validation": None,
        "sent_bytes": serialised_bytes(plan.initial_shared),
        "received_bytes": serialised_bytes(plan.initial_shared),
        "seconds": 0.0,
    }
