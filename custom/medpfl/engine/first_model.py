"""A run's first model: the device, the same values everywhere, whether it fits the data, and what of it is shared."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from medpfl.algorithms.failing import asking
from medpfl.algorithms.start import START
from medpfl.config.run import RunConfig
from medpfl.core.declarations import AllButAdaptersAndTop, Union, counts_layers, parse_declaration
from medpfl.core.errors import UserError, first_line
from medpfl.core.frozen import freeze, frozen_names
from medpfl.core.numbers_in_words import count
from medpfl.core.parameters import ParameterSplit, StateError
from medpfl.core.seeding import derive_seed, drawn_apart, seed_global
from medpfl.core.threads import intra_op_threads
from medpfl.data.source import DataSource, images_per_sample
from medpfl.models import build_model, logits
from medpfl.models.cost import Limits, require_within
from medpfl.models.shapes import each_side
from medpfl.models.start_weights import Start, start_weights
from medpfl.site import words

logger = logging.getLogger(__name__)


class First(NamedTuple):
    """A run's first model.

    Attributes:
        config: the run; where it gave start weights by a path it names them.
        model: on the CPU.
        split: what of it is shared.
        start: what it begins with, where that is not random.
    """

    config: RunConfig
    model: nn.Module
    split: ParameterSplit
    start: Start | None


def first_model(config: RunConfig, source: DataSource, start: Start | None, limits: Limits) -> First:
    """The run's first model, once it is known to suit the data and the method. Reads no images of any site.

    Args:
        config: the run.
        source: where the sites' data come from.
        start: the start weights that the configuration names, where the file is not here.
        limits: on the network, of a party that does not trust who asks for it.

    Raises:
        NetworkTooLarge: the network is beyond the limits; no memory was taken for it.
        StateError: the start weights are another network's.
        UserError: it does not fit the data or the method, or nothing of it would be shared.
    """
    require_affordable(config, source, limits)
    model = seeded_model(config, source, torch.device("cpu"))
    if problem := _state_problem(model):
        raise UserError(f"{config.model}: {problem}")
    if shape := source.model_arguments():
        try_out(config, model, blank(config, shape, number=2), shape["num_classes"])
    x = blank(config, shape)
    if config.init and not config.init.startswith("sha256:"):
        start = start_weights(Path(config.init), model, x)
        config = config.model_copy(update={"init": start.named})
    if start:
        _load(model, start)
    split = split_of(config, model, x)
    if config.mixes and not split.shared_names:
        frozen = f" with --frozen {config.frozen}" if config.frozen else ""
        raise UserError(f"--personal {config.resolved_personal}{frozen} leaves nothing to share for {config.model}")
    if odd := next((name for name in split.shared_names if "/" in name), None):
        raise UserError(f"{config.model}: an entry called {odd!r} cannot travel; give its module a name without /")
    state = model.state_dict()
    if odd := next((name for name in split.shared_names if not is_known_to_numpy(state[name].dtype)), None):
        kind = str(state[odd].dtype).removeprefix("torch.")
        raise UserError(
            f"{config.model}: {odd} is {kind}, which cannot travel; give it in float32, and --set precision=bf16 "
            "computes in bfloat16"
        )
    trained = () if start else (*split.shared_names, *split.personal_names)  # a start has been judged, or will be
    if odd := next((name for name in trained if not _finite(state[name])), None):
        raise UserError(
            f"{config.model}: {odd} has values that are no numbers (NaN or infinite); register a mask of them with "
            "persistent=False"
        )
    if shape:
        meet(config, model, split, blank(config, shape, number=2))
    return First(config, model, split, start)


def _state_problem(model: nn.Module) -> str | None:
    """Why a network's state cannot be that of every site, with the name of the entry; None if it can."""
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, torch.Tensor):
            return f"{name} of its state is of type {type(tensor).__name__}; keep it out of state_dict, or as a tensor"
        if is_lazy(tensor):
            return f"{name} has no shape before images come (a lazy layer); give the layer its sizes"
        if tensor.layout != torch.strided:
            return f"{name} is sparse; register it with persistent=False, or as a dense tensor"
        if any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)):
            return f"{name} has one place in memory for several values, as expand() gives; register a clone()"
    return None


def _finite(tensor: torch.Tensor) -> bool:
    """Whether all its values are finite numbers."""
    known = tensor if tensor.element_size() > 1 else tensor.float()  # torch does not ask that of types of 8 bits
    return not tensor.is_floating_point() or bool(torch.isfinite(known).all())


def is_known_to_numpy(dtype: torch.dtype) -> bool:
    """Whether it has the type, as FLARE's messages do."""
    try:
        torch.empty(0, dtype=dtype).numpy()
    except TypeError:
        return False
    return True


def _load(model: nn.Module, start: Start) -> None:
    """A file's weights were made to fit; those that came are as whoever named them made them."""
    try:
        model.load_state_dict(start.state)
    except RuntimeError as error:
        logger.warning("the start weights do not fit the network: %s", error)
        raise StateError(words.NOT_AS_HAD(START)) from None


def pick_device(config: RunConfig) -> torch.device:
    """The device that the configuration asks for; ``auto`` takes a GPU if there is one.

    On a GPU cuDNN adds in one order from now on, so that a run repeats there too.

    Raises:
        UserError: a GPU is asked for that is not there.
    """
    available = torch.cuda.is_available()
    if config.device.startswith("cuda") and not available:
        raise UserError(f"--device {config.device}: torch sees no GPU here; use --device cpu or auto")
    found = "cuda" if available else "cpu"
    device = torch.device(found if config.device == "auto" else config.device)
    if device.type == "cuda":
        if (there := torch.cuda.device_count()) <= (device.index or 0):
            last = f"cuda:{there - 1}" if there > 1 else "cuda"
            raise UserError(f"--device {config.device}: torch sees {count(there, 'GPU')} here, up to {last}")
        torch.backends.cudnn.deterministic = True
    return device


def seeded_model(config: RunConfig, source: DataSource, device: torch.device) -> nn.Module:
    """The run's first model: the same values at the server and at every site."""
    with drawn_apart(device), intra_op_threads(1):
        seed_global(derive_seed(config.seed, "model"))
        model = _built(config, source)
    return model.to(device)


def require_affordable(config: RunConfig, source: DataSource, limits: Limits) -> None:
    """Refuses a network beyond limits before it is built (:mod:`medpfl.models.cost`); with nothing drawn at random."""
    known = source.model_arguments()
    image = (known["in_channels"], *each_side(known["image_size"])) if known else ()
    images = images_per_sample(source)
    bag = (images,) if config.pooling == "attention" else ()
    require_within(
        limits,
        config.model_args,
        lambda: _built(config, source),
        (config.trainer.settings.batch_size, *bag, *image) if known else None,
        config.learned.looked_at_once(image, images),
    )


def _built(config: RunConfig, source: DataSource) -> nn.Module:
    how = {"model_args": config.model_args, "pooling": config.pooling, "adapters": config.adapters}
    return build_model(config.model, **source.model_arguments(), **how)


def blank(config: RunConfig, shape: Mapping[str, Any], number: int = 1) -> torch.Tensor | None:
    """Empty images as the model takes them, or bags; None where nobody here knows the images' shape.

    Args:
        config: the run.
        shape: of :meth:`~medpfl.data.source.DataSource.model_arguments`.
        number: of images, or of bags and of images in each.
    """
    if not shape:
        return None
    bag = (number,) if config.pooling == "attention" else ()
    return torch.zeros(number, *bag, shape["in_channels"], *each_side(shape["image_size"]))


def try_out(config: RunConfig, model: nn.Module, x: torch.Tensor, classes: int) -> None:
    """One forward pass of empty images, so that a network which does not fit the data is refused before any work."""
    size = "x".join(map(str, x.shape[2 if config.pooling == "attention" else 1 :]))
    where = f"{config.model} on the images of {config.data} ({size})"
    try:
        with torch.inference_mode():
            scores = logits(model.eval()(x))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise UserError(f"{where}: {first_line(error)}; choose larger images, another model or --model-arg") from None
    finally:
        model.train()
    if reason := config.learned.misfit(scores.shape, x.shape, classes):
        raise UserError(f"{where} gives an output of shape {list(scores.shape)}: {reason}")
    if not config.learned.sigmoid and _are_shares(scores):
        logger.warning(
            "%s: its outputs are probabilities, as it seems (none below 0, and they sum to 1), and losses take logits: "
            "leave the softmax at its end out",
            config.model,
        )


def _are_shares(scores: torch.Tensor) -> bool:
    """Whether outputs, (B, C, ...), are shares of one, as a softmax gives them."""
    sums = scores.float().sum(1)
    return scores.shape[1] > 1 and bool((scores >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-3)


def meet(config: RunConfig, model: nn.Module, split: ParameterSplit, x: torch.Tensor) -> None:
    """The run's mechanisms look at the network; UserError, in words, from one that cannot go with it."""
    model.eval()
    for part in config.parts:
        with asking(part, "its suits"):
            part.suits(model, split, x)
    model.train()


def split_of(config: RunConfig, model: nn.Module, x: torch.Tensor | None) -> ParameterSplit:
    """What is shared; layers are counted along the way of an empty image through the model.

    The model's frozen parts are frozen then.
    """
    declaration = parse_declaration(config.resolved_personal)
    if x is None and counts_layers(declaration):
        logger.warning(
            "--personal %s counts the layers of %s in the order in which its code creates them, since the size of the "
            "images is not known before training (loaders of your own). If images pass through them in another order, "
            "name the personal layers: --personal modules:PATH,PATH",
            config.resolved_personal,
            config.model,
        )
    held = [parse_declaration(config.frozen)] if config.frozen else []
    held += [AllButAdaptersAndTop()] if config.adapters else []
    frozen = frozen_names(model, Union(tuple(held)), x) if held else frozenset()
    freeze(model, frozen)
    return ParameterSplit(model, declaration, x, frozen)
