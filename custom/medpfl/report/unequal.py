"""What may make a difference between methods beside the methods themselves, in sentences for under a table.

Unequal effort is allowed, but never silent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from medpfl.report.measures import some_of
from medpfl.report.reading import Results

Groups = Sequence[Mapping[str, Any]]


def more_each_round(groups: Groups) -> str:
    """Which methods train more in a round than the local training that they are judged by."""
    more = [f"{group['label']} {group['each_round']}" for group in groups if group.get("each_round")]
    words = "Trained in each round beside the local epochs, which local training is not"
    return f"{words}: {', '.join(more)}." if more else ""


def unequal_ends(groups: Groups) -> str:
    """Which methods train on after the last round where the local training that they are judged by does not."""
    unequal = [group for group in groups if group.get("ends_unequally")]
    longer = [f"{group['label']} by {group['further']}" for group in unequal]
    beside = all(group.get("to_own_rival") for group in unequal)
    but = "none of that to the own rival" if beside else "local:finetune_steps=N is trained further, too"
    if not longer:
        return ""
    return (
        "Trained further on each site's own data at the end, which the local training beside it is not, or not as long"
        f": {', '.join(longer)}. Part of the difference to local is that; {but}."
    )


def code_of(runs: Sequence[Results]) -> list[str]:
    """The states of the package that runs were made with: the version, and the beginning of the sources' SHA-256.

    Runs of before it was recorded count as one state beside others, which theirs cannot be; empty if all are such.
    """
    made = [run.get("environment") or {} for run in runs]
    if not any(of.get("medpfl_sha256") for of in made):
        return []
    told = [f"{of.get('medpfl', '?')} {str(of.get('medpfl_sha256') or 'not recorded')[:12]}" for of in made]
    return list(dict.fromkeys(told))


def code_of_others(runs: Sequence[Results]) -> dict[str, list[str]]:
    """By module of others' code the beginnings of its file's SHA-256, in the order of the runs that have it."""
    made = [digest for run in runs for digest in ((run.get("environment") or {}).get("code") or {}).items()]
    named = [(module, " then ".join(one[:12] for one in str(digests).split(", "))) for module, digests in made]
    return {of: list(dict.fromkeys(states for module, states in named if module == of)) for of, _ in named}


def states_of_code(found: Mapping[str, Any]) -> list[str]:
    """A sentence for each code of which there are several states; ``code`` and ``code_of_others`` as above."""
    states = {"medpfl's own code": found.get("code") or (), **(found.get("code_of_others") or {})}
    return [
        f"Runs were made with {len(of)} states of {what} ({', '.join(of)}): part of a difference may be that."
        for what, of in states.items()
        if len(of) > 1
    ]


def lacking_words(lacking: Mapping[str, Sequence[str]]) -> str:
    """Which sites some methods have no test of, so that means are over the others.

    Args:
        lacking: by label the sites.
    """
    each = [f"{label} has no test of {some_of(sites)}" for label, sites in lacking.items()]
    return f"Means are over the sites that all have a test of: {'; '.join(each)}." if each else ""
