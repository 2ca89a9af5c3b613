"""Each attack tried at a site: with what, what came back, and whether that stays within the site's thresholds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from medpfl.audit import batch_norm as bn
from medpfl.audit import chosen_f as f_attack
from medpfl.audit import constant_class as cc
from medpfl.audit import imprint as bins
from medpfl.audit import inversion as gradients
from medpfl.audit import known_image as ki
from medpfl.audit import membership as members
from medpfl.audit import replay as again
from medpfl.audit.attacked import Attacked
from medpfl.audit.finding import Finding
from medpfl.audit.images import Recovered, correlations, recovered
from medpfl.audit.victim import Truth, honest_rounds
from medpfl.core.messages import Message
from medpfl.core.numbers_in_words import count, from_to
from medpfl.core.site_data import ImageTensors
from medpfl.site.store import MemoryStore

_UPDATES = 4
"""Updates that the imprint asks for."""

_QUESTIONS = 255
"""Hellos that the chosen f asks for."""

_KNOWN = 4
"""Known images that are in the validation part, and as many that are not."""

_ROUNDS = 10
"""Honest rounds that membership looks at."""


def imprint(attacked: Attacked) -> Finding:
    """:mod:`medpfl.audit.imprint`."""
    if attacked.probe is None:
        return Finding.not_tried("imprint", "the network has no fully connected layer to set")
    line = attacked.line()
    made, way = bins.imprint(line, attacked.known, attacked.probe, _UPDATES)
    first = recovered(made[0] if made else torch.zeros(0), attacked.truth.images)
    all_ = recovered(torch.cat(made) if made else torch.zeros(0), attacked.truth.images)
    layer = f"layer {attacked.probe.layer} of {attacked.probe.size[0]} rows"
    return Finding.of(
        "imprint",
        line,
        tried=f"{layer} sorts images into bins; {_UPDATES} updates wanted, {way}",
        came_back=f"{_images(first)} from one update, {all_.recognisable} from {len(made)}",
        held=all_.recognisable <= attacked.thresholds.images,
        limit=f"images recognisable <= {attacked.thresholds.images}",
        figures={"one_update": first.figures(), "all_updates": all_.figures(), "way": way},
        pairs=all_.pairs,
    )


def chosen_f(attacked: Attacked) -> Finding:
    """:mod:`medpfl.audit.chosen_f`."""
    if why := f_attack.why_not(attacked.known, attacked.probe):
        return Finding.not_tried("chosen f", why)
    line = attacked.line()
    deadline = time.process_time() + attacked.seconds / 5
    made = f_attack.chosen_f(line, attacked.known, attacked.probe, _QUESTIONS, deadline)
    found = recovered(made, attacked.truth.images)
    return Finding.of(
        "chosen f",
        line,
        tried=f"statistics under weights of the server's choice, at most {_QUESTIONS} hellos",
        came_back=_images(found),
        held=found.recognisable <= attacked.thresholds.images,
        limit=f"images recognisable <= {attacked.thresholds.images}",
        figures=found.figures(),
        pairs=found.pairs,
    )


def constant_class(attacked: Attacked) -> Finding:
    """:mod:`medpfl.audit.constant_class`."""
    line = attacked.line()
    shares, way = cc.constant_class(line, attacked.known)
    labels = {part: _labels(attacked, part) for part in attacked.truth.labels}
    errors = cc.share_errors(shares, labels, attacked.known.classes)
    limit = attacked.thresholds.class_share
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


def known_image(attacked: Attacked) -> Finding:
    """:mod:`medpfl.audit.known_image`."""
    if why := ki.why_not(attacked.known, attacked.probe):
        return Finding.not_tried("known image", why)
    if (
        "validation" not in attacked.truth.images
        or "test" not in attacked.truth.images
        or attacked.data.images_per_sample > 1
    ):
        return Finding.not_tried("known image", "single images in validation and test parts are needed")
    if attacked.data.bags("validation") is not None:
        return Finding.not_tried("known image", "a patient's images are judged together, so one of them decides little")
    there, not_there = attacked.truth.images["validation"][:_KNOWN], attacked.truth.images["test"][:_KNOWN]
    line = attacked.line()
    said = ki.known_image(line, attacked.known, attacked.probe, [*there, *not_there])
    labels = [*attacked.truth.labels["validation"][:_KNOWN].tolist(), *[None] * len(not_there)]
    right = sum(s.present == (i < len(there)) and s.label == labels[i] for i, s in enumerate(said))
    share = right / len(said)
    return Finding.of(
        "known image",
        line,
        tried=f"{len(there)} images of the validation part and {len(not_there)} others, a task for each class",
        came_back=f"right about presence and label of {right} of {len(said)}",
        held=share < attacked.thresholds.known_images,
        limit=f"right about less than {attacked.thresholds.known_images:.0%}",
        figures={"right": right, "of": len(said)},
    )


def batch_norm(attacked: Attacked) -> Finding:
    """:mod:`medpfl.audit.batch_norm`."""
    if why := bn.why_not(attacked.known, attacked.probe):
        return Finding.not_tried("personal batch norm", why)
    line = attacked.line()
    probed = bn.batch_norm(line, attacked.known, attacked.probe, channels=2)
    errors = _errors(attacked, probed)
    in_all = probed[0].in_all if probed else 0
    limit = attacked.thresholds.batch_norm
    came = "nothing"
    if errors:  # the least is what it is judged by
        within = from_to(*(f"{end:.4f}" for end in (min(errors), max(errors))))
        came = f"{len(errors)} of {in_all} numbers, relative errors {within}"
    return Finding.of(
        "personal batch norm",
        line,
        tried=f"halving by accuracy, {bn.TASKS} tasks a number; all would take {in_all * bn.TASKS:,}",
        came_back=came,
        held=not errors or min(errors) > limit,
        limit=f"no number known within {limit:g}",
        figures={"errors": errors, "numbers": in_all},
    )


def _errors(attacked: Attacked, probed: list[bn.Probed]) -> list[float]:
    """Relative errors of what was probed, against what the unguarded site computes in the same honest round."""
    if not probed:
        return []
    site = replace(attacked.federation.site(attacked.site, MemoryStore()), data=attacked.data)
    model = attacked.federation.model()
    site.handle(Message("train", 1, attacked.known.initial_shared, {"best_round": 0}), model)
    found = []
    for one in probed:
        true = bn.true_channel(model, one)
        found += [abs(a - b) / max(abs(b), 0.1) for a, b in zip((one.slope, one.offset), true, strict=True)]
    return found


def replay(attacked: Attacked) -> Finding:
    """:mod:`medpfl.audit.replay`."""
    line = attacked.line()
    kinds = again.replay(line, attacked.known)
    beyond = sum(max(0, kind.answered - kind.allowed) for kind in kinds)
    shown = "; ".join(f"{k.what}: {k.answered} of {k.asked}" for k in kinds)
    return Finding.of(
        "replay",
        line,
        tried="what no honest server asks, after honest rounds",
        came_back=f"answered: {shown}" if kinds else "no honest round to start from",
        held=beyond <= attacked.thresholds.replays,
        limit=f"answers beyond {attacked.policy.repeats} repeats <= {attacked.thresholds.replays}",
        figures={kind.what: [kind.answered, kind.asked, kind.allowed] for kind in kinds},
    )


def inversion(attacked: Attacked) -> Finding:
    """:mod:`medpfl.audit.inversion`: at one image, and at four or the policy's least number."""
    if not isinstance(attacked.data, ImageTensors):
        return Finding.not_tried("inversion", "the site's own loaders cannot be cut to a few samples")
    if not any(name in attacked.known.whole for name, _ in attacked.known.make_model().named_parameters()):
        return Finding.not_tried("inversion", "no parameter is sent as a whole")
    line, figures, pairs, words, worst = attacked.line(), {}, [], [], 0
    for samples in sorted({1, max(4, min(32, attacked.policy.least_patients))}):
        few = _first(attacked.data, samples)
        line.open_victim = attacked.open_victims(attacked.federation, attacked.site, few, attacked.policy)
        exchanges = honest_rounds(line, attacked.known, 1)
        if not exchanges:
            words.append(f"{count(samples, 'sample')}: refused")
            continue
        made = gradients.invert(
            attacked.known, exchanges[0], few.labels["train"].cpu(), min(30.0, attacked.seconds / 12)
        )
        images = {**attacked.truth.images, "train": Truth.of(few).images["train"]}
        found = recovered(made.flatten(0, 1) if made.ndim == 5 else made, images)
        mean = attacked.truth.images.get("test", images["train"]).mean(0, keepdim=True)
        guess = recovered(mean, images)
        near = float(correlations(images["train"], made.reshape(-1, *attacked.known.shape[-3:])).amax(1).mean())
        base = float(correlations(images["train"], mean).mean())
        near_to = f"correlation {near:.2f}, of the mean image {base:.2f}"
        words.append(f"{count(samples, 'sample')}: {_images(found)}, {near_to}")
        figures[str(samples)] = {**found.figures(), "correlation": near, "mean_image": base}
        worst, pairs = max(worst, found.recognisable - guess.recognisable), pairs + found.pairs
    optimizer = attacked.known.config.all_settings["optimizer"]
    unlike = "" if optimizer == "sgd" else f"; {optimizer}'s update was taken for one of SGD, which is a weaker attack"
    return Finding.of(
        "inversion",
        line,
        tried=f"gradient matching on an honest first update, labels known{unlike}",
        came_back="; ".join(words),
        held=worst <= attacked.thresholds.images,
        limit=f"images recognisable beyond the mean image's <= {attacked.thresholds.images}",
        figures=figures,
        pairs=pairs,
    )


def membership(attacked: Attacked) -> Finding:
    """:mod:`medpfl.audit.membership`."""
    if "test" not in attacked.truth.images:
        return Finding.not_tried("membership", "no test samples to tell training samples from")
    line = attacked.line()
    exchanges = honest_rounds(line, attacked.known, _ROUNDS)
    scores = members.membership(attacked.known, exchanges, attacked.truth)
    limit = attacked.thresholds.membership
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


def _labels(attacked: Attacked, part: str) -> torch.Tensor:
    """Labels as measures count them: one a patient in validation and test, one a sample in training."""
    labels = attacked.truth.labels[part]
    bags = attacked.data.bags(part) if part != "train" else None
    if bags is None:
        return labels
    return torch.zeros(int(bags.max()) + 1, dtype=labels.dtype).index_copy_(0, bags.cpu(), labels)


def _first(data: ImageTensors, samples: int) -> ImageTensors:
    """The data with so many training samples, of as many people as there are: of fewer a policy lets nothing leave."""
    whose = data.owners("train")
    every = np.arange(data.samples("train"))
    ones = np.unique(whose.cpu(), return_index=True)[1] if whose is not None else every
    rest = np.setdiff1d(every, ones)
    chosen = torch.from_numpy(np.sort(np.concatenate([np.sort(ones), rest])[:samples]))

    def cut(by_part: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {part: t[chosen.to(t.device)] if part == "train" else t for part, t in by_part.items()}

    def numbered(by_part: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {part: t.unique(return_inverse=True)[1] if part == "train" else t for part, t in cut(by_part).items()}

    return ImageTensors(cut(data.images), cut(data.labels), numbered(data.patients), numbered(data.persons))


def _images(found: Recovered) -> str:
    return f"{found.recognisable} of {found.of} images recognisable, {found.exact} of them exact"
