"""What one mechanism does in one round of local training at one site."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from medpfl.core.parameters import State
from medpfl.core.site_data import Batch
from medpfl.training.loop import Epochs

Added = Tensor | float | Callable[[Tensor], Tensor]
"""What a pass adds to the loss: a scalar, or a function of the labels of the site's own samples, the first rows."""
Forward = Callable[[Tensor], tuple[Tensor, Added]]
"""From a batch of inputs to the model's logits and to what the model itself adds to the loss."""
Term = Callable[[], Tensor]


@dataclass(frozen=True)
class Beside:
    """Samples that go through the model together with a batch of the site's own.

    Attributes:
        made: gives them and their labels, from the site's own batch; their images are of the same shape.
        weight: of their mean loss.
        term: is added to what is minimised; called after the pass with the site's own labels, the samples', and which
            rows of the pass the samples are, the site's own being the first.
        own: each is made of one of the site's own, in their order, with its label; the loss of its own samples is
            theirs, too.
    """

    made: Callable[[Tensor, Tensor], Batch]
    weight: float
    term: Callable[[Tensor, Tensor, slice], Tensor] | None = None
    own: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a round leaves.

    Attributes:
        state: the mechanism's own, which the site keeps for its next round.
        sends: by channel, what goes to the server.
        numbers: what is reported.
        patients: of how many training patients the numbers are, where not of all.
    """

    state: State | None = None
    sends: Mapping[str, State] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    patients: int | None = None


@dataclass(frozen=True)
class Part:
    """Each may be None.

    Attributes:
        forward: replaces the model's own; of all parts of a round one at most may have it.
        beside: samples beside each batch of the site's own.
        term: is added to what is minimised, once a step.
        before_step: with all gradients there, before the optimizer's step.
        after_step: after it.
        train: replaces the epochs of the round; likewise one at most. Returns the mean loss per sample.
        end: after the epochs.
    """

    forward: Forward | None = None
    beside: Sequence[Beside] = ()
    term: Term | None = None
    before_step: Callable[[], None] | None = None
    after_step: Callable[[], None] | None = None
    train: Callable[[Epochs], float] | None = None
    end: Callable[[], Outcome] | None = None
