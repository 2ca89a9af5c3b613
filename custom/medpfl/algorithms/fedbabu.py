"""FedBABU: the head stays as it was drawn while the sites learn a body together; at the end each fine-tunes all of it.

Oh, Kim, Yun: FedBABU: toward enhanced representation for federated image classification. ICLR 2022. The head is the
same fixed one at all sites, drawn from the run's seed, so that bodies fit together; it need not travel. The server
averages bodies. Fine-tuning is :mod:`medpfl.algorithms.fine_tuning`, five epochs by default.
"""

from __future__ import annotations

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.fedrep import divided
from medpfl.algorithms.fine_tuning import FineTuning
from medpfl.algorithms.mechanism import LocalRound, Mechanism, Rule, Run
from medpfl.algorithms.mixing import Samples
from medpfl.core.settings import Settings, setting
from medpfl.training.part import Part


class FedBABUSettings(Settings):
    """On or off."""

    fixed: int = setting(0, "1 leaves the personal part as it was drawn until the end", ge=0, le=1)


class FixedHead(Mechanism):
    """What is shared is trained alone."""

    settings_class = FedBABUSettings
    name = "fixed_head"
    switch = "fixed"
    replaces = ("train",)
    newcomer = Rule("the common body and the fixed head", "it fine-tunes both, as the sites do at the end")

    def refuses(self, run: Run) -> str | None:
        """Nothing is personal, or parts of parameters."""
        if run.resolved_personal == "nothing":
            return "fixed leaves the personal part as it was drawn, and nothing is: give --personal, e.g. top:1"
        if "heads:" in run.resolved_personal:
            return "fixed is about whole parameters, and with heads:P parts of some are personal"
        return None

    def objective(self, run: Run) -> str:
        """What is trained."""
        return "of what is shared alone"

    def begin(self, round_: LocalRound) -> Part:
        """Epochs of the body."""
        _, body = divided(round_)
        return Part(train=lambda work: work.run(parameters=body))


FEDBABU = Algorithm(
    name="fedbabu",
    title="FedBABU",
    paper="Oh et al., ICLR 2022",
    summary="the head stays as drawn, bodies are averaged, and each site fine-tunes at the end",
    personal="top:{layers}",
    mixing=Samples,
    mechanisms=(FixedHead, FineTuning),
    settings={"layers": 1, "fixed": 1, "finetune_epochs": 5},
)
