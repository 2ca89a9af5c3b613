"""Builds a network from its name: one of the papers', one of MONAI's, another package's, or the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from torch import nn

from medpfl.core.errors import UserError
from medpfl.core.one_file import as_a_file
from medpfl.core.permitted_code import permitted_module, require_own
from medpfl.models.alexnet_bn import AlexNetBN
from medpfl.models.arguments import accepted_arguments, call_arguments, check_plain, check_words, product
from medpfl.models.bag_attention import BagAttention
from medpfl.models.cifar_resnet import resnet32, resnet110
from medpfl.models.fcn import FCN1d
from medpfl.models.impression_cnn import ImpressionCNN
from medpfl.models.installed import InstalledNetwork, code_of, installed_networks
from medpfl.models.lenet5 import LeNet5BN
from medpfl.models.lora import add_adapters
from medpfl.models.monai_networks import defaults, from_data, require_one_output, require_whole_levels
from medpfl.models.pamap2_cnn import Pamap2CNN
from medpfl.models.shapes import each_side
from medpfl.models.unet import segresnet_small, unet
from medpfl.models.vit import vit_small, vit_tiny


@dataclass(frozen=True)
class ModelRow:
    """A line of the list of models.

    Attributes:
        name: what ``--model`` takes.
        what: what it is.
        paper: where it is from.
        input: the shape of input that it takes by default, without the batch.
    """

    name: str
    what: str
    paper: str
    input: str


_OWN: dict[str, tuple[Callable[..., nn.Module], ModelRow]] = {
    row.name: (network, row)
    for network, row in (
        (LeNet5BN, ModelRow("lenet5", "LeNet-5 with batch norm", "FedAP (Lu et al., 2022)", "1x28x28")),
        (AlexNetBN, ModelRow("alexnet-bn", "AlexNet with batch norm", "FedAP (Lu et al., 2022)", "3x224x224")),
        (Pamap2CNN, ModelRow("pamap2-cnn", "1-D convolutions over sensors", "FedAP (Lu et al., 2022)", "27x1x200")),
        (FCN1d, ModelRow("fcn-1d", "fully convolutional network for time series", "Wang et al. (2017)", "27x200")),
        (ImpressionCNN, ModelRow("impression-cnn", "CNN with batch norm", "FedImpres (2024)", "3x32x32")),
        (resnet32, ModelRow("resnet32", "ResNet of 32 layers for small images", "He et al. (2016)", "3x32x32")),
        (resnet110, ModelRow("resnet110", "ResNet of 110 layers for small images", "He et al. (2016)", "3x32x32")),
        (vit_tiny, ModelRow("vit-tiny", "ViT for 28 to 64 pixels (MONAI's)", "this package's own size", "1x28x28")),
        (vit_small, ModelRow("vit-small", "ViT-S/16 (MONAI's)", "Dosovitskiy et al. (2021)", "3x224x224")),
        (unet, ModelRow("unet", "U-Net with batch norm, 2-D or 3-D (MONAI's)", "Ronneberger et al. (2015)", "1x64x64")),
        (
            segresnet_small,
            ModelRow(
                "segresnet-small", "SegResNet with batch norm, 2-D or 3-D (MONAI's)", "Myronenko (2018)", "1x64x64"
            ),
        ),
    )
}
_ELSEWHERE = (
    ModelRow(
        "monai:CLASS",
        "any classifier or segmentation network of monai.networks.nets, 2-D or 3-D",
        "MONAI",
        "as the data are",
    ),
    ModelRow("package.module:callable", "your own class or factory; of a file, FILE.py:NAME", "", "as the data are"),
)
_POOLINGS = ("mean", "attention")


def model_rows() -> list[ModelRow]:
    """What :func:`build_model` can build."""
    others = [ModelRow(name, other.spec, other.package, "as the data are") for name, other in _others().items()]
    return [row for _, row in _OWN.values()] + others + list(_ELSEWHERE)


def build_model(
    name: str,
    *,
    in_channels: int | None = None,
    num_classes: int | None = None,
    image_size: int | Sequence[int] | None = None,
    model_args: Mapping[str, Any] | None = None,
    pooling: str = "mean",
    adapters: str = "",
) -> nn.Module:
    """A network with random weights, from torch's global generator; nothing is downloaded.

    Args:
        name: one of :func:`model_rows`: a name, ``monai:CLASS`` or ``package.module:callable``. The module of another
            package's name and of the last must be permitted here (:mod:`medpfl.config.named_code`).
        in_channels: channels of the input.
        num_classes: classes; for segmentation the output channels, background included.
        image_size: the input's spatial size, (H, W) or (D, H, W); one number stands for a square.
        model_args: further arguments of the network, plain values; they outweigh what the data say, and say what the
            data do not (None above).
        pooling: how slices become one prediction: ``mean`` gives the network itself, whose outputs for single slices
            are averaged; ``attention`` gives a :class:`~medpfl.models.bag_attention.BagAttention` over it, which
            takes bags.
        adapters: of the linear layers of its transformer blocks, as :class:`medpfl.models.lora.LoRA` reads it; empty
            for none. They are drawn after all else, so that the rest is as without them.

    Raises:
        UserError: an unknown name or pooling, a module that is not permitted, an argument that the network does not
            have, or values that it does not take.
    """
    if pooling not in _POOLINGS:
        raise UserError(f"unknown pooling {pooling!r}: use {' or '.join(_POOLINGS)}")
    size = None if image_size is None else each_side(image_size)
    check_plain(model_args or {}, name)
    target = _target(name)
    if name in _OWN:
        check_words(model_args or {}, name)
        known = _known(in_channels=in_channels, num_classes=num_classes, size=size)
    elif name.startswith("monai:"):
        network = (product(target) or target).__name__
        known = defaults(network, model_args or {}) | from_data(in_channels, num_classes, size)
        _load_nothing(name, target, known, model_args or {})
        check_words(model_args or {}, name)
        require_one_output(name, model_args or {})
        require_whole_levels(name, network, known | dict(model_args or {}), size)
    else:
        known = _known(in_channels=in_channels, num_classes=num_classes, image_size=size)
    arguments = call_arguments(target, name, known, model_args or {})
    try:
        model = target(**arguments)
    except UserError:
        raise
    except Exception as error:  # Whatever a network's own checks raise: the arguments are what the user can change.
        shown = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise UserError(f"{name} cannot be built with {shown}: {type(error).__name__}: {_one_line(error)}") from error
    if not isinstance(model, nn.Module):
        raise UserError(f"{name} gives {type(model).__name__}, not a torch.nn.Module")
    model = BagAttention(model) if pooling == "attention" else model
    return add_adapters(model, name, adapters) if adapters else model


def takes_argument(name: str, argument: str) -> bool:
    """Whether the network of that name has such an argument; UserError if there is no such network."""
    accepted, open_ended = accepted_arguments(_target(name), {})
    return open_ended or argument in accepted


def _others() -> Mapping[str, InstalledNetwork]:
    found = installed_networks()
    if twin := next((name for name in found if name in _OWN), None):
        raise UserError(f"network {twin!r} of {found[twin].package}: there is one already; give it another name")
    return found


def _target(name: str) -> Callable[..., Any]:
    others = _others()
    if name in _OWN:
        return _OWN[name][0]
    if name.startswith("monai:"):
        return _monai(name)
    if spec := code_of(name):
        return _imported(spec)
    close = get_close_matches(name.lower(), [*_OWN, *others])
    hint = f"did you mean {' or '.join(close)}?" if close else f"use {', '.join(row.name for row in model_rows())}"
    raise UserError(f"unknown model {name!r}: {hint}")


def _monai(name: str) -> Callable[..., Any]:
    from monai.networks import nets  # Importing MONAI takes seconds, so only who asks for it waits.

    wanted = name.partition(":")[2]
    networks = {key: value for key, value in vars(nets).items() if callable(value) and not key.startswith("_")}
    networks = {key: value for key, value in networks.items() if issubclass(product(value) or object, nn.Module)}
    if wanted in networks:
        return networks[wanted]
    lower = {key.lower(): key for key in networks}
    close = [lower[key] for key in get_close_matches(wanted.lower(), lower)]
    hint = f"did you mean {' or '.join(close)}?" if close else "use for instance resnet18, DenseNet121 or ViT"
    raise UserError(f"monai.networks.nets has no network {wanted!r}: {hint}")


def _load_nothing(name: str, target: Callable[..., Any], known: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    if loading := [argument for argument, value in given.items() if value and _loads(argument)]:
        raise UserError(
            f"{name}: pretrained weights are never downloaded or read; leave the model argument {loading[0]} out"
        )
    accepted, _ = accepted_arguments(target, known)
    for argument, parameter in accepted.items():
        if _loads(argument) and {argument: parameter.default, **known, **given}[argument] not in (None, False):
            raise UserError(f"{name}: it loads weights by itself ({argument}), which are never downloaded or read")


def _loads(argument: str) -> bool:
    """Whether MONAI's networks load weights from what an argument of this name says, for instance a URL."""
    words = argument.lower().split("_")
    return any(word in words for word in ("pretrained", "weights", "checkpoint", "url", "dir", "path", "filename"))


def _known(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _imported(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    try:
        module = permitted_module(name, "model")
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"model {name!r}: cannot import {module_name!r}: {_one_line(error)}{as_a_file(name, error)}"
        ) from error
    target = getattr(module, attribute, None)
    if not callable(target):
        close = get_close_matches(attribute, vars(module))
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise UserError(f"model {name!r}: {module_name} has no class or function {attribute!r}{hint}")
    require_own(target, name, "model")
    return target


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
