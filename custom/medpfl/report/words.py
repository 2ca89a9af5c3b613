"""Numbers and results in words, the same in every kind of report."""

from __future__ import annotations

from statistics import fmean
from textwrap import wrap
from typing import Any

from medpfl.core.gain import CONTAINS_0, signed, title
from medpfl.report.reading import Results, differences, is_local, local_reference, selected, site_scores, worst_site

NONE = "–"


def algorithm_name(algorithm: str) -> str:
    """The method's name as its paper writes it."""
    if algorithm == "local":
        return "Local training"
    from medpfl.algorithms import algorithms  # imports torch: results that say the title do not need it

    known = algorithms().get(algorithm)
    return known.title if known else algorithm


def method_name(run: Results) -> str:
    """The same for a run's results, which say it."""
    said = run.get("title")
    return said if said and run["algorithm"] != "local" else algorithm_name(run["algorithm"])


def score(value: float | None) -> str:
    """A measure in [0, 1], three digits."""
    return NONE if value is None else f"{value:.3f}"


def spread(mean: float | None, sd: float | None) -> str:
    """Mean ± standard deviation of a measure in [0, 1]; the mean alone where there is no deviation."""
    return score(mean) if mean is None or sd is None else f"{mean:.3f} ± {sd:.3f}"


def points(difference: float | None, sd: float | None = None) -> str:
    """A difference of two measures in percentage points, with its sign."""
    if difference is None:
        return NONE
    text = signed(difference)
    return text if sd is None else f"{text} ± {100 * sd:.1f}"


def percent(share: float | None) -> str:
    """A share as 25 %."""
    return NONE if share is None else f"{100 * share:.0f} %"


def auroc_interval(entry: dict[str, Any]) -> str:
    """AUC of one site with its 95 % interval where there is one."""
    interval = entry.get("auroc_ci95")
    if entry.get("auroc") is None or not interval or None in interval:
        return score(entry.get("auroc"))
    return f"{entry['auroc']:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"


def size(count: float | None) -> str:
    """Bytes in the unit that reads best (powers of 1000)."""
    if count is None:
        return NONE
    units = ["B", "kB", "MB", "GB", "TB"]
    while count >= 999.5 and len(units) > 1:
        count /= 1000
        del units[0]
    return f"{count:.0f} {units[0]}" if units[0] == "B" or count >= 99.95 else f"{count:.1f} {units[0]}"


def duration(seconds: float | None) -> str:
    """Seconds as 4.2 s, 3 min 05 s or 2 h 10 min."""
    if seconds is None:
        return NONE
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def count(number: int, noun: str) -> str:
    """'1 site', '5 sites'."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def summary(results: Results) -> str:
    """The run in one line: mean accuracy, how it compares with local training, the worst site."""
    name = method_name(results)
    scores = selected(results)
    if scores is None:
        return f"{name}: not finished, {len(results['rounds'])} of {results['config'].get('rounds', '?')} rounds"
    mean = scores["mean"].get("accuracy")
    if mean is None:
        return f"{name}: no accuracy was measured"
    line = f"{name}: {mean:.3f} mean accuracy over {count(len(site_scores(scores, 'accuracy')), 'site')}"
    change = differences(scores, local_reference(results), "accuracy")
    if change and not is_local(results):
        line += f", {_beside(fmean(change.values()))} local training"
    worst = worst_site(scores, "accuracy")
    return f"{line} (worst site {worst[0]} {worst[1]:.3f})" if worst else line


def data_name(data: dict[str, Any]) -> str:
    """The data set's name; a phantom is called one wherever it is named."""
    name = str(data.get("name"))
    return f"{name} (phantom, no patients)" if data.get("phantom") else name


def folded(name: str, width: int) -> str:
    """A name in lines of at most so many characters, broken after hyphens and at blanks where it can be."""
    return "\n".join(wrap(name, width)) or name


def site_name(results: Results, site: str) -> str:
    """The site, and the centre of the data that it stands for."""
    centre = results["data"]["sites"].get(site, {}).get("centre")
    return f"{site} ({centre})" if centre else site


def further(results: Results) -> list[str]:
    """What else a run found, a sentence each: personal heads, the sites' models together, centres held out."""
    lines = []
    if results["data"].get("phantom"):
        lines.append("The images are a phantom's, made by a program: they show that a method runs, not that it helps.")
    if heads := results.get("heads"):
        each = f"{heads['personal'] / heads['layers']:g} of {heads['of'] / heads['layers']:g}"
        lines.append(f"{each} attention heads are personal in each of {heads['layers']} layers (p = {heads['p']:.3f}).")
    if made := [entry["impression"] for entry in results["rounds"] if entry.get("impression")]:
        good = [entry for entry in made if "failed" not in entry]
        moved = (
            f" of {good[0]['images']} images, whose pixels moved by {fmean(e['moved'] for e in good):.4f}"
            if good
            else ""
        )
        failed = f"; {len(made) - len(good)} failed" if len(good) < len(made) else ""
        lines.append(f"{count(len(made), 'federated impression')}{moved} (root mean square, of a range of 2){failed}.")
    if found := results.get("forgetting"):
        others, own = (found["mean"].get(which) for which in ("others", "own"))
        lines.append(
            f"Forgetting: one more round of local training changes accuracy on the other sites' data from "
            f"{_change(others)}" + (f", on the site's own from {_change(own)}." if own else ".")
        )
    if new := results.get("new"):
        alone = new["models"] == 1
        average = "1 site's model alone" if alone else f"The average of {new['models']} sites' models"
        if new["pooled"]:
            lines.append(f"{average} on all sites' test data: AUC {auroc_interval(new['pooled'])}.")
        lines += [
            f"{average} at {centre}, which took no part in training: AUC {auroc_interval(entry)}."
            for centre, entry in new["held_out"].items()
        ]
    return lines


def _change(measured: dict[str, Any]) -> str:
    before, after = (measured[when]["accuracy"] for when in ("before", "after"))
    return f"{score(before)} to {score(after)} ({points(after - before)} points)"


def _beside(difference: float) -> str:
    amount = f"{abs(difference):.3f}"
    if amount == "0.000":
        return "level with"
    return f"{amount} {'above' if difference > 0 else 'below'}"


def taking_part(results: Results) -> str:
    """How many sites gain over training alone; empty where the results do not tell."""
    said = results.get("verdict")
    if not said:
        return ""
    counts, measure = said["counts"], title(said["measure"])
    told = sum(counts.values())
    sites = {*results["data"]["sites"], *(selected(results) or {"sites": ()})["sites"], *said["sites"]}
    text = (
        f"Taking part helps {counts['gains']} of {count(told, 'site')}, harms {counts['loses']}, and at "
        f"{counts['no difference found']} no difference was found ({measure}, 95 % intervals of the paired difference "
        "on each site's own test cases)."
        if told
        else f"Whether taking part helps is not known: no site tells a difference in {measure}."
    )
    if told:
        gains = [_gain_of(site, said["measure"]) for site in said["sites"].values()]
        known = [gain for gain in gains if gain is not None]
        least, most = (f"{100 * end:+.1f}" for end in (min(known), max(known)))
        text += f" On average a site gains {100 * fmean(known):+.1f} points ({least} to {most})."
    if counts["no difference found"]:
        text += f" {CONTAINS_0}"
    if same := sum(site["used"]["weight"] == 0 for site in said["sites"].values()):
        text += f" {count(same, 'site')} {'uses' if same == 1 else 'use'} nothing but the model trained alone."
    if told and (silent := len(sites) - told):
        text += f" {count(silent, 'further site')} told nothing, or had no test cases."
    return text


def _gain_of(site: dict[str, Any], measure: str) -> float | None:
    gain = (site["gain"] or {}).get(measure)
    return None if gain is None else gain["difference"]


def headline(results: Results) -> str:
    """The run in a few sentences for a clinician."""
    return " ".join(filter(None, (taking_part(results), _right_cases(results))))


def _right_cases(results: Results) -> str:
    name = method_name(results)
    scores = selected(results)
    if scores is None:
        done, planned = len(results["rounds"]), results["config"].get("rounds", "?")
        return f"{name} is still running: {done} of {planned} rounds are done."
    mean = scores["mean"].get("accuracy")
    worst = worst_site(scores, "accuracy")
    if mean is None or worst is None:
        return f"{name} has finished, but no site could measure its accuracy."
    how = "trained on its own data alone" if is_local(results) else f"trained with {name}"
    whose = "The model that a site uses" if results.get("verdict") else "A site's own model"
    sites = len(site_scores(scores, "accuracy"))
    text = (
        f"{whose}, {how}, is right in {100 * mean:.1f} of 100 test cases "
        f"(average of {count(sites, 'site')}; lowest at {worst[0]} with {100 * worst[1]:.1f})."
    )
    change = differences(scores, local_reference(results), "accuracy")
    if not change or is_local(results):
        return text
    difference = 100 * fmean(change.values())
    if f"{abs(difference):.1f}" == "0.0":
        text += " Training alone, without the other sites, does equally well on average."
    else:
        text += (
            f" That is {abs(difference):.1f} {'more' if difference > 0 else 'fewer'} than if each site trains alone."
        )
    if results.get("verdict"):
        return text
    better = sum(value > 0 for value in change.values())
    return f"{text} Taking part helps {better} of {count(len(change), 'site')}."
