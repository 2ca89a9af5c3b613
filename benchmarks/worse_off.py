"""How many sites each method, as published, leaves worse off than local training, over comparisons that were recorded.

    python benchmarks/worse_off.py

It trains nothing: it reads ``comparison.json`` of the folders named below, three seeds each. Worse off is a site whose
test accuracy or Dice is more than a point below local training.
"""

import json
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
COLUMNS = {
    "brain MR": ("brain-mri", "brain-mri-more", "brain-mri-server-optimizers"),
    "lungs": ("chest-xray", "chest-xray-more", "chest-xray-server-optimizers"),
    "tuberculosis": (
        "chest-tuberculosis",
        "chest-tuberculosis-more",
        "chest-tuberculosis-fedimpres",
        "chest-tuberculosis-fedcurv",
        "chest-tuberculosis-fedblend",
        "chest-tuberculosis-d-fedap",
        "chest-tuberculosis-server-optimizers",
    ),
    "sarcoma MR": ("sarcoma-mr", "sarcoma-mr-server-optimizers"),
    "blood cells": (
        "bloodmnist-published",
        "bloodmnist-fine-tuned",
        "bloodmnist-rivals",
        "bloodmnist-rivals-fedimpres",
        "bloodmnist-fedblend",
        "bloodmnist-d-fedap",
        "bloodmnist-server-optimizers",
    ),
}
METHODS = (
    "FedAvg", "FedProx", "FedBN", "FedPer", "LG-FedAvg", "f-FedAP", "Ditto", "FedAvg (finetune_steps=200)", "FedBlend",
    "FedAP", "APFL", "FedRep", "SCAFFOLD", "FedBABU", "FedCurv", "FedReg", "VHL", "FedVSS", "FedImpres",
    "d-FedAP", "FedAvgM", "FedAdam", "FedYogi",
)  # fmt: skip
_OF_CLASSES = ("SCAFFOLD", "FedCurv", "FedReg", "VHL", "FedVSS", "FedImpres", "d-FedAP")
UNDEFINED = dict.fromkeys(("brain MR", "lungs", "sarcoma MR"), _OF_CLASSES)
"""Refused methods: they are of samples of one class each, d-FedAP of a linear layer that classifies, SCAFFOLD of SGD,
and masks were learned by Adam."""
NAMES = {"FedAvg (finetune_steps=200)": "FedAvg, 200 steps more", "FedImpres": "FedImpres, noise, one epoch a round"}
"""Of rows that are not a method as it is by default, or of a schedule of their own."""


def found() -> Iterator[tuple[str, str, int, int]]:
    """Method, column, sites worse off, and sites; those of all seeds count."""
    for column, folders in COLUMNS.items():
        for folder in folders:
            for group in json.loads((HERE / folder / "comparison.json").read_text())["groups"]:
                if to_local := group["to_local"]:
                    pairs = to_local["pairs"]
                    yield group["label"], column, round(to_local["below"] * pairs), pairs


def _cell(method: str, column: str, found: tuple[int, int] | None) -> str:
    if found is None:
        return "–" if method in UNDEFINED.get(column, ()) else ""
    return f"{found[0]} of {found[1]}"


def main() -> None:
    """Prints the table, fewest sites first; a method that is in several comparisons of a column counts once."""
    cells: dict[str, dict[str, tuple[int, int]]] = {method: {} for method in METHODS}
    for method, column, worse, sites in found():
        if method in cells:
            cells[method].setdefault(column, (worse, sites))
    together = {method: tuple(map(sum, zip(*row.values(), strict=True))) for method, row in cells.items()}
    print(f"| | {' | '.join(COLUMNS)} | in all |\n|---|{'---:|' * (len(COLUMNS) + 1)}")
    for method in sorted(cells, key=lambda method: (-together[method][1], together[method][0])):
        shown = [_cell(method, column, cells[method].get(column)) for column in COLUMNS]
        worse, sites = together[method]
        bold = "**" if method == "FedBlend" else ""
        print(f"| {bold}{NAMES.get(method, method)}{bold} | {' | '.join(shown)} | {bold}{worse} of {sites}{bold} |")


if __name__ == "__main__":
    main()
