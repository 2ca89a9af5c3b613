"""Messages and updates as FLARE's FLModel: tensors in ``params``, where privacy filters see them; never in ``meta``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from torch import Tensor

from medpfl.core.messages import Message, Update
from medpfl.core.parameters import StateError

INFO = "medpfl_info"
"""Key of the small JSON values in a message's or an update's meta."""

REASON = "medpfl_reason"
"""Header of an error reply: why, in words that hold nothing of the site's data."""


def message_to_model(message: Message, rounds: int) -> FLModel:
    """What the server sends to one site."""
    return FLModel(
        params_type=ParamsType.FULL,
        params=_arrays(message.tensors),
        current_round=message.round,
        total_rounds=rounds,
        meta={INFO: dict(message.info)},
    )


def message_of(task: str, shareable: Shareable) -> Message:
    """The message that a site received."""
    model = FLModelUtils.from_shareable(shareable)
    if type(model.current_round) is not int or not 0 <= model.current_round <= 10**6:
        raise ValueError("the message's round is no number of a round")
    if not isinstance(model.meta.get(INFO), dict):
        raise ValueError("the message has no values beside its tensors")
    return Message(task, model.current_round, _tensors(model.params), model.meta[INFO])


def update_to_shareable(update: Update) -> Shareable:
    """What a site sends back."""
    info = {"metrics": update.metrics, "seconds": update.seconds}
    model = FLModel(
        params_type=ParamsType.FULL,
        params=_arrays(update.tensors),
        current_round=update.round,
        meta={INFO: info},
    )
    return FLModelUtils.to_shareable(model)


def update_of(site: str, model: FLModel) -> Update:
    """The update in a site's answer; the name is the one that FLARE authenticated, not one that the answer claims.

    What the update holds is checked where it is used (:func:`medpfl.server.updates.check_update`).

    Raises:
        StateError: the answer is none of this package's.
    """
    try:
        info: dict[str, Any] = model.meta[INFO]
        return Update(
            site=site,
            round=model.current_round,
            tensors=_tensors(model.params),
            metrics=info["metrics"],
            seconds=info["seconds"],
        )
    except Exception as error:  # whatever a site sends: it must not end the run
        raise StateError(f"malformed answer: {type(error).__name__}") from error


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _tensors(arrays: Mapping[str, Any] | None) -> dict[str, Tensor]:
    # Received arrays may be read-only views of a message; a copy is needed only where torch would have to write.
    return {name: torch.from_numpy(a if a.flags.writeable else a.copy()) for name, a in (arrays or {}).items()}
