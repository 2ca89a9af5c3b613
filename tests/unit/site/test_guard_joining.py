"""A site that joins a finished run, as a server that means harm meets it."""

import pytest
import torch
from tiny import config, images

from medpfl.assemble import Federation, input_format
from medpfl.data.sites import open_source
from medpfl.messages import Failure, Message
from medpfl.site.policy import SitePolicy
from medpfl.site.worker import answer

OPEN_TO_30 = SitePolicy(least_patients=30)


class Joining:
    """A guarded newcomer with 30 training images, spoken to by hand."""

    def __init__(self, folder, algorithm, policy=OPEN_TO_30):
        self.federation = Federation.of(config(algorithm))
        source = open_source(self.federation.config, None)
        newcomer = self.federation.newcomer("site-9", source, images(train=30), folder)
        self.site = self.federation.guarded(newcomer, policy=policy)
        self.info = {"split": self.federation.split.description(), "input_format": input_format(source)}
        self.model = self.federation.model()

    def ask(self, task, tensors, **info):
        return answer(self.site, Message(task, 3, tensors, self.info | info), self.model)

    def weights(self, value=0.0):
        return {name: t + value for name, t in self.federation.initial_shared.items()}


def test_statistics_are_given_once_under_one_set_of_weights(tmp_path):
    joining = Joining(tmp_path, "f-fedap")
    first = joining.ask("statistics", joining.weights(), statistics="running")
    again = joining.ask("statistics", joining.weights(), statistics="running")
    assert all(torch.equal(first.tensors[name], again.tensors[name]) for name in first.tensors)
    other = joining.ask("statistics", joining.weights(0.1), statistics="running")
    assert "repeats 0 times" in other.reason


@pytest.mark.parametrize("asked", [{}, {"statistics": None}])
def test_statistics_that_nobody_names_stay(tmp_path, asked):
    joining = Joining(tmp_path, "fedap")
    f = joining.federation.model().state_dict()
    assert isinstance(joining.ask("statistics", dict(f), **asked), Failure)
    assert joining.ask("statistics", dict(f), statistics="batch-norm").tensors


def test_few_patients_give_no_statistics(tmp_path):
    joining = Joining(tmp_path, "f-fedap", SitePolicy(least_patients=31))
    reply = joining.ask("statistics", joining.weights(), statistics="running")
    assert "fewer than 31 training patients" in reply.reason


def test_no_training_set_is_public_because_the_runs_was(tmp_path):
    assert not Joining(tmp_path, "fedap").site.public
