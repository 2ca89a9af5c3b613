"""The models that sites train alone, beside a method or as local training: what a method gains over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from medpfl.core.gain import Verdict, verdict
from medpfl.core.measure import Measure
from medpfl.report.gains import gains
from medpfl.report.pairing import settings_of
from medpfl.report.reading import Results, local_reference, mean_or_none, selected

OWN_RIVAL = (
    "Own rival: the model that each site trains alone beside the run, by the run's settings of training and with the "
    "steps that the method adds at the end"
)
REFERENCE = "each run's own rival"
"""What stands for local training where no run of it is among those that are compared."""
Runs = Mapping[Any, Results]
"""Of one method, by seed."""


class Alone(NamedTuple):
    """Models that sites trained alone, in runs of local training or beside a method's."""

    label: str
    run: Results
    """One of the runs."""
    scores: Mapping[Any, Any]
    """By seed."""

    def mean(self, measure: Measure) -> float | None:
        """Over sites and seeds, on test data."""
        return mean_or_none(entry["mean"].get(measure.name) for entry in self.scores.values())


def trained_alone(groups: Mapping[str, Runs]) -> Iterator[Alone]:
    """All that sites trained alone in a comparison.

    Args:
        groups: by label.
    """
    for label, runs in groups.items():
        run = next(iter(runs.values()))
        if run["algorithm"] == "local":
            yield Alone(label, run, {seed: selected(of) for seed, of in runs.items()})
        elif rivals := _own_rivals(runs):
            yield Alone(f"{label}'s own rival", run, rivals)


def to_own_rival(runs: Runs, measure: Measure) -> dict[str, Any] | None:
    """What is gained over the model that each site trained alone beside the run, and in a word; None without one.

    ``reaches`` is its own mean over sites and seeds.
    """
    if not (rivals := _own_rivals(runs)):
        return None
    told = [said["gain"] for run in runs.values() for said in run["verdict"]["sites"].values() if said["gain"]]
    words = [word for gain in told if (word := verdict(gain.get(measure.name)))]
    scores = {seed: selected(run) for seed, run in runs.items()}
    verdicts = {word: words.count(word) for word in get_args(Verdict)}
    reaches = mean_or_none(rival["mean"].get(measure.name) for rival in rivals.values())
    return {**gains(scores, rivals, measure), "reaches": reaches, "verdicts": verdicts}


def _own_rivals(runs: Runs) -> dict[Any, Any]:
    """By seed what the sites' own rivals reach; empty unless every run has them."""
    found = {seed: local_reference(run) for seed, run in runs.items() if run.get("verdict")}
    return found if len(found) == len(runs) and all(found.values()) else {}


def to_best_alone(
    group: Mapping[str, Any], runs: Runs, alone: Sequence[Alone], measure: Measure
) -> dict[str, Any] | None:
    """What is gained over the best models that sites trained alone; None where nothing is better than what is paired.

    As a method's own rivals are where they train further, or with momentum, and local training does not: a site can do
    the same, whatever method it is offered. Of the same network.
    """
    own = group["to_own_rival"] or group["to_local"]
    model = settings_of(next(iter(runs.values())))["model"]
    known = [
        (mean, of) for of in alone if settings_of(of.run)["model"] == model and (mean := of.mean(measure)) is not None
    ]
    if group["algorithm"] == "local" or own is None or not known:
        return None
    mean, best = max(known, key=lambda found: measure.gain(found[0], 0.0))
    found = gains({seed: selected(run) for seed, run in runs.items()}, best.scores, measure)
    if found["mean"] is None or own["mean"] is None or found["mean"] >= own["mean"]:
        return None
    return {**found, "baseline": best.label, "further": best.run.get("further", ""), "reaches": mean}


def other_settings(run: Results, local: Results | None) -> dict[str, Any]:
    """The settings of local training by which a run differs from the local training that it is judged by."""
    own, other = ((of["config"].get("settings") or {} if of else {}) for of in (run, local))
    differing = [name for name in own.keys() & other.keys() if own[name] != other[name]]
    if not differing:
        return {}
    from medpfl.training.settings import Training  # imports torch

    return {name: own[name] for name in Training.model_fields if name in differing}


def trained_otherwise(groups: Sequence[Mapping[str, Any]]) -> str:
    """Which methods train by other settings than the local training that they are judged by, in a sentence or two.

    Args:
        groups: each with ``label`` and, but in earlier files, ``trained_otherwise`` and ``to_own_rival``.
    """
    others = [group for group in groups if group.get("trained_otherwise")]
    if not others:
        return ""
    each = "; ".join(f"{of['label']} with {_listed(of['trained_otherwise'])}" for of in others)
    but = "; none of that to the own rival" if all(of.get("to_own_rival") for of in others) else ""
    return (
        f"Trained by other settings than the local training that they are judged by: {each}. Part of the differences "
        f"to local and to other methods may be that{but}."
    )


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())
