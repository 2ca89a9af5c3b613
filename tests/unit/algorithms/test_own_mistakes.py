"""What a mechanism of one's own gives wrongly is said with its name, and never taken for nothing."""

import numpy as np
import pytest
import torch
from tiny import Net, images, run, sites_of
from tiny import config as tiny_config

from medpfl.algorithms import algorithm
from medpfl.algorithms.fedprox import Proximal
from medpfl.algorithms.mechanism import Step
from medpfl.core.errors import UserError
from medpfl.core.messages import Failure, Message
from medpfl.core.parameters import StateError
from medpfl.core.seeding import generator
from medpfl.data.inputs import Inputs
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.engine.results import build_results
from medpfl.site import words as words_
from medpfl.site.answer import answer
from medpfl.site.delivery import Delivery
from medpfl.site.hooks import HookFailed
from medpfl.training.loop import TrainingDiverged
from medpfl.training.part import Beside, Outcome, Part


def trained(monkeypatch, begin, replaces=()):
    """A round of FedProx whose mechanism begins so."""
    monkeypatch.setattr(Proximal, "begin", begin)
    monkeypatch.setattr(Proximal, "replaces", replaces)
    site = sites_of(Federation.of(tiny_config("fedprox")))["site-1"]
    model = Net()
    method = site._method(Message("train", 1, {}), model, 1, "update", 0)
    method.begin()
    loss = method.train(model, site.data, 1, generator(0))
    method.end()
    return loss


@pytest.mark.parametrize(
    ("begin", "words"),
    [
        (lambda *_: lambda: 0.0, "proximal: its begin gave function, not a Part"),
        (lambda *_: Part(term=lambda: 0.5), "proximal: its term gave 0.5, not a scalar tensor"),
        (lambda *_: Part(term=lambda: torch.ones(3)), r"proximal: its term gave a tensor \(3,\), not a scalar tensor"),
        (lambda *_: Part(term=lambda: torch.tensor(2.0)), "proximal: its term depends on no parameter that is trained"),
        (lambda *_: Part(end=lambda: None), "proximal: its end gave None, not an Outcome"),
        (
            lambda *_: Part(end=lambda: Outcome(sends={"norms": {"a": torch.zeros(3)}})),
            "proximal: it sends in 'norms', which is none of its channels to the server",
        ),
        (lambda *_: Part(end=lambda: Outcome(state={"a": 1.0})), "proximal: its state has 'a', float, not a tensor"),
        (
            lambda *_: Part(end=lambda: Outcome(state=torch.ones(2))),
            "proximal: its state is Tensor, not a dictionary of tensors",
        ),
        (lambda *_: Part(end=lambda: Outcome(state={1: torch.ones(1)})), "its state has 1 as a name, int, not text"),
        (
            lambda *_: Part(end=lambda: Outcome(state={"a": torch.tensor([1, torch.nan])})),
            "proximal: its state has 'a' with values that are not finite",
        ),
        (lambda *_: Part(term="mu"), "proximal: its Part has 'mu' as term, not a function"),
        (lambda *_: Part(forward=lambda x: (x, 0.0)), r"has 'forward', in the place .* replaces = \('forward',\)"),
        (lambda *_: Part(train=lambda work: work.run()), r"has 'train', in the place .* replaces = \('train',\)"),
        (lambda *_: Part(beside=Beside(lambda x, y: (x, y), 1.0)), "not a sequence of Beside"),
        (lambda *_: Part(beside=[lambda x, y: (x, y)]), "not a sequence of Beside"),
        (
            lambda *_: Part(beside=[Beside(lambda x, y: (x, y), "1")]),
            "its samples beside weigh '1', not a finite number",
        ),
        (lambda *_: Part(beside=[Beside(lambda x, y: (x, y), 1.0, lambda *_: 0.5)]), "its term gave 0.5, not a scalar"),
        (
            lambda *_: Part(beside=[Beside(lambda x, y: (x, y), 1.0, lambda *_: torch.tensor(2.0))]),
            "its term depends on no parameter",
        ),
        (lambda *_: Part(end=lambda: Outcome(sends=None)), "its Outcome has None as sends, not a dictionary"),
        (lambda *_: Part(end=lambda: Outcome(numbers=[1])), "its Outcome has list of 1 as numbers, not a dictionary"),
        (
            lambda *_: Part(end=lambda: Outcome(state={"a": torch.ones(2).to_sparse()})),
            "its state has 'a', which is sparse",
        ),
        (lambda *_: Part(beside=[Beside(lambda x, y: x, 1.0)]), r"a tensor \(4, 1, 4, 4\), not images and labels"),
        (lambda *_: Part(beside=[Beside(lambda x, y: (x, y[:1]), 1.0)]), "with 1 labels"),
        (lambda *_: Part(beside=[Beside(lambda x, y: (x[..., :2], y), 1.0)]), r"own are \[4, 1, 4, 2\] with 4"),
    ],
)
def test_what_a_part_gives_wrongly(monkeypatch, begin, words):
    with pytest.raises(StateError, match=words):
        trained(monkeypatch, begin)


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (lambda net, x: net(x), r"its forward gave a tensor \(4, 3\), not logits and what is added to the loss"),
        (lambda net, x: (net(x), 0.0, 0.0), "its forward gave tuple of 3, not logits"),
        (lambda net, x: (net(x)[:1], 0.0), "logits of 1 samples for 4 inputs"),
        (lambda net, x: (net(x), net(x)), r"its forward adds a tensor \(4, 3\) to the loss, not a scalar"),
        (lambda net, x: (net(x), None), "its forward adds None to the loss"),
        (lambda net, x: (net(x), lambda y: y.float()), r"what its forward adds gave a tensor \(4,\), not a scalar"),
    ],
)
def test_what_a_forward_gives_wrongly(monkeypatch, forward, words):
    def begin(self, round_):
        return Part(forward=lambda x: forward(round_.model, x))

    with pytest.raises(StateError, match=f"proximal: .*{words}"):
        trained(monkeypatch, begin, ("forward",))


@pytest.mark.parametrize("made", [lambda scores, y: scores.sum(1), lambda scores, y: 0.5, None])
def test_a_loss_is_a_scalar_tensor(monkeypatch, made):
    monkeypatch.setattr(Proximal, "loss", lambda self, round_, loss: made)
    with pytest.raises(StateError, match="proximal: its loss gave"):
        trained(monkeypatch, lambda *_: None)


def broken(*_):
    raise KeyError("fc.weight of a patient")


@pytest.mark.parametrize(
    ("hook", "begin", "replaces"),
    [
        ("begin", broken, ()),
        ("term", lambda *_: Part(term=broken), ()),
        ("forward", lambda *_: Part(forward=broken), ("forward",)),
        ("beside", lambda *_: Part(beside=[Beside(broken, 1.0)]), ()),
        ("beside", lambda *_: Part(beside=[Beside(lambda x, y: (x, y), 1.0, broken)]), ()),
        ("forward", lambda self, round_: Part(forward=lambda x: (round_.model(x), broken)), ("forward",)),
        ("before_step", lambda *_: Part(before_step=broken), ()),
        ("after_step", lambda *_: Part(after_step=broken), ()),
        ("train", lambda *_: Part(train=broken), ("train",)),
        ("end", lambda *_: Part(end=broken), ()),
    ],
)
def test_code_that_fails_is_named_and_its_text_stays_in_the_sites_log(monkeypatch, caplog, hook, begin, replaces):
    monkeypatch.setattr(Proximal, "begin", begin)
    monkeypatch.setattr(Proximal, "replaces", replaces)
    federation = Federation.of(tiny_config("fedprox"))
    message = Message("train", 1, dict(federation.initial_shared))
    failed = answer(sites_of(federation)["site-1"], message, federation.model())
    assert failed == Failure("site-1", 1, words_.FAILED_IN("KeyError", hook, "proximal", "train"))
    assert federation.gate().reason(failed.reason) == failed.reason
    assert f"site-1, train in round 1: proximal, in its {hook}: KeyError" in caplog.text


class Broken(Net):
    """Whose code fails while it trains."""

    def forward(self, x):
        if self.training and torch.is_grad_enabled():
            raise LookupError("its own")
        return super().forward(x)


def test_a_network_that_fails_is_not_the_mechanisms_fault(monkeypatch):
    """FedRep trains in the place of the run's loop, and the network is somebody else's."""
    for method in ("fedrep", "fedprox", "fedreg"):
        federation = Federation.of(tiny_config(method))
        model = Broken()
        failed = answer(sites_of(federation)["site-1"], Message("train", 1, dict(federation.initial_shared)), model)
        assert failed.reason == words_.FAILED("LookupError", "train")


def test_an_error_that_no_list_has_is_said_by_the_nearest_that_is_there(monkeypatch):
    def begin(self, round_):
        raise np.linalg.LinAlgError("singular")

    monkeypatch.setattr(Proximal, "begin", begin)
    federation = Federation.of(tiny_config("fedprox"))
    message = Message("train", 1, dict(federation.initial_shared))
    failed = answer(sites_of(federation)["site-1"], message, federation.model())
    assert failed.reason == words_.FAILED_IN("ValueError", "begin", "proximal", "train")
    assert federation.gate().reason(failed.reason) == failed.reason


@pytest.mark.parametrize(
    ("gives", "words"),
    [
        (None, "is NoneType, not a dictionary of tensors"),
        ({}, "lacks 'fc1.bias': give all of the update"),
    ],
)
def test_what_is_left_of_an_update_is_all_of_it(monkeypatch, gives, words):
    monkeypatch.setattr(Proximal, "leaving", lambda *_: gives)
    federation = Federation.of(tiny_config("fedprox"))
    message = Message("train", 1, dict(federation.initial_shared))
    failed = answer(sites_of(federation)["site-1"], message, federation.model())
    assert failed.reason == f"proximal: what its leaving gave {words}"


@pytest.mark.parametrize("hook", ["loss", "leaving", "in_use", "finish"])
def test_so_are_the_hooks_of_a_mechanism_itself(monkeypatch, hook):
    monkeypatch.setattr(Proximal, hook, broken)
    words = rf"KeyError in the {hook} of proximal in task '\w+' \(the site's log says more\)"
    with pytest.raises(UserError, match=words):
        run(tiny_config("fedprox"))


@pytest.mark.parametrize(("raised", "told"), [(KeyError("x"), HookFailed), (UserError("too small"), StateError)])
def test_a_network_that_was_shown_to_what_fails_is_in_training_afterwards(monkeypatch, raised, told):
    def suits(*_):
        raise raised

    monkeypatch.setattr(Proximal, "suits", suits)
    site, model = sites_of(Federation.of(tiny_config("fedprox")))["site-1"], Net()
    with pytest.raises(told):
        site._require_suited(model)
    assert model.training


@pytest.mark.parametrize(
    ("of_model", "words"),
    [
        (lambda state: dict(list(state.items())[:2]), "lacks 'norm.weight': it must be the whole state, of 9 tensors"),
        (lambda state: {**state, "fc3.weight": torch.ones(1)}, "has 'fc3.weight', which the network has not"),
        (lambda state: {**state, "fc1.bias": torch.ones(2)}, r"has 'fc1.bias' of shape \[2\], not \[6\]"),
        (lambda state: {**state, "fc1.bias": torch.full((6,), torch.nan)}, "has 'fc1.bias' with values that are not"),
        (lambda state: [*state], "is list, not a dictionary of tensors"),
    ],
)
def test_what_a_site_uses_is_a_whole_finite_state(monkeypatch, of_model, words):
    monkeypatch.setattr(Proximal, "in_use", lambda self, round_: of_model(round_.model.state_dict()))
    site = sites_of(Federation.of(tiny_config("fedprox")))["site-1"]
    with pytest.raises(StateError, match=f"proximal: what its in_use gave {words}"):
        site._method(Message("train", 1, {}), Net(), 1, "update", 0).use(Net())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda net: net.add_module("fc3", torch.nn.Linear(2, 2)), "changed the network itself, by 'fc3.bias'"),
        (lambda net: setattr(net, "fc1", torch.nn.Linear(16, 7)), "changed the network itself, by 'fc1.bias'"),
        (lambda net: net.fc1.bias.data.fill_(torch.nan), "what it made of the model has 'fc1.bias' with values that"),
    ],
)
def test_the_model_at_the_end_is_of_the_runs_network_and_finite(monkeypatch, change, words):
    monkeypatch.setattr(Proximal, "finish", lambda self, round_: [change(round_.model)] != [])
    site = sites_of(Federation.of(tiny_config("fedprox")))["site-1"]
    with pytest.raises(StateError, match=f"proximal: .*{words}"):
        site._method(Message("test", 3, {}), Net(), "end", "update", 0).finish()


@pytest.mark.parametrize(
    ("gives", "words"),
    [
        (lambda *_: {"least": torch.ones(2)}, "proximal: its card: Object of type Tensor is not JSON"),
        (lambda *_: None, "proximal: its card gave None, not a dictionary"),
        (lambda *_: {"test": {"note": "$run()"}}, "proximal: its card gave 'test', which a card has by itself"),
        (broken, "proximal, card: 'fc.weight of a patient'"),
    ],
)
def test_what_a_card_says_is_looked_at(monkeypatch, tmp_path, gives, words):
    monkeypatch.setattr(Proximal, "card", gives)
    made = tiny_config("fedprox")
    inputs = Inputs("picture", ("a", "b", "c"), 1, (4, 4), None, [], {})
    with pytest.raises((StateError, HookFailed), match=words):
        Delivery(tmp_path, made, {}, inputs).said(images())


@pytest.mark.parametrize("at_end", [False, True])
def test_a_part_changes_values_and_not_the_network(monkeypatch, at_end):
    def begin(self, round_):
        def add():
            round_.model.add_module("fc3", torch.nn.Linear(2, 2))
            return Outcome()

        if at_end:
            return Part(end=add)
        add()
        return None

    with pytest.raises(StateError, match=r"proximal: it changed the network itself, by 'fc3\.bias'"):
        trained(monkeypatch, begin)


def test_a_term_may_be_nothing_or_depend_in_some_steps_alone(monkeypatch):
    trained(monkeypatch, lambda *_: Part(term=lambda: torch.zeros(())))

    def sometimes(self, round_):
        steps = iter(range(100))
        return Part(term=lambda: next(round_.model.parameters()).sum() * 0.1 if next(steps) else torch.tensor(1.0))

    trained(monkeypatch, sometimes)


def of_parameters(round_, factor):
    return lambda *_: next(round_.model.parameters()).sum() * factor


@pytest.mark.parametrize("factor", [torch.nan, torch.inf])
@pytest.mark.parametrize("hook", ["term", "beside"])
def test_a_term_by_which_training_diverges_is_named(monkeypatch, hook, factor):
    def begin(self, round_):
        term, images_ = of_parameters(round_, factor), lambda x, y: (x, y)
        return Part(term=term) if hook == "term" else Part(beside=[Beside(images_, 1.0, term)])

    words = rf"the {hook} of proximal became -?{factor} while .* finite: put it right, or .* \(lr=0\.1\)"
    with pytest.raises(TrainingDiverged, match=words) as raised:
        trained(monkeypatch, begin)
    assert words_.listed(str(raised.value), {"proximal"}) == str(raised.value)


def test_a_term_is_not_blamed_for_a_loss_that_was_not_finite_first(monkeypatch):
    """In the step after it, with weights that are not finite, no term is."""
    monkeypatch.setattr(Proximal, "loss", lambda self, round_, loss: lambda scores, y: loss(scores, y) * torch.nan)
    with pytest.raises(TrainingDiverged, match="the training loss became nan"):
        trained(monkeypatch, lambda self, round_: Part(term=of_parameters(round_, 1.0)))


@pytest.mark.parametrize("error", [KeyError("norms"), StateError("'norms'")])
def test_a_step_at_the_server_that_fails_is_named(monkeypatch, error):
    def step(turn):
        raise error

    monkeypatch.setattr(Proximal, "server_step", lambda self, parts: step)
    where = r"proximal: its step at the server failed after round 1 \(test_own_mistakes.py, line \d+\)"
    with pytest.raises(UserError, match=f"{where}: {type(error).__name__}: 'norms'"):
        run(tiny_config("fedprox"))


@pytest.mark.parametrize(
    ("report", "words"), [(torch.ones(2), "Tensor is not JSON"), (torch.nan, "not JSON compliant")]
)
def test_what_a_step_reports_is_what_a_file_of_json_holds(monkeypatch, report, words):
    monkeypatch.setattr(Proximal, "server_step", lambda self, parts: lambda turn: Step({}, {"found": report}))
    with pytest.raises(UserError, match=f"proximal: what its step at the server reports after round 1: .*{words}"):
        run(tiny_config("fedprox"))


@pytest.mark.parametrize("hook", ["channels", "refuses", "displaced"])
def test_what_fails_before_the_first_round_is_named(monkeypatch, hook):
    monkeypatch.setattr(Proximal, hook, broken)
    with pytest.raises(UserError, match=rf"proximal: its {hook} failed \(test_own_mistakes.py, line \d+\): KeyError"):
        Federation.of(tiny_config("fedprox"))


@pytest.mark.parametrize("hook", ["refuses", "objective"])
def test_what_is_said_in_words_is_a_text(monkeypatch, hook):
    monkeypatch.setattr(Proximal, hook, lambda self, run: True)
    with pytest.raises(UserError, match=f"proximal: its {hook} gave True, not text"):
        tiny_config("fedprox").choices()


@pytest.mark.parametrize(
    ("hook", "gives", "words"),
    [
        ("notes", "a note", "its notes gave 'a note', not a list of texts"),
        ("shown", {"x": torch.ones(1)}, "what its shown gives: .*Tensor is not JSON"),
        ("shown", broken, "its shown failed .*KeyError"),
        ("shown", [1], "its shown gave list, not a dictionary or None"),
    ],
)
@pytest.mark.parametrize("at_end", [False, True])
def test_what_results_are_told_is_looked_at_before_the_first_round_and_at_the_end(
    monkeypatch, hook, gives, words, at_end
):
    def hooked(self, *of):
        return None if hook == "shown" and at_end and not of[-1].round else gives(*of) if callable(gives) else gives

    monkeypatch.setattr(Proximal, hook, hooked)
    federation = Federation.of(tiny_config("fedprox"))
    plan, rounds = federation.plan(), []

    def after_step(state):
        rounds.append(state.round)
        build_results(plan, state, env="inprocess", data={}, seconds={})

    with pytest.raises(UserError, match=f"proximal: {words}"):
        run_in_process(plan, sites_of(federation), federation.model, workers=1, after_step=after_step)
    assert (rounds[-1] > 0) is (hook == "shown" and at_end)


def test_what_is_shown_stands_in_the_results_at_the_end_alone(monkeypatch):
    monkeypatch.setattr(Proximal, "shown", lambda self, state: {"rounds": state.round})
    federation = Federation.of(tiny_config("fedprox"))
    plan, shown = federation.plan(), []

    def after_step(state):
        shown.append(build_results(plan, state, env="inprocess", data={}, seconds={})["proximal"])

    run_in_process(plan, sites_of(federation), federation.model, workers=1, after_step=after_step)
    assert shown == [None] * (len(shown) - 1) + [{"rounds": plan.config.rounds}]


def test_a_method_that_is_not_known_is_answered_with_where_methods_are_found():
    with pytest.raises(UserError, match=r"'mine': there are local, fedavg, .*one of another package is there where"):
        algorithm("mine")


def test_a_file_without_a_methods_name_is_asked_for_one():
    with pytest.raises(UserError, match=r"algorithm 'fedmine\.py': say which method of the file, fedmine\.py:NAME"):
        algorithm("fedmine.py")
