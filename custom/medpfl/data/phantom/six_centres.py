"""The six centres of the phantom cohort: how each of them scans, and whom."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """A reconstruction kernel: a Gaussian blur in the plane, with edges enhanced by ``edge`` at a scale of 2.5 mm."""

    name: str
    blur: float
    """Standard deviation in mm."""
    edge: float = 0.0


SMOOTH = Kernel("SMOOTH", blur=1.6)
STANDARD = Kernel("STANDARD", blur=1.1)
SHARP = Kernel("SHARP", blur=0.7, edge=0.35)
LUNG = Kernel("LUNG", blur=0.5, edge=0.7)


@dataclass(frozen=True)
class Centre:
    """One centre; lengths in mm, densities in HU."""

    name: str
    description: str
    size: int
    """Its part of the cohort, relative to the others'."""
    prevalence: float
    thickness: float
    increment: float
    field_of_view: float
    kernel: Kernel
    noise: float
    """Standard deviation in soft tissue of a patient of average size."""
    air_error: float
    """What air reads above -1000; water is right, and what lies between is off in proportion."""
    tube_current: int
    """In mA; written into the files, as is fitting for the noise."""
    intercept: int = -1024
    padding: int | None = None
    """Stored value outside the circle of reconstruction, if the scanner leaves that out."""
    feet_first: bool = False
    """Whether the first image is the lowest."""


CENTRES = (
    Centre(
        "centre-1",
        "low-dose screening: 2 mm slices, sharp kernel, noisy",
        size=60,
        prevalence=0.30,
        thickness=2.0,
        increment=4.0,
        field_of_view=350.0,
        kernel=SHARP,
        noise=55.0,
        air_error=-4.0,
        tube_current=40,
        padding=-2000,
    ),
    Centre(
        "centre-2",
        "low-dose, 1.25 mm slices every 5 mm, lung kernel, very noisy, air reads too low",
        size=48,
        prevalence=0.25,
        thickness=1.25,
        increment=5.0,
        field_of_view=340.0,
        kernel=LUNG,
        noise=75.0,
        air_error=-10.0,
        tube_current=30,
        feet_first=True,
    ),
    Centre(
        "centre-3",
        "standard dose, contiguous 5 mm slices, smooth kernel, air reads too high",
        size=42,
        prevalence=0.55,
        thickness=5.0,
        increment=5.0,
        field_of_view=380.0,
        kernel=SMOOTH,
        noise=9.0,
        air_error=14.0,
        tube_current=200,
    ),
    Centre(
        "centre-4",
        "high resolution: 1 mm slices every 5 mm, sharp kernel, standard dose",
        size=36,
        prevalence=0.45,
        thickness=1.0,
        increment=5.0,
        field_of_view=330.0,
        kernel=SHARP,
        noise=28.0,
        air_error=0.0,
        tube_current=220,
        padding=-2000,
    ),
    Centre(
        "centre-5",
        "standard dose, contiguous 3 mm slices, standard kernel, air reads much too low",
        size=30,
        prevalence=0.40,
        thickness=3.0,
        increment=3.0,
        field_of_view=360.0,
        kernel=STANDARD,
        noise=18.0,
        air_error=-18.0,
        tube_current=150,
        intercept=0,
    ),
    Centre(
        "centre-6",
        "standard dose, 2.5 mm slices, standard kernel, large field of view, air reads much too high",
        size=24,
        prevalence=0.40,
        thickness=2.5,
        increment=4.0,
        field_of_view=400.0,
        kernel=STANDARD,
        noise=14.0,
        air_error=20.0,
        tube_current=180,
        feet_first=True,
    ),
)
