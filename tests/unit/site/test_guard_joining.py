"""A site that joins a finished run, as a server that means harm meets it."""

import pytest
import torch
from tiny import config, images

from medpfl.core.messages import Failure, Message
from medpfl.core.statefile import fingerprint, read_state
from medpfl.data.sites import open_source
from medpfl.data.source import input_format
from medpfl.engine.federation import Federation
from medpfl.site.account import Account
from medpfl.site.answer import answer
from medpfl.site.book import Book
from medpfl.site.contract import Contract
from medpfl.site.ledger import Ledger
from medpfl.site.newcomer import Newcomer
from medpfl.site.policy import SitePolicy
from medpfl.site.seal import Seal

OPEN_TO_30 = SitePolicy(least_patients=30)


class Joining:
    """A guarded newcomer with 30 training images, spoken to by hand."""

    def __init__(self, folder, algorithm, policy=OPEN_TO_30, own=None, **fields):
        self.federation = Federation.of(config(algorithm, **fields))
        source = open_source(self.federation.config, None)
        newcomer = self.federation.newcomer("site-9", source, images(train=30), folder)
        # A job's run has the newcomer's own training settings.
        said = config(algorithm, **fields, settings=own or {})
        contract = Contract(said, config(algorithm, settings=own or {}))
        self.site = self.federation.guarded(newcomer, policy=policy, contract=contract, book=Book(folder))
        self.info = {"split": self.federation.split.description(), "input_format": input_format(source)}
        self.model = self.federation.model()

    def ask(self, task, tensors, **info):
        return answer(self.site, Message(task, 3, tensors, self.info | info), self.model)

    def weights(self, value=0.0):
        return {name: t + value for name, t in self.federation.initial_shared.items()}


def test_statistics_are_given_once_under_one_set_of_weights(tmp_path):
    joining = Joining(tmp_path, "f-fedap")
    first = joining.ask("statistics", joining.weights(), asked=["statistics"])
    again = joining.ask("statistics", joining.weights(), asked=["statistics"])
    assert all(torch.equal(first.tensors[name], again.tensors[name]) for name in first.tensors)
    other = joining.ask("statistics", joining.weights(0.1), asked=["statistics"])
    assert "repeats 0 times" in other.reason


def test_who_joins_again_in_another_way_gives_no_other_statistics(tmp_path):
    """Each joining with another learning rate would be asked under other weights; under the same ones it goes on."""
    first = Joining(tmp_path, "f-fedap")
    given = first.ask("statistics", first.weights(), asked=["statistics"])
    again = Joining(tmp_path, "f-fedap", own={"lr": 0.2})
    assert "repeats 0 times" in again.ask("statistics", again.weights(0.1), asked=["statistics"]).reason
    once_more = again.ask("statistics", again.weights(), asked=["statistics"])
    assert all(torch.equal(given.tensors[name], once_more.tensors[name]) for name in given.tensors)


def test_joining_between_two_questions_gives_no_other_statistics(tmp_path):
    joining = Joining(tmp_path, "f-fedap")
    given = joining.ask("statistics", joining.weights(), asked=["statistics"])
    for turn in range(2):
        assert not isinstance(joining.ask("join", joining.weights(), epochs=turn), Failure)
        other = joining.ask("statistics", joining.weights(0.1 + turn), asked=["statistics"])
        assert "repeats 0 times" in other.reason
        again = joining.ask("statistics", joining.weights(), asked=["statistics"])
        assert all(torch.equal(given.tensors[name], again.tensors[name]) for name in given.tensors)


def model_in(folder):
    """The fingerprint of a delivered model."""
    return fingerprint(read_state(folder / "model.safetensors")[0])


def test_the_model_of_an_earlier_joining_is_archived(tmp_path):
    first = Joining(tmp_path, "fedbn")
    first.ask("join", first.weights(), epochs=1)
    then = model_in(tmp_path / "selected")
    first.ask("join", first.weights(), epochs=1)  # the same question: the same model
    assert not (tmp_path / "archive").exists()
    again = Joining(tmp_path, "fedbn", own={"lr": 0.2})
    again.ask("join", again.weights(0.3), epochs=1)
    assert model_in(tmp_path / "archive" / "1" / "selected") == then != model_in(tmp_path / "selected")


def test_another_run_is_not_joined_under_the_same_name(tmp_path):
    first = Joining(tmp_path, "f-fedap")
    first.ask("statistics", first.weights(), asked=["statistics"])
    other = Joining(tmp_path, "f-fedap", seed=7)
    assert "another contract here" in other.ask("statistics", other.weights(), asked=["statistics"]).reason


@pytest.mark.parametrize("asked", [{}, {"asked": None}, {"asked": []}, {"asked": [7]}])
def test_statistics_that_nobody_names_stay(tmp_path, asked):
    joining = Joining(tmp_path, "fedap")
    f = joining.federation.model().state_dict()
    assert isinstance(joining.ask("statistics", dict(f), **asked), Failure)
    assert joining.ask("statistics", dict(f), asked=["statistics"]).tensors


@pytest.mark.parametrize(
    ("algorithm", "own", "experiments"), [("fedavg", {}, 1), ("fedavg", {"lr": 0.2}, 2), ("f-fedap", {}, 2)]
)
def test_a_join_that_failed_is_an_experiment_and_once_more_where_more_may_have_left(
    tmp_path, monkeypatch, algorithm, own, experiments
):
    ledger = Ledger(tmp_path / "kept", Seal(bytes(range(32)), "ledger"))

    def submitted(own):
        joining = Joining(tmp_path, algorithm, own=own)
        joining.site.account = Account(ledger, OPEN_TO_30, joining.site.contract, "a", "job")
        if algorithm == "f-fedap":
            joining.ask("statistics", joining.weights(), asked=["statistics"])
        return joining.ask("join", joining.weights(), epochs=1)

    with monkeypatch.context() as broken:
        broken.setattr(Newcomer, "_join", lambda *_: 1 / 0)
        assert isinstance(submitted({}), Failure)
    assert not isinstance(submitted(own), Failure)
    assert len([entry for entry in ledger.entries() if entry["task"] == "open"]) == experiments


def test_few_patients_give_no_statistics(tmp_path):
    joining = Joining(tmp_path, "f-fedap", SitePolicy(least_patients=31))
    reply = joining.ask("statistics", joining.weights(), asked=["statistics"])
    assert "fewer than 31 training patients" in reply.reason


def test_no_training_set_is_public_because_the_runs_was(tmp_path):
    assert not Joining(tmp_path, "fedap").site.public


def noisy_statistics(folder, own, data):
    """What leaves a site that joins with noise, with its settings of training."""
    joined = {"statistics_epsilon": 100.0, "statistics_clip": 0.1}
    federation = Federation.of(config("d-fedap", settings=joined | own))
    source = open_source(federation.config, None)
    newcomer = federation.newcomer("site-9", source, data, folder, secret=bytes(range(32)))
    contract = Contract(federation.config, config("d-fedap", settings=own))
    site = federation.guarded(newcomer, policy=OPEN_TO_30, contract=contract, book=Book(folder))
    model = federation.model()
    info = {"split": federation.split.description(), "input_format": input_format(source), "asked": ["statistics"]}
    reply = answer(site, Message("statistics", 3, dead(model), info), model)
    return torch.cat([tensor.flatten() for tensor in reply.tensors.values()])


def dead(model):
    """f: every layer zero, so that nobody has any part in the statistics."""
    return {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}


def test_joining_in_another_way_draws_no_other_noise(tmp_path):
    """Each drawn anew, the mean of many joinings would have next to none."""
    data = images(train=30)
    first = noisy_statistics(tmp_path, {}, data)
    assert torch.equal(first, noisy_statistics(tmp_path, {"lr": 0.2}, data))


def test_noise_of_joining_is_of_the_data(tmp_path):
    """Under an f of which few have any part it would be the same where those are not there."""
    found = []
    for name, seed in (("one", 0), ("other", 7)):
        (tmp_path / name).mkdir()
        found.append(noisy_statistics(tmp_path / name, {}, images(train=30, seed=seed)))
    assert not torch.equal(*found)
