"""Models that a site might use at the end, and two of them together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from medpfl.config.run import RunConfig
from medpfl.core.own_loaders import NotPlain
from medpfl.core.parameters import State
from medpfl.core.site_data import Part, SiteData, labels_of
from medpfl.models.blend import blended, restored
from medpfl.site.choice import share_of_further
from medpfl.tasks.evaluation import cases
from medpfl.tasks.intervals import patient_means


@dataclass
class Candidate:
    """A model that the site might use.

    Attributes:
        name: of the candidate.
        round: after whose mix.
        state: its whole state.
    """

    name: str
    round: int
    state: State
    _predicted: dict[Part, Any] = field(default_factory=dict, repr=False)

    def predictions(self, part: Part, config: RunConfig, data: SiteData, model: nn.Module) -> Any:
        """On a part of the site's data; made once."""
        if part not in self._predicted:
            model.load_state_dict(self.state)
            self._predicted[part] = config.learned.predict(model, data, part)
        return self._predicted[part]


def partly_trained_further(
    name: str, before: Candidate, after: Candidate, config: RunConfig, data: SiteData, model: nn.Module
) -> Candidate:
    """The network between a model and what further training made of it that the site's cases speak for.

    Args:
        name: of what is made.
        before: the model.
        after: what became of it.
        config: the run.
        data: the site's, with validation cases.
        model: of the architecture, on the device.
    """

    @lru_cache(maxsize=1)  # the last share that is asked for is as a rule the one that is taken
    def averaged(share: float) -> Candidate:
        return Candidate(name, after.round, between(before.state, after.state, share))

    def at(share: float) -> Candidate:
        return (before, after)[int(share)] if share in (0, 1) else averaged(share)

    def losses(part: Part, share: float) -> np.ndarray:
        return config.learned.losses(at(share).predictions(part, config, data, model))

    told = evidence(data)
    training = partial(losses, "train") if _training_cases_in_order(data) else None
    share = share_of_further(lambda share: told(losses("validation", share)), training)
    return replace(at(share), name=name, round=after.round)


def evidence(data: SiteData) -> Callable[[np.ndarray], np.ndarray]:
    """From the losses of validation samples, (n,), to those of what is independent: patients where they are known.

    A patient's is the mean over the samples: they go together, so that a sum would say too much.
    """
    return patient_means(cases(data, "validation").whose)


def _training_cases_in_order(data: SiteData) -> bool:
    """Not those of a loader of one's own that shuffles, augments or drops, beside which there is no plain one."""
    try:
        data.batches("train", 1)
    except NotPlain:
        return False
    return True


def between(before: State, after: State, share: float) -> dict[str, torch.Tensor]:
    """(1 - share) of one state and share of another; what counts or points is the other's.

    What is the same in both stays so, for a mask of -inf as well, between which there is nothing.
    """

    def averaged(name: str, tensor: torch.Tensor) -> torch.Tensor:
        same = not tensor.is_floating_point() or torch.equal(before[name], tensor)
        return tensor if same else torch.lerp(before[name], tensor, share)

    return {name: averaged(name, tensor) for name, tensor in after.items()}


def used_predictions(
    part: Part, config: RunConfig, data: SiteData, model: nn.Module, alone: Candidate, other: Candidate, weight: float
) -> Any:
    """Predictions of ``weight`` times another candidate and the rest the model that the site trained alone."""
    if weight in (0, 1):
        return (alone, other)[int(weight)].predictions(part, config, data, model)
    own, others = (c.predictions(part, config, data, model) for c in (alone, other))
    if (found := config.learned.mixed(own, others, weight)) is not None:
        return found
    both = restored(model, used_state(config, alone, other, weight))
    return config.learned.predict(both, data, part)


def used_state(config: RunConfig, alone: Candidate, other: Candidate, weight: float) -> State:
    """The same as a state: one's own or a blend's of two."""
    if weight in (0, 1):
        return (alone, other)[int(weight)].state
    return blended(alone.state, other.state, weight, sigmoid=config.learned.sigmoid)


def training_cases(config: RunConfig, data: SiteData, validated: Any) -> float:
    """How many cases the training data have: patients where they are known.

    Else as many as if each had as many samples as one of the validation data. Where every case is of one class those of
    few classes count for more, as :func:`spread_evenly` has it, and samples that the loss leaves out are none.

    Args:
        config: the run.
        data: the site's.
        validated: predictions on its validation data.
    """
    owners = data.owners("train")
    if (known := data.bags("train") if owners is None else owners) is not None:
        found = float(len(known.unique()))
    else:
        found = data.samples("train") * len(config.learned.losses(validated)) / data.samples("validation")
    if not config.learned.one_class:
        return found
    classes = validated[0].shape[1]
    try:
        labels = labels_of(data, "train").cpu()
        counts, share = torch.bincount(labels[labels >= 0], minlength=classes)[:classes], (labels >= 0).double().mean()
    except NotPlain:  # what an epoch yields
        counts = data.class_counts(classes).cpu()
        share = min(1.0, counts.sum() / data.samples("train"))
    return spread_evenly(found * float(share), counts)


def spread_evenly(cases_: float, counts: Tensor) -> float:
    """How many cases, spread evenly over all C classes, give a class as much as these give each that the site has.

    C / exp(H) as many, with H the entropy of the classes' shares: a site that has few of the network's C classes knows
    each of them the better, and little of what the federation learns is of them. What is rare at all sites counts as
    what is rare at this one: a site does not know the others' shares.

    Args:
        cases_: of the site.
        counts: of its samples by class, (C,).
    """
    shares = counts.double() / counts.sum().clamp(min=1)
    return cases_ * len(counts) / float(torch.special.entr(shares).sum().exp())
