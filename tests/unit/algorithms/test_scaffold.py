"""SCAFFOLD's steps by hand, at a site and at the server; what it refuses."""

from types import SimpleNamespace

import pytest
import torch
from one_sample import TwoWeights, both, config, data, trained, weights
from tiny import config as tiny_config
from tiny import run, same

from medpfl.algorithms.mechanism import LocalRound, ServerParts, Step, Turn
from medpfl.algorithms.scaffold import ControlVariates, own_control
from medpfl.core.declarations import Nothing
from medpfl.core.errors import UserError
from medpfl.core.messages import Message, named
from medpfl.core.parameters import ParameterSplit
from medpfl.core.server_state import ServerState
from medpfl.engine.federation import Federation
from medpfl.server.rounds import next_round


def test_a_corrected_step_by_hand():
    """g = (-1/2, 1/2), c = (0.2, 0), c_i = (0, 0.1): the step is along (-0.3, 0.4), and the next c_i is g itself."""
    model = TwoWeights(0.0, 0.0)
    done = trained(config("scaffold"), model, kept={"control": both(0.0, 0.1)}, brought={"control": both(0.2, 0.0)})

    assert weights(model.state_dict()) == pytest.approx([0.03, -0.04])
    assert weights(done.states()["control"]) == pytest.approx([-0.5, 0.5])
    sent = done.sent([("control", next(m for m in done.rounds if m.name == "control"))])
    assert weights(sent, "control/fc.weight") == pytest.approx([-0.5, 0.4])


def test_the_rate_is_the_rounds():
    """The same in a round whose rate is a tenth: the step is, and the next c_i is g all the same."""
    model, schedule = TwoWeights(0.0, 0.0), {"schedule": "step", "step_rounds": 1, "step_factor": 0.1}
    given = {"kept": {"control": both(0.0, 0.1)}, "brought": {"control": both(0.2, 0.0)}}
    done = trained(config("scaffold", **schedule), model, **given)

    assert weights(model.state_dict()) == pytest.approx([0.003, -0.004])
    assert weights(done.states()["control"]) == pytest.approx([-0.5, 0.5], rel=1e-4)


def test_the_next_control_over_several_steps():
    """Eq. 4 for c_i = 1, c = 2, x - y = 3, K lr = 0.5: 1 - 2 + 6."""
    one = {"w": torch.tensor([1.0])}
    found = own_control(one, {"w": torch.tensor([2.0])}, {"w": torch.tensor([3.0])}, {"w": torch.tensor([0.0])}, 0.5)

    assert found["w"].tolist() == [5.0]


def test_steps_in_which_nothing_shared_is_trained_are_none_of_the_k():
    """After such a step one of 0.1 leads from (0, 0) to (0.1, -0.1): (x - y) / 0.1 is (-1, 1), and not half of it."""
    run_config, model = config("scaffold"), TwoWeights(0.0, 0.0)
    split, message = ParameterSplit(model, Nothing()), Message("train", 2, {})
    round_ = LocalRound("site-1", run_config, 2, message, model, split, data(), lambda: None, lambda: None)
    part = next(m for m in run_config.mechanisms if m.name == "control").begin(round_)
    part.before_step()
    model.fc.weight.grad = torch.zeros(2, 1)
    part.before_step()
    with torch.no_grad():
        model.fc.weight.copy_(torch.tensor([[0.1], [-0.1]]))

    assert weights(part.end().state) == pytest.approx([-1.0, 1.0])


def test_in_the_first_round_all_controls_are_zero_and_the_step_is_plain():
    model = TwoWeights(0.0, 0.0)
    trained(config("scaffold"), model)

    assert weights(model.state_dict()) == pytest.approx([0.05, -0.05])


def test_the_servers_control_by_hand():
    """Two of four sites, mean change (1, 3): c = (1, 1) becomes (1.5, 2.5) (eq. 5)."""
    run_config = config("scaffold")
    part = next(m for m in run_config.mechanisms if m.name == "control")
    step = part.server_step(ServerParts(run_config, None, None, {}, {}, None, None, None, lambda: False))
    state = ServerState(common={"control": both(1.0, 1.0)})

    made = step(Turn(state, dict, {"control": both(1.0, 3.0)}, present=2))

    assert weights(made.common) == pytest.approx([1.5, 2.5])


def test_a_site_goes_on_from_what_the_server_has_of_its_control_by_hand():
    """c_i = (1, 3) after a change of (2, 4) of which a quarter counted: (-0.5, 0). An older c_i had counted whole."""
    part = next(m for m in config("scaffold").mechanisms if m.name == "control")
    message = Message("train", 4, {}, {"counted": [2, 3], "scaled": {"control": 0.25}})
    for round_, expected in ((3, [-0.5, 0.0]), (2, [1.0, 3.0])):
        kept = both(1.0, 3.0) | named("change", both(2.0, 4.0)) | {"round": torch.tensor(round_)}
        site = SimpleNamespace(message=message, device="cpu", kept_counted=lambda kept=kept: kept)
        assert weights(part._own(site, both(0.0, 0.0))) == pytest.approx(expected)


def test_with_all_sites_the_controls_sum_to_the_servers():
    """Every site takes part, so after each round c is the mean of the c_i."""
    state, sites = run(tiny_config("scaffold"))
    own = [site.store.get("control", 2) for site in sites.values()]

    for name, common in state.common["control"].items():
        torch.testing.assert_close(common, torch.stack([c[name] for c in own]).mean(0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "channel", "comes"), [("scaffold", "control", True), ("fedcurv", "curvature", False)]
)
def test_what_comes_in_a_round_after_the_last(algorithm, channel, comes):
    """A control of the round before corrects still; sums that hold a site's own part of another round do not."""
    run_config = tiny_config(algorithm)
    state, _ = run(run_config)
    for message in next_round(Federation.of(run_config).plan(), state).values():
        brought = message.brought(channel)
        assert bool(brought) == comes
        assert all(torch.equal(brought[name], state.common[channel][name]) for name in brought)


def test_controls_count_in_the_traffic():
    """They leave in all rounds but the last, which nobody uses, and come in all but the first."""

    def beside(way, rounds):
        corrected, plain = (run(tiny_config(name, rounds=rounds))[0].traffic for name in ("scaffold", "fedavg"))
        return corrected[way] - plain[way]

    assert beside("sent_bytes", 3) == 2 * beside("sent_bytes", 2) > 0
    assert beside("received_bytes", 3) > beside("received_bytes", 2) > 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"settings": {"momentum": 0.9}}, "with momentum it is not"),
        ({"settings": {"optimizer": "adam"}}, "with another optimizer it is not"),
        ({"settings": {"grad_clip": 1.0}}, "with grad_clip it is not"),
        ({"settings": {"precision": "fp16"}}, "some are dropped"),
        ({"settings": {"update_clip": 1, "update_noise": 1}}, "would leave beside it as they are"),
        ({"personal": "heads:0.5"}, "parts of some are personal"),
        ({"mixing": "median"}, "joins models otherwise"),
        (
            {"mixing": "samples"},
            "best for all sites alike, and mixing 'samples' joins models otherwise",
        ),
        ({"settings": {"update_clip": 1}}, "would leave beside it as they are"),
    ],
)
def test_what_control_variates_do_not_go_with(fields, words):
    with pytest.raises(UserError, match=words):
        tiny_config("scaffold", **fields)


def test_with_batch_norm_personal_controls_are_of_the_rest():
    state, _ = run(tiny_config("scaffold", personal="batch-norm"))

    assert set(state.common["control"]) == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}


def test_a_step_that_gives_what_torch_would_differentiate_can_travel(monkeypatch):
    """Else sites' controls would be differentiated along, and the sites be refused for it."""
    plain, _ = run(tiny_config("scaffold"))
    made = ControlVariates.server_step

    def wanted(self, parts):
        step = made(self, parts)

        def differentiable(turn):
            found = step(turn)
            return found and Step({name: tensor.clone().requires_grad_() for name, tensor in found.common.items()})

        return differentiable

    monkeypatch.setattr(ControlVariates, "server_step", wanted)
    state, _ = run(tiny_config("scaffold"))
    assert same(state.shared["site-1"], plain.shared["site-1"])
    assert not any(tensor.requires_grad for tensor in state.common["control"].values())
