"""The server's side of sites that join a finished run: a shared part for each, from the run's last state.

What the server has after the last round are the sites' mixes, not their updates, so a newcomer's shared part is a
weighted sum of mixes, by the mixing's own rule. The finished run's state is only read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from medpfl.algorithms.mixing_kinds import MeasuredMixing
from medpfl.core.channels import Channel
from medpfl.core.errors import UserError
from medpfl.core.messages import Failure, Message, Update, named
from medpfl.core.mixing import cap_others, counted_samples, mix, sample_weights
from medpfl.core.parameters import State, StateError
from medpfl.core.server_state import ServerState
from medpfl.core.statefile import serialised_bytes
from medpfl.server.state import Plan, require_same_pretrained
from medpfl.server.updates import check_update, in_words
from medpfl.server.weighing import pop_sent

Exchange = Callable[[Mapping[str, Message]], Iterable[Update | Failure]]
"""Carries one message to each site and brings the answers."""


@dataclass(frozen=True)
class Welcome:
    """What newcomers are told besides tensors.

    Attributes:
        plan: of the finished run; with f where the mixing needs it.
        server: its state after the last round.
        input_format: of the run's data (:func:`medpfl.data.source.input_format`).
        epochs: how long newcomers adapt, at most.
    """

    plan: Plan
    server: ServerState
    input_format: Mapping[str, Any]
    epochs: int

    def run(self, names: Sequence[str], exchange: Exchange) -> dict[str, dict[str, Any]]:
        """Lets sites join, and gives the report on each as join.json has it.

        Args:
            names: of the sites.
            exchange: carries messages; all newcomers are asked at once.

        Raises:
            UserError: a site of that name took part in the run, f is another one, or sites cannot join: a line names
                each, with the reason.
        """
        require_new(names, self.plan.config.site_names)
        require_same_pretrained(self.plan, self.server)
        question = self.question()
        asked = self._ask(dict.fromkeys(names, question), exchange) if question else {}
        sent = {name: serialised_bytes(update.tensors) for name, update in asked.items()}
        received = serialised_bytes(question.tensors) if question else 0
        sent_first = self._asked.name if self._asked else ""
        offers = {name: self.offer(pop_sent(sent_first, asked[name]) if asked else None) for name in names}
        joined = self._ask({name: message for name, (message, _) in offers.items()}, exchange)
        return {
            name: {
                **joined[name].metrics,
                "weights": offers[name][1],
                "sent_bytes": sent.get(name, 0) + serialised_bytes(joined[name].tensors),
                "received_bytes": received + serialised_bytes(offers[name][0].tensors),
            }
            for name in names
        }

    @property
    def _asked(self) -> Channel | None:
        """The channel in which a newcomer answers before its shared part can be made."""
        return next((c for c, part in self.plan.upward("statistics") if isinstance(part, MeasuredMixing)), None)

    def question(self) -> Message | None:
        """What is asked of a newcomer before its shared part can be made; None where nothing is needed."""
        if self._asked is None:
            return None
        tensors = self.plan.pretrained
        if not self.plan.config.mixer.under_model:
            sites = self._sites()
            tensors = self._mixed(sites, sample_weights([1] * len(sites))[0])
        first = self.plan.brought_at_first
        return self._message("statistics", {**tensors, **first}, {"asked": [self._asked.name]})

    def offer(self, sent: State | None) -> tuple[Message, dict[str, float]]:
        """The message with a newcomer's shared part, and how much of each site's model is in it.

        Args:
            sent: by the newcomer, where :meth:`question` asks for it.
        """
        server, sites, mixer = self.server, self._sites(), self.plan.config.mixer
        shared: State = {}
        row = np.zeros(0)
        if self.plan.split.shared_names:
            if sent:
                kept = server.kept.get(self._asked.name, {})
                sites = [name for name in sites if name in kept]
                row = self._capped(mixer.row_of([kept[name] for name in sites], sent))
            else:
                counted = counted_samples([server.samples[name] for name in sites], self.plan.config.largest_weight)
                row = sample_weights(counted if mixer.by_samples else [1] * len(sites))[0]
            shared = self._mixed(sites, row)
        weights = dict(zip(sites, row.tolist(), strict=True)) if shared else {}
        down = {c.name for c in self.plan.channels if not c.to_server and "join" in c.tasks}
        common = {k: t for c in down for k, t in named(c, server.common.get(c, {})).items()}
        first = {} if self._asked else self.plan.brought_at_first
        return self._message("join", {**shared, **common, **first}, {"epochs": self.epochs}), weights

    def _capped(self, row: np.ndarray) -> np.ndarray:
        """The row under the run's cap, of what a site leaves to others: a newcomer has no update of its own."""
        config = self.plan.config
        of_others = 1 - config.mixer.own_share
        if not config.mixer.weighs_sites or config.weight_cap >= 1 or not of_others:
            return row
        return cap_others(row[None], [None], max(config.weight_cap / of_others, 1 / len(row)))[0]

    def _sites(self) -> list[str]:
        known = self.server.shared, self.server.samples
        return [name for name in self.plan.config.site_names if all(name in of for of in known)]

    def _mixed(self, sites: Sequence[str], row: np.ndarray) -> State:
        """The weighted sum of sites' mixes; equal mixes are their own sum, to the last bit."""
        states = [self.server.shared[name] for name in sites]
        if all(state is states[0] for state in states):
            return states[0]
        return mix(row[None], [dict(state) for state in states])[0]

    def _message(self, task: Any, tensors: State, info: Mapping[str, Any]) -> Message:
        common = {"split": self.plan.split.description(), "input_format": dict(self.input_format)}
        return Message(task, self.server.round, tensors, common | info)

    def _ask(self, messages: Mapping[str, Message], exchange: Exchange) -> dict[str, Update]:
        found: dict[str, Update] = {}
        failed = dict.fromkeys(messages, "no answer in time")
        for reply in exchange(messages):
            if isinstance(reply, Failure):
                failed[reply.site] = in_words(reply.reason)
                continue
            try:
                checked = check_update(self.plan, messages, reply, list(found.values()))
            except StateError as error:
                failed[reply.site] = in_words(str(error))
            else:
                found[reply.site] = checked
                del failed[reply.site]
        if failed:
            raise UserError("\n".join(f"{name}: {reason}" for name, reason in failed.items()))
        return found


def require_new(names: Iterable[str], sites: Iterable[str]) -> None:
    """Refuses newcomers that took part in the run: their state would be written over. Case does not tell folders."""
    taken = {site.casefold() for site in sites}
    for name in names:
        if name.casefold() in taken:
            raise UserError(f"{name}: a site of that name took part in the run; only others can join it")
