"""How images with masks are read: what ``--data-arg`` says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from medpfl.core.errors import UserError
from medpfl.data.arguments import Lengths, lower_first, named_classes, read_arguments
from medpfl.data.kinds.folders.patient_pattern import PatientPattern

Form = Literal["pictures", "slices", "volumes", "arrays"]
"""Pictures; NIfTI volumes as 2-D slices; NIfTI volumes as such; images in an npz file."""

CHANNELS = {"rgb": 3, "grey": 1}
STRUCTURE = ("background", "foreground")
"""The classes where nobody says any."""

_BACKGROUND = {STRUCTURE[0], "bg", "hintergrund"}
"""What a class is called that can only be the first."""

_TAKES: dict[Form, tuple[str, ...]] = {
    "pictures": ("size", "fit", "channels"),
    "slices": ("size", "fit", "channels", "spacing", "normalise", "window"),
    "volumes": ("patch", "patches", "foreground", "channels", "spacing", "normalise", "window"),
    "arrays": ("size", "channels"),
}
_ALL = ("dims", "values", "patient", "folders", "fold")


class Reading(BaseModel):
    """How images with masks are read; travels with a job.

    Attributes:
        dims: 2 or 3; by default 2 of pictures and npz files, 3 of NIfTI volumes, whose slices 2 takes one by one.
        size: edge length of the square that pictures and slices become, pixels.
        fit: how they become square: ``pad`` adds black, ``crop`` takes the largest square from the middle, ``stretch``
            changes the proportions.
        channels: of an image: ``rgb``, ``grey`` or a number; by default 3 of pictures, 1 of volumes.
        spacing: mm from slice to slice, row to row, column to column that volumes are resampled to; 0 keeps an axis.
        normalise: of volumes, by what is not zero: ``zscore`` (mean 0, deviation 1), ``percentile`` (the 1st and the
            99th become -1 and 1), ``window`` (``window`` becomes -1 to 1), ``none``; ``auto`` is ``window`` of a volume
            with values below -200, as CT has, else ``zscore``.
        window: the values that become -1 and 1 where ``normalise`` says so, HU of CT.
        patch: slices, rows and columns of a volume that the network takes at once.
        patches: of a volume in an epoch.
        foreground: share of the patches that are centred on a structure.
        values: by class, the value or values of a mask that mean it; by default those of a mask are the classes, and
            with two classes whatever is not 0 is the second.
        patient: RE2's regular expression whose first group, found in a file's name, is the patient; by default a folder
            below the site's is, else every image is its own.
        folders: what the outermost folders are where the files do not tell: ``sites`` or ``patients``.
        fold: of a datalist: that which tests.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    dims: Literal[2, 3] | None = None
    size: int = Field(default=128, ge=8, le=1024)
    fit: Literal["pad", "crop", "stretch"] = "pad"
    channels: Literal["rgb", "grey"] | int | None = None
    spacing: Lengths = (0.0, 0.0, 0.0)
    normalise: Literal["auto", "zscore", "percentile", "window", "none"] = "auto"
    window: tuple[float, float] = (-160.0, 240.0)
    patch: tuple[int, int, int] = (32, 64, 64)
    patches: int = Field(default=4, ge=1, le=1000)
    foreground: float = Field(default=0.5, ge=0, le=1)
    values: tuple[tuple[int, ...], ...] | None = None
    patient: PatientPattern = ""
    folders: Literal["sites", "patients"] | None = None
    fold: int | None = None

    @field_validator("channels")
    @classmethod
    def _some(cls, channels: str | int | None) -> str | int | None:
        if isinstance(channels, int) and not 1 <= channels <= 64:
            raise ValueError(f"{channels}: rgb, grey, or a number from 1 to 64")
        return channels

    @field_validator("window")
    @classmethod
    def _lower_first(cls, window: tuple[float, float]) -> tuple[float, float]:
        return lower_first(window, "two values, the lower first, e.g. -160, 240 for the abdomen in HU")

    @field_validator("patch")
    @classmethod
    def _patch(cls, patch: tuple[int, ...]) -> tuple[int, ...]:
        if not all(4 <= side <= 512 for side in patch):
            raise ValueError(f"{patch}: slices, rows and columns from 4 to 512")
        return patch

    @field_validator("values", mode="before")
    @classmethod
    def _by_class(cls, values: Any) -> Any:
        """``[0, 255]``, ``[0, [1, 2, 4]]`` or ``{"255": 1}``, in which 0 is the background's."""
        if isinstance(values, Mapping):
            try:
                pairs = [(int(value), int(label)) for value, label in values.items()]
            except (TypeError, ValueError):
                raise ValueError('whole numbers and their classes, e.g. {"255": 1}') from None
            if not pairs or not 0 < max(label for _, label in pairs) < 256 or min(label for _, label in pairs) < 0:
                raise ValueError("classes are numbers from 1, of which there are at most 255, and 0, the background")
            listed: list[list[int]] = [[] for _ in range(max(label for _, label in pairs) + 1)]
            for value, label in pairs:
                listed[label].append(value)
            if not listed[0] and 0 not in dict(pairs):
                listed[0] = [0]
            return listed
        if isinstance(values, list | tuple):
            return [value if isinstance(value, list | tuple) else [value] for value in values]
        return values

    @field_validator("values")
    @classmethod
    def _disjoint(cls, values: tuple[tuple[int, ...], ...] | None) -> tuple[tuple[int, ...], ...] | None:
        if values is None:
            return None
        every = [value for of_class in values for value in of_class]
        if not 2 <= len(values) <= 256 or not all(values) or len(set(every)) < len(every):
            raise ValueError(
                f"{[list(v) for v in values]}: for each of two classes or more its own values, e.g. [0, 255]"
            )
        if not all(-(2**31) <= value < 2**31 for value in every):
            raise ValueError("whole numbers of 32 bits")
        return values

    @property
    def windowed_hu(self) -> bool:
        """Whether volumes are windowed from below 0, as only HU are."""
        return self.normalise == "window" and self.window[0] < 0

    def number_of_channels(self, form: Form) -> int:
        """Of an image as the network sees it."""
        if self.channels is None:
            return 3 if form == "pictures" else 1
        return CHANNELS.get(self.channels, self.channels)


def settings_of(form: Form, reading: Reading) -> dict[str, Any]:
    """What of a reading matters for data of this form, in plain values."""
    said = reading.model_dump(mode="json", include={"dims", "values", *_TAKES[form]})
    # An npz file's channels are its own.
    return said if form == "arrays" else said | {"channels": reading.number_of_channels(form)}


def read_reading(data_args: Mapping[str, Any]) -> Reading:
    """What ``--data-arg`` says besides ``classes``; UserError names a wrong one and lists those that there are."""
    return read_arguments(Reading, data_args)


def require_taken(form: Form, data_args: Mapping[str, Any]) -> None:
    """UserError for an argument that data of this form do not have."""
    takes = (*_TAKES[form], *_ALL, "classes")
    if other := next((name for name in data_args if name not in takes), None):
        what = {
            "pictures": "pictures",
            "slices": "slices of volumes",
            "volumes": "volumes (dims=2 takes their slices)",
            "arrays": "images in an npz file",
        }[form]
        raise UserError(f"--data-arg {other}: {what} with masks have {', '.join(takes)}")


def class_names(data_args: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes, the background first: by name, or by how many there are; empty where the job says none.

    Raises:
        UserError: they are no names, or not as many as ``values``, or the background is not the first.
    """
    said = data_args.get("classes")
    values = read_reading(data_args).values
    if isinstance(said, int) and not isinstance(said, bool):
        if not 2 <= said <= 256:
            raise UserError(f"--data-arg classes={said}: 2 to 256, the background among them")
        names = numbered(said)
    elif said is None:
        names = numbered(len(values)) if values else ()
    else:
        names = named_classes(data_args)
        require_background_first(names, "--data-arg classes")
    if values and len(values) != len(names):
        raise UserError(
            f"--data-arg values: {len(values)} classes, and classes are {len(names)}: {', '.join(names)}; the "
            "background is the first"
        )
    return names


def require_background_first(names: Sequence[str], where: object) -> None:
    """UserError where a class other than the first is called background.

    Args:
        names: of the classes.
        where: they are said, for the message.
    """
    called = [name.strip().casefold() in _BACKGROUND for name in names]
    if not any(called[:1]) and (wrong := next((name for name, so in zip(names, called, strict=True) if so), None)):
        raise UserError(
            f"{where}: {wrong} is a class after the first, {names[0]}; the first is the background, which is 0 in a "
            f"mask: put {wrong} first, or call it otherwise"
        )


def numbered(count: int) -> tuple[str, ...]:
    """Names of classes that have none."""
    return STRUCTURE if count == 2 else (STRUCTURE[0], *map(str, range(1, count)))


def first_of(names: Sequence[Any]) -> str:
    """Some of many, for a message."""
    return ", ".join(map(str, names[:6])) + ", ..." * (len(names) > 6)
