"""Sites whose test cases are all of one class: how often a model says it is no skill in telling classes apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from medpfl.core.gain import OF_CLASSES
from medpfl.core.numbers_in_words import count
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
    names, number = one_class_sites(results), len((selected(results) or {"sites": {}})["sites"])
    return [_said(names, count(number, "site"), first(results).title)] if names else []


def one_class(by_seed: Mapping[Any, Results]) -> dict[str, Any]:
    """Of a method's runs: ``sites`` whose test cases are of one class, of how ``many``, and whether ``meaningless``.

    Where seeds differ in that, sites of all seeds.
    """
    of_seeds = {seed: one_class_sites(run) for seed, run in by_seed.items()}
    sites = [len((selected(run) or {"sites": {}})["sites"]) for run in by_seed.values()]
    alike = len({tuple(names) for names in of_seeds.values()}) == 1
    every = [site + f" in seed {seed}" * (not alike) for seed, names in of_seeds.items() for site in names]
    told, many = (next(iter(of_seeds.values())), sites[0]) if alike else (every, sum(sites))
    return {"sites": told, "many": many, "over_seeds": not alike, "meaningless": 2 * len(told) > many}


def one_class_words(found: Mapping[str, Any] | None, title: str) -> str:
    """The sentence of what :func:`one_class` found; empty without such sites."""
    if not found or not found["sites"]:
        return ""
    return _said(found["sites"], f"{count(found['many'], 'site')}{' of all seeds' * found['over_seeds']}", title)


def _said(names: Sequence[str], of: str, title: str) -> str:
    return (
        f"At {len(names)} of {of} ({some_of(names)}) all test cases are of one class: {title} there says how often "
        "that class is said, not whether classes are told apart."
    )


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
