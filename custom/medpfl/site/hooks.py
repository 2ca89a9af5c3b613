"""What a mechanism gives at a site, looked at: another package's may fail, or give something else than is asked.

A mistake of form ends as :class:`WrongForm`, which says what would be right, an error of its code as
:class:`HookFailed`. What leaves the site of either has the names of the mechanism and its hook; the site's log has all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from numbers import Real
from traceback import walk_tb
from types import NoneType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.loss import _Loss

from medpfl.algorithms.mechanism import Mechanism
from medpfl.core.channels import require_tensors
from medpfl.core.own_loaders import LoaderError
from medpfl.core.parameters import State, StateError
from medpfl.site.store import StateNotKept
from medpfl.training.loop import NO_TERM, Loss, TrainingDiverged
from medpfl.training.part import Added, Beside, Forward, Outcome, Part

Called = TypeVar("Called", bound=Callable[..., Any])
_IN_WORDS = (StateError, StateNotKept, TrainingDiverged, LoaderError, torch.OutOfMemoryError)
"""Errors of which a site's answer says itself what is wrong."""
_CALLED = ("forward", "term", "before_step", "after_step", "train", "end")
"""What of a part is called."""


class HookFailed(Exception):
    """The code of a mechanism failed.

    Attributes:
        mechanism: its name.
        hook: what of it.
        error: that it raised.
    """

    def __init__(self, mechanism: str, hook: str, error: Exception):
        super().__init__(f"{mechanism}, {hook}: {error}")
        self.mechanism, self.hook, self.error = mechanism, hook, error


class WrongForm(StateError):
    """What a mechanism gave is not as it must be.

    Attributes:
        mechanism: its name.
        hook: that gave it.
    """

    def __init__(self, mechanism: str, hook: str, said: str):
        super().__init__(f"{mechanism}: {said}")
        self.mechanism, self.hook = mechanism, hook


@contextmanager
def calling(mechanism: Mechanism, hook: str) -> Iterator[None]:
    """HookFailed in place of an error of a mechanism's code; one of the network's stays what it is."""
    try:
        yield
    except (*_IN_WORDS, HookFailed):
        raise
    except Exception as error:
        if _is_of_a_network(error):
            raise
        raise HookFailed(mechanism.name, hook, error) from error


def _is_of_a_network(error: Exception) -> bool:
    """Whether it came up where a network was called: the mechanism's code is on the way there, and not at fault."""
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    called = (
        frame.f_locals.get("self") for frame in frames if frame.f_code.co_name in ("forward", "__call__", "_call_impl")
    )
    return any(isinstance(module, nn.Module) and not isinstance(module, _Loss) for module in called)


def checked_part(mechanism: Mechanism, hook: str, part: Part) -> Part:
    """A part of a round whose errors have the mechanism's name, and in which what is called is looked at.

    Args:
        mechanism: that it is of.
        hook: that gave it.
        part: as it gave it.

    Raises:
        WrongForm: it is no part, has something that cannot be called, or replaces what it does not say it replaces.
    """
    name = mechanism.name
    if not isinstance(part, Part):
        raise WrongForm(name, hook, f"its {hook} gave {_kind(part)}, not a Part")
    for what in _CALLED:
        if (call := getattr(part, what)) is not None and not callable(call):
            raise WrongForm(name, hook, f"its Part has {_kind(call)} as {what}, not a function")
    for what in ("forward", "train"):
        if getattr(part, what) and what not in mechanism.replaces:
            said = f"its Part has {what!r}, in the place of the run's: say replaces = ({what!r},)"
            raise WrongForm(name, hook, said)
    if not isinstance(part.beside, Sequence) or not all(isinstance(each, Beside) for each in part.beside):
        raise WrongForm(name, hook, f"its Part has {_kind(part.beside)} as beside, not a sequence of Beside")
    for each in part.beside:
        if not _is_number(each.weight):
            raise WrongForm(name, hook, f"its samples beside weigh {_kind(each.weight)}, not a finite number")
    calls = {what: _named(mechanism, what, call) for what in _CALLED if (call := getattr(part, what))}
    if "forward" in calls:
        calls["forward"] = _Forward(mechanism, calls["forward"])
    if "term" in calls:
        calls["term"] = CheckedTerm(name, "term", calls["term"])
    return replace(part, beside=[_checked_beside(mechanism, each) for each in part.beside], **calls)


def _checked_beside(mechanism: Mechanism, beside: Beside) -> Beside:
    name = mechanism.name
    term = beside.term and CheckedTerm(name, "beside", _named(mechanism, "beside", beside.term))
    return replace(beside, made=_Made(name, _named(mechanism, "beside", beside.made)), term=term)


def checked_loss(mechanism: Mechanism, made: Loss) -> Loss:
    """A loss that a mechanism made of another one."""
    if not callable(made):
        raise WrongForm(mechanism.name, "loss", f"its loss gave {_kind(made)}, not a function of logits and labels")

    def loss(scores: Tensor, labels: Tensor) -> Tensor:
        return _scalar(made(scores, labels), mechanism.name, "loss", "its loss")

    return _named(mechanism, "loss", loss)


def checked_outcome(
    mechanism: Mechanism, outcome: Outcome, channels: Sequence[str], model: nn.Module, frozen: State
) -> Outcome:
    """What a round leaves, :func:`apart` from the model.

    Args:
        mechanism: that it is of.
        outcome: as its part's end gave it.
        channels: the names of its channels to the server.
        model: that was trained.
        frozen: what of it nobody trains, such as a mask of -inf.
    """
    name = mechanism.name
    if not isinstance(outcome, Outcome):
        raise WrongForm(name, "end", f"its end gave {_kind(outcome)}, not an Outcome")
    for what in ("sends", "numbers"):
        if not isinstance(found := getattr(outcome, what), Mapping):
            raise WrongForm(name, "end", f"its Outcome has {_kind(found)} as {what}, not a dictionary")
    if type(outcome.patients) not in (int, NoneType):
        raise WrongForm(name, "end", f"its Outcome has {_kind(outcome.patients)} as patients, not a whole number")
    if strange := next((each for each in outcome.sends if each not in channels), None):
        raise WrongForm(name, "end", f"it sends in {strange!r}, which is none of its channels to the server")
    for channel, tensors in outcome.sends.items():
        require_tensors_of(mechanism, "end", tensors, f"what it sends in {channel}")
    if outcome.state is not None:
        require_tensors_of(mechanism, "end", outcome.state, "its state")
        _require_finite(outcome.state, name, "end", "its state", frozen)
    sends = {channel: apart(tensors, model) for channel, tensors in outcome.sends.items()}
    return replace(outcome, sends=sends, state=outcome.state and apart(outcome.state, model))


def apart(tensors: State, model: nn.Module) -> State:
    """With copies of those that lie in a model's memory, which another site's values are going to fill."""
    own = {tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values()}

    def inside(tensor: Tensor) -> bool:
        return tensor.layout == torch.strided and tensor.untyped_storage().data_ptr() in own

    return {name: tensor.clone() if inside(tensor) else tensor for name, tensor in tensors.items()}


def checked_whole(mechanism: Mechanism, state: State, model: nn.Module, frozen: State) -> State:
    """The whole state that a site uses, as a mechanism gave it; ``frozen`` as in :func:`checked_outcome`."""
    wrong, what, own = partial(WrongForm, mechanism.name, "in_use"), "what its in_use gave", model.state_dict()
    require_tensors_of(mechanism, "in_use", state, what)
    for name, tensor in own.items():
        if name not in state:
            raise wrong(f"{what} lacks {name!r}: it must be the whole state, of {len(own)} tensors")
        if state[name].shape != tensor.shape:
            raise wrong(f"{what} has {name!r} of shape {list(state[name].shape)}, not {list(tensor.shape)}")
    if extra := next((name for name in state if name not in own), None):
        raise wrong(f"{what} has {extra!r}, which the network has not")
    _require_finite(state, mechanism.name, "in_use", what, frozen)
    return state


def checked_leaving(mechanism: Mechanism, before: State, leaving: State, model: nn.Module) -> State:
    """The shared state on its way out, after a mechanism's step, :func:`apart` from the model."""
    what = "what its leaving gave"
    require_tensors_of(mechanism, "leaving", leaving, what)
    if leaving is not before:
        _require_finite(leaving, mechanism.name, "leaving", what, {})
    if strange := sorted({*leaving} ^ {*before}):
        has = "has" if strange[0] in leaving else "lacks"
        raise WrongForm(mechanism.name, "leaving", f"{what} {has} {strange[0]!r}: give all of the update")
    return apart(leaving, model)


def shapes(model: nn.Module) -> dict[str, torch.Size]:
    """Of a network's tensors, by name."""
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def require_tensors_of(mechanism: Mechanism, hook: str, given: Any, what: str) -> None:
    """WrongForm, which says what it is, unless a hook gave a dictionary of tensors."""
    try:
        require_tensors(given, what)
    except StateError as error:
        raise WrongForm(mechanism.name, hook, str(error)) from None


def require_same_network(mechanism: Mechanism, hook: str, model: nn.Module, before: Mapping[str, torch.Size]) -> None:
    """WrongForm unless a mechanism left a network with tensors of the names and shapes that it had."""
    now = shapes(model)
    if changed := sorted({name for name, _ in now.items() ^ before.items()}):
        said = f"it changed the network itself, by {changed[0]!r}; it may change values alone"
        raise WrongForm(mechanism.name, hook, said)


def require_finite_model(mechanism: Mechanism, model: nn.Module, frozen: State) -> None:
    """WrongForm unless what a mechanism made of a model at the end is finite; ``frozen`` as above."""
    _require_finite(model.state_dict(), mechanism.name, "finish", "what it made of the model", frozen)


def _require_finite(state: State, mechanism: str, hook: str, what: str, frozen: Mapping[str, Tensor]) -> None:
    for name, tensor in state.items():
        if tensor.layout != torch.strided:
            raise WrongForm(mechanism, hook, f"{what} has {name!r}, which is sparse")
        if not bool(torch.isfinite(tensor).all()) and not _as_it_was(tensor, frozen.get(name)):
            raise WrongForm(mechanism, hook, f"{what} has {name!r} with values that are not finite")


def _as_it_was(tensor: Tensor, frozen: Tensor | None) -> bool:
    return frozen is not None and torch.equal(tensor.cpu(), frozen)


def _scalar(found: Any, mechanism: str, hook: str, what: str) -> Tensor:
    if not isinstance(found, Tensor) or found.dim():
        raise WrongForm(mechanism, hook, f"{what} gave {_kind(found)}, not a scalar tensor")
    return found


def _named(mechanism: Mechanism, hook: str, call: Called) -> Called:
    def called(*given: Any) -> Any:
        with calling(mechanism, hook):
            return call(*given)

    return called  # type: ignore[return-value]


@dataclass
class CheckedTerm:
    """What a mechanism adds to the loss; of a number, or of what no parameter is in, training would take no notice."""

    name: str
    hook: str
    term: Callable[..., Tensor]
    last: Tensor | None = None
    depends: bool = False
    sum: Tensor | float = 0.0

    def __call__(self, *given: Any) -> Tensor:
        """The term of a step."""
        found = _scalar(self.term(*given), self.name, self.hook, "its term")
        self.last, self.depends = found.detach(), self.depends or found.requires_grad
        return found

    def add(self, loss: Tensor) -> None:
        """After a step's objective: sums the term, on the device, over the steps whose task's loss was finite."""
        if self.last is not None:
            self.sum = self.sum + torch.where(loss.isfinite(), self.last.to(loss.device, torch.float64), 0.0)

    def require_finite(self, lr: float) -> None:
        """Where training has diverged: TrainingDiverged, with its name, if that began in the term."""
        if not isfinite(found := float(self.sum)):
            raise TrainingDiverged(NO_TERM(self.hook, self.name, found, f"{lr:.3g}"))

    def require_dependence(self) -> None:
        """After the steps of a round: in some of them all that it depends on may have been frozen."""
        if self.last is not None and not self.depends and float(self.last):
            said = "its term depends on no parameter that is trained: is it detached?"
            raise WrongForm(self.name, self.hook, said)


@dataclass(frozen=True)
class _Forward:
    """A pass through the model in the place of the model's own."""

    mechanism: Mechanism
    forward: Forward

    def __call__(self, x: Tensor) -> tuple[Tensor, Added]:
        found, wrong = self.forward(x), partial(WrongForm, self.mechanism.name, "forward")
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], Tensor)):
            raise wrong(f"its forward gave {_kind(found)}, not logits and what is added to the loss")
        scores, added = found
        if len(scores) != len(x):
            raise wrong(f"its forward gave logits of {len(scores)} samples for {len(x)} inputs")
        if callable(added):
            return scores, self._of_labels(added)
        if not ((isinstance(added, Tensor) and not added.dim()) or _is_number(added)):
            raise wrong(f"its forward adds {_kind(added)} to the loss, not a scalar or a function")
        return scores, added

    def _of_labels(self, added: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def scalar(labels: Tensor) -> Tensor:
            with calling(self.mechanism, "forward"):
                found = added(labels)
            if _is_number(found):
                return found
            return _scalar(found, self.mechanism.name, "forward", "what its forward adds")

        return scalar


@dataclass(frozen=True)
class _Made:
    """Samples beside a site's own."""

    name: str
    made: Callable[[Tensor, Tensor], Any]

    def __call__(self, x: Tensor, y: Tensor) -> Any:
        found, wrong = self.made(x, y), partial(WrongForm, self.name, "beside")
        if not (isinstance(found, tuple | list) and len(found) == 2 and all(isinstance(t, Tensor) for t in found)):
            raise wrong(f"its samples beside the site's own are {_kind(found)}, not images and labels")
        images, labels = found
        if images.shape[1:] != x.shape[1:] or len(images) != len(labels):
            raise wrong(
                f"its samples beside the site's own are {list(images.shape)} with {len(labels)} labels; "
                f"the site's own are {list(x.shape[1:])} each"
            )
        return found


def _is_number(found: Any) -> bool:
    return isinstance(found, Real) and isfinite(found)


def _kind(found: Any) -> str:
    """What something is, without what is in it."""
    if isinstance(found, Tensor):
        return f"a tensor {tuple(found.shape)}"
    if isinstance(found, tuple | list | dict):
        return f"{type(found).__name__} of {len(found)}"
    if isinstance(found, str):
        return repr(found[:40])
    return repr(found) if isinstance(found, int | float | None) else type(found).__name__
