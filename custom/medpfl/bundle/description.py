"""The JSON files and the README that make a folder with weights a MONAI bundle. Needs neither MONAI nor torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medpfl.bundle.verdict import section
from medpfl.core.plain import plain_problem
from medpfl.core.version import __version__, version
from medpfl.data.inputs import Inputs
from medpfl.data.kinds.scans.preprocessing import Preprocessing

INTENDED_USE = "Research only. Not a medical device; not for diagnosis or treatment."
LICENCE = (
    "None is given by this file. The model was trained on this site's data and on what the other sites' models "
    "learned from theirs: what their agreements allow applies."
)


def versions() -> dict[str, str]:
    """Of the packages that made a model and that it needs."""
    return {"medpfl": __version__} | {name: version(name) for name in ("torch", "monai", "numpy")}


def refusal(card: Mapping[str, Any], inputs: Inputs) -> str | None:
    """Why there can be no bundle: the name of what MONAI would not leave as it is (:mod:`medpfl.core.plain`).

    Args:
        card: the model's (:mod:`medpfl.site.delivery`).
        inputs: how files become the network's input.
    """
    given = {"site": card["site"], "algorithm": card["algorithm"], "classes": inputs.classes}
    given["test"] = card["test"] or {}
    arguments = _arguments(card)
    given |= {"preprocessing": inputs.settings, "model": arguments.pop("name"), **arguments}
    return next(filter(None, (plain_problem(value, name) for name, value in given.items())), None)


def _arguments(card: Mapping[str, Any]) -> dict[str, Any]:
    """Of :func:`medpfl.models.build_model`."""
    blended_so = {"sigmoid": True} if card.get("sigmoid") and card["model"].get("blend") else {}
    return {k: v for k, v in card["model"].items() if k != "values"} | blended_so


def inference(card: Mapping[str, Any], inputs: Inputs) -> dict[str, Any]:
    """``configs/inference.json``, for what :func:`refusal` does not name; with the same arguments."""
    return {
        "imports": ["$import torch", "$import medpfl.bundle.inference as inference"],
        "bundle_root": ".",
        "dataset_dir": "",
        "input_path": "@dataset_dir",
        "output_path": "",
        "ckpt_path": "$@bundle_root + '/models/model.safetensors'",
        "device": "$torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
        "network_def": {"_target_": "medpfl.bundle.inference.network", **_arguments(card)},
        "network": "$@network_def.to(@device)",
        "preprocessing": {"_target_": "Compose", "transforms": _keeping_names(inputs.steps)},
        "dataset": {
            "_target_": "Dataset",
            "data": f"$inference.items(@input_path, '{_KINDS[inputs.kind]}', {inputs.arrays}{_expected(inputs)})",
            "transform": "@preprocessing",
        },
        "inferer": {"_target_": "SimpleInferer"},
        "evaluator": {
            "network": "@network",
            "dataset": "@dataset",
            "classes": list(inputs.classes),
            "model": {"site": card["site"], "algorithm": card["algorithm"], "sha256": card["sha256"]},
            "output_path": "@output_path",
            **(_segmenting(inputs) if inputs.masked else _classifying(card, inputs)),
        },
        "initialize": ["$inference.restore(@network, @ckpt_path)"],
        "run": ["$@evaluator.run()"],
    }


_KINDS = {
    "scan": "scan",
    "picture": "picture",
    "masked picture": "picture",
    "masked volume": "volume",
    "series": "series",
}
"""What is looked for at a path."""


def _modality(inputs: Inputs) -> str:
    """Of scans."""
    return Preprocessing(**inputs.settings).modality


def _expected(inputs: Inputs) -> str:
    """What else the items' finder is told: the modality of scans that are no CT; that masks may lie beside images."""
    if inputs.masked:
        return ", masks=True"
    return ", 'MR'" if inputs.kind == "scan" and _modality(inputs) == "MR" else ""


def _classifying(card: Mapping[str, Any], inputs: Inputs) -> dict[str, Any]:
    return {
        "_target_": "medpfl.bundle.inference.Classification",
        "whole": inputs.kind in ("picture", "series") or inputs.slices is not None or len(_shape(inputs)) == 3,
        **({"sigmoid": True} if card.get("sigmoid") else {}),
    }


def _segmenting(inputs: Inputs) -> dict[str, Any]:
    window = list(inputs.size) if isinstance(inputs.size, tuple) and len(inputs.size) == 3 else None
    return {
        "_target_": "medpfl.bundle.masks.Segmentation",
        "window": window,
        "fit": inputs.settings.get("fit") or "pad",
    }


def _keeping_names(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Selecting the image alone would lose its name, which the answer repeats."""
    return [step for step in steps if not step["_target_"].endswith("SelectItemsd")]


def metadata(card: Mapping[str, Any], inputs: Inputs) -> dict[str, Any]:
    """``configs/metadata.json``, in MONAI's form."""
    made = card["versions"]
    channels = {str(c): name for c, name in enumerate(_channel_names(inputs))}
    modality = _modality(inputs) if inputs.kind == "scan" else "n/a"
    unlimited = inputs.kind in ("masked volume", "series") or inputs.settings.get("normalise") == "zscore"
    image = {
        "type": "series" if inputs.kind == "series" else "image",
        "format": "hounsfield" if modality == "CT" else "magnitude",
        "modality": modality,
        "num_channels": inputs.slices or inputs.channels,
        "spatial_shape": _shape(inputs) if inputs.slices is None else [inputs.channels, *_shape(inputs)],
        "dtype": "float32",
        "value_range": [] if unlimited else [-1, 1],
        "is_patch_data": inputs.masked and len(_shape(inputs)) == 3,
        "channel_def": channels if inputs.slices is None else {str(s): f"slice {s}" for s in range(inputs.slices)},
    }
    prediction = {
        "type": "logits",
        "format": "segmentation" if inputs.masked else "classes",
        "num_channels": len(inputs.classes),
        "spatial_shape": _shape(inputs) if inputs.masked else [],
        "dtype": "float32",
        "value_range": [],
        "is_patch_data": inputs.masked and len(_shape(inputs)) == 3,
        "channel_def": {str(c): name for c, name in enumerate(inputs.classes)},
    }
    return {
        "version": "1.0.0",
        "changelog": {"1.0.0": "as trained"},
        "monai_version": made["monai"],
        "pytorch_version": made["torch"].partition("+")[0],
        "numpy_version": made["numpy"],
        "required_packages_version": {"medpfl": made["medpfl"], "safetensors": version("safetensors")},
        "name": f"{card['site']}-{card['algorithm']}",
        "task": f"Classification of {modality} scans" if inputs.kind == "scan" else _TASKS[inputs.kind],
        "description": f"{card['model']['name']}, trained by {card['algorithm']}; the model of {card['site']}, "
        f"round {card['round']}.",
        "authors": card["site"],
        "copyright": LICENCE,
        "intended_use": INTENDED_USE,
        "eval_metrics": card["test"] or {},
        "network_data_format": {"inputs": {"image": image}, "outputs": {"pred": prediction}},
    }


def _channel_names(inputs: Inputs) -> tuple[str, ...]:
    if inputs.kind == "series":
        return tuple(f"channel {c}" for c in range(inputs.channels))
    return ("red", "green", "blue") if inputs.channels == 3 else ("image",)


_TASKS = {
    "picture": "Classification of images",
    "masked picture": "Segmentation of images",
    "masked volume": "Segmentation of volumes",
    "series": "Classification of time series",
}


def _shape(inputs: Inputs) -> list[int]:
    return [inputs.size] * 2 if isinstance(inputs.size, int) else list(inputs.size)


def _window(inputs: Inputs) -> str:
    return f"{inputs.channels}×{_shape(inputs)[0]} (channels, samples)"


_UNANSWERED = "Some of the site's test cases have these classes, and the model answered them for none:"
_NEVER = "The site had no training sample of these, and the federation's model never predicts them:"


def readme(card: Mapping[str, Any], inputs: Inputs) -> str:
    """``docs/README.md``."""
    size = inputs.settings.get("size")
    picture = "a picture" if inputs.settings.get("fit") else f"a picture of {size}x{size} pixels"
    takes = {
        "scan": "a NIfTI file, the folder of a DICOM series, or a folder of several",
        "volume": "a NIfTI file, or a folder of several",
        "picture": f"{picture}, or a folder of them",
        "series": f"an .npy file of one window, {_window(inputs)}, in the training data's units, or a folder of them",
    }[_KINDS[inputs.kind]]
    prints = (
        "Prints the sizes of the structures below as JSON; `--output_path FOLDER` writes a mask for each, with its "
        "image's geometry.\nMasks in a folder, called as in training, are left out, and no file of PATH is overwritten."
        if inputs.masked
        else "Prints the probabilities of the classes below as JSON; `--output_path FILE` writes them\ntoo."
    )
    # Names as code: a page must show them as they are, whatever Markdown or HTML they contain.
    model, site, algorithm = (_code(name) for name in (card["model"]["name"], card["site"], card["algorithm"]))
    classes = "\n".join(f"    {label}  {name}" for label, name in enumerate(inputs.classes))
    worth = f"\n{section(card)}" if card.get("verdict") else ""
    lacking = "".join(f"    {name}\n" for name in card.get("never_predicted", ()))
    never = lacking and f"\n{_NEVER}\n\n{lacking}"
    if missed := "".join(f"    {name}\n" for name in card.get("never_answered", ())):
        never += f"\n{_UNANSWERED}\n\n{missed}"
    return f"""# {model} of {site}, by {algorithm}

{INTENDED_USE}

    python -m monai.bundle run --config_file configs/inference.json --bundle_root . --input_path PATH

in this folder; PATH is {takes}. {prints}
What cannot be used of a folder is left out; `left_out` says which, and why, and the command ends with 1.
Needs MONAI, `fire` and medpfl {card["versions"]["medpfl"]}, whose transforms these are: the preprocessing is
training's own. MONAI runs what a configuration says: use a bundle only if you trust who made it.

{classes}
{never}
Weights: SHA-256 {card["sha256"]} over names, types, shapes and values (`medpfl.core.statefile.fingerprint`).

Licence: {LICENCE}
{worth}"""


def _code(text: str) -> str:
    """A text as Markdown's inline code, with a fence longer than any in it."""
    fence = "`"
    while fence in text:
        fence += "`"
    gap = " " * (len(fence) > 1)
    return f"{fence}{gap}{text}{gap}{fence}"
