"""What local training makes a model forget: a site's model on the other sites' data, before and after.

Federated Impression for Learning with Distributed Heterogeneous Data (2024), figure 1. Measured once, in the round that
would follow the last: every site receives its model, trains, and the result is tested instead of sent. That needs every
site's data in one place, which only a simulation has.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from medpfl.core.layers import evaluating
from medpfl.core.messages import Failure
from medpfl.core.parameters import State
from medpfl.core.site_data import Batch, SiteData
from medpfl.core.threads import intra_op_threads
from medpfl.engine.federation import Federation
from medpfl.report.reading import mean_or_none
from medpfl.runs.new_test import MOST_PREDICTIONS
from medpfl.server.checkpoint import CHECKPOINT, load_checkpoint
from medpfl.server.rounds import next_round
from medpfl.site.answer import answer
from medpfl.site.store import DiskStore, MemoryStore, SiteStore
from medpfl.tasks import Task
from medpfl.tasks.evaluation import cases

NOT_MEASURED = "forgetting was not measured: "
"""How the reason begins."""

Predictions = dict[str, Any]


def forgetting(federation: Federation, folder: Path, *, asked: bool) -> dict[str, Any] | str:
    """Trains every site once more from what it last received, and tests it on its own and on the others' data.

    Args:
        federation: of a finished run.
        folder: where that run's server and sites keep their state; only read.
        asked: whether the user asked for it; if not, more than :data:`~medpfl.runs.new_test.MOST_PREDICTIONS` are not
            made.

    Returns:
        ``round``, the one that would follow; ``sites``, by site ``own`` and ``others`` with the measures ``before`` and
        ``after`` (without ``others`` where no other site has test data); ``mean``, over sites, of the
        task's first two measures; ``course``, over the training, if asked or cheap: by site what is measured before it
        and after each pass over its data (:class:`_Course`). Or, in words, why it was not measured.
    """
    stores = {name: _Above(DiskStore(folder / name, durable=False)) for name in federation.config.site_names}
    sites = {name: federation.site(name, store) for name, store in stores.items()}
    for site in sites.values():
        site.rival = None  # what it trains alone changes nothing of what it trains here
    tests = {name: site.data for name, site in sites.items() if site.data.samples("test")}
    once = len(sites) * sum(data.samples("test") for data in tests.values())
    predictions, looks = 2 * once, federation.config.local_epochs + 2
    if len(tests) < 2:
        return f"{NOT_MEASURED}fewer than two sites have test samples"
    if predictions > MOST_PREDICTIONS and not asked:
        return f"{NOT_MEASURED}it takes {predictions:,} predictions; ask with --forgetting"
    state = load_checkpoint(folder / "server" / CHECKPOINT, federation.config)
    messages = next_round(federation.plan(pretraining=False), state)
    found: dict[str, Any] = {}
    courses: dict[str, list[dict[str, Any]]] = {}
    with intra_op_threads(federation.config.intra_op_threads):
        model = federation.model()
        learned = federation.config.learned
        received = _Received(learned)
        for name, message in messages.items():
            sites[name].load(message, model, state.round)
            before = received.predictions(model, tests)
            course = _Course(learned, name, model, tests)
            if asked or looks * once <= MOST_PREDICTIONS:
                sites[name].passes = course.watched(sites[name].data)
            answered = answer(sites[name], message, model)
            if isinstance(answered, Failure):
                return f"{NOT_MEASURED}{name}: {answered.reason}"
            after = _predictions(learned, model, tests)
            found[name] = _of_site(learned, name, before, after, tests)
            if course.points:
                courses[name] = [course.point(before), *course.points[1:], course.point(after)]
    mean = _mean(found, learned.names[:2])
    return {"round": state.round + 1, "sites": found, "mean": mean} | ({"course": courses} if courses else {})


class _Above(MemoryStore):
    """A store that reads what another has and writes into memory: the run's own state stays as it is."""

    def __init__(self, below: SiteStore) -> None:
        super().__init__()
        self._below = below

    def get(self, kind: str, round_: int) -> State | None:
        state = super().get(kind, round_)
        return self._below.get(kind, round_) if state is None else state


class _Course:
    """What a model knows while it is trained: before each pass over the training data.

    A point has ``own`` and ``others``, the task's first measure on the site's own and on the others' pooled test data,
    and where cases are of one class each ``classes``: of the others' cases of each class the share that is right.
    """

    def __init__(self, learned: Task, site: str, model: nn.Module, tests: dict[str, SiteData]) -> None:
        self._learned, self._site, self._model, self._tests = learned, site, model, tests
        self.points: list[dict[str, Any]] = []

    def watched(self, data: SiteData) -> SiteData:
        """The same data, that make a point whenever a pass over them in training begins; of the first it is the start.

        What a method reads to another end, pseudo data say, are not these.
        """
        seen = copy(data)

        def batches(*arguments: Any, **named: Any) -> Iterator[Batch]:
            self._look()
            return data.training_batches(*arguments, **named)

        seen.training_batches = batches
        return seen

    def _look(self) -> None:
        with evaluating(self._model):
            self.points.append(self.point(_predictions(self._learned, self._model, self._tests)))

    def point(self, predictions: Predictions) -> dict[str, Any]:
        """Of one look."""
        measure = self._learned.names[0]
        others = [made for name, made in predictions.items() if name != self._site]
        own = predictions.get(self._site)
        found = {
            "own": None if own is None else self._learned.pooled([own])[measure],
            "others": self._learned.pooled(others)[measure] if others else None,
        }
        classes = self._learned.by_class(others) if others else None
        return found if classes is None else found | {"classes": classes}


class _Received:
    """Predictions of received models; where all sites receive the same, they are made once."""

    def __init__(self, learned: Task) -> None:
        self._learned = learned
        self._last: State = {}
        self._made: Predictions = {}

    def predictions(self, model: nn.Module, tests: dict[str, SiteData]) -> Predictions:
        now = {name: t for name, t in model.state_dict().items() if t.is_floating_point()}
        if not self._last or not all(torch.equal(self._last[name], t) for name, t in now.items()):
            self._last = {name: t.clone() for name, t in now.items()}
            self._made = _predictions(self._learned, model, tests)
        return self._made


def _predictions(learned: Task, model: nn.Module, tests: dict[str, SiteData]) -> Predictions:
    return {name: learned.predict(model, data, "test") for name, data in tests.items()}


def _of_site(
    learned: Task, name: str, before: Predictions, after: Predictions, tests: dict[str, SiteData]
) -> dict[str, Any]:
    """The measures on the site's own test data, and without intervals on all others' pooled."""
    found = {}
    if name in before:
        of = cases(tests[name], "test")
        found["own"] = {"before": learned.measured(before[name], of), "after": learned.measured(after[name], of)}
    if others := [other for other in before if other != name]:
        intervals = {measure.interval for measure in learned.measures}  # would take cases for patients
        found["others"] = {
            when: {k: v for k, v in learned.pooled([made[other] for other in others]).items() if k not in intervals}
            for when, made in (("before", before), ("after", after))
        }
    return found


def _mean(sites: dict[str, Any], shown: tuple[str, ...]) -> dict[str, Any]:
    """Over the sites that have it; None where none has."""
    return {
        which: {
            when: {m: mean_or_none(s[which][when][m] for s in sites.values() if which in s) for m in shown}
            for when in ("before", "after")
        }
        for which in ("own", "others")
        if any(which in s for s in sites.values())
    }
