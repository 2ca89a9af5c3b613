"""Recordings in PAMAP2's documented form, and windows in npz files, for tests."""

from pathlib import Path

import numpy as np

ACTIVITIES = (1, 2, 3, 4, 6, 7, 12, 13, 16, 17)
CPU = "cpu"


def recording(plan, seed=0, missing=()):
    """Rows of 54 columns, 100 a second.

    Args:
        plan: (activity, samples) one after the other; 0 is transient.
        seed: of the noise.
        missing: (first row, last row + 1, column) to be NaN.

    Every channel is a sine whose frequency is the activity's, with noise and an offset of its column.
    """
    rng = np.random.default_rng(seed)
    activity = np.concatenate([np.full(n, a) for a, n in plan])
    time = 8.38 + np.arange(len(activity)) / 100
    table = np.full((len(activity), 54), np.nan)
    table[:, 0], table[:, 1] = time, activity
    table[::11, 2] = 90  # the heart rate comes nine times a second
    for column in range(3, 54):
        wave = np.sin(2 * np.pi * time * (0.5 + activity / 4) + column)
        table[:, column] = column + 3 * wave + rng.normal(0, 0.2, len(time))
    for first, last, column in missing:
        table[first:last, column] = np.nan
    return table


def write_recording(file: Path, table: np.ndarray) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "w") as out:
        for row in table:
            out.write(" ".join(f"{row[0]:.2f} {int(row[1])}".split() + [f"{v:.6g}" for v in row[2:]]) + "\n")
    return file


def write_pamap2(root: Path, subjects=(101, 102, 103), samples=700) -> Path:
    """The archive's layout: ``Protocol/subject101.dat`` and so on, transient rows between the activities."""
    for subject in subjects:
        plan = [part for activity in ACTIVITIES for part in ((0, 50), (activity, samples))]
        write_recording(root / "Protocol" / f"subject{subject}.dat", recording(plan, seed=subject))
    return root


def series(n=60, channels=3, length=40, classes=3, seed=0):
    """Content of an npz file: sines whose frequency is the class, a window of each class in turn."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    time = np.linspace(0, 1, length)
    waves = np.sin(2 * np.pi * time * (1 + 2 * labels[:, None, None]) + rng.uniform(0, 6, (n, channels, 1)))
    return {"series": (5 + waves + rng.normal(0, 0.1, waves.shape)).astype(np.float32), "labels": labels}


def write_series(file: Path, **change) -> Path:
    sizes = {
        key: change.pop(key)
        for key in ("n", "channels", "length", "classes", "seed")
        if isinstance(change.get(key), int)
    }
    content = series(**sizes) | change
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **{key: array for key, array in content.items() if array is not None})
    return file
