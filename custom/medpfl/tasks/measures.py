"""How good predictions are: accuracy, balanced accuracy, macro one-vs-rest AUC with its interval.

A value that cannot be computed is None, never NaN and never 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from medpfl.tasks.auc import as_log_odds, macro_auc


def measures(
    probabilities: np.ndarray,
    labels: np.ndarray,
    whose: np.ndarray | None = None,
    counting: np.ndarray | None = None,
) -> dict[str, Any]:
    """The measures of one site's predictions.

    A sample whose probabilities are not all finite counts as wrong, and leaves the AUC undefined.

    Args:
        probabilities: (n, classes); the class with the highest one is the prediction (the first of equals).
        labels: (n,) whole numbers in [0, classes).
        whose: (n,) which patient each sample is of; None where each is of its own.
        counting: (classes,) bool, which classes means over classes may take; by default all. The balanced accuracy
            takes all or is None: of some alone it would praise a model that never answers the others.

    Returns:
        ``n``; ``accuracy``; ``balanced_accuracy``: mean recall over the classes present; ``auroc``: mean over the
        classes that have both positives and negatives, ranked by log-odds; ``auroc_ci95``: [low, high];
        ``auroc_classes``: their number, also where probabilities that are not finite leave no AUC.

    Raises:
        ValueError: shapes that do not fit, or a label outside the classes.
    """
    probabilities, labels = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1]:
        raise ValueError(
            f"expected probabilities (n, classes) and labels (n,), got {probabilities.shape}, {labels.shape}"
        )
    n, classes = probabilities.shape
    if n and not (labels.min() >= 0 and labels.max() < classes):
        raise ValueError(f"labels must lie in [0, {classes}), got {labels.min()} to {labels.max()}")
    if n == 0:
        return {
            "n": 0,
            "accuracy": None,
            "balanced_accuracy": None,
            "auroc": None,
            "auroc_ci95": None,
            "auroc_classes": 0,
        }
    counts = np.bincount(labels, minlength=classes)
    every = np.ones(classes, dtype=bool) if counting is None else counting
    used = np.flatnonzero((counts > 0) & (counts < n) & every)
    area = interval = None
    if len(used) and np.isfinite(probabilities).all():
        area, interval, _ = macro_auc(as_log_odds(probabilities)[:, used].T, labels == used[:, None], whose=whose)
    return {
        "n": n,
        **shares(probabilities, labels, every),
        "auroc": area,
        "auroc_ci95": interval,
        "auroc_classes": len(used),
    }


def shares(probabilities: np.ndarray, labels: np.ndarray, counting: np.ndarray) -> dict[str, float | None]:
    """``accuracy`` and ``balanced_accuracy``, as in :func:`measures`, of one sample or more."""
    right, counts = correct(probabilities, labels), np.bincount(labels)
    recalls = np.bincount(labels, weights=right)[counts > 0] / counts[counts > 0]
    balanced = float(recalls.mean()) if counting.all() else None
    return {"accuracy": float(right.mean()), "balanced_accuracy": balanced}


def correct(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Which samples are predicted rightly, (n,) bool: none whose probabilities, (n, classes), are not all finite."""
    return (probabilities.argmax(1) == labels) & np.isfinite(probabilities).all(1)
