"""What a job's sites send by its configuration, beside what its folder lists."""

from __future__ import annotations

from dataclasses import replace

from medpfl.core.errors import UserError
from medpfl.engine.federation import Federation
from medpfl.flare.job.folder import Job
from medpfl.models.cost import Limits


def as_it_sends(job: Job, limits: Limits) -> tuple[Job, Federation]:
    """The job with the shapes of all that it lists, by its configuration, and its federation.

    A site writes the list down as what may leave; it is the coordinator's, and the contract's hash does not cover it.

    Args:
        job: as its folder says.
        limits: on its network.

    Raises:
        NetworkTooLarge: the network is beyond them, so that it is not built.
        UserError: it lists something that it does not send, or in another shape; or its network cannot be built.
    """
    federation = Federation.of(job.run.model_copy(update={"device": "cpu"}), limits=limits)
    sent = federation.leaving(joining=job.joining)
    wider = [name for name, shape in job.allowed.items() if name not in sent or shape not in (None, sent[name])]
    if wider:
        raise UserError(
            f"{job.name}: {len(wider)} of the {len(job.allowed)} names in its list of what may leave are of nothing "
            f"that it sends, or in another shape, {wider[0]!r} first: by its configuration it sends {len(sent)} "
            "tensors; have it made anew (`medpfl export`)"
        )
    return replace(job, allowed={name: sent[name] for name in job.allowed}), federation
