"""A site that joins a finished run: its statistics, a personal part of its own, a few epochs, and how it does.

Its model stays at the site; numbers leave it, and statistics where the method rests on them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from medpfl.algorithms.mechanism import Mechanism
from medpfl.config.run import RunConfig
from medpfl.core.channels import Channel
from medpfl.core.errors import first_line
from medpfl.core.layers import batch_norm_layers
from medpfl.core.messages import Message, Update
from medpfl.core.own_loaders import LabelOutside, require_inside
from medpfl.core.parameters import ParameterSplit, State, StateError, on_cpu
from medpfl.core.plain import plain_problem
from medpfl.core.seeding import Chance
from medpfl.core.site_data import PARTS, SiteData
from medpfl.models.blend import restored
from medpfl.site import words
from medpfl.site.adapt import adapt
from medpfl.site.answer import carry_out
from medpfl.site.beginning import repeat_shared_heads, take_statistics
from medpfl.site.candidates import Candidate
from medpfl.site.delivery import Delivery
from medpfl.site.method import Method, requested
from medpfl.site.newcomers_choice import chosen_model, measured, trained_alone, verdict
from medpfl.site.noise import noise_of_joining
from medpfl.site.outputs import outputs_of, require_labels
from medpfl.site.store import DATA, MODEL, PERSONAL, StateNotKept
from medpfl.tasks.evaluation import patients
from medpfl.tasks.selection import lead

logger = logging.getLogger(__name__)

_MOST_EPOCHS = 1000


@dataclass
class Newcomer:
    """A site that joins.

    Attributes:
        name: as the server knows it.
        config: the run, with the training settings of the newcomer.
        split: what is shared.
        first: the whole state of the run's seeded first model.
        channels: what travels besides it, with the part of the method that each is of.
        data: the site's own.
        input_format: theirs (:func:`medpfl.data.source.input_format`).
        delivery: where its model goes, to be used.
        here: it is in the process of whoever asks: a refusal shows the site's own values, which else only its log has.
        secret: see :class:`~medpfl.site.worker.Site`.
    """

    name: str
    config: RunConfig
    split: ParameterSplit
    first: State
    channels: Mapping[Channel, Mechanism]
    data: SiteData
    input_format: Mapping[str, Any]
    delivery: Delivery
    here: bool = False
    secret: bytes | None = None
    _fits: bool = field(default=False, init=False)

    @property
    def chance(self) -> Chance:
        """What it draws at random: by the run's seed, since nothing that it trains leaves."""
        return Chance(self.config.seed)

    def handle(self, message: Message, model: nn.Module) -> Update:
        """Does what a message asks.

        Args:
            message: ``statistics`` or ``join``, from the server.
            model: of the run's architecture, on the device, with any values: they are replaced.

        Raises:
            StateError, StateNotKept, TrainingDiverged: the site cannot join.
        """
        tasks = {"statistics": self._statistics, "join": self._join}
        self._require_fit(message, model)
        return carry_out(self.name, message, lambda: tasks[message.task](message, model))

    def _require_fit(self, message: Message, model: nn.Module) -> None:
        """Refuses what cannot be meant: other classes, other images, no samples, another model."""
        ours, theirs = message.info["input_format"], self.input_format
        if found := misfit(ours, theirs):
            raise self._refusal(*found)
        if difference := self.split.first_difference(message.info["split"]):
            raise StateError(words.NEWCOMERS_SPLIT(difference))
        for part, what in (("train", "training"), ("test", "test")):
            if not self.data.samples(part):
                raise StateError(words.NO_SAMPLE(what))
        if not self._fits:
            self._try_out(model)
            self._take_names(ours.get("classes"))
            self._fits = True

    def _refusal(self, reason: str, own: str) -> StateError:
        """An error with the reason; what the site's own data say goes with it only where it does not leave."""
        if self.here:
            return StateError(f"{reason.removesuffix(words.MORE)}: {own}")
        # Class names may be a folder's, and a folder's name a patient's: they are for the site's log alone.
        logger.warning("%s: %s: %s", self.name, reason, own)
        return StateError(reason)

    def _take_names(self, classes: Sequence[str] | None) -> None:
        """Calls the classes as the run does, where the site's data only number them."""
        inputs = self.delivery.inputs
        if classes and inputs and not inputs.named:
            if problem := plain_problem(list(classes), "classes"):
                raise StateError(f"the run's {problem}")
            self.delivery = replace(self.delivery, inputs=replace(inputs, classes=tuple(classes)))

    def _try_out(self, model: nn.Module) -> None:
        """The first model must take the site's samples, and have a class for their labels."""
        model.load_state_dict(self.first)
        try:
            x, y = next(iter(self.data.batches("test", 2)))
            outputs = outputs_of(model, x)
            if self.config.learned.labels != "labels":
                require_inside(y, outputs)
                require_labels(self.data, outputs)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, LabelOutside) as error:  # its text may name a file of the user's own loaders
            raise self._refusal(words.NO_FIT(self.config.model), first_line(error)) from error

    def _statistics(self, message: Message, model: nn.Module) -> tuple[State, dict[str, Any]]:
        asked = requested(self.config, self._upward, message.asked)
        if not asked:
            raise StateError(words.NOT_NEEDED(self.config.resolved_mixing))
        return self._method(message, model, "statistics").sent(asked), {}

    @property
    def _upward(self) -> list[tuple[str, Mechanism]]:
        return [(c.name, part) for c, part in self.channels.items() if c.to_server and "statistics" in c.tasks]

    def _method(self, message: Message, model: nn.Module, when: str) -> Method:
        """The run's mechanisms, through one task; what they keep in a run a newcomer has not."""

        def settle() -> None:
            self.begin(model, message.shared)
            take_statistics(model, self.data)  # also where batch norm is shared

        return Method.of(
            self,
            message,
            model,
            when,
            kept=lambda name: None,
            noise=lambda: noise_of_joining(self.config, self.name, message, self.data, self.secret),
            settle=settle,
        )

    def _join(self, message: Message, model: nn.Module) -> tuple[State, dict[str, Any]]:
        config, data, epochs = self.config, self.data, message.info["epochs"]
        if epochs > _MOST_EPOCHS:  # no contract has their number
            raise StateError(words.MANY_EPOCHS(_MOST_EPOCHS))
        self.begin(model, message.shared)
        method = self._method(message, model, "join")
        method.use(model)
        received = self.config.learned.evaluate(model, data, "test")
        method.begin(joining=True)
        epoch, validation = adapt(
            model, data, config, self.name, epochs, lambda order: method.train(model, data, 1, order)
        )
        adapted = Candidate("adapted", epoch, on_cpu(model))
        found = {
            "samples": {part: data.samples(part) for part in PARTS},
            "received": received,
            "adapted": measured(adapted, config, data, model),
            "epoch": epoch,
            "validation": validation,
        }
        own, rivals = trained_alone(self.name, config, data, self.first, model, epochs)
        state, used, validated = chosen_model(adapted, own, config, data, model)
        worth = own and verdict(adapted, own, used.get("weight", 1.0), rivals["alone"], config, data, model)
        unanswered = self.delivery.unanswered(lambda: config.learned.predict(restored(model, state), data, "test"))
        self._deliver(message.round, state, found | used, validated, unanswered | ({"verdict": worth} if worth else {}))
        return {}, found | rivals | used

    def begin(self, model: nn.Module, shared: State) -> None:
        """Makes the model what the newcomer starts with: what it received, and its personal part by the rules."""
        model.load_state_dict(self.first)
        if not self.split.shared_names:
            return  # nothing of the run is in it: the first model as it is
        self.split.load_shared(model, shared)
        if self.split.heads_divided:
            repeat_shared_heads(model, self.split)
        personal = set(self.split.personal_names)
        take_statistics(model, self.data, {p for p in batch_norm_layers(model) if f"{p}.running_mean" in personal})

    def _deliver(
        self,
        round_: int,
        state: State,
        found: Mapping[str, Any],
        validation: Mapping[str, Any] | None,
        more: Mapping[str, Any],
    ) -> None:
        record = {
            "samples": found["samples"],
            "patients": patients(self.data),
            "validation": found["validation"][found["epoch"]] if validation is None else validation,
            "test": found.get("used", found["adapted"]),
            "joined": {"after_round": round_, "epochs": found["epoch"]}
            | {k: found[k] for k in ("weight",) if k in found},
            **(self.delivery.said(self.data) if found.get("weight", 1) == 1 else {}),
            **lead(self.config.learned, self.data),
            **more,
        }
        try:
            self.delivery.write("selected", self.name, round_, state, record, archive=True)  # the other may be in use
        except OSError as error:
            reason = error.strerror or type(error).__name__  # without the path, which is the site's own business
            raise StateNotKept(words.NO_NEW_MODEL(reason)) from error


def took_part(folder: Path) -> bool:
    """Whether a site's folder is that of one which took part in a run, and not of one which joined it."""
    kept = (any(folder.glob(f"{kind}-*.safetensors")) for kind in (PERSONAL, MODEL, DATA))
    return (folder / "last").exists() or any(kept)


_SIZES = {"in_channels": "number of channels", "num_classes": "number of classes", "image_size": "image size"}
"""What of an input format is one number, in words."""


def misfit(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[str, str] | None:
    """In what the input format of data that are to join differs from the run's; None if it does not.

    Data without names of classes fit those of any names, if there are as many.

    Args:
        ours: the run's (:func:`medpfl.data.source.input_format`).
        theirs: the newcomer's.

    Returns:
        In words, what differs, with nothing of the newcomer's data, so that it may leave the site; and what those have.
    """
    for name, what in _SIZES.items():
        if name in ours and name in theirs and ours[name] != theirs[name]:
            return words.OTHER_SIZE(what, ours[name]), f"it has {theirs[name]}"
    classes = ours.get("classes"), theirs.get("classes")
    if all(classes) and classes[0] != classes[1]:
        run, own = (", ".join(c) if isinstance(c, list) else str(c) for c in classes)
        return words.OTHER_CLASSES(), f"it has {own}, the run {run}"
    return None
