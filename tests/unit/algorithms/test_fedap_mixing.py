"""Which sites' statistics make which row of FedAP's W, and when f-FedAP asks for them."""

import numpy as np
import pytest
import torch
from tiny import config

from medpfl.algorithms.fedap.mixings import STATISTICS
from medpfl.algorithms.fedap.statistics import named_statistics
from medpfl.core.server_state import ServerState


def at(mean):
    """Statistics of one layer of one channel, whose distances are those of the means."""
    one = torch.ones(1, dtype=torch.float64)
    return named_statistics({"norm": (mean * one, one)})


def test_rows_are_the_sites_in_whatever_order_their_statistics_came():
    """At 0, 1 and 4; site-3's are not known, and its distances are the mean of 1, 4 and 3, which is 8/3."""
    run = config("fedap", sites=4)
    kept = {"site-4": at(4.0), "site-1": at(0.0), "site-2": at(1.0)}
    weights, told = run.mixer.received(run, ServerState(kept={STATISTICS: kept}), ["site-4"])
    assert told == []
    by_hand = [
        [13, 8, 3, 2],  # 1, 3/8 and 1/4 of 13/8
        [24, 41, 9, 8],  # 1, 3/8 and 1/3 of 41/24
        [1, 1, 3, 1],
        [6, 8, 9, 23],  # 1/4, 1/3 and 3/8 of 23/24
    ]
    halves = np.array(by_hand) / (2 * np.array([[13], [41], [3], [23]]))
    np.testing.assert_allclose(weights, halves)


def test_lambda_is_the_sites_own_share():
    run = config("fedap", settings={"lambda": 0.2})
    kept = {f"site-{k}": at(mean) for k, mean in ((1, 0.0), (2, 1.0), (3, 4.0))}
    weights, _ = run.mixer.received(run, ServerState(kept={STATISTICS: kept}), [])
    np.testing.assert_allclose(weights, [[0.2, 0.64, 0.16], [0.6, 0.2, 0.2], [0.8 * 3 / 7, 0.8 * 4 / 7, 0.2]])


@pytest.mark.parametrize(("rounds", "first"), [(2, 1), (6, 3), (7, 3)])
def test_f_fedap_asks_a_site_once_from_half_of_the_rounds_on(rounds, first):
    run = config("f-fedap", rounds=rounds)
    assert run.mixer.due(run) == first
    before = [run.mixer.asks(None, run, ServerState(round=done), "site-1") for done in range(rounds)]
    assert before == [done + 1 >= first for done in range(rounds)]
    known = ServerState(round=rounds - 1, kept={STATISTICS: {"site-1": at(0.0)}})
    assert [run.mixer.asks(None, run, known, site) for site in ("site-1", "site-2")] == [False, True]
