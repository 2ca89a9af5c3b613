"""What a site that joins uses, of its adapted model and the one that it trained alone, and what it gains by that."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import nn

from medpfl.config.run import RunConfig
from medpfl.core.parameters import State, on_cpu
from medpfl.core.site_data import Part, SiteData
from medpfl.site.adapt import adapt
from medpfl.site.candidates import Candidate, evidence, training_cases, used_predictions, used_state
from medpfl.site.choice import chosen
from medpfl.tasks.evaluation import cases
from medpfl.training.loop import TrainingDiverged

logger = logging.getLogger(__name__)


def trained_alone(
    name: str, config: RunConfig, data: SiteData, first: State, model: nn.Module, epochs: int
) -> tuple[Candidate | None, dict[str, Any]]:
    """The model trained alone from the first one, and its measures; none where that diverges: the other stands.

    Args:
        name: the site's.
        config: the run.
        data: the site's.
        first: the whole state of the run's first model.
        model: of the architecture, on the device, with any values.
        epochs: at most.
    """
    model.load_state_dict(first)
    try:
        epoch, validation = adapt(model, data, config, name, epochs)
    except TrainingDiverged as error:
        logger.warning("%s, trained alone: %s", name, error)
        return None, {"alone": None, "alone_epoch": None, "alone_validation": []}
    own = Candidate("alone", epoch, on_cpu(model))
    alone = measured(own, config, data, model)
    logger.info("%s, trained alone: %s", name, alone)  # it leaves as the policy lets it
    return own, {"alone": alone, "alone_epoch": epoch, "alone_validation": validation}


def measured(candidate: Candidate, config: RunConfig, data: SiteData, model: nn.Module) -> dict[str, Any]:
    """A candidate's measures on the test data, whose predictions it keeps."""
    return config.learned.measured(candidate.predictions("test", config, data, model), cases(data, "test"))


def chosen_model(
    other: Candidate, own: Candidate | None, config: RunConfig, data: SiteData, model: nn.Module
) -> tuple[State, dict[str, Any], dict[str, Any] | None]:
    """What the newcomer uses, by the rule of the sites that trained, and how that does if it had a choice.

    On test data, and on validation data where that is another's than the adapted model's.

    Args:
        other: the adapted model.
        own: the one that it trained alone, if there is one.
        config: the run.
        data: the site's.
        model: of the architecture, on the device, with any values.
    """
    learned = config.learned
    if config.resolved_use == "received" or own is None:
        return other.state, {}, None

    def used(part: Part, weight: float) -> dict[str, Any]:
        predicted = used_predictions(part, config, data, model, own, other, weight)
        return learned.measured(predicted, cases(data, part))

    weight, validation = 0.0, None
    if data.samples("validation"):
        one, two = (c.predictions("validation", config, data, model) for c in (own, other))
        told = evidence(data)
        train = training_cases(config, data, one)
        weight = chosen(config.resolved_use, lambda w: told(learned.mixed_losses(one, two, w)), train)
        validation = used("validation", weight)
    state = used_state(config, own, other, weight)
    return state, {"used": used("test", weight), "weight": weight}, validation


def verdict(
    other: Candidate,
    own: Candidate,
    weight: float,
    alone: Mapping[str, Any],
    config: RunConfig,
    data: SiteData,
    model: nn.Module,
) -> dict[str, Any]:
    """What the newcomer gains over training alone, as of a site that trained; with epochs in place of rounds.

    Args:
        other: the adapted model.
        own: the one that it trained alone.
        weight: of the former in what it uses.
        alone: the test measures of the latter.
        config: the run.
        data: the site's.
        model: of the architecture, on the device, with any values.
    """
    predicted = used_predictions("test", config, data, model, own, other, weight)
    by_itself = own.predictions("test", config, data, model)
    return {
        "alone": alone,
        "alone_round": own.round,
        "used": {"candidate": other.name, "round": other.round, "weight": weight},
        "gain": config.learned.compared(predicted, by_itself, cases(data, "test")),
    }
