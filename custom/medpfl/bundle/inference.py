"""What a bundle's ``inference.json`` calls: from a path to class probabilities, as the site's own tests made them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from medpfl.bundle.answered import PROBLEM, each, end, in_one_line
from medpfl.core.errors import TornFile, UserError, printably
from medpfl.core.permitted_code import permit
from medpfl.core.site_data import ImageTensors
from medpfl.core.statefile import read_state
from medpfl.core.whole_file import write_bytes
from medpfl.data.files import PICTURES, is_hidden, is_nifti, is_special, walk
from medpfl.data.kinds.folders.xray import is_dicom, person
from medpfl.data.kinds.scans.limits import WHOLE_CHEST
from medpfl.data.kinds.scans.preprocessing import Modality
from medpfl.models import build_model, logits
from medpfl.models.blend import Blend
from medpfl.tasks.evaluation import predict, softmax

if TYPE_CHECKING:
    from monai.data import Dataset

logger = logging.getLogger(__name__)
logger.addFilter(printably)

_WANTED = {
    "volume": "a NIfTI file, or a folder of several",
    "scan": "a NIfTI file, the folder of a DICOM series, or a folder of several",
    "picture": "a picture, or a folder of them",
    "series": "an .npy file of one window, or a folder of them",
}


def network(code: Sequence[str] = (), blend: bool = False, sigmoid: bool = False, **arguments: Any) -> nn.Module:
    """:func:`~medpfl.models.build_model`'s network, whose output is its logits alone, as MONAI's tools expect.

    Args:
        code: modules that the bundle may take the network from: of a model of the site's own.
        blend: two such networks, whose probabilities are averaged.
        sigmoid: their outputs are independent of each other.
        arguments: of the network.
    """
    permit(*code)
    model = build_model(**arguments)
    if blend:
        model = Blend(model, build_model(**arguments), sigmoid=sigmoid)
    model.register_forward_hook(lambda module, inputs, output: logits(output))
    return model


@in_one_line
def restore(model: nn.Module, path: str | Path) -> None:
    """Loads a delivered ``model.safetensors`` into the network; UserError if the file is not as it was written."""
    try:
        state, _ = read_state(Path(path))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; give --bundle_root, the bundle's folder") from None
    except TornFile as error:
        raise UserError(f"{error}; copy the bundle again") from None
    model.load_state_dict(state)


@in_one_line
def items(
    path: str | Path,
    kind: Literal["scan", "picture", "volume", "series"],
    arrays: bool = False,
    modality: Modality = "CT",
    masks: bool = False,
) -> list[dict[str, Any]]:
    """What there is to classify or segment at a path.

    Args:
        path: of scans: a NIfTI file, a DICOM file's folder, or a folder of several; of volumes: a NIfTI file or a
            folder; of pictures and windows of series: a file or a folder.
        kind: which of them.
        arrays: of a folder of pictures, take ``.npy`` files too.
        modality: of scans.
        masks: a folder may have masks beside its images, called as training takes them: they are left out, and the log
            says how many.

    Returns:
        For each, ``image`` (a file, or a series' files), ``kind`` and ``name``, and of a scan that cannot be used
        ``problem``, why.

    Raises:
        UserError: nothing is there; a file cannot be read that may belong to any of the series; or a folder's pictures
            lie in folders inside it.
    """
    if not str(path):
        raise UserError(f"--input_path is missing: give {_WANTED[kind]}")
    if not (where := Path(path)).exists():
        raise UserError(f"--input_path {path}: there is no such file or folder; give {_WANTED[kind]}")
    xrays = not (arrays or masks)
    wanted = _is_window if kind == "series" else partial(_is_picture, arrays=arrays, xrays=xrays)
    if kind == "scan":
        found = _scans(where, modality)
    else:
        found = _volumes(where) if kind == "volume" else _files(where, kind, wanted)
    if masks and where.is_dir():
        found = _without_masks(where, found)
    if not found:
        if kind in ("picture", "series") and (inside := next(filter(wanted, walk(where, _pass)), None)):
            what = "pictures" if kind == "picture" else ".npy files"
            raise UserError(
                f"--input_path {where}: its {what} lie in folders inside it: give one of those, e.g. {inside.parent}"
            )
        pictures = f"picture ({', '.join((*PICTURES, *(['.npy'] * arrays), *(['DICOM'] * xrays)))})"
        what = {"scan": "DICOM series or NIfTI file", "volume": "NIfTI file", "series": ".npy file"}.get(kind, pictures)
        raise UserError(f"--input_path {where}: holds no {what}; give {_WANTED[kind]}")
    return found


def _pass(error: OSError) -> None:
    """A folder that cannot be read holds nothing for this command."""


def _is_picture(file: Path, arrays: bool, xrays: bool) -> bool:
    if xrays and is_dicom(file):
        return person(file) is not None  # else a report, or a medium's index
    return file.suffix.lower() in (*PICTURES, *([".npy"] * arrays))


def _is_window(file: Path) -> bool:
    return file.suffix.lower() == ".npy"


def _files(where: Path, kind: str, wanted: Callable[[Path], bool]) -> list[dict[str, Any]]:
    """A file, or those that are wanted in a folder but hidden ones, such as macOS leaves beside others."""
    files = [where]
    if where.is_dir():
        there = (file for file in where.iterdir() if not (is_hidden(file.name) or is_special(file)))
        files = sorted(filter(wanted, there))
    return [{"image": str(file), "kind": kind, "name": file.name} for file in files]


def _without_masks(where: Path, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items of a folder that training would not take for masks."""
    from medpfl.data.kinds.masks.pairs import masks_among

    masks = masks_among([Path(item["name"]) for item in found])
    if not masks:
        return found
    kept = [item for item in found if Path(item["name"]) not in masks]
    first = min(masks)
    if not kept:
        raise UserError(
            f"--input_path {where}: by their names all its images are masks, {first} first: call them otherwise, or "
            "give one file"
        )
    out = f"{len(masks):,} masks by their names are" if len(masks) > 1 else "1 mask by its name is"
    logger.warning("%s: %s left out, %s first", where, out, first)
    return kept


def _volumes(where: Path) -> list[dict[str, Any]]:
    from medpfl.data.kinds.scans.nifti import read_volume

    closed: list[OSError] = []
    found = []
    for name, file in _nifti(where, closed.append):
        wrong = next((p.message for p in read_volume(file, several=True).problems if p.level == "error"), "")
        found.append({"image": str(file), "kind": "volume", "name": name} | ({PROBLEM: wrong} if wrong else {}))
    for error in closed:
        name, problem = os.path.relpath(error.filename, where), f"{error.filename}: cannot be read: {error.strerror}"
        found.append({"image": error.filename, "kind": "volume", "name": name, PROBLEM: problem})
    return found


def _nifti(where: Path, closed: Callable[[OSError], None]) -> list[tuple[str, Path]]:
    """The NIfTI files at a path, each with what tells it from the others: its path below the folder.

    Args:
        where: a file or a folder.
        closed: is told of a folder inside that cannot be read.
    """
    if where.is_file():
        return [(where.name, where)]
    return [(str(file.relative_to(where)), file) for file in sorted(walk(where, closed)) if is_nifti(file.name)]


def _scans(where: Path, modality: Modality) -> list[dict[str, Any]]:
    from medpfl.data.kinds.scans.nifti import read_volume
    from medpfl.data.kinds.scans.series import read_folder

    volumes = [("nifti", name, (file,), read_volume(file)) for name, file in _nifti(where, _pass)]
    if where.is_dir():
        folder = read_folder(where)  # which says what cannot be read
        if lost := next((file for file in folder.strays if file.what == "lost"), None):
            raise UserError(f"{lost.path}: {lost.reason}")
        volumes += [("dicom", uid, series.files, series) for uid, series in sorted(folder.series.items())]
    found = []
    for kind, name, files, volume in volumes:
        problem = next((p.message for p in volume.problems if p.level == "error"), "")
        if not problem and kind == "dicom" and volume.modality != modality:
            problem = f"{name}: a series of modality {volume.modality}; the model takes {modality}"
        if not problem and modality == "CT" and volume.coverage < WHOLE_CHEST:
            logger.warning("%s: %.0f mm from bottom to top, not a whole chest", name, volume.coverage)
        item = {"image": [str(f) for f in files], "kind": kind, "name": name}
        found.append(item | ({PROBLEM: problem} if problem else {}))
    return found


def require_place(file: Path) -> None:
    """UserError, before anything is predicted, if results cannot be written to a file; its folder is made.

    Of files that are there only results are replaced: a name given by mistake may be a patient's image.
    """
    if file.is_dir():
        raise UserError(f"--output_path {file}: a folder; give a JSON file in it, e.g. {file / 'results.json'}")
    if file.is_file() and not _holds_results(file):
        raise UserError(f"--output_path {file}: is there already, and holds no results of a bundle: give another name")
    require_folder(file.parent, file)


def _holds_results(file: Path) -> bool:
    try:
        with open(file, "rb") as opened:
            content = json.load(opened) if opened.peek(1)[:1] == b"{" else None  # an image may be large
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and {"model", "results"} <= content.keys()


def require_folder(folder: Path, asked: Path) -> None:
    """Makes a folder; UserError with the path that was asked for if it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "there is a file of that name" if isinstance(error, FileExistsError) else error.strerror
        raise UserError(f"--output_path {asked}: the folder {folder} cannot be made: {why}") from None


def require_finite(outputs: torch.Tensor, name: str) -> None:
    """UserError, which names the image, where a network says numbers that are none: no test counts such an answer."""
    if not outputs.isfinite().all():
        raise UserError(f"{name}: the network's output is not finite: its values may be far from those of training")


class Classification:
    """Classifies every item of a data set and prints the probabilities as JSON.

    A scan's probabilities are the means of its slices', or come from all of them together where the network takes bags.

    Args:
        network: with its weights, on its device.
        dataset: gives ``image`` of every item, preprocessed, and its ``name``.
        classes: their names in the order of the network's outputs.
        whole: an ``image`` is one sample (a picture, a bag of slices) and not a sample for each of its slices.
        model: name and fingerprint of the model, to be repeated in the answer.
        output_path: JSON file to write too; empty for none.
        sigmoid: every class may be there or not, independently of the others.
    """

    def __init__(
        self,
        network: nn.Module,
        dataset: Dataset,
        classes: Sequence[str],
        whole: bool,
        model: Mapping[str, str],
        output_path: str = "",
        sigmoid: bool = False,
    ):
        self.of = torch.sigmoid if sigmoid else softmax
        self.network, self.dataset, self.classes, self.whole = network, dataset, list(classes), whole
        self.model, self.output_path = dict(model), output_path

    @in_one_line
    def run(self) -> dict[str, Any]:
        """Classifies, prints and writes; returns what it prints.

        Raises:
            UserError: no item can be used, or the results' place cannot be written to.
        """
        if self.output_path:
            require_place(Path(self.output_path))
        found = {"model": self.model, **each(self.dataset.data, lambda n: self._classified(self.dataset[n]))}
        text = json.dumps(found, indent=1, allow_nan=False)
        print(text)
        if self.output_path:
            write_bytes(Path(self.output_path), (text + "\n").encode(), durable=False)
        end(found)
        return found

    def _classified(self, item: Mapping[str, Any]) -> dict[str, Any]:
        device = next(self.network.parameters()).device
        image = torch.as_tensor(item["image"]).as_subclass(torch.Tensor).to(device)
        samples = {"test": image[None] if self.whole else image}
        same = {"test": torch.zeros(len(samples["test"]), dtype=torch.long, device=device)}
        data = ImageTensors(images=samples | {"train": samples["test"]}, labels=same, patients=same)
        probabilities, _ = predict(self.network, data, "test", self.of)
        require_finite(torch.from_numpy(probabilities), item["name"])
        return {"name": item["name"], "probabilities": dict(zip(self.classes, probabilities[0].tolist(), strict=True))}
