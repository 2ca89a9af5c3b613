"""A site as it is without any guard: the package's own site code, in memory, on one site of OrganAMNIST's sample."""

from dataclasses import dataclass, replace

import torch

from medpfl.audit.probe import Probe, make_probe
from medpfl.audit.victim import Known, Line, Truth, known_of
from medpfl.config.run import make_config
from medpfl.core.site_data import ImageTensors
from medpfl.engine.federation import Federation
from medpfl.site.answer import answer
from medpfl.site.policy import OPEN, SitePolicy
from medpfl.site.store import MemoryStore

FULLY_CONNECTED = {"model": "monai:FullyConnectedNet", "model_args": {"in_channels": 784, "hidden_channels": [256]}}
CPU = torch.device("cpu")


def victims(federation, name, data, policy=OPEN):
    """The site without contract, policy and gate: the site's own code alone."""
    site = replace(federation.site(name, MemoryStore()), data=data)
    model = federation.model()

    def open_victim():
        fresh = replace(site, store=MemoryStore())
        return lambda message: answer(fresh, message, model)

    return open_victim


@dataclass
class Unguarded:
    """site-1 of a run with 30 sites: 63 training, 12 validation and 51 test images."""

    federation: Federation
    data: ImageTensors
    known: Known
    truth: Truth

    @classmethod
    def of(cls, algorithm="fedavg", policy: SitePolicy = OPEN, **fields):
        federation = Federation.of(make_config(algorithm=algorithm, device="cpu", sites=30, **fields))
        data = federation.source.site("site-1", CPU)
        return cls(federation, data, known_of(federation, "site-1", data, policy), Truth.of(data))

    def line(self) -> Line:
        return Line(victims(self.federation, "site-1", self.data))

    def probe(self) -> Probe:
        return make_probe(self.known)
