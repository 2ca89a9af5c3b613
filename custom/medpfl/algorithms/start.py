"""Start weights: what a run begins with comes from the server, once, to every site."""

from __future__ import annotations

from torch import nn

from medpfl.algorithms.mechanism import Mechanism, Run
from medpfl.core.channels import Channel, like
from medpfl.core.parameters import ParameterSplit

START = "start"
"""Name of the channel: the whole state of the first model, the sites' personal parts among it."""


class StartWeights(Mechanism):
    """Any method has it where a run names its start weights (``--init``)."""

    name = START

    def at_server(self, run: Run) -> str:
        """Whose values they are."""
        return "start weights of a file, once"

    def channels(self, run: Run, model: nn.Module, split: ParameterSplit) -> tuple[Channel, ...]:
        """All of the model, with the hello, or with the first that a site which joins later is asked."""
        entries = like(model.state_dict())
        what = "the whole model that the run begins with"
        return (Channel(START, False, entries, ("prepare", "statistics", "join"), what, once=True, weights=True),)
