"""How a site's answer comes about: timed, and in words where there is none."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from medpfl.core.errors import first_line
from medpfl.core.layers import state_alone_changes
from medpfl.core.messages import Failure, Message, Update, Withheld
from medpfl.core.own_loaders import LoaderError
from medpfl.core.parameters import State, StateError
from medpfl.core.reasons import error_name
from medpfl.core.site_data import SiteData
from medpfl.site import words
from medpfl.site.hooks import HookFailed, WrongForm
from medpfl.site.store import StateNotKept
from medpfl.training.loop import TrainingDiverged

logger = logging.getLogger(__name__)


def carry_out(name: str, message: Message, task: Callable[[], tuple[State, dict[str, Any]]]) -> Update:
    """The update that a site's task makes: its tensors and metrics, with the time they took.

    Args:
        name: the site's.
        message: what asked for it.
        task: gives the tensors and the metrics.
    """
    started = time.perf_counter()
    tensors, metrics = task()
    return Update(
        site=name,
        round=message.round,
        tensors=tensors,
        metrics=metrics,
        seconds=time.perf_counter() - started,
    )


class Party(Protocol):
    """Who answers the server's messages at a site."""

    name: str
    data: SiteData

    def handle(self, message: Message, model: nn.Module) -> Update:
        """Does what a message asks."""


def answer(site: Party, message: Message, model: nn.Module) -> Update | Failure:
    """The site's answer, or in words why there is none: a site's error must not end the others' run.

    Only this package's own messages travel. The text of any other error may name files or patients: it goes to the
    site's log, and only the error's type leaves; of a mistake of a mechanism's form its name and the hook's.
    """
    try:
        with state_alone_changes(model):  # in one process another site is next
            return site.handle(message, model)
    except WrongForm as error:
        told = words.WRONG_FORM(error.hook, error.mechanism, message.task)
        return Withheld(site.name, message.round, str(error), told)
    except (StateError, StateNotKept, TrainingDiverged, LoaderError) as error:
        return Failure(site.name, message.round, str(error))
    except torch.OutOfMemoryError as error:
        logger.warning("%s, %s in round %d: %s", site.name, message.task, message.round, error)
        training = message.task == "train"
        reason = words.NO_MEMORY_TO_TRAIN() if training else words.NO_MEMORY(message.task)
        return Failure(site.name, message.round, reason)
    except HookFailed as error:
        said = f"{type(error.error).__name__}: {first_line(error.error)}"
        place = f"{error.mechanism}, in its {error.hook}"
        logger.warning(
            "%s, %s in round %d: %s: %s", site.name, message.task, message.round, place, said, exc_info=error
        )
        failed = words.FAILED_IN(error_name(error.error), error.hook, error.mechanism, message.task)
        return Failure(site.name, message.round, failed)
    except Exception as error:  # the user's own model or loader may raise anything; a damaged file names its path
        logger.warning("%s, %s in round %d: %s", site.name, message.task, message.round, error, exc_info=error)
        return Failure(site.name, message.round, words.FAILED(error_name(error), message.task))
