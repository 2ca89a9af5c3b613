"""A site trains, and its answer is lost, late or refused: what it and the server must have alike stays alike."""

import pytest
import torch
from tiny import config, plan_of, sites_of

from medpfl.core.messages import Failure, Message
from medpfl.core.server_state import ServerState
from medpfl.engine.federation import Federation
from medpfl.server.rounds import advance, messages


def rounds(algorithm, lost, *, total=6, damaged=None, **fields):
    """Each round's messages, and the sites, of a run in which what a site sends in the given rounds never arrives.

    The state after the round ``damaged`` is lost once sites have trained the next one, and the round is asked again.
    """
    run_config = config(algorithm, rounds=total, min_sites=2, **fields)
    federation = Federation.of(run_config)
    plan, sites, state, model = plan_of(federation), sites_of(federation), ServerState(), federation.model()
    asked, earlier = {}, state
    while state.phase in ("prepare", "train"):
        now = messages(plan, state)
        asked[state.round + 1] = now
        replies = [sites[name].handle(message, model) for name, message in now.items()]
        if state.phase == "train":
            gone = [site for site, round_ in lost if round_ == state.round + 1]
            replies = [Failure(r.site, r.round, "no answer in time") if r.site in gone else r for r in replies]
        if damaged and state.round == damaged:
            state, damaged = earlier, None
            continue
        earlier, state = state, advance(plan, state, replies, 0.0)
    return asked, sites, state


def test_sites_are_told_which_answer_counted():
    asked, _, _ = rounds("fedavg", [("site-3", 2), ("site-3", 3)])
    told = {number: now["site-3"].counted for number, now in asked.items()}
    assert told == {1: 0, 2: 1, 3: 1, 4: 1, 5: 4, 6: 5}
    assert asked[4]["site-1"].counted == 3
    assert asked[6]["site-3"].counted_rounds == (4, 5) and asked[4]["site-3"].counted_rounds == (1,)


RARER = [(5.0, 4), (1.01, None)]


@pytest.mark.parametrize("counted", ["5", 5, True, [1, 2, 3], [-1], [0], [1.0], [True], {"5": 5}, None])
def test_rounds_that_are_none_are_as_if_nobody_said(counted):
    message = Message("train", 6, {}, {"counted": counted})
    assert message.counted is None and message.counted_rounds is None


@pytest.mark.parametrize(
    ("factor", "damaged"), [(5.0, None), (1.01, 4), *(pytest.param(*of, marks=pytest.mark.slow) for of in RARER)]
)
@pytest.mark.parametrize(
    "lost",
    [
        *([], [("site-3", n) for n in (2, 3, 4, 5)], [("site-1", 1)]),
        *(pytest.param([("site-3", n)], marks=pytest.mark.slow) for n in (2, 3)),
    ],
)
def test_scaffolds_control_stays_the_mean_of_the_sites(lost, damaged, factor):
    """The server's c in the last round is the mean of what the sites take for their c_i in it, 0 without any.

    Also where the larger changes are scaled back, as nearly all are by a factor of 1.01.
    """
    asked, sites, state = rounds("scaffold", lost, damaged=damaged, large_factor=factor)
    shares = [of["scaled"]["control"] for record in state.history for of in record["sites"].values() if "scaled" in of]
    assert bool(shares) == (factor < 5) and all(0 < share < 1 for share in shares)
    common = asked[6]["site-1"].brought("control")
    own = []
    for name, site in sites.items():
        counted = asked[6][name].counted
        zero = {entry: torch.zeros_like(tensor) for entry, tensor in common.items()}
        kept, unused = site._kept("control", counted)[1], 1 - asked[6][name].used_share("control")
        own.append({n: kept[n] - unused * kept[f"change/{n}"] for n in common} if counted else zero)
    for name, tensor in common.items():
        torch.testing.assert_close(tensor, sum(of[name] for of in own) / len(own), atol=1e-6, rtol=1e-5)


def test_fedcurv_takes_away_what_is_in_the_sums_alone():
    """Site 3's part of round 2 is in none: in round 3 it trains as if it had none."""
    asked, sites, _ = rounds("fedcurv", [("site-3", 2)], total=4)
    site, after = sites["site-3"], []
    for forgets in (False, True):
        if forgets:
            site.store.keep("curvature", ())
        site.handle(asked[3]["site-3"], Federation.of(site.config).model())
        after.append(site.store.get("curvature", 3))
    for name, tensor in after[0].items():
        assert torch.equal(tensor, after[1][name]), name
