"""Hospitals whose files carry patients' names, and a server that keeps every byte that reaches it."""

import itertools
import json
import os
from pathlib import Path

import numpy as np
import torch
from nvflare.apis.dxo import from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import Filter
from nvflare.apis.fl_component import FLComponent

from medpfl.core.site_data import PARTS, ImageTensors

ROOT, PATIENT = "HOSPITALS", "HOSPITALS_PATIENT"
"""Environment variables that say where the hospitals' files are and whose; nothing in the job does."""


def file_of(site: str) -> Path:
    return Path(os.environ[ROOT]) / site / f"{os.environ[PATIENT]}.npz"


def write_hospital(site: str, number: int) -> None:
    rng = np.random.default_rng(number)
    file = file_of(site)
    file.parent.mkdir(parents=True)
    images = {f"{part}_images": rng.integers(0, 256, (12, 1, 28, 28), dtype=np.uint8) for part in PARTS}
    np.savez(file, **images, **{f"{part}_labels": rng.permutation(np.arange(12) % 3) for part in PARTS})


class Breaks(ImageTensors):
    """Cannot be read in training, and says so with a patient's name."""

    def training_batches(self, batch_size, generator):
        raise OSError(f"cannot read {file_of('site-3')}")


def hospital(site: str, seed: int) -> ImageTensors:
    with np.load(file_of(site)) as found:
        images, labels = (
            {part: torch.from_numpy(found[f"{part}_{kind}"]) for part in PARTS} for kind in ("images", "labels")
        )
    return (Breaks if site == "site-3" else ImageTensors)(images=images, labels=labels)


class KeepsMessages(FLComponent):
    """Writes every message that reaches the server's cell, whatever its channel, as it came."""

    def __init__(self, folder: str):
        super().__init__()
        self.folder = folder
        self._numbers = itertools.count()

    def handle_event(self, event_type, fl_ctx):
        if event_type == EventType.START_RUN:
            fl_ctx.get_engine().get_cell().core_cell.add_incoming_filter("*", "*", self._keep)

    def _keep(self, message):
        payload = message.payload
        pieces = payload if isinstance(payload, list) else [b"" if payload is None else payload]
        head = json.dumps(message.headers, default=repr).encode()
        name = f"{next(self._numbers):06d}.message"
        (Path(self.folder) / name).write_bytes(head + b"\n" + b"".join(bytes(piece) for piece in pieces))


class KeepsAnswers(Filter):
    """Writes what the server's workflow is given of every site's answer, decoded."""

    def __init__(self, folder: str):
        super().__init__()
        self.folder = folder
        self._numbers = itertools.count()

    def process(self, shareable, fl_ctx):
        stem = Path(self.folder) / f"{next(self._numbers):06d}"
        kept = {"headers": dict(shareable.items()).get("__headers__", {}), "code": shareable.get_return_code()}
        if kept["code"] == "OK":
            dxo = from_shareable(shareable)
            np.savez(stem.with_suffix(".npz"), **dxo.data)
            kept["meta"] = dxo.meta
        stem.with_suffix(".json").write_text(json.dumps(kept, default=repr))
        return shareable
