"""The run's mechanisms at a site, through one task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from medpfl.algorithms.mechanism import LocalRound, Measuring, Mechanism
from medpfl.config.run import RunConfig
from medpfl.core.channels import Channel
from medpfl.core.messages import Message, named
from medpfl.core.noise import NoiseSource
from medpfl.core.parameters import ParameterSplit, State, StateError
from medpfl.core.seeding import Chance
from medpfl.core.site_data import SiteData
from medpfl.site import words
from medpfl.site.hooks import (
    CheckedTerm,
    WrongForm,
    apart,
    calling,
    checked_leaving,
    checked_loss,
    checked_outcome,
    checked_part,
    checked_whole,
    require_finite_model,
    require_same_network,
    require_tensors_of,
    shapes,
)
from medpfl.site.store import OPTIMIZER, copied
from medpfl.tasks.told import Measured
from medpfl.training.loop import Epochs, Loss, Objective, TrainingDiverged
from medpfl.training.memory import Memory
from medpfl.training.objective import objective_of
from medpfl.training.part import Outcome, Part
from medpfl.training.trainer import Trainer


class Trains(Protocol):
    """What is asked of whoever trains at a site."""

    name: str
    config: RunConfig
    split: ParameterSplit
    data: SiteData
    chance: Chance
    channels: Mapping[Channel, Mechanism]


@dataclass
class Method:
    """The mixing and the mechanisms of a run, each with its view of the task.

    Attributes:
        config: the run.
        rounds: by mechanism.
        trainer: takes the steps, at the rate in force.
    """

    config: RunConfig
    rounds: dict[Mechanism, LocalRound]
    trainer: Trainer
    _kept: Callable[[str], State | None]
    _channels: Mapping[Channel, Mechanism]
    _memory: Memory | None = field(default=None, init=False)
    _parts: dict[Mechanism, Part] = field(default_factory=dict, init=False)
    _outcomes: dict[Mechanism, Outcome] = field(default_factory=dict, init=False)
    _shapes: dict[str, torch.Size] = field(default_factory=dict, init=False)

    @classmethod
    def of(
        cls,
        site: Trains,
        message: Message,
        model: nn.Module,
        when: int | str,
        *,
        kept: Callable[[str], State | None],
        noise: Callable[[], NoiseSource],
        kept_counted: Callable[[str], State | None] | None = None,
        settle: Callable[[], None] = lambda: None,
    ) -> Method:
        """With a view for each mechanism.

        Args:
            site: whose task it is.
            message: from the server.
            model: with the values that the task begins with.
            when: see :class:`~medpfl.algorithms.mechanism.LocalRound`.
            kept: gives the state that a mechanism of that name has left.
            noise: likewise.
            kept_counted: likewise.
            settle: likewise.
        """

        def view(part: Mechanism) -> LocalRound:
            own = partial(kept, part.name)
            given = (site.name, site.config, when, message, model, site.split, site.data, own, noise)
            counted = kept_counted and partial(kept_counted, part.name)
            return LocalRound(*given, settle=settle, chance=site.chance, kept_counted=counted)

        views = {part: view(part) for part in site.config.parts}
        likelihood: Loss = site.config.learned.loss
        loss: Loss = site.config.trainer.loss(likelihood, site.data)
        for part, round_ in views.items():
            if type(part).loss is not Mechanism.loss:
                with calling(part, "loss"):
                    made = part.loss(round_, loss), part.loss(round_, likelihood)
                loss, likelihood = (checked_loss(part, each) for each in made)
        for round_ in views.values():
            round_.loss, round_.likelihood = loss, likelihood
        return cls(site.config, views, site.config.trainer.at(when), kept, site.channels)

    def begin(self, *, joining: bool = False) -> None:
        """Asks each for its part in the training that follows."""
        if self.trainer.keeps and not joining:
            self._memory = Memory(dict(self._kept(OPTIMIZER) or {}))
            for round_ in self.rounds.values():
                round_.memory = self._memory
        self._shapes, hook = shapes(next(iter(self.rounds.values())).model), "adapts" if joining else "begin"
        for mechanism, round_ in self.rounds.items():
            with calling(mechanism, hook):
                part = mechanism.adapts(round_) if joining else mechanism.begin(round_)
            if part is not None:
                self._parts[mechanism] = checked_part(mechanism, hook, part)
            require_same_network(mechanism, hook, round_.model, self._shapes)

    def objective(self, model: nn.Module) -> Objective:
        """What is minimised."""
        loss = next(iter(self.rounds.values())).loss
        minimised = objective_of(model, list(self._parts.values()), loss, self.config.learned.loss)
        return partial(_watched, minimised, self._terms) if self._terms else minimised

    @property
    def own_beside(self) -> int:
        """How many kinds of samples made of the site's own go with each batch."""
        return sum(beside.own for part in self._parts.values() for beside in part.beside)

    @property
    def _terms(self) -> list[CheckedTerm]:
        of_parts = (term for part in self._parts.values() for term in (part.term, *(b.term for b in part.beside)))
        return [term for term in of_parts if isinstance(term, CheckedTerm)]

    def train(self, model: nn.Module, data: SiteData, epochs: int, order: torch.Generator) -> float:
        """The epochs of a round; the mean loss per sample."""
        for round_ in self.rounds.values():
            round_.training = order
        parts = self._parts.values()
        before = [part.before_step for part in parts if part.before_step]
        after = [part.after_step for part in parts if part.after_step]
        work = Epochs(model, data, self.trainer, epochs, order, self.objective(model), before, after, self._memory)
        own = next(((m, part.train) for m, part in self._parts.items() if part.train), None)
        try:
            loss = work.run() if own is None else own[1](work)
        except TrainingDiverged:
            for term in self._terms:
                term.require_finite(self.trainer.lr)
            raise
        if own and not isinstance(loss, float):
            raise WrongForm(own[0].name, "train", f"its training gave {loss!r}, not the mean loss per sample")
        return loss

    def end(self) -> None:
        """After the epochs of a round."""
        for term in self._terms:
            term.require_dependence()
        for mechanism, part in self._parts.items():
            if part.end:
                own = [c.name for c, of in self._channels.items() if of is mechanism and c.to_server]
                model, frozen = self.rounds[mechanism].model, self.rounds[mechanism].split.frozen
                self._outcomes[mechanism] = checked_outcome(mechanism, part.end(), own, model, frozen)
                require_same_network(mechanism, "end", model, self._shapes)

    def states(self) -> dict[str, State]:
        """What mechanisms and optimizers keep for the next round, by mechanism."""
        optimizers = {} if self._memory is None else {OPTIMIZER: self._memory.state}
        return optimizers | {m.name: o.state for m, o in self._outcomes.items() if o.state is not None}

    def numbers(self) -> Measured:
        """What they report."""
        found = {name: value for o in self._outcomes.values() for name, value in o.numbers.items()}
        fewest = min((o.patients for o in self._outcomes.values() if o.patients is not None), default=None)
        return Measured(found, lambda enough: found if fewest is None or fewest >= enough.least else None)

    def leaving(self, shared: State) -> State:
        """The shared state on its way out, through each mechanism's step."""
        for mechanism, round_ in self.rounds.items():
            with calling(mechanism, "leaving"):
                left = mechanism.leaving(shared, round_)
            shared = checked_leaving(mechanism, shared, left, round_.model)
        return shared

    def sent(self, channels: Iterable[tuple[str, Mechanism]]) -> State:
        """What was asked for in channels, by the names under which it travels, on the CPU."""
        found: State = {}
        for channel, mechanism in channels:
            outcome = self._outcomes.get(mechanism)
            if outcome and channel in outcome.sends:
                tensors = outcome.sends[channel]
            elif isinstance(mechanism, Measuring):
                round_ = self.rounds[mechanism]
                with calling(mechanism, "measured"):
                    tensors = mechanism.measured(channel, round_)
                require_tensors_of(mechanism, "measured", tensors, f"what it measured for {channel}")
                tensors = apart(tensors, round_.model)
            else:
                raise WrongForm(mechanism.name, "end", f"it has nothing to send in {channel} at this site")
            found |= named(channel, {name: tensor.cpu() for name, tensor in tensors.items()})
        return found

    def use(self, model: nn.Module) -> State | None:
        """Makes the model what the site uses; the state that it had before, None if that is what the site uses."""
        before: State | None = None
        for mechanism, round_ in self.rounds.items():
            with calling(mechanism, "in_use"):
                state = mechanism.in_use(round_)
            if state is not None:
                before = before or copied(model)
                model.load_state_dict(checked_whole(mechanism, state, model, round_.split.frozen))
        return before

    def finish(self) -> bool:
        """Lets mechanisms change the model that the site is going to use; whether one did."""
        changed = False
        for mechanism, round_ in self.rounds.items():
            before = shapes(round_.model)
            with calling(mechanism, "finish"):
                did = mechanism.finish(round_)
            if not isinstance(did, bool):
                said = f"its finish gave {did!r}, not whether it changed the model"
                raise WrongForm(mechanism.name, "finish", said)
            if did:
                require_same_network(mechanism, "finish", round_.model, before)
                require_finite_model(mechanism, round_.model, round_.split.frozen)
            changed = changed or did
        return changed


def _watched(objective: Objective, terms: list[CheckedTerm], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    loss, minimised = objective(x, y)
    for term in terms:
        term.add(loss.detach())
    return loss, minimised


def requested(config: RunConfig, known: Iterable[tuple[str, Mechanism]], asked: Iterable[str]) -> list:
    """The channels that a message asks for, with their mechanisms; StateError if the run has no such channel."""
    there = dict(known)
    for name in asked:
        if name not in there:
            raise StateError(words.NOT_NEEDED(config.resolved_mixing))
    return [(name, there[name]) for name in asked]
