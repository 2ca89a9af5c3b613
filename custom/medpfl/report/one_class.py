"""Sites whose test cases are all of one class: how often a model says it is no skill in telling classes apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from medpfl.core.gain import OF_CLASSES
from medpfl.report.measures import capital, first, measures_of, some_of
from medpfl.report.reading import Results, selected, site_scores


def one_class_sites(results: Results) -> list[str]:
    """Their names, where reports begin with a measure that says nothing there.

    A site that tells coarse measures alone leaves classes of few patients out of both the AUC and the balanced
    accuracy, so that nothing is known of its classes where it has neither.
    """
    if first(results).name not in OF_CLASSES:
        return []
    sites = (selected(results) or {"sites": {}})["sites"]
    return [
        name
        for name, entry in sites.items()
        if entry.get("n") and entry.get("auroc_classes") == 0 and entry.get("balanced_accuracy") is not None
    ]


def meaningless(results: Results) -> bool:
    """Whether most sites' test cases are of one class, so that the first measure's mean must not lead a report."""
    sites = (selected(results) or {"sites": {}})["sites"]
    return 2 * len(one_class_sites(results)) > len(sites)


def one_class_note(results: Results) -> list[str]:
    """A sentence; none where every site's test has several classes."""
    number = len((selected(results) or {"sites": {}})["sites"])
    return one_class_words(one_class_sites(results), number, first(results).title)


def one_class_words(names: Sequence[str], number: int, title: str) -> list[str]:
    """The same of these sites of a number of them, and of what is measured."""
    if not names:
        return []
    return [
        f"At {len(names)} of {number} sites ({some_of(names)}) all test cases are of one class: "
        f"{title} there says how often that class is said, not whether classes are told apart."
    ]


def one_class(runs: Sequence[Results]) -> dict[str, Any]:
    """Of several runs: ``sites`` whose test cases are of one class in any, of how ``many``, and ``meaningless``."""
    names = dict.fromkeys(name for run in runs for name in one_class_sites(run))
    every = {site for run in runs for site in (selected(run) or {"sites": {}})["sites"]}
    return {"sites": list(names), "many": len(every), "meaningless": any(map(meaningless, runs))}


def instead(results: Results) -> str:
    """What can be said in the first measure's place: the AUC over the other sites, or nothing."""
    auroc = next((m for m in measures_of(results) if m.name == "auroc"), None)
    scores = selected(results)
    values = site_scores(scores, "auroc") if auroc else {}
    if not auroc or not values:
        title = first(results).title
        return f"No site's test cases can tell how well classes are told apart, and a mean {title} says nothing of it."
    others = "the other site" if len(values) == 1 else f"the other {len(values)} sites"
    return f"{capital(auroc.title)} at {others}: {auroc.said(sum(values.values()) / len(values))}."
