"""Fine-tuning: at the end each site trains the model that it received a little further, on its own data.

As a personalization step of its own it is as old as FedAvg; Yu, Bagdasaryan, Shmatikov: Salvaging federated learning by
local adaptation. arXiv 2002.04758, 2020. Any method can have it. The rounds are selected by what was received.
"""

from __future__ import annotations

from medpfl.algorithms.mechanism import LocalRound, Mechanism
from medpfl.core.numbers_in_words import count
from medpfl.core.settings import Settings, setting
from medpfl.core.site_data import SiteData
from medpfl.training.loop import train_plainly
from medpfl.training.trainer import Trainer


class FineTuningSettings(Settings):
    """How far."""

    finetune_epochs: int = setting(0, "epochs that each site trains its model further at the end", ge=0, le=10**4)
    finetune_lr: float = setting(0.0, "learning rate then; 0 is lr, whatever the schedule came to", ge=0, le=1e38)
    finetune_steps: int = setting(0, "likewise, as many whole epochs as have at least so many steps", ge=0, le=10**6)


class FineTuning(Mechanism):
    """Epochs on the site's own data, once, after the last round; all parameters, with the settings of training."""

    settings_class = FineTuningSettings
    name = "fine_tuning"
    switch = "finetune_epochs"
    also = ("finetune_steps",)

    @classmethod
    def applies(cls, personal: str) -> bool:
        """To local training as well: what fine-tuned methods have to beat."""
        return True

    def further(self) -> str:
        """What is trained at the end."""
        told = {"epoch": self.settings.finetune_epochs, "step": self.settings.finetune_steps}
        return " or ".join(count(number, what) for what, number in told.items() if number)

    def epochs(self, data: SiteData, trainer: Trainer) -> int:
        """How many; the larger number of the two settings."""
        if not self.settings.finetune_steps:
            return self.settings.finetune_epochs  # a loader may have to be read to be counted
        steps = trainer.steps(data, even=False)  # at the end no order is a round's
        return max(self.settings.finetune_epochs, -(-self.settings.finetune_steps // steps))

    def finish(self, round_: LocalRound) -> bool:
        """The same order and start for the same round, so that the same question has the same answer."""
        order = round_.order(f"fine-tuning of round {round_.message.round}")
        trainer = round_.trainer.with_lr(self.settings.finetune_lr or round_.trainer.lr)
        train_plainly(round_.model, round_.data, trainer, self.epochs(round_.data, trainer), order, round_.loss)
        return True
