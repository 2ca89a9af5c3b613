"""What a run found, in a few sentences or in one line."""

from __future__ import annotations

from statistics import fmean
from typing import Any, NamedTuple

from medpfl.core.gain import CONTAINS_0
from medpfl.core.measure import Measure
from medpfl.core.numbers_in_words import count
from medpfl.report.measures import capital, first, measures_of
from medpfl.report.one_class import instead, meaningless, one_class_note
from medpfl.report.reading import Results, differences, is_local, local_reference, selected, site_scores, worst_site
from medpfl.report.words import method_name


class _Sentence(NamedTuple):
    """What a clinician reads of a measure: its mean over sites, as it is or as so many of 100."""

    text: str
    of_100: bool = False

    def value(self, measure: Measure, value: float) -> str:
        return f"{100 * value:.1f}" if self.of_100 else measure.said(value)

    def beside(self, measure: Measure, gain: float) -> str:
        """Against training alone; empty where both are level."""
        amount = f"{abs(100 * gain):.1f}" if self.of_100 else measure.amount(gain)
        if not float(amount):
            return ""
        if self.of_100:
            return f"{amount} {'more' if gain > 0 else 'fewer'}"
        return " ".join(filter(None, (amount, measure.gained_in_full, "better" if gain > 0 else "worse")))


_SENTENCES = {
    "accuracy": _Sentence("{model}, {how}, is right in {mean} of 100 test cases", of_100=True),
    "auroc": _Sentence(
        "{model}, {how}, gives a case with a finding a higher probability than a case without it in {mean} of 100 such "
        "pairs",
        of_100=True,
    ),
    "dice": _Sentence("The masks of {model}, {how}, overlap the true ones with a mean Dice of {mean}"),
    "kappa": _Sentence("The grades of {model}, {how}, agree with the true ones with a mean quadratic kappa of {mean}"),
}
"""By the name of a task's first measure."""
_ANY = _Sentence("{model}, {how}, reaches a mean {title} of {mean}")


def headline(results: Results) -> str:
    """The run in a few sentences for a clinician."""
    if meaningless(results):
        return " ".join([*one_class_note(results), instead(results)])
    return " ".join(filter(None, (taking_part(results), _reached(results))))


def _reached(results: Results) -> str:
    name, measure = method_name(results), first(results)
    scores = selected(results)
    if scores is None:
        done, planned = len(results["rounds"]), results["config"].get("rounds", "?")
        return f"{name} is still running: {done} of {planned} rounds are done."
    mean, worst = scores["mean"].get(measure.name), worst_site(scores, measure)
    if mean is None or worst is None:
        return f"{name} has finished, but no site could measure its {measure.title}."
    sentence = _SENTENCES.get(measure.name, _ANY)
    begun = sentence.text.format(
        model="the model that a site uses" if results.get("verdict") else "a site's own model",
        how="trained on its own data alone" if is_local(results) else f"trained with {name}",
        mean=sentence.value(measure, mean),
        title=measure.title,
    )
    sites = len(site_scores(scores, measure.name))
    text = (
        f"{capital(begun)} (average of {count(sites, 'site')}; {_end(measure)} at {worst[0]} with "
        f"{sentence.value(measure, worst[1])})."
    )
    change = differences(scores, local_reference(results), measure)
    if not change or is_local(results):
        return text
    if beside := sentence.beside(measure, fmean(change.values())):
        text += f" That is {beside} than if each site trains alone."
    else:
        text += " Training alone, without the other sites, does equally well on average."
    if results.get("verdict"):
        return text
    better = sum(value > 0 for value in change.values())
    return f"{text} Taking part helps {better} of {count(len(change), 'site')}."


def _end(measure: Measure) -> str:
    return "lowest" if measure.better == "higher" else "highest"


def summary(results: Results) -> str:
    """The run in one line: the first measure's mean, how it compares with local training, the worst site."""
    name, measure = method_name(results), first(results)
    scores = selected(results)
    if scores is None:
        return f"{name}: not finished, {len(results['rounds'])} of {results['config'].get('rounds', '?')} rounds"
    mean = scores["mean"].get(measure.name)
    if mean is None:
        return f"{name}: no {measure.title} was measured"
    if meaningless(results):
        return f"{name}: {' '.join([*one_class_note(results), instead(results)])}"
    sites = count(len(site_scores(scores, measure.name)), "site")
    line = f"{name}: {measure.said(mean)} mean {measure.title} over {sites}"
    change = differences(scores, local_reference(results), measure)
    if change and not is_local(results):
        line += f", {_beside(measure, fmean(change.values()))} training alone"
    worst = worst_site(scores, measure)
    return f"{line} (worst site {worst[0]} {measure.said(worst[1])})" if worst else line


def _beside(measure: Measure, gain: float) -> str:
    if not float(measure.number(abs(gain))):
        return "level with"
    better, worse = ("above", "below") if measure.better == "higher" else ("better than", "worse than")
    return f"{measure.said(abs(gain))} {better if gain > 0 else worse}"


def taking_part(results: Results) -> str:
    """How many sites gain over training alone; empty where the results do not tell."""
    said = results.get("verdict")
    if not said:
        return ""
    if meaningless(results):
        return f"Whether taking part helps is not known. {' '.join(one_class_note(results))}"
    counts, measure = said["counts"], judged_by(results)
    told = sum(counts.values())
    sites = {*results["data"]["sites"], *(selected(results) or {"sites": ()})["sites"], *said["sites"]}
    sites |= {*results.get("unanswered", ())}
    text = (
        f"Taking part helps {counts['gains']} of {count(told, 'site')}, harms {counts['loses']}, and at "
        f"{counts['no difference found']} no difference was found ({measure.title}, 95 % intervals of the paired "
        "difference on each site's own test cases)."
        if told
        else "Whether taking part helps is not known: no site has test cases enough for an interval of the "
        f"difference in its {measure.title}{', or tells it' if len(sites) > len(said['sites']) else ''}."
    )
    if told:
        gains = [_gain_of(site, measure.name) for site in said["sites"].values()]
        known = [gain for gain in gains if gain is not None]
        least, most = (measure.signed(end) for end in (min(known), max(known)))
        text += f" On average a site gains {measure.told(fmean(known))} (sites from {least} to {most})."
    if counts["no difference found"]:
        text += f" {CONTAINS_0}"
    counted = [site for site in said["sites"].values() if site["verdict"] or not told]
    if same := sum(site["used"]["weight"] == 0 for site in counted):
        text += f" {count(same, 'site')} {'uses' if same == 1 else 'use'} nothing but the model trained alone."
    if told and (silent := len(sites) - told):
        text += f" {count(silent, 'further site')} told nothing, or had no test cases by which to tell."
    return text


def judged_by(results: Results) -> Measure:
    """The measure of the verdict."""
    return next(m for m in measures_of(results) if m.name == results["verdict"]["measure"])


def _gain_of(site: dict[str, Any], measure: str) -> float | None:
    gain = (site["gain"] or {}).get(measure)
    return None if gain is None else gain["difference"]
