"""The JSON files and the README that make a folder with weights a MONAI bundle. Needs neither MONAI nor torch."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import medpfl
from medpfl.data.inputs import Inputs

INTENDED_USE = "Research only. Not a medical device; not for diagnosis or treatment."
LICENCE = (
    "None is given by this file. The model was trained on this site's data and on what the other sites' models "
    "learned from theirs: what their agreements allow applies."
)


def versions() -> dict[str, str]:
    """Of the packages that made a model and that it needs."""
    return {"medpfl": medpfl.__version__} | {name: version(name) for name in ("torch", "monai", "numpy")}


def inference(card: Mapping[str, Any], inputs: Inputs) -> dict[str, Any]:
    """``configs/inference.json``.

    Args:
        card: the model's (:mod:`medpfl.site.delivery`).
        inputs: how files become the network's input.
    """
    arguments = {k: v for k, v in card["model"].items() if k != "values"}
    return {
        "imports": ["$import torch", "$import medpfl.bundle.inference as inference"],
        "bundle_root": ".",
        "dataset_dir": "",
        "input_path": "@dataset_dir",
        "output_path": "",
        "ckpt_path": "$@bundle_root + '/models/model.safetensors'",
        "device": "$torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
        "network_def": {"_target_": "medpfl.bundle.inference.network", **arguments},
        "network": "$@network_def.to(@device)",
        "preprocessing": {"_target_": "Compose", "transforms": _keeping_names(inputs.steps)},
        "dataset": {
            "_target_": "Dataset",
            "data": f"$inference.items(@input_path, '{inputs.kind}', {inputs.arrays})",
            "transform": "@preprocessing",
        },
        "inferer": {"_target_": "SimpleInferer"},
        "evaluator": {
            "_target_": "medpfl.bundle.inference.Classification",
            "network": "@network",
            "dataset": "@dataset",
            "classes": list(inputs.classes),
            "whole": inputs.kind == "picture" or inputs.slices is not None,
            "model": {"site": card["site"], "algorithm": card["algorithm"], "sha256": card["sha256"]},
            "output_path": "@output_path",
        },
        "initialize": ["$inference.restore(@network, @ckpt_path)"],
        "run": ["$@evaluator.run()"],
    }


def _keeping_names(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Selecting the image alone would lose its name, which the answer repeats."""
    return [step for step in steps if not step["_target_"].endswith("SelectItemsd")]


def metadata(card: Mapping[str, Any], inputs: Inputs) -> dict[str, Any]:
    """``configs/metadata.json``, in MONAI's form."""
    made = card["versions"]
    channels = {str(c): name for c, name in enumerate(("red", "green", "blue") if inputs.channels == 3 else ("image",))}
    image = {
        "type": "image",
        "format": "hounsfield" if inputs.kind == "scan" else "magnitude",
        "modality": "CT" if inputs.kind == "scan" else "n/a",
        "num_channels": inputs.slices or inputs.channels,
        "spatial_shape": [inputs.size] * 2 if inputs.slices is None else [inputs.channels, inputs.size, inputs.size],
        "dtype": "float32",
        "value_range": [-1, 1],
        "is_patch_data": False,
        "channel_def": channels if inputs.slices is None else {str(s): f"slice {s}" for s in range(inputs.slices)},
    }
    prediction = {
        "type": "logits",
        "format": "classes",
        "num_channels": len(inputs.classes),
        "spatial_shape": [],
        "dtype": "float32",
        "value_range": [],
        "is_patch_data": False,
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
        "task": "Classification of " + ("CT scans" if inputs.kind == "scan" else "images"),
        "description": f"{card['model']['name']}, trained by {card['algorithm']}; the model of {card['site']}, "
        f"round {card['round']}.",
        "authors": card["site"],
        "copyright": LICENCE,
        "intended_use": INTENDED_USE,
        "eval_metrics": card["test"] or {},
        "network_data_format": {"inputs": {"image": image}, "outputs": {"pred": prediction}},
    }


def readme(card: Mapping[str, Any], inputs: Inputs) -> str:
    """``docs/README.md``."""
    size = inputs.settings["size"]
    picture = "a picture" if inputs.settings.get("fit") else f"a picture of {size}x{size} pixels"
    scan = "a NIfTI file, the folder of a DICOM series, or a folder of several"
    takes = scan if inputs.kind == "scan" else f"{picture}, or a folder of them"
    return f"""# {card["model"]["name"]} of {card["site"]}, by {card["algorithm"]}

{INTENDED_USE}

    python -m monai.bundle run --config_file configs/inference.json --bundle_root . --input_path PATH

in this folder; PATH is {takes}. Prints the probabilities of {", ".join(inputs.classes)} as JSON; `--output_path FILE`
writes them too. Needs MONAI, `fire` and medpfl {card["versions"]["medpfl"]}, whose transforms these are: the
preprocessing is training's own. MONAI runs what a configuration says: use a bundle only if you trust who made it.

Weights: SHA-256 {card["sha256"]} over names, types, shapes and values (`medpfl.statefile.fingerprint`).

Licence: {LICENCE}
"""
