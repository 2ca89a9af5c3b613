"""Start weights on their way to a site: in which messages, and what of them it refuses."""

import json

import pytest
import torch
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from safetensors.torch import save_file
from tiny import Wide, config, imprinting
from torch import nn

from medpfl.algorithms.start import START
from medpfl.core.errors import UserError
from medpfl.core.messages import Message, named
from medpfl.core.permitted_code import permit
from medpfl.engine.federation import Federation
from medpfl.flare.job.recipes import PersonalizedRecipe, for_sites, travels_inline
from medpfl.flare.transport.executor import PersonalizedExecutor
from medpfl.flare.transport.join_executor import JoinExecutor
from medpfl.flare.transport.payload import REASON, message_to_model
from medpfl.flare.transport.trust import REHEARSAL
from medpfl.models.start_weights import Start

permit("test_start_travels")


def of_another_network():
    return nn.Linear(2, 2).state_dict()


def endless():
    return {name: tensor / 0 for name, tensor in Wide().state_dict().items()}


@pytest.mark.parametrize(
    ("weights", "words"), [(imprinting, "rows of 'fc1.weight' copy each other"), (endless, "'start' is not as")]
)
@pytest.mark.parametrize("task", ["prepare", "join"])
def test_what_is_refused_with_the_first_message_is_not_used_with_the_next(
    tmp_path, at_site, monkeypatch, task, weights, words
):
    """The process has it by then, and the next message brings nothing to look at."""
    monkeypatch.setenv(REHEARSAL, "1")
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "medpfl.json").write_text(json.dumps({"data": {}, "policy": {"copied_rows": 0.1}}))
    state = weights()
    federation = Federation.of(config("fedper", init=Start(state).named, model="tiny:Wide", personal="modules:fc1"))
    said = for_sites(federation.config)
    executor = PersonalizedExecutor(said, "first") if task == "prepare" else JoinExecutor(said, said, "first")
    info = {"split": federation.split.description(), "input_format": {}, "epochs": 1}
    shared = {} if task == "prepare" else federation.initial_shared
    for brought in (state, {}):
        message = Message(task, 0 if task == "prepare" else 3, {**shared, **named(START, brought)}, info)
        sent = FLModelUtils.to_shareable(message_to_model(message, 3))
        reply = executor.execute(task, sent, at_site(tmp_path, "site-1"), Signal())
        assert words in (reply.get_header(REASON) or "")


@pytest.mark.parametrize("task", ["prepare", "join"])
def test_another_networks_weights_are_refused_in_words(tmp_path, at_site, monkeypatch, task):
    """Whoever names a fingerprint may name any."""
    monkeypatch.setenv(REHEARSAL, "1")
    state = of_another_network()
    run_config = config("fedper", init=Start(state).named, model="tiny:Wide", personal="modules:fc1")
    said = for_sites(run_config)
    executor = PersonalizedExecutor(said, "first") if task == "prepare" else JoinExecutor(said, said, "first")
    sent = FLModelUtils.to_shareable(message_to_model(Message(task, 0, named(START, state), {}), 3))
    reply = executor.execute(task, sent, at_site(tmp_path, "site-1"), Signal())
    assert reply.get_header(REASON) == "contract: 'start' is not as the method has it"


class Large(nn.Module):
    """More than FLARE's http driver takes in one message to a site; what is shared of it is little."""

    def __init__(self, num_classes=3):
        super().__init__()
        self.own, self.head = nn.Linear(16, 1 << 17), nn.Linear(16, num_classes)

    def forward(self, x):
        return self.head(x.flatten(1)) + self.own(x.flatten(1)).mean()


def test_large_start_weights_do_not_go_inside_a_message_inside_which_what_is_shared_would(tmp_path):
    file = tmp_path / "first.safetensors"
    save_file(Large().state_dict(), file)
    run_config = config("fedper", model="test_start_travels:Large", personal="modules:own")
    assert travels_inline(Federation.of(run_config))
    assert not travels_inline(Federation.of(run_config.model_copy(update={"init": str(file)})))


class HalfBody(nn.Module):
    """With a body in a type that numpy does not know."""

    def __init__(self, num_classes: int = 3):
        super().__init__()
        self.body = nn.Linear(16, 6).to(torch.bfloat16)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, num_classes)

    def forward(self, x):
        return self.head(self.norm(self.body(x.flatten(1).to(torch.bfloat16)).float()))


@pytest.mark.parametrize(("algorithm", "name"), [("fedavg", "start/body.weight"), ("fedap", "body.weight")])
def test_what_of_a_frozen_network_cannot_travel_is_refused_in_words(tmp_path, algorithm, name):
    file = tmp_path / "first.safetensors"
    save_file(HalfBody().state_dict(), file)
    run_config = config(algorithm, model="test_start_travels:HalfBody", frozen="modules:body")
    if algorithm == "fedavg":
        PersonalizedRecipe(run_config)
        run_config = run_config.model_copy(update={"init": str(file)})
    with pytest.raises(UserError, match=f"HalfBody: {name} is bfloat16, which FLARE does not carry to the sites"):
        PersonalizedRecipe(run_config)
