"""The end of a run at a site: its candidates, the one that it uses, how that does, and what is left in its folder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import nn

from medpfl.config.run import RunConfig
from medpfl.core.messages import Message
from medpfl.core.parameters import State, StateError
from medpfl.core.site_data import PARTS, Part, SiteData
from medpfl.models.blend import restored
from medpfl.site import words
from medpfl.site.candidates import (
    Candidate,
    evidence,
    partly_trained_further,
    training_cases,
    used_predictions,
    used_state,
)
from medpfl.site.choice import chosen
from medpfl.site.delivery import Delivery, Which
from medpfl.site.finishing import Finishing
from medpfl.site.rival import Rival
from medpfl.site.store import FINISHED, MODEL, RECEIVED, USED, SiteStore, usable
from medpfl.tasks.evaluation import cases, patients
from medpfl.tasks.further import Drawn
from medpfl.tasks.selection import lead
from medpfl.tasks.told import Measured

logger = logging.getLogger(__name__)

PUBLISHED, IN_USE, AS_RECEIVED = "as published", "before fine-tuning", "as received"
PARTLY = "partly fine-tuned"
"""Candidates: what the method gives; its model before what it does at the end; what came, with the personal part; the
network between the first two that a blend takes in their stead."""


@dataclass(frozen=True)
class Choice:
    """What the site uses: ``weight`` times another candidate, and the rest the model that it trained alone.

    Attributes:
        predicted: by both together, by part; made once.
    """

    other: Candidate
    weight: float
    predicted: dict[Part, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def of_method(self) -> bool:
        """Whether it is the method's model and nothing else."""
        return self.weight == 1 and self.other.name != AS_RECEIVED


@dataclass
class Ending:
    """The test of a site, once its training is over.

    Attributes:
        name: the site's.
        config: the run.
        data: the site's.
        store: the site's.
        rival: trained alone; None where there is none.
        delivery: where models go.
        finishing: makes of models, once, what mechanisms make of them at the end.
    """

    name: str
    config: RunConfig
    data: SiteData
    store: SiteStore
    rival: Rival | None
    delivery: Delivery | None
    finishing: Finishing

    def answer(self, message: Message, model: nn.Module, selected: int) -> dict[str, Any]:
        """Tests the models of the selected round and of the last, and leaves them to be used.

        A site that has one of the two is judged by that one, a site with neither by the last model that came to it.

        Args:
            message: the server's.
            model: of the run's architecture, on the device.
            selected: the round that was selected.

        Raises:
            StateError: it has no model at all, or the files are damaged.
        """
        last = message.round
        there = [r for r in dict.fromkeys((selected, last)) if self.finishing.finished(message, model, r)]
        # Whoever was away at both has what came last: a server must not be able to leave a site without any.
        others = reversed(self.store.rounds(MODEL)) if not there else ()
        there += islice((r for r in others if self.finishing.finished(message, model, r)), 1)
        if not there:
            raise StateError(words.NO_MODEL(self.name, selected, last))
        # A site that was absent when one of the two was validated is judged by what it has.
        tested: dict[Which, int] = {
            "selected": selected if selected in there else there[0],
            "last": last if last in there else there[-1],
        }
        alone = self._alone(message, model)
        candidates = {round_: self._candidates(round_) for round_ in there}
        choosing = self.config.resolved_use != "received" and alone is not None and self.data.samples("validation")
        compared = {round_: self._compared(candidates[round_], model) for round_ in there} if choosing else {}
        chosen_of = {round_: self._chosen(candidates[round_][0], compared, round_, alone, model) for round_ in there}
        measured = {round_: self._measured(found, alone, model) for round_, found in chosen_of.items()}
        for kind in (MODEL, FINISHED, USED):
            self.store.keep(kind, there)
        metrics: dict[str, Any] = {"test": {which: measured[r] for which, r in tested.items()}, "tested": tested}
        reported = chosen_of[tested["selected"]]
        more = self._further(lambda part: self._used(part, reported, alone, model))
        if more:
            metrics["test"]["selected"] = measured[tested["selected"]].with_more(more.numbers())
        metrics["validation"] = self._validated(reported, alone, model)
        if alone is not None:
            metrics["verdict"] = self._verdict(chosen_of, tested, alone, model, more)
        if self.delivery:
            self._deliver(self.delivery, chosen_of, alone, metrics, model)
        return metrics

    def _alone(self, message: Message, model: nn.Module) -> Candidate | None:
        """As it is, or partly with what the method adds at the end, as the validation cases speak."""
        if self.rival is None or (state := self.rival.best()) is None:
            return None
        own = Candidate("alone", self.rival.round, state)
        if (finished := self.finishing.alone(message, model)) is None:
            return own
        further = Candidate("alone", self.rival.round, finished)
        if not self.data.samples("validation"):
            return further
        return partly_trained_further("alone", own, further, self.config, self.data, model)

    def _candidates(self, round_: int) -> list[Candidate]:
        """Of one round, the published one first."""
        kinds = {PUBLISHED: FINISHED, IN_USE: MODEL, AS_RECEIVED: RECEIVED}
        states = {name: usable(self.store, kind, round_, self.name) for name, kind in kinds.items()}
        if _same(states[AS_RECEIVED], states[IN_USE]):
            del states[AS_RECEIVED]
        if states[PUBLISHED] is None:
            states[PUBLISHED] = states.pop(IN_USE)
        return [Candidate(n, round_, s) for n, s in states.items() if s is not None]

    def _chosen(
        self,
        published: Candidate,
        compared: Mapping[int, list[Candidate]],
        round_: int,
        alone: Candidate | None,
        model: nn.Module,
    ) -> Choice:
        """What the site uses of a round, and leaves in its store where that is not as published.

        Args:
            published: of the round.
            compared: by round, the others from which one is taken; none where there is nothing to choose by.
            round_: the round.
            alone: the model that the site trained alone.
            model: of the run's architecture, on the device.
        """
        if self.config.resolved_use == "received":
            return Choice(published, 1.0)
        if alone is None:  # an earlier answer may have left another
            self.store.put(USED, round_, published.state)
            return Choice(published, 1.0)
        if not compared:  # nothing speaks for the other
            self.store.put(USED, round_, alone.state)
            return Choice(published, 0.0)
        others = [c for r in dict.fromkeys((round_, *compared)) for c in compared[r]]
        learned = self.config.learned
        validated = {id(c): c.predictions("validation", self.config, self.data, model) for c in (*others, alone)}
        told = evidence(self.data)
        other = min(others, key=lambda c: told(learned.losses(validated[id(c)])).mean())
        weight = chosen(
            self.config.resolved_use,
            lambda w: told(learned.mixed_losses(validated[id(alone)], validated[id(other)], w)),
            training_cases(self.config, self.data, validated[id(alone)]),
            len(others),
        )
        self.store.put(USED, round_, used_state(self.config, alone, other, weight))
        return Choice(other, weight)

    def _compared(self, candidates: list[Candidate], model: nn.Module) -> list[Candidate]:
        """From which the other model is taken: all, or for a blend those between the model in use and fine-tuned."""
        by_name = {c.name: c for c in candidates}
        if self.config.resolved_use != "blend" or IN_USE not in by_name:
            return candidates
        ends = by_name.pop(IN_USE), by_name.pop(PUBLISHED)
        return [partly_trained_further(PARTLY, *ends, self.config, self.data, model), *by_name.values()]

    def _measured(self, choice: Choice, alone: Candidate | None, model: nn.Module) -> Measured | None:
        if not self.data.samples("test"):
            return None
        return self.config.learned.measured(self._used("test", choice, alone, model), cases(self.data, "test"))

    def _validated(self, choice: Choice, alone: Candidate | None, model: nn.Module) -> Measured | None:
        if not self.data.samples("validation"):
            return None
        predicted = self._used("validation", choice, alone, model)
        return self.config.learned.measured(predicted, cases(self.data, "validation"))

    def _further(self, predictions: Callable[[Part], Any]) -> Drawn | None:
        """Under bootstrap draws; None where the task has none, or the site no test data."""
        if not self.data.samples("test"):
            return None
        validation = predictions("validation") if self.data.samples("validation") else None
        return self.config.learned.further(predictions("test"), validation, cases(self.data, "test").whose)

    def _detail(self, choice: Choice, alone: Candidate | None, state: State, model: nn.Module) -> dict[str, Any] | None:
        """Of the test of what the site uses; for its own folder."""
        if not self.data.samples("test"):
            return None
        return self.config.learned.detail(self._used("test", choice, alone, model), restored(model, state), self.data)

    def _used(self, part: Part, choice: Choice, alone: Candidate | None, model: nn.Module) -> Any:
        """Predictions of what the site uses."""
        if choice.weight == 1 or alone is None:
            return choice.other.predictions(part, self.config, self.data, model)
        if part not in choice.predicted:
            choice.predicted[part] = used_predictions(
                part, self.config, self.data, model, alone, choice.other, choice.weight
            )
        return choice.predicted[part]

    def _verdict(
        self,
        choices: Mapping[int, Choice],
        tested: Mapping[Which, int],
        alone: Candidate,
        model: nn.Module,
        more: Drawn | None,
    ) -> dict[str, Any]:
        used = {
            which: {"candidate": choices[r].other.name, "round": choices[r].other.round, "weight": choices[r].weight}
            for which, r in tested.items()
        }
        found: dict[str, Any] = {"alone": None, "alone_round": alone.round, "used": used, "gain": None}
        if self.data.samples("test"):
            own_test = alone.predictions("test", self.config, self.data, model)
            found["alone"] = self.config.learned.measured(own_test, cases(self.data, "test"))
            found["gain"] = self._gain(choices[tested["selected"]], alone, model)
        others = self._further(lambda part: alone.predictions(part, self.config, self.data, model))
        if others and more:
            found["alone"] = found["alone"].with_more(others.numbers())
            found["gain"] = found["gain"].with_more(more.gains(others, self.config.learned.signs))
        return found

    def _gain(self, choice: Choice, alone: Candidate, model: nn.Module) -> Measured | None:
        if not self.data.samples("test"):
            return None
        own = alone.predictions("test", self.config, self.data, model)
        return self.config.learned.compared(self._used("test", choice, alone, model), own, cases(self.data, "test"))

    def _deliver(
        self,
        delivery: Delivery,
        choices: Mapping[int, Choice],
        alone: Candidate | None,
        metrics: Mapping[str, Any],
        model: nn.Module,
    ) -> None:
        samples = {part: self.data.samples(part) for part in PARTS}
        learned, people = self.config.learned, patients(self.data)
        for which, round_ in metrics["tested"].items():
            choice = choices[round_]
            reported = which == "selected"
            validation = metrics["validation"] if reported else self._validated(choice, alone, model)
            tested = {"validation": validation, "test": metrics["test"][which]}
            record = {"samples": samples, "patients": people, **tested, **lead(learned, self.data)}
            if choice.of_method:
                record |= delivery.said(self.data)
            if samples["test"]:
                record |= delivery.unanswered(partial(self._used, "test", choice, alone, model))
            if alone is not None:
                said = metrics["verdict"]
                gain = said["gain"] if reported else self._gain(choice, alone, model)
                record["verdict"] = {**said, "used": said["used"][which], "gain": gain}
            try:
                state = final_state(self.store, round_)
                detail = self._detail(choice, alone, state, model) if reported and state else None
                delivery.write(which, self.name, round_, state, record, detail)
            except OSError as error:  # the answer goes out all the same, and the store has the model
                logger.warning("%s: the %s model could not be written: %s", self.name, which, error)


def _same(one: State | None, other: State | None) -> bool:
    """Whether a site that could use another model than came uses what came."""
    if one is None or other is None:
        return False
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def final_state(store: SiteStore, round_: int) -> State | None:
    """The whole state of what a site uses of a round at the end, from its store: a network's, or a blend's of two."""
    return next((state for kind in _LATEST if (state := store.get(kind, round_)) is not None), None)


_LATEST: Iterable[str] = (USED, FINISHED, MODEL)
