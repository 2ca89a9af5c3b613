"""results.json: what every run writes, atomically and after every round."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from medpfl.algorithms import algorithm, mechanisms, mixings
from medpfl.algorithms.failing import asking
from medpfl.algorithms.mechanism import Mechanism
from medpfl.config.named_code import fingerprints
from medpfl.config.run import RunConfig
from medpfl.core.differential_privacy import in_words
from medpfl.core.errors import UserError
from medpfl.core.gain import fewest_to_choose
from medpfl.core.gain import verdict as gain_in_a_word
from medpfl.core.growing import Growing
from medpfl.core.plain import require_json
from medpfl.core.server_state import ServerState
from medpfl.core.version import __version__, own_sha256, version
from medpfl.core.whole_file import write_bytes
from medpfl.data.uneven import masks_amiss
from medpfl.engine.verdict import drawn_rounds, missed_rounds, reference, verdict
from medpfl.server.state import Plan
from medpfl.server.weighing import mixing_matrix
from medpfl.tasks.selection import in_words as in_words_of
from medpfl.tasks.summary import summary

SCHEMA = 3
_NOTHING_FOUND = 0.05
"""Dice, a share, below which a network has found next to nothing."""


def build_results(
    plan: Plan,
    state: ServerState,
    *,
    env: str,
    data: Mapping[str, Any],
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    """The results of a run as far as it has come.

    Args:
        plan: the server's.
        state: after the last step.
        env: where it ran: ``sim``, ``inprocess``, ``poc`` or ``prod``.
        data: what is known of the sites' data.
        seconds: ``total`` and ``start``; training is taken from the rounds.
    """
    config = plan.config
    rounds = list(state.history)
    return {
        "schema": SCHEMA,
        "status": "finished" if state.phase == "done" else "running",
        "algorithm": config.algorithm,
        "title": algorithm(config.algorithm).title,
        "measures": config.learned.described(),
        "choices": config.choices(),
        **({"further": config.further} if config.further else {}),
        **({"each_round": config.each_round} if config.each_round else {}),
        "heads": _heads(plan),
        **({"init": dict(plan.start.report)} if plan.start else {}),
        **_shown(plan, state),
        "privacy": config.privacy() or None,
        **({"pretrained": dict(state.judged)} if state.judged else {}),
        "config": config.model_dump(mode="json") | {"settings": config.all_settings},
        "environment": environment(env) | ({"code": code} if (code := _code(config, state)) else {}),
        "data": dict(data),
        "rounds": rounds,
        **_selected(config, state),
        **({"selection": dict(state.selection)} if state.selection else {}),
        "final": _final(plan, state),
        **({"reference": alone} if (alone := reference(plan, state)) else {}),
        **({"verdict": said} if (said := verdict(plan, state)) else {}),
        "mixing": _mixing(plan, state),
        "traffic": dict(state.traffic),
        "seconds": {**seconds, "training": sum(r["seconds"] for r in rounds)},
        "unanswered": [n for n in config.site_names if n not in state.final] if state.final else [],
        "failures": [{"round": f.round, "site": f.site, "reason": f.reason} for f in state.failures],
        "notes": [
            *([plan.start.in_words()] if plan.start else []),
            *_of_selection(config, state, data),
            *_notes(config, state, data),
        ],
    }


@cache
def environment(env: str) -> dict[str, Any]:
    """Where a run was made: engine, versions, processor."""
    return {
        "env": env,
        "medpfl": __version__,
        "medpfl_sha256": own_sha256(),
        **{package: version(package) for package in ("nvflare", "monai", "numpy", "scipy")},
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def write_json(path: Path, value: Any) -> None:
    """Writes JSON atomically; NaN and infinity, which JSON does not have, are refused."""
    write_bytes(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode(), durable=False)


def write_results(path: Path, results: Mapping[str, Any], rounds: Growing | None = None) -> None:
    """The same for results.json, a round a line.

    Args:
        path: the file.
        results: of :func:`build_results`.
        rounds: the same after every step of a run, so that each round is encoded once.
    """
    text = (rounds or Growing()).text(results, "rounds", indent=1)
    write_bytes(path, f"{text}\n".encode(), durable=False)


def _selected(config: RunConfig, state: ServerState) -> dict[str, Any]:
    """The round; where nothing is mixed each site's own, as it told with its test."""
    if config.mixes or state.phase != "done":
        return {"selected_round": (state.best_round or state.round) if state.phase == "done" else None}
    told = {site: metrics["tested"]["selected"] for site, metrics in (state.final or {}).items()}
    return {"selected_round": None, "selected_rounds": told}


def _code(config: RunConfig, state: ServerState) -> dict[str, str]:
    """SHA-256 of the files of others' code that the run was made with, by module."""
    return dict(state.code) or fingerprints(config)


def _heads(plan: Plan) -> dict[str, Any] | None:
    """How many attention heads are personal: the realised p is what the number of heads lets it be."""
    if not (counts := plan.split.heads):
        return None
    personal, heads = (sum(column) for column in zip(*counts.values(), strict=True))
    return {"layers": len(counts), "personal": personal, "of": heads, "p": personal / heads}


def _shown(plan: Plan, state: ServerState) -> dict[str, dict[str, Any] | None]:
    """What mechanisms show at the end, under their names; None while the run goes on, and of those it has not.

    They are asked before the first round too: a mistake at the end would cost the whole run.
    """
    kinds: dict[str, type[Mechanism]] = {**mixings(), **mechanisms()}
    shown: dict[str, Any] = {name: None for name, kind in kinds.items() if kind.shown is not Mechanism.shown}
    done = state.phase == "done"
    for part in plan.config.parts if done or not state.round else ():
        if part.name in shown:
            found = _what_is_shown(part, state)
            shown[part.name] = found if done else None
    return shown


def _what_is_shown(part: Mechanism, state: ServerState) -> dict[str, Any] | None:
    with asking(part, "its shown"):
        found = part.shown(state)
    if found is not None and not isinstance(found, Mapping):
        raise UserError(f"{part.name}: its shown gave {type(found).__name__}, not a dictionary or None")
    require_json(found, f"{part.name}: what its shown gives")
    return found


def _what_is_noted(part: Mechanism, config: RunConfig, state: ServerState) -> list[str]:
    with asking(part, "its notes"):
        found = part.notes(config, state)
    if not isinstance(found, list) or not all(isinstance(note, str) for note in found):
        raise UserError(f"{part.name}: its notes gave {found!r}, not a list of texts")
    return found


def _final(plan: Plan, state: ServerState) -> dict[str, Any] | None:
    if state.final is None:
        return None
    final = {}
    for which in ("selected", "last"):
        tested = {site: metrics["test"][which] for site, metrics in state.final.items()}
        sites = {site: values for site, values in tested.items() if values is not None}
        final[which] = {"sites": sites, **summary(sites, plan.config.learned.measures)}
    told = {site: metrics.get("validation") for site, metrics in state.final.items()}
    validated = {site: values for site, values in told.items() if values is not None}
    return final | {"validation": {"sites": validated, **summary(validated, plan.config.learned.measures)}}


def _mixing(plan: Plan, state: ServerState) -> dict[str, Any] | None:
    names = plan.config.site_names
    present = [i for i, name in enumerate(names) if name in state.samples]
    matrix = mixing_matrix(plan, state, present) if present and plan.split.shared_names else None
    if matrix is None:
        return None
    return {"sites": [names[i] for i in present], "matrix": matrix[present].tolist()}


def _notes(config: RunConfig, state: ServerState, data: Mapping[str, Any]) -> list[str]:
    notes = []
    if privacy := config.privacy():
        notes += in_words(privacy)
    notes += [
        f"{module} changed while the run was made, and it went on with the new state: {digests} (SHA-256)."
        for module, digests in _code(config, state).items()
        if "," in digests
    ]
    notes += [note for part in config.parts for note in _what_is_noted(part, config, state)]
    if state.phase == "done" and not state.best_round:
        notes.append(_unselected(config, state))
    notes += _nothing_told_rounds_apart(config, state)
    sites = data.get("sites") or {}
    untested = [site for site, metrics in (state.final or {}).items() if metrics["test"]["selected"] is None]
    without = [site for site in untested if sites.get(site, {}).get("test") == 0]
    for what, of in {
        "No test data at": without,
        "No test data, fewer test patients than its least_patients, or a policy that tells no figures, at": [
            site for site in untested if site not in without
        ],
    }.items():
        if of:
            notes.append(f"{what} {', '.join(of)}: no row in the tables, and not counted over sites.")
    notes += drawn_rounds(config, state) + _no_choice(config) + _hardly_chosen(config, state, sites)
    notes += missed_rounds(state)
    notes += _hardly_tested(config, state, sites) + _next_to_nothing_found(config, state)
    notes += masks_amiss(data) if config.learned.labels == "mask" else []
    for site, metrics in (state.final or {}).items():
        tested = metrics["tested"]
        if config.mixes and state.best_round and tested["selected"] != state.best_round:
            if not _told_validation(state, site):
                notes.append(f"{site} tells no validation and uses its model of round {tested['selected']}.")
                continue
            notes.append(
                f"{site} was absent when round {state.best_round} was validated, or its file is damaged; its last "
                "model was tested instead."
            )
    return notes


def _selecting(config: RunConfig, state: ServerState) -> str:
    """The measure by which the round is selected: where the run chooses it, what it chose."""
    return (state.selection or {}).get("measure", config.select_by)


def _told_validation(state: ServerState, site: str) -> bool:
    return any(record["sites"].get(site, {}).get("validation") for record in state.history)


def _nothing_told_rounds_apart(config: RunConfig, state: ServerState) -> list[str]:
    """Where all rounds are as bad as can be, which of them is reported means nothing."""
    by = _selecting(config, state)
    measure = next((m for m in config.learned.measures if m.name == by and m.better == "higher"), None)
    if state.phase != "done" or measure is None or not state.best_round or len(state.history) < 2:
        return []
    told = [site.get("validation") for record in state.history for site in record["sites"].values()]
    found = [value for of in told if of and (value := of.get(by)) is not None]
    if not found or max(found) > measure.least:
        return []
    return [
        f"Validation {measure.title} was {measure.said(measure.least)} at every site in every round, so that no round "
        f"is better than another: the first, {state.best_round}, is reported, and the last may be better. More rounds, "
        "or --select-by loss, tell them apart."
    ]


def _of_selection(config: RunConfig, state: ServerState, data: Mapping[str, Any]) -> list[str]:
    if not state.selection:
        return []
    return in_words_of(config.learned, state.selection, data.get("classes", ()), mixes=config.mixes)


def _no_choice(config: RunConfig) -> list[str]:
    """Where sites would choose by the method, and have nothing to choose from."""
    title, rule = algorithm(config.algorithm).title, algorithm(config.algorithm).use
    if rule == config.resolved_use or config.use or not config.mixes:
        return []
    return [
        f"{title} is less than itself with --alone no: no site trains alone, so that none has a {rule} of two models, "
        "or its own where the other is worse. Each uses what came of the federation."
    ]


def _hardly_chosen(config: RunConfig, state: ServerState, described: Mapping[str, Any]) -> list[str]:
    """Which sites chose what they use by next to nothing: few cases, or many of few patients where these are known."""
    if config.resolved_use == "received":
        return []
    told = {
        name: measured["n"]
        for record in state.history
        for name, site in record["sites"].items()
        if (measured := site.get("validation"))
    }
    judges = {name: _judges(described.get(name, {}), "validation", n) for name, n in told.items()}
    least = fewest_to_choose(config.resolved_use)
    if not (few := [name for name in state.final or {} if 0 < judges.get(name, 0) < least]):
        return []
    what = "patients" if any(judges[name] < told[name] for name in few) else "cases"
    so = "no test shows which of two models is better, and a worse one can be taken"
    if config.resolved_use == "best":
        so = "no test of several models shows that one is better, and the model trained alone is kept nearly always"
    return [
        f"Fewer than {least} validation {what} chose what {', '.join(few)} use{'s' if len(few) == 1 else ''} (--use "
        f"{config.resolved_use}): with so few {so}. A larger share to validate on (--fractions), or --use received, "
        "avoids it."
    ]


def _judges(site: Mapping[str, Any], part: str, cases: int) -> int:
    """How many independent cases a part of a site's data has: patients where these are known, of so many cases."""
    # A part's own number is of patients, too, of scans: each is one case or several.
    return min(cases, site.get(part, cases), site.get(f"{part}_patients", cases))


def _hardly_tested(config: RunConfig, state: ServerState, described: Mapping[str, Any]) -> list[str]:
    """Of which sites a verdict of a gain or a loss rests on too few test patients for its interval, or cases."""
    least, measure = config.learned.least_cases, config.learned.measures[0]
    found = {
        name: (judges, n)
        for name, told in (state.final or {}).items()
        if (n := (told["test"]["selected"] or {}).get("n"))
        if (judges := _judges(described.get(name, {}), "test", n)) < least
        if gain_in_a_word(((told.get("verdict") or {}).get("gain") or {}).get(measure.name)) in ("gains", "loses")
    }
    if not found:
        return []
    what = "patients" if any(judges < n for judges, n in found.values()) else "cases"
    where = ", ".join(f"{name} ({judges})" for name, (judges, _) in found.items())
    return [
        f"Fewer than {least} test {what} say that taking part makes a difference at {where}: the interval of "
        f"a mean {measure.title} over so few holds less often than 95 % where some {what} differ much from the others."
    ]


def _next_to_nothing_found(config: RunConfig, state: ServerState) -> list[str]:
    """Sites whose masks have next to nothing in common with the true ones."""
    if config.learned.labels != "mask":
        return []
    measure = config.learned.measures[0]
    found = [
        name
        for name, told in (state.final or {}).items()
        if (value := (told["test"]["selected"] or {}).get(measure.name)) is not None and value < _NOTHING_FOUND
    ]
    if not found:
        return []
    return [
        f"What {', '.join(found)} use{'s' if len(found) == 1 else ''} finds next to nothing ({measure.title} below "
        f"{_NOTHING_FOUND}): as it is, it is of no use there. More rounds (--rounds) or another learning rate "
        "(--set lr) may be needed."
    ]


def _unselected(config: RunConfig, state: ServerState) -> str:
    """Why no round was selected."""
    told = [
        site["validation"] for record in state.history for site in record["sites"].values() if site.get("validation")
    ]
    if not told:
        return "There were no validation images, or no site told how it did on them, so the last round is reported."
    by = _selecting(config, state)
    measure = next((m.title for m in config.learned.measures if m.name == by), by)
    known = [name for name in config.learned.selecting if any(of.get(name) is not None for of in told)]
    other = f"; {', '.join(known)} they told (--select-by)" if known else ""
    return f"No site told its {measure} on validation images, so the last round is reported{other}."


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
