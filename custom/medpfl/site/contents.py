"""What of each patient a site trains on: which images have the same content in two runs, and which show nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from torch import Tensor

from medpfl.core.masked_data import MaskedVolumes
from medpfl.core.site_data import ImageTensors, SiteData


def contents(data: SiteData) -> frozenset[bytes] | None:
    """A digest of each training patient's images and labels as training has them; None of loaders of one's own."""
    found: dict[int, hashlib.blake2b] = {}
    if (samples := _training(data)) is None:
        return None
    for owner, image, label in samples:
        digest = found.setdefault(owner, hashlib.blake2b(digest_size=16))
        for tensor in (image, label):
            digest.update(tensor.contiguous().numpy().tobytes())
    return frozenset(digest.digest() for digest in found.values())


def showing(data: SiteData) -> int | None:
    """Of how many training patients some image is not all of one value; None of loaders of one's own."""
    if isinstance(data, ImageTensors):
        flat = data.images["train"].flatten(1)
        varied = flat.amax(1) > flat.amin(1)
        owners = data.owners("train")
        return int(varied.sum()) if owners is None else len(owners[varied].unique())
    if (samples := _training(data)) is None:
        return None
    return len({owner for owner, image, _ in samples if bool(image.min() < image.max())})


def _training(data: SiteData) -> Iterator[tuple[int, Tensor, Tensor]] | None:
    """Whose it is, image and label of each training sample, in memory."""
    if isinstance(data, MaskedVolumes):
        images, labels = data.images["train"], data.masks["train"]
    elif isinstance(data, ImageTensors):
        images, labels = data.images["train"].cpu(), data.labels["train"].cpu()
    else:
        return None
    owners = data.owners("train")
    whose = range(len(labels)) if owners is None else owners.tolist()
    return ((owner, image.cpu(), label.cpu()) for owner, image, label in zip(whose, images, labels, strict=True))
