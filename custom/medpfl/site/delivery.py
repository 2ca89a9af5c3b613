"""A site's own model, left at the site in a form to use: weights, a card, a MONAI bundle, and what it gains.

Nothing of it is sent.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from medpfl.bundle.description import INTENDED_USE, LICENCE, inference, metadata, readme, refusal, versions
from medpfl.bundle.verdict import page
from medpfl.config.run import RunConfig
from medpfl.config.settings import paths
from medpfl.core.errors import UserError
from medpfl.core.parameters import State
from medpfl.core.plain import require_json
from medpfl.core.site_data import SiteData
from medpfl.core.statefile import fingerprint, write_state
from medpfl.core.whole_file import flush, flush_folder, write_bytes
from medpfl.data.inputs import Inputs
from medpfl.models.blend import is_blend
from medpfl.site.hooks import WrongForm, calling
from medpfl.tasks.task import Task

Which = Literal["selected", "last"]
WEIGHTS, CARD, BUNDLE = "model.safetensors", "card.json", "bundle"
VERDICT = "verdict.html"
"""What taking part was worth to the site, in words."""
DETAIL = "test.json"
"""The test case by case, with pictures, as far as the task has them; it never leaves the site."""
ARCHIVE = "archive"
"""Where the models of earlier runs of the same experiment go."""

logger = logging.getLogger(__name__)

_FIELDS = {
    "schema", "site", "which", "round", "algorithm", "task", "sigmoid", "choices", "settings", "seed", "data",
    "model", "classes", "input", "measures", "samples", "patients", "validation", "test", "lead",
    "never_answered", "joined", "verdict", "sha256", "versions", "intended_use", "licence", "bundle",
}  # fmt: skip
"""What a card has of its own, beside what mechanisms say in it."""


@dataclass(frozen=True)
class Delivery:
    """Where a site's models go, and what is known of them before training.

    Attributes:
        folder: the site's own; gets the sub-folders ``selected`` and ``last``.
        config: the run.
        model: arguments of :func:`medpfl.models.build_model`.
        inputs: how a file becomes the network's input; without it there is no bundle.
        durable: wait for the disk before the models that were there are given up.
    """

    folder: Path
    config: RunConfig
    model: Mapping[str, Any]
    inputs: Inputs | None
    durable: bool = False

    def said(self, data: SiteData) -> dict[str, Any]:
        """What the run's mechanisms say of their model at the site, for the record of :meth:`write`."""
        if self.inputs is None:
            return {}
        found: dict[str, Any] = {}
        for part in self.config.parts:
            with calling(part, "card"):
                said = part.card(data, self.inputs.classes)
            if not isinstance(said, Mapping):
                raise WrongForm(part.name, "card", f"its card gave {said!r}, not a dictionary")
            try:
                require_json(said, "its card")
            except UserError as error:
                raise WrongForm(part.name, "card", str(error)) from None
            if taken := sorted(_FIELDS.intersection(said)):
                raise WrongForm(part.name, "card", f"its card gave {taken[0]!r}, which a card has by itself")
            found |= said
        return found

    def unanswered(self, predictions: Callable[[], Any]) -> dict[str, Any]:
        """What the record of :meth:`write` has of classes that the model says of no test case, though some are theirs.

        Args:
            predictions: gives those of what the site uses, on its test data.
        """
        if type(self.config.learned).never_answered is Task.never_answered:
            return {}
        names = self.inputs.classes if self.inputs else ()
        found = self.config.learned.never_answered(predictions())
        numbers = {names[c] if c < len(names) else str(c): number for c, number in found.items()}
        return {"never_answered": numbers} if numbers else {}

    def write(
        self,
        which: Which,
        site: str,
        round_: int,
        state: State,
        record: Mapping[str, Any],
        detail: Mapping[str, Any] | None = None,
        *,
        archive: bool = False,
    ) -> None:
        """Replaces the folder ``which`` as a whole.

        What a bundle would not hold as mere text is refused before training, where the run, its data and its sites are
        read. Should some come this far, the model is left with its card, without a bundle, and the log says why.

        Args:
            which: the sub-folder.
            site: its name.
            round_: the round after whose mix this is the site's model.
            state: the model's whole state.
            record: ``samples`` by part, of how many ``patients`` if of fewer, the measures ``validation`` and ``test``,
                and the ``verdict`` if there is one, and what :meth:`said` and :meth:`unanswered` have.
            detail: :meth:`medpfl.tasks.task.Task.detail` of the test, where it was made.
            archive: another model that is there goes to the archive.

        Raises:
            OSError: it cannot be written; what was there is still there, or in the archive.
        """
        card = self._card(which, site, round_, state, record)
        if self.inputs and (problem := refusal(card, self.inputs)):
            logger.warning("%s: the %s model is left without a bundle: %s", site, which, problem)
            card["bundle"] = None
        self._put_back()
        new = self._new(which)
        shutil.rmtree(new, ignore_errors=True)
        try:
            new.mkdir(mode=0o700, parents=True)
            write_state(new / WEIGHTS, state, durable=False, info={"site": site, "round": round_}, mode=0o600)
            _write(new / CARD, _json(card))
            if detail:
                _write(new / DETAIL, _json(detail))
            if card.get("verdict"):
                _write(new / VERDICT, page(card, detail))
            if self.inputs and card["bundle"]:
                _write_bundle(new / BUNDLE, new / WEIGHTS, card, self.inputs)
            if self.durable:
                flush_folder(new)
            if archive and (self.folder / which).exists() and not self._holds(which, card):
                self._archive(which)
            _replace(new, self.folder / which, self.durable)
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def _holds(self, which: Which, card: Mapping[str, Any]) -> bool:
        """Whether the folder is of this very model."""
        try:
            there = json.loads((self.folder / which / CARD).read_bytes())
        except (OSError, ValueError):
            return False
        return isinstance(there, dict) and there.get("sha256") == card["sha256"]

    def put_aside(self) -> None:
        """Moves both models of an earlier run to ``archive/NUMBER``; half-written ones go. OSError if that fails."""
        self._put_back()
        self._archive(*(which for which in get_args(Which) if (self.folder / which).exists()))
        for which in get_args(Which):
            for place in (self._new(which), _old(self._new(which))):
                if place.exists():
                    shutil.rmtree(place)

    def _put_back(self) -> None:
        """A kill while one model replaced another may have left the other alone, beside its place."""
        for which in get_args(Which):
            if (old := _old(self._new(which))).exists() and not (self.folder / which).exists():
                old.rename(self.folder / which)

    def _archive(self, *kept: Which) -> None:
        if kept:
            place = self._next_archive()
            for which in kept:
                (self.folder / which).rename(place / which)

    def _next_archive(self) -> Path:
        archive = self.folder / ARCHIVE
        numbers = [int(folder.name) for folder in archive.glob("*") if folder.name.isdecimal()]
        place = archive / str(max(numbers, default=0) + 1)
        place.mkdir(mode=0o700, parents=True)
        return place

    def _new(self, which: Which) -> Path:
        return self.folder / f".{which}.new"

    def _card(self, which: Which, site: str, round_: int, state: State, record: Mapping[str, Any]) -> dict[str, Any]:
        config, inputs = self.config, self.inputs
        return {
            "schema": 1,
            "site": site,
            "which": which,
            "round": round_,
            "algorithm": config.algorithm,
            "task": config.task,
            "sigmoid": config.learned.sigmoid,
            "choices": config.choices(),
            "settings": {k: v for k, v in config.all_settings.items() if k not in paths()},
            "seed": config.seed,
            "data": Path(config.data).name,
            "model": {
                **self.model,
                **({"blend": True} if is_blend(state) else {}),
                "values": sum(t.numel() for t in state.values() if t.is_floating_point()),
            },
            "classes": list(inputs.classes) if inputs else None,
            "input": {
                "kind": inputs.kind,
                "channels": inputs.channels,
                "size": inputs.size,
                "preprocessing": inputs.settings,
            }
            if inputs
            else None,
            "measures": config.learned.described(),
            **record,
            "sha256": fingerprint(state),
            "versions": versions(),
            "intended_use": INTENDED_USE,
            "licence": LICENCE,
            "bundle": BUNDLE if inputs else None,
        }


def _write_bundle(folder: Path, weights: Path, card: Mapping[str, Any], inputs: Inputs) -> None:
    for name in ("configs", "models", "docs"):
        (folder / name).mkdir(parents=True)
    (folder / "configs" / "metadata.json").write_text(_json(metadata(card, inputs)), encoding="utf-8")
    (folder / "configs" / "inference.json").write_text(_json(inference(card, inputs)), encoding="utf-8")
    (folder / "docs" / "README.md").write_text(readme(card, inputs), encoding="utf-8")
    try:
        os.link(weights, folder / "models" / WEIGHTS)
    except OSError:  # a file system without links
        shutil.copyfile(weights, folder / "models" / WEIGHTS)


def _replace(new: Path, place: Path, durable: bool) -> None:
    """Moves a folder into its place; the one that was there is back if that fails."""
    old = _old(new)
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    try:
        new.rename(place)
    except OSError:
        if old.exists():
            old.rename(place)
        raise
    if durable:
        flush(place.parent)
    shutil.rmtree(old, ignore_errors=True)


def _old(new: Path) -> Path:
    return new.with_suffix(".old")


def _write(file: Path, text: str) -> None:
    """For the site alone, also where the file is moved out of its folder."""
    write_bytes(file, text.encode(), durable=False, mode=0o600)


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, allow_nan=False) + "\n"
