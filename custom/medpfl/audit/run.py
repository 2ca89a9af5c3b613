"""The audit of one site: every attack in turn, within a time limit, judged by the site's thresholds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from medpfl.audit import batch_norm as bn
from medpfl.audit import chosen_f as f_attack
from medpfl.audit import known_image as ki
from medpfl.audit.constant_class import constant_class, share_errors
from medpfl.audit.finding import Finding
from medpfl.audit.images import Recovered, correlations, recovered
from medpfl.audit.imprint import imprint
from medpfl.audit.inversion import invert
from medpfl.audit.membership import membership
from medpfl.audit.probe import Probe, make_probe
from medpfl.audit.replay import replay
from medpfl.audit.victim import Known, Line, Truth, Victim, honest_rounds, known_of, victims
from medpfl.core.messages import Message
from medpfl.core.site_data import ImageTensors, SiteData
from medpfl.engine.federation import Federation
from medpfl.site.policy import AuditThresholds, SitePolicy
from medpfl.site.store import MemoryStore

OpenVictims = Callable[[Federation, str, SiteData, SitePolicy], Callable[[], Victim]]

_UPDATES = 4
"""Updates that the imprint asks for."""

_QUESTIONS = 255
"""Hellos that the chosen f asks for."""

_KNOWN = 4
"""Known images that are in the validation part, and as many that are not."""

_ROUNDS = 10
"""Honest rounds that membership looks at."""


@dataclass
class Audit:
    """One site under attack.

    Attributes:
        federation: the job's.
        site: the site's name.
        data: its data.
        policy: its policy.
        thresholds: its limits.
        seconds: of the processor, after which no attack is begun.
        open_victims: from the federation, the name, the data and the policy to what opens the site.
        watch: called with the name of each attack before it begins.
    """

    federation: Federation
    site: str
    data: SiteData
    policy: SitePolicy
    thresholds: AuditThresholds
    seconds: float
    open_victims: OpenVictims = victims
    watch: Callable[[str], None] = lambda _: None

    def run(self) -> list[Finding]:
        """All findings, in the order of the attacks; torch's global generator is left as it was."""
        begun = time.process_time()
        findings = []
        attacks: dict[str, Callable[[], Finding]] = {
            "imprint": self.imprint,
            "chosen f": self.chosen_f,
            "constant class": self.constant_class,
            "known image": self.known_image,
            "personal batch norm": self.batch_norm,
            "replay": self.replay,
            "inversion": self.inversion,
            "membership": self.membership,
        }
        with torch.random.fork_rng(devices=[]):
            for name, attack in attacks.items():
                self.watch(name)
                if time.process_time() - begun > self.seconds:
                    findings.append(Finding(name, "the time limit was reached", "", "no time"))
                else:
                    findings.append(attack())
        return findings

    @cached_property
    def known(self) -> Known:
        """What the attacker knows."""
        return known_of(self.federation, self.site, self.data, self.policy)

    @cached_property
    def truth(self) -> Truth:
        """What it is judged by."""
        return Truth.of(self.data)

    @cached_property
    def probe(self) -> Probe | None:
        """The network's layer, with its encoder."""
        return make_probe(self.known, min(60.0, self.seconds / 6))

    def line(self, data: SiteData | None = None) -> Line:
        """A new line to the site, or to it with less data."""
        return Line(self.open_victims(self.federation, self.site, self.data if data is None else data, self.policy))

    def imprint(self) -> Finding:
        """:mod:`medpfl.audit.imprint`."""
        if self.probe is None:
            return Finding.not_tried("imprint", "the network has no fully connected layer to set")
        line = self.line()
        made, way = imprint(line, self.known, self.probe, _UPDATES)
        first = recovered(made[0] if made else torch.zeros(0), self.truth.images)
        all_ = recovered(torch.cat(made) if made else torch.zeros(0), self.truth.images)
        layer = f"layer {self.probe.layer} of {self.probe.size[0]} rows"
        return Finding.of(
            "imprint",
            line,
            tried=f"{layer} sorts images into bins; {_UPDATES} updates wanted, {way}",
            came_back=f"{_images(first)} from one update, {all_.recognisable} from {len(made)}",
            held=all_.recognisable <= self.thresholds.images,
            limit=f"images recognisable <= {self.thresholds.images}",
            figures={"one_update": first.figures(), "all_updates": all_.figures(), "way": way},
            pairs=all_.pairs,
        )

    def chosen_f(self) -> Finding:
        """:mod:`medpfl.audit.chosen_f`."""
        if why := f_attack.why_not(self.known, self.probe):
            return Finding.not_tried("chosen f", why)
        line = self.line()
        deadline = time.process_time() + self.seconds / 5
        made = f_attack.chosen_f(line, self.known, self.probe, _QUESTIONS, deadline)
        found = recovered(made, self.truth.images)
        return Finding.of(
            "chosen f",
            line,
            tried=f"statistics under weights of the server's choice, at most {_QUESTIONS} hellos",
            came_back=_images(found),
            held=found.recognisable <= self.thresholds.images,
            limit=f"images recognisable <= {self.thresholds.images}",
            figures=found.figures(),
            pairs=found.pairs,
        )

    def constant_class(self) -> Finding:
        """:mod:`medpfl.audit.constant_class`."""
        line = self.line()
        shares, way = constant_class(line, self.known)
        labels = {part: self._labels(part) for part in self.truth.labels}
        errors = share_errors(shares, labels, self.known.classes)
        limit = self.thresholds.class_share
        known = [part for part, error in errors.items() if error is not None and error < limit]
        shown = ", ".join(f"{part} {'unknown' if e is None else f'{e:.4f}'}" for part, e in errors.items())
        return Finding.of(
            "constant class",
            line,
            tried=f"models that always answer one class; training tasks {way}, then validation and test",
            came_back=f"largest error of a class's share: {shown}",
            held=not known,
            limit=f"no part's shares known within {limit:g}",
            figures={"errors": errors, "way": way},
        )

    def known_image(self) -> Finding:
        """:mod:`medpfl.audit.known_image`."""
        if why := ki.why_not(self.known, self.probe):
            return Finding.not_tried("known image", why)
        if "validation" not in self.truth.images or "test" not in self.truth.images or self.data.images_per_sample > 1:
            return Finding.not_tried("known image", "single images in validation and test parts are needed")
        if self.data.bags("validation") is not None:
            return Finding.not_tried(
                "known image", "a patient's images are judged together, so one of them decides little"
            )
        there, not_there = self.truth.images["validation"][:_KNOWN], self.truth.images["test"][:_KNOWN]
        line = self.line()
        said = ki.known_image(line, self.known, self.probe, [*there, *not_there])
        labels = [*self.truth.labels["validation"][:_KNOWN].tolist(), *[None] * len(not_there)]
        right = sum(s.present == (i < len(there)) and s.label == labels[i] for i, s in enumerate(said))
        share = right / len(said)
        return Finding.of(
            "known image",
            line,
            tried=f"{len(there)} images of the validation part and {len(not_there)} others, a task for each class",
            came_back=f"right about presence and label of {right} of {len(said)}",
            held=share < self.thresholds.known_images,
            limit=f"right about less than {self.thresholds.known_images:.0%}",
            figures={"right": right, "of": len(said)},
        )

    def batch_norm(self) -> Finding:
        """:mod:`medpfl.audit.batch_norm`."""
        if why := bn.why_not(self.known, self.probe):
            return Finding.not_tried("personal batch norm", why)
        line = self.line()
        probed = bn.batch_norm(line, self.known, self.probe, channels=2)
        errors = self._errors(probed)
        per_number = 16
        in_all = probed[0].in_all if probed else 0
        limit = self.thresholds.batch_norm
        came = f"{len(errors)} of {in_all} numbers, largest relative error {max(errors):.4f}" if errors else "nothing"
        return Finding.of(
            "personal batch norm",
            line,
            tried=f"halving by accuracy, {per_number} tasks a number; all would take {in_all * per_number}",
            came_back=came,
            held=not errors or min(errors) > limit,
            limit=f"no number known within {limit:g}",
            figures={"errors": errors, "numbers": in_all},
        )

    def _errors(self, probed: list[bn.Probed]) -> list[float]:
        """Relative errors of what was probed, against what the unguarded site computes in the same honest round."""
        if not probed:
            return []
        site = replace(self.federation.site(self.site, MemoryStore()), data=self.data)
        model = self.federation.model()
        site.handle(Message("train", 1, self.known.initial_shared, {"best_round": 0}), model)
        found = []
        for one in probed:
            true = bn.true_channel(model, one)
            found += [abs(a - b) / max(abs(b), 0.1) for a, b in zip((one.slope, one.offset), true, strict=True)]
        return found

    def replay(self) -> Finding:
        """:mod:`medpfl.audit.replay`."""
        line = self.line()
        kinds = replay(line, self.known)
        beyond = sum(max(0, kind.answered - kind.allowed) for kind in kinds)
        shown = "; ".join(f"{k.what}: {k.answered} of {k.asked}" for k in kinds)
        return Finding.of(
            "replay",
            line,
            tried="what no honest server asks, after honest rounds",
            came_back=f"answered: {shown}" if kinds else "no honest round to start from",
            held=beyond <= self.thresholds.replays,
            limit=f"answers beyond {self.policy.repeats} repeats <= {self.thresholds.replays}",
            figures={kind.what: [kind.answered, kind.asked, kind.allowed] for kind in kinds},
        )

    def inversion(self) -> Finding:
        """:mod:`medpfl.audit.inversion`: at one image, and at four or the policy's least number."""
        if not isinstance(self.data, ImageTensors):
            return Finding.not_tried("inversion", "the site's own loaders cannot be cut to a few samples")
        if not any(name in self.known.whole for name, _ in self.known.make_model().named_parameters()):
            return Finding.not_tried("inversion", "no parameter is sent as a whole")
        line, figures, pairs, words, worst = self.line(), {}, [], [], 0
        for samples in sorted({1, max(4, min(32, self.policy.least_patients))}):
            few = _first(self.data, samples)
            line.open_victim = self.open_victims(self.federation, self.site, few, self.policy)
            exchanges = honest_rounds(line, self.known, 1)
            if not exchanges:
                words.append(f"{samples} samples: refused")
                continue
            made = invert(self.known, exchanges[0], few.labels["train"].cpu(), min(30.0, self.seconds / 12))
            images = {**self.truth.images, "train": Truth.of(few).images["train"]}
            found = recovered(made.flatten(0, 1) if made.ndim == 5 else made, images)
            mean = self.truth.images.get("test", images["train"]).mean(0, keepdim=True)
            guess = recovered(mean, images)
            near = float(correlations(images["train"], made.reshape(-1, *self.known.shape[-3:])).amax(1).mean())
            base = float(correlations(images["train"], mean).mean())
            words.append(f"{samples} samples: {_images(found)}, correlation {near:.2f}, of the mean image {base:.2f}")
            figures[str(samples)] = {**found.figures(), "correlation": near, "mean_image": base}
            worst, pairs = max(worst, found.recognisable - guess.recognisable), pairs + found.pairs
        return Finding.of(
            "inversion",
            line,
            tried="gradient matching on an honest first update, labels known",
            came_back="; ".join(words),
            held=worst <= self.thresholds.images,
            limit=f"images recognisable <= {self.thresholds.images}",
            figures=figures,
            pairs=pairs,
        )

    def membership(self) -> Finding:
        """:mod:`medpfl.audit.membership`."""
        line = self.line()
        exchanges = honest_rounds(line, self.known, _ROUNDS)
        scores = membership(self.known, exchanges, self.truth)
        limit = self.thresholds.membership
        shown = "; ".join(f"{s.score}: AUC {s.auc:.2f} ({s.interval[0]:.2f} to {s.interval[1]:.2f})" for s in scores)
        return Finding.of(
            "membership",
            line,
            tried=f"{len(exchanges)} honest rounds whose server returns what the site sent",
            came_back=shown or "nothing",
            held=all(s.interval[0] <= limit for s in scores),
            limit=f"lower end of the AUC's interval <= {limit:g}",
            figures={s.score: {"auc": s.auc, "ci95": s.interval, "n": [s.members, s.others]} for s in scores},
        )

    def _labels(self, part: str) -> torch.Tensor:
        """Labels as measures count them: one a patient in validation and test, one a sample in training."""
        labels = self.truth.labels[part]
        bags = self.data.bags(part) if part != "train" else None
        if bags is None:
            return labels
        return torch.zeros(int(bags.max()) + 1, dtype=labels.dtype).index_copy_(0, bags.cpu(), labels)


def _first(data: ImageTensors, samples: int) -> ImageTensors:
    """The data with so many training samples."""

    def cut(by_part: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {part: t[:samples] if part == "train" else t for part, t in by_part.items()}

    return ImageTensors(cut(dict(data.images)), cut(dict(data.labels)), cut(dict(data.patients)))


def _images(found: Recovered) -> str:
    return f"{found.recognisable} of {found.of} images recognisable, {found.exact} of them exact"
