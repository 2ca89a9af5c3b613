"""What a mechanism that is no mixing has its sites send: kept by site, and W is the mixing's alone."""

import numpy as np
import torch
from tiny import config, plan_of

from medpfl.algorithms.mechanism import Mechanism
from medpfl.core.channels import Channel, Entry
from medpfl.core.messages import Update
from medpfl.core.server_state import ServerState
from medpfl.core.settings import Settings
from medpfl.engine.federation import Federation
from medpfl.server.weighing import with_sent


class Told(Mechanism):
    name = "told"


def test_it_is_kept_and_moves_no_weight():
    plan = plan_of(Federation.of(config("fedavg")))
    channel = Channel("told", True, {"x": Entry((1,), (torch.float32,))}, ("train",), "a number")
    plan.channels[channel] = Told(Settings())
    before = ServerState(weights=np.eye(3))
    updates = [Update(f"site-{k}", 1, {"w": torch.ones(2), "told/x": torch.tensor([float(k)])}) for k in (1, 2)]

    state, means = with_sent(plan, before, updates)

    assert {site: kept["x"].item() for site, kept in state.kept["told"].items()} == {"site-1": 1.0, "site-2": 2.0}
    assert state.weights is before.weights
    assert (state.failures, means) == ((), {})
    assert all(set(update.tensors) == {"w"} for update in updates)
