"""Segments new pictures and volumes with a delivered model, as the site's own tests did, and writes the masks."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from medpfl.bundle.answered import PROBLEM, each, end, in_one_line
from medpfl.bundle.inference import require_finite, require_folder
from medpfl.core.errors import UserError, printably
from medpfl.core.layers import evaluating
from medpfl.core.masked_data import Case
from medpfl.core.whole_file import write_bytes
from medpfl.data.files import nifti_stem
from medpfl.data.kinds.folders.picture_file import picture_size, place_in_square
from medpfl.tasks.segmentation.judging import most_probable, predicted

if TYPE_CHECKING:
    from monai.data import Dataset

logger = logging.getLogger(__name__)
logger.addFilter(printably)


class Segmentation:
    """Segments every item of a data set, writes a mask each and prints the structures' sizes as JSON.

    A mask has the geometry of its image: a picture's is a PNG of the same size, a volume's a NIfTI file on the same
    grid, by the nearest voxel of the network's.

    Args:
        network: with its weights, on its device.
        dataset: gives ``image`` of every item, preprocessed, and its ``name``.
        classes: their names in the order of the network's outputs; the first is the background.
        window: the patch that the network takes of a volume, (D, H, W); None where it takes slices or pictures whole.
        fit: how pictures or slices became square.
        model: name and fingerprint of the model, to be repeated in the answer.
        output_path: folder for the masks; empty for none.
    """

    def __init__(
        self,
        network: nn.Module,
        dataset: Dataset,
        classes: Sequence[str],
        window: Sequence[int] | None,
        fit: str,
        model: Mapping[str, str],
        output_path: str = "",
    ):
        self.network, self.dataset, self.classes, self.fit = network, dataset, list(classes), fit
        self.window = None if window is None else tuple(window)
        self.model, self.output_path = dict(model), output_path

    @in_one_line
    def run(self) -> dict[str, Any]:
        """Segments, prints and writes; returns what it prints.

        Raises:
            UserError: a mask would overwrite a file of the images' folder, or another image's; nothing is written. Or
                no image can be used.
        """
        if self.output_path:
            self._require_no_overwriting()
            require_folder(Path(self.output_path), Path(self.output_path))
        found = {"model": self.model, **each(self.dataset.data, self._segmented)}
        self._tell_earlier([item["name"] for item in found.get("left_out", ())])
        print(json.dumps(found, indent=1, allow_nan=False))
        end(found)
        return found

    def _tell_earlier(self, names: Sequence[str]) -> None:
        """A mask of an earlier call beside this one's would look like its answer."""
        for item in self.dataset.data if self.output_path else ():
            if item["name"] in names and (file := self._file(item, Path(item["image"]))).exists():
                logger.warning("%s is of an earlier call, and no answer of this one", file)

    def labels(self, item: Mapping[str, Any]) -> Tensor:
        """The classes of a preprocessed item on the network's grid, (D, H, W) or (k, H, W) uint8."""
        device = next(self.network.parameters()).device
        image = torch.as_tensor(item["image"]).as_subclass(torch.Tensor).float().to(device)
        slices = image if self.window is None and image.dim() == 4 else image[None]
        with evaluating(self.network), torch.inference_mode():
            case = Case(slices, torch.zeros(0), None)
            outputs = predicted(self.network, case, self.window)
            require_finite(outputs, item["name"])
            return most_probable(outputs).to(torch.uint8).cpu()

    def _segmented(self, number: int) -> dict[str, Any]:
        item = self.dataset[number]
        labels, source = self.labels(item), Path(self.dataset.data[number]["image"])
        for words in item["stored"].odd() if "stored" in item else ():
            logger.warning("%s: %s", source, words)
        if item["kind"] == "picture":
            mask = _upright_size(labels, _picture_size(source), self.fit)[0].numpy()
            voxel = None
        else:
            mask, voxel = self._on_the_images_grid(labels, item, source)
        sizes = np.bincount(mask.ravel(), minlength=len(self.classes))[1:]
        unit = {"pixels" if voxel is None else "voxels": sizes.tolist()}
        volume = {} if voxel is None else {"ml": [round(float(n * voxel / 1000), 3) for n in sizes]}
        written = self._write(mask, item, source) if self.output_path else None
        columns = {key: dict(zip(self.classes[1:], values, strict=True)) for key, values in (unit | volume).items()}
        return {"name": item["name"], "mask": written, **columns}

    def _on_the_images_grid(self, labels: Tensor, item: Mapping[str, Any], source: Path) -> tuple[np.ndarray, float]:
        """(X, Y, Z), and a voxel's volume in mm³: by where it lies, as all else, and not by the header's pixdim."""
        import nibabel
        from monai.data import MetaTensor
        from monai.transforms import SpatialResample

        header = nibabel.load(source)
        affine = getattr(item["image"], "affine", None)
        if squared := item.get("squared"):
            labels, affine = _unsquared(labels, squared["shape"], self.fit), squared["affine"]
        if affine is None:
            raise UserError(f"{source}: it is not known where its voxels lie")
        ours = MetaTensor(labels.permute(2, 1, 0)[None].float(), affine=affine)
        # The file's outermost voxels may lie half a voxel of the network's beyond its last one.
        same = SpatialResample(mode="nearest", padding_mode="border", dtype=torch.float64)
        mask = same(ours, dst_affine=torch.as_tensor(header.affine), spatial_size=header.shape[:3])[0]
        return mask.numpy().round().astype(np.uint8), float(abs(np.linalg.det(header.affine[:3, :3])))

    def _require_no_overwriting(self) -> None:
        whose: dict[Path, Path] = {}
        for item in self.dataset.data:
            if PROBLEM in item:
                continue
            source, name = Path(item["image"]), Path(item["name"])
            file = self._file(item, source)
            if (other := whose.setdefault(file, source)) != source:
                raise UserError(f"{other} and {source} would have one mask, {file.name}: name one of them otherwise")
            given = source.parents[len(name.parts) - 1]  # the folder below which it was found
            places = {given.resolve(), source.parent.resolve()}  # which may be elsewhere, by a link
            if file.exists() and not places.isdisjoint(file.resolve().parents):
                raise UserError(
                    f"--output_path {self.output_path}: {file} is there already, in the images' own folder or below, "
                    "and is not overwritten: give another folder"
                )

    def _file(self, item: Mapping[str, Any], source: Path) -> Path:
        place = Path(self.output_path) / Path(item["name"]).parent
        if item["kind"] == "picture":
            return place / f"{source.stem}_mask.png"
        return place / f"{nifti_stem(source.name)}_mask.nii.gz"

    def _write(self, mask: np.ndarray, item: Mapping[str, Any], source: Path) -> str:
        file = self._file(item, source)
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists():  # as of an earlier call on another file of that name
            logger.warning("%s was there and is replaced", file)
        if item["kind"] == "picture":
            from PIL import Image

            content = BytesIO()
            Image.fromarray(mask).save(content, "PNG")
            write_bytes(file, content.getvalue(), durable=False)
        else:
            import nibabel

            made = nibabel.Nifti1Image(mask, nibabel.load(source).affine)
            made.header.set_xyzt_units("mm")
            write_bytes(file, gzip.compress(made.to_bytes(), 6, mtime=0), durable=False)
        return str(file)


def _picture_size(file: Path) -> tuple[int, int]:
    """(H, W), upright."""
    if file.suffix.lower() == ".npy":
        return np.load(file, mmap_mode="r", allow_pickle=False).shape[:2]
    return picture_size(file)[::-1]


def _upright_size(labels: Tensor, shape: tuple[int, int], fit: str) -> Tensor:
    """Square labels (k, S, S) as the pictures were, (k, H, W): those are made smaller first, then padded."""
    if fit != "pad":
        return _unsquared(labels, shape, fit, halves=True)
    left, top, width, height = place_in_square(shape[1], shape[0], labels.shape[-1])
    if not (width and height):  # too thin a picture for any of its pixels to be seen
        return torch.zeros(len(labels), *shape, dtype=torch.uint8)
    shown = labels[:, None, top : top + height, left : left + width]
    return interpolate(shown.float(), shape, mode="nearest-exact")[:, 0].to(torch.uint8)


def _unsquared(labels: Tensor, shape: tuple[int, int], fit: str, *, halves: bool = False) -> Tensor:
    """Square labels (k, S, S) as the slices were before, (k, H, W), by the nearest one.

    What was cropped away is background. With ``halves`` the square may have begun in the middle of a pixel, as Pillow's
    does where an odd number of pixels goes.
    """
    edges = {"pad": (max(shape),) * 2, "crop": (min(shape),) * 2}.get(fit, shape)
    size = labels.shape[-1]
    begins = (side - edge if halves else 2 * int((side - edge) / 2) for side, edge in zip(shape, edges, strict=True))
    rows, columns = (  # in whole numbers: twice the distance of a pixel's middle from where the square begins
        (2 * torch.arange(side) + 1 - begin) * size // (2 * edge)
        for side, edge, begin in zip(shape, edges, begins, strict=True)
    )
    seen = ((rows >= 0) & (rows < size))[:, None] & (columns >= 0) & (columns < size)
    return labels[:, rows.clamp(0, size - 1)][:, :, columns.clamp(0, size - 1)] * seen
