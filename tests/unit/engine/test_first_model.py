"""The run's first model: what is said of a network that fits the data and is not what it should be."""

import pytest
import torch
from tiny import config
from torch import nn

from medpfl.core.errors import UserError
from medpfl.core.permitted_code import permit
from medpfl.engine.federation import Federation

permit(__name__)


class Sure(nn.Sequential):
    """Ends as a network does that gives probabilities, or another end."""

    def __init__(self, num_classes: int, end: str = "Softmax"):
        last = {"Softmax": nn.Softmax(1), "LogSoftmax": nn.LogSoftmax(1), "ReLU": nn.ReLU()}[end]
        super().__init__(nn.Flatten(), nn.Linear(784, num_classes), last)


@pytest.mark.parametrize(("end", "told"), [("Softmax", True), ("LogSoftmax", False), ("ReLU", False)])
def test_a_network_that_gives_probabilities_is_told(end, told, caplog):
    torch.manual_seed(0)
    said = {"model": f"{__name__}:Sure", "model_args": {"end": end}, "data": "organamnist-sample", "sites": 2}
    Federation.of(config("fedavg", **said))
    assert ("leave the softmax at its end out" in caplog.text) == told


class Many(nn.Sequential):
    """Has as many outputs as it likes."""

    def __init__(self, outputs: int):
        super().__init__(nn.Flatten(), nn.Linear(784, outputs))


@pytest.mark.parametrize("outputs", [10, 12])
def test_a_network_has_an_output_for_each_class_and_no_more(outputs):
    """The answer of one more would have no name."""
    said = {"model": f"{__name__}:Many", "model_args": {"outputs": outputs}, "data": "organamnist-sample", "sites": 2}
    with pytest.raises(UserError, match=rf"output of shape \[2, {outputs}\]: a classifier of 11 classes is needed"):
        Federation.of(config("fedavg", **said))
