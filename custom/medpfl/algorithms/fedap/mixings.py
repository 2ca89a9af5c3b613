"""FedAP's mixing: W from the sites' similarity, which rests on statistics of layer inputs that each site sends once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from medpfl.algorithms.fedap.pretraining import load_pretrained, pretrain
from medpfl.algorithms.fedap.privacy import FEW_PATIENTS, LARGE_DELTA, StatisticsPrivacy, account, lacking, refusal
from medpfl.algorithms.fedap.quality import doubtful, judge, stability
from medpfl.algorithms.fedap.similarity import LayerStatistics, copies, similarity_weights, wasserstein_distances
from medpfl.algorithms.fedap.statistics import (
    layers_of,
    running_statistics,
    statistics_entries,
    statistics_under,
)
from medpfl.algorithms.mechanism import LocalRound, Rule, Run, ServerParts
from medpfl.algorithms.mixing import SelfWeight, WeighsSites, by_samples
from medpfl.algorithms.mixing_kinds import MeasuredMixing
from medpfl.core.channels import Channel
from medpfl.core.errors import NotInOnePlace, UserError
from medpfl.core.layers import batch_norm_layers, how_to_get_batch_norm
from medpfl.core.parameters import ParameterSplit, State
from medpfl.core.server_state import ServerState
from medpfl.core.settings import defaults, setting
from medpfl.core.threads import intra_op_threads

STATISTICS = "statistics"
"""Name of the channel: mean and variance of each layer's input."""

_REVEALS = "from statistics: averages over the training images, from which single ones can be told where they are few"
_COPY = (
    "its statistics are those of {} to the last bit: the same data, or one has copied the other's; the two count as "
    "neither near nor far"
)


class FromModel(SelfWeight, StatisticsPrivacy):
    """Settings where the statistics are taken under a pretrained model f."""

    pretrain: str = setting(
        "pooled",
        "the model f: a checkpoint, or `pooled` pretraining in a simulation",
        at_server=True,
        words=("pooled",),
    )
    pretrain_share: float = setting(0.2, "share of the sites' training data for pooled pretraining", ge=0, le=1)
    pretrain_epochs: int = setting(5, "epochs of pooled pretraining", gt=0)
    pretrain_check: int = setting(
        0, "1 trains f as long again, and says how far W moves by it", at_server=True, ge=0, le=1
    )


class _Similarity(WeighsSites, MeasuredMixing):
    """Rests on statistics of one kind of layers."""

    by_statistics = True
    statistics: str

    def channels(self, run: Run, model: nn.Module, split: ParameterSplit) -> tuple[Channel, ...]:
        """The statistics, once; UserError where the model has no such layer."""
        entries = statistics_entries(self.statistics, model, split)
        if not entries:
            which = " with running statistics" if self.statistics == "running" and batch_norm_layers(model) else ""
            raise UserError(
                f"mixing {self.name} compares batch-norm layers, and the model has none{which}: "
                f"{how_to_get_batch_norm(model)}, or use --mixing samples, similarity-classifier or uniform"
            )
        what = f"means and variances of layer inputs ({self.statistics})"
        return (Channel(STATISTICS, True, entries, self.tasks, what, _REVEALS, once=True, from_round=self.due(run)),)

    tasks: tuple[Any, ...] = ("prepare", "statistics")

    def due(self, run: Run) -> int:
        """The first round that statistics may go with."""
        return 0

    def received(
        self, run: Run, state: ServerState, fresh: Sequence[str]
    ) -> tuple[np.ndarray | None, list[tuple[str, str]]]:
        """W of all statistics that are known.

        Sites with the same statistics to the last bit are told, and the distance between them counts as not known: at
        distance 0 the two would be all of each other's mix.
        """
        known = {site: layers_of(tensors) for site, tensors in state.kept.get(STATISTICS, {}).items()}
        if not known:
            return None, []
        places = {site: i for i, site in enumerate(run.site_names) if site in known}
        names, where = list(places), list(places.values())
        distances = np.full((run.sites, run.sites), np.nan)
        distances[np.ix_(where, where)] = wasserstein_distances([known[site] for site in names])
        told = []
        for i, j in copies([known[site] for site in names]):
            distances[where[i], where[j]] = distances[where[j], where[i]] = np.nan
            if {names[i], names[j]} & set(fresh) and not _untouched(known[names[i]]):
                told.append((names[j], _COPY.format(names[i])))
        return similarity_weights(distances, self.settings.lambda_), told

    def matrix(self, run: Run, state: ServerState) -> np.ndarray:
        """Eqs. 7 and 8; by numbers of samples as long as nothing is known."""
        if state.weights is None:
            return by_samples(run, state)
        return state.weights

    def row_of(self, kept: Sequence[State], own: State) -> np.ndarray:
        """By 1 / distance, with the sum 1: lambda, a site's own share, goes to the others."""
        distances = wasserstein_distances([*map(layers_of, kept), layers_of(own)])
        return similarity_weights(distances, 0.0)[-1, :-1]


class _UnderModel(_Similarity):
    settings_class = FromModel
    under_model = True
    words = (LARGE_DELTA, FEW_PATIENTS)
    newcomer = Rule(
        "the sites' models by similarity of its statistics under f",
        "its row of W; lambda, its own share, goes to the others in proportion, since it has no own update",
    )

    def refuses(self, run: Run) -> str | None:
        """Settings of privacy and of pretraining that mean nothing."""
        return super().refuses(run) or refusal(run.settings) or self._idle(run)

    def _idle(self, run: Run) -> str | None:
        path, usual = self.settings.pretrain, defaults(type(self.settings))
        pooled = ("pretrain_share", "pretrain_epochs", "pretrain_check")
        given = [name for name in pooled if run.settings.get(name, usual[name]) != usual[name]]
        if given and path != "pooled":  # defaults stand in every run's results
            return f"{given[0]} is of pooled pretraining, and pretrain={path}: leave it out"
        if self.settings.pretrain_check and run.sites < 3:
            return "pretrain_check says how W moves with f, and of two sites W is lambda and 1 - lambda under any f"
        return None

    @classmethod
    def lacking(cls, name: str, run: Run) -> str | None:
        """Why settings of privacy mean nothing with another mixing."""
        return lacking(name, run)

    def at_server(self, run: Run) -> str:
        """Step 2 of the method."""
        return "statistics under a pretrained model, once"

    def notes(self, run: Run, state: ServerState) -> list[str]:
        """Where f comes from."""
        if self.settings.pretrain != "pooled":
            return []
        found = [
            "The model under which similarity was measured was pretrained on "
            f"{self.settings.pretrain_share:.0%} of all sites' training images pooled, as in the paper; the "
            "server holds this whole data set. Sites with data of their own need a checkpoint or f-FedAP."
        ]
        if state.judged and doubtful(state.judged):
            found.append(
                f"The pretrained model f is right on {state.judged['pooled']:.1%} of the sites' validation samples, "
                f"and always naming the most frequent class is right on {state.judged['most_frequent']:.1%}: W "
                "compares the sites by features that have hardly been trained. More pretrain_epochs, or more "
                "pretrain_share, help."
            )
        if self.settings.statistics_epsilon:
            found.append("That pretraining saw the patients whom epsilon is for, and epsilon does not count it.")
        return found

    def privacy(self, run: Run) -> dict[str, dict[str, Any]]:
        """By patient, for the statistics."""
        return account(run.all_settings)

    def given(self, parts: ServerParts) -> State | None:
        """The user's checkpoint."""
        path = self.settings.pretrain
        return None if path == "pooled" else load_pretrained(Path(path), parts.model().cpu())

    def hello(self, parts: ServerParts) -> State:
        """The checkpoint, or pretraining on pooled data; UserError where none are pooled."""
        if (given := self.given(parts)) is not None:
            return given
        try:
            share = parts.source.pooled_training(self.settings.pretrain_share, parts.device)
        except NotInOnePlace as error:
            raise UserError(f"{error} to pretrain f: give a checkpoint (--set pretrain=PATH) or use f-fedap") from error
        return pretrain(parts.run, self.settings.pretrain_epochs, parts.model(), share)

    def judged(self, parts: ServerParts, f: State) -> dict[str, Any] | None:
        """How f does on the sites' validation data, and with ``pretrain_check`` how W moves if it is trained on."""
        if self.settings.pretrain != "pooled":
            return None
        run, sites = parts.run, {name: parts.source.site(name, parts.device) for name in parts.run.site_names}
        with intra_op_threads(run.intra_op_threads):
            found = judge(run, f, parts.model(), sites)
            if not self.settings.pretrain_check:
                return found
            share = parts.source.pooled_training(self.settings.pretrain_share, parts.device)
            epochs = 2 * self.settings.pretrain_epochs
            longer = pretrain(run, epochs, parts.model(), share)
            moved = stability(self.statistics, (f, longer), parts.model(), parts.split, sites, self.settings.lambda_)
            return found | {"longer": {"epochs": epochs, **judge(run, longer, parts.model(), sites), **moved}}

    def measured(self, channel: str, round_: LocalRound) -> State:
        """Step 2: under f, which came with the message."""
        round_.model.load_state_dict(round_.message.shared)
        return statistics_under(
            self.statistics, round_.model, round_.split, round_.data, round_.run.all_settings, round_.noise()
        )


class Similarity(_UnderModel):
    """FedAP's: of every batch-norm layer's input."""

    name = "similarity"
    what = "by similarity of the batch-norm inputs under a pretrained model (FedAP)"
    statistics = "batch-norm"


class SimilarityClassifier(_UnderModel):
    """d-FedAP's: of the classification layer's input."""

    name = "similarity-classifier"
    what = "by similarity of the classification layer's input under a pretrained model (d-FedAP)"
    statistics = "classifier"


class SimilarityRunning(_Similarity):
    """f-FedAP's: of the sites' own running statistics, after half of the rounds."""

    name = "similarity-running"
    what = (
        "by sample numbers in the first half of the rounds, then by similarity of the sites' own running batch-norm "
        "statistics (f-FedAP)"
    )
    statistics = "running"
    settings_class = SelfWeight
    by_samples = True
    tasks = ("train", "statistics")
    newcomer = Rule(
        "the sites' models by similarity of its running batch-norm statistics",
        "as for FedAP, once the batch norm of the sites' mean model was adapted to its data",
    )

    def refuses(self, run: Run) -> str | None:
        """Half of too few rounds, or noise beside which statistics would leave as they are."""
        if found := super().refuses(run):
            return found
        if run.rounds < 2:
            return "f-FedAP spends half of the rounds on FedBN and needs at least 2 rounds"
        if run.all_settings.get("update_noise"):
            return (
                "update_noise covers the update, and f-FedAP sends running batch-norm statistics beside it as they "
                "are: use another mixing"
            )
        return None

    def due(self, run: Run) -> int:
        """Half of the rounds."""
        return run.rounds // 2

    def asks(self, channel: Channel, run: Run, state: ServerState, site: str) -> bool:
        """From half of the rounds on, once; until they come W is FedBN's."""
        return state.round + 1 >= self.due(run) and site not in state.kept.get(STATISTICS, {})

    def measured(self, channel: str, round_: LocalRound) -> State:
        """The running statistics after training; a site that joins adapts batch norm to its data first."""
        round_.settle()
        return running_statistics(round_.model)


def _untouched(statistics: LayerStatistics) -> bool:
    """Whether these are running statistics of sites whose batches of one image never moved them: 0 and 1."""
    return all((mean == 0).all() and (variance == 1).all() for mean, variance in statistics.values())
