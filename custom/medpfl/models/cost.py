"""How large a network is and what a pass through it costs, before any memory is taken: on torch's meta device.

Its arguments are a coordinator's, and some of them make a layer of any size. A meta tensor has a shape and no values,
so that building and running on that device counts what the true ones would take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from medpfl.core.errors import UserError
from medpfl.core.reasons import Reason

PARAMETERS = Reason("policy: the network has {number} parameters or more, {number} is the limit (network_parameters)")
VALUES = Reason("policy: a forward pass of a batch has {number} values or more, {number} is the limit (network_values)")
OPERATIONS = Reason(
    "policy: a forward pass of a batch has {number} operations or more, {number} is the limit (network_operations)"
)
LARGE_ARGUMENT = Reason("policy: a model argument is beyond {number}, which no network here takes")
NOT_MEASURED = Reason("policy: the network cannot be measured before it is built, so its limits cannot be held")

_LARGEST_ARGUMENT = 10**5
"""Of whole numbers among a network's arguments: beyond it lists of that length alone would fill memory."""
_HELD = 4
"""Tensors as large as the largest one that a pass holds at a time where no gradients are wanted."""
_MOST_CALLS = 20_000
"""Of torch while it is built or run; a network of 100 layers needs less than a tenth."""


class Limits(NamedTuple):
    """What a network may be; 0 for any.

    Attributes:
        parameters: their number, fixed ones and buffers too.
        values: that a forward pass of a batch makes, all layers' together.
        operations: that it takes, in layers that multiply; torch's ``FlopCounterMode`` counts them.
    """

    parameters: int = 0
    values: int = 0
    operations: int = 0


ANY = Limits()


class NetworkTooLarge(UserError):
    """A network is beyond its limits, in words of :mod:`medpfl.site.words`."""


def require_within(
    limits: Limits,
    arguments: Mapping[str, Any],
    build: Callable[[], nn.Module],
    shape: Sequence[int] | None,
    looked_at: int = 0,
) -> None:
    """Refuses a network that is beyond limits, without building it.

    Args:
        limits: on it.
        arguments: of it, that a job gives.
        build: gives it; called where new tensors are meta tensors.
        shape: of a batch that it takes in training, (B, ...); None where nobody here knows it: then its parameters
            alone are counted.
        looked_at: samples in a batch that it predicts and is not trained on, of which it keeps no layer's output.

    Raises:
        NetworkTooLarge: it is beyond one of them, which is named, or nobody can say.
        UserError: it cannot be built.
    """
    if not any(limits):
        return
    if any(isinstance(n, int) and abs(n) > _LARGEST_ARGUMENT for n in tree_leaves(arguments)):
        raise NetworkTooLarge(LARGE_ARGUMENT(_LARGEST_ARGUMENT))
    try:
        with torch.device("meta"), _OnMeta(), _Counted(limits.parameters, PARAMETERS) as made:
            model = build()
        if limits.parameters and (found := _size(model)) > limits.parameters:
            raise _beyond(PARAMETERS, found, limits.parameters)
        if shape is not None and (limits.values or limits.operations):
            _require_pass(limits, model, shape, looked_at)
    except NetworkTooLarge:
        raise
    except UserError as error:
        if made.beyond is not None:  # which the network's own words are about, then
            raise made.beyond from None
        if isinstance(error.__cause__, RuntimeError):
            raise _unknown(error) from error
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, MemoryError, OverflowError) as error:
        raise _unknown(error) from error


def _require_pass(limits: Limits, model: nn.Module, shape: Sequence[int], looked_at: int) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model.eval()
    with (
        torch.inference_mode(),
        torch.device("meta"),
        _OnMeta(),
        FlopCounterMode(display=False) as flops,
        _Counted(limits.values, VALUES) as made,
    ):
        model(torch.empty(*shape))
    held = _HELD * made.largest * looked_at / shape[0]
    if limits.values and held > limits.values:
        raise _beyond(VALUES, held, limits.values)
    if limits.operations and (found := flops.get_total_flops()) > limits.operations:
        raise _beyond(OPERATIONS, found, limits.operations)


def _size(model: nn.Module) -> int:
    return sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))


def _beyond(limit_of: Reason, found: float, limit: float) -> NetworkTooLarge:
    return NetworkTooLarge(limit_of(f"{found:.3g}", f"{limit:.3g}"))


def _unknown(error: Exception | None) -> NetworkTooLarge:
    found = NetworkTooLarge(NOT_MEASURED())
    found.__cause__ = error
    return found


class _OnMeta(TorchFunctionMode):
    """Leaves short ramps on the CPU: networks read rates of single layers from them while they are built."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        steps = kwargs.get("steps", args[2] if len(args) > 2 else _MOST_CALLS + 1)
        if func is torch.linspace and "device" not in kwargs and steps <= _MOST_CALLS:
            kwargs = {**kwargs, "device": "cpu"}
        return func(*args, **kwargs)


class _Counted(TorchDispatchMode):
    """Counts the numbers in all that torch makes, and ends what makes more than a limit.

    A network is initialised in place and may be drawn twice, so that parameters have ten times their limit here.
    """

    def __init__(self, limit: int, what: Reason):
        super().__init__()
        self.what, self.limit = what, limit
        self.made = self.calls = self.largest = 0
        self.beyond: NetworkTooLarge | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        self.calls += 1
        fresh = self.what is VALUES or not func._schema.name.endswith("_")
        sizes = [t.numel() for t in tree_leaves(made) if isinstance(t, torch.Tensor)]
        self.made += sum(sizes) if fresh else 0
        self.largest = max(self.largest, *sizes, 0)
        most = self.limit * (10 if self.what is PARAMETERS else 1)
        if self.limit and self.made > most:
            self.beyond = _beyond(self.what, self.limit * self.made / most, self.limit)
        elif self.calls > _MOST_CALLS:
            self.beyond = _unknown(None)
        if self.beyond:
            raise self.beyond
        return made
