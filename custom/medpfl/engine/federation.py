"""From a configuration to the parts that an engine needs: the seeded model, the server's plan, a site."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from medpfl.algorithms.failing import at_server
from medpfl.algorithms.mechanism import Mechanism, ServerParts
from medpfl.config.named_code import named_code
from medpfl.config.run import RunConfig
from medpfl.core.channels import Channel
from medpfl.core.errors import UserError
from medpfl.core.frozen import freeze
from medpfl.core.parameters import ParameterSplit, State
from medpfl.core.seeding import Chance
from medpfl.core.site_data import SiteData
from medpfl.data.kinds.npz.medmnist import known_set
from medpfl.data.kinds.npz.partitioned import PartitionedImages
from medpfl.data.public_images import public_images
from medpfl.data.sites import open_source
from medpfl.data.source import DataSource, input_format
from medpfl.engine.channels import channels_of
from medpfl.engine.first_model import first_model, pick_device, seeded_model
from medpfl.models.cost import ANY, Limits
from medpfl.models.start_weights import Start
from medpfl.server.rounds import Plan
from medpfl.site.account import Account
from medpfl.site.arriving import Arriving
from medpfl.site.book import Book
from medpfl.site.chance import own_chance
from medpfl.site.contract import Contract
from medpfl.site.delivery import Delivery
from medpfl.site.gate import Gate
from medpfl.site.guard import Guarded
from medpfl.site.many_values import read_data
from medpfl.site.newcomer import Newcomer
from medpfl.site.policy import OPEN, SitePolicy
from medpfl.site.rival import Rival
from medpfl.site.store import DiskStore, SiteStore
from medpfl.site.training_sets import TrainingSets
from medpfl.site.worker import Site


@dataclass
class Federation:
    """One run's parts, made as they are asked for.

    Attributes:
        config: the run.
        source: where the sites' data come from.
        device: where models live.
        split: what is shared.
        channels: what travels besides it, with the part of the method that each is of.
        initial_personal: where every site's personal state starts.
        public: the data are a published set that every party has whole.
        start: what the run begins with, where it is not random.
    """

    config: RunConfig
    source: DataSource
    device: torch.device
    split: ParameterSplit
    channels: dict[Channel, Mechanism]
    initial_shared: State
    initial_personal: State
    public: bool = False
    start: Start | None = None

    @classmethod
    def of(
        cls, config: RunConfig, own: Path | None = None, start: Start | None = None, limits: Limits = ANY
    ) -> Federation:
        """Builds the model once, as :func:`~medpfl.engine.first_model.first_model`, with what that raises.

        Args:
            config: the run. Where it gives start weights by a path, the federation's names them instead.
            own: where this site has its data, if it says so itself (:func:`medpfl.data.sites.open_source`).
            start: the start weights that the configuration names, where the file is not here. Without them the models
                are of their shapes, and there can be no site.
            limits: on the network, of a party that does not trust who asks for it.
        """
        source, device = open_source(config, own), pick_device(config)
        config, model, split, start = first_model(config, source, start, limits)
        channels = channels_of(config, model, split)
        # What a site calls its own is never public, whatever a job calls it.
        public = own is None and isinstance(source, PartitionedImages) and known_set(config.data.lower()) is not None
        shared, personal = split.shared_state(model), split.personal_state(model)
        return cls(config, source, device, split, channels, shared, personal, public, start)

    def model(self) -> nn.Module:
        """A fresh model on the device."""
        model = seeded_model(self.config, self.source, self.device)
        if self.start:
            model.load_state_dict(self.start.state)
        freeze(model, self.split.frozen)
        return model

    def first(self) -> State:
        """The whole state of the run's first model."""
        return {key: tensor.cpu() for key, tensor in self.model().state_dict().items()}

    def _drawn(self) -> State:
        """The model as it is drawn at random, whatever the run begins with.

        Without what nobody trains, but where statistics are taken under a model that comes: they show that part too.
        """
        drawn = seeded_model(self.config, self.source, torch.device("cpu")).state_dict()
        left_out = () if self.config.mixer.under_model else self.split.frozen
        return {name: tensor for name, tensor in drawn.items() if name not in left_out}

    @cached_property
    def _first_of_rivals(self) -> State:
        """Drawn once, before sites work side by side: they would draw from one generator, and each get other values."""
        return self.first() if self.config.has_rival else {}

    def plan(self, *, pretraining: bool = True, steps: bool = True, stop: Callable[[], bool] = lambda: False) -> Plan:
        """The server's plan.

        Args:
            pretraining: make f where the mixing needs it; not needed where W is known already.
            steps: with the mechanisms' steps after each round, which may read images to start from.
            stop: ends the work of a step.
        """
        # Whoever lacks the accountant learns it before the first round.
        self.config.privacy()
        parts, mixer = self._parts(stop), self.config.mixer
        pretrained = mixer.hello(parts) if pretraining else mixer.given(parts)
        judged = mixer.judged(parts, pretrained) if pretraining and pretrained is not None else None
        made, moves = {}, {}
        for part in self.config.parts if steps else ():
            with at_server(part, "what makes its step and its move", 0):
                made[part], moves[part] = part.server_step(parts), part.server_move(parts)
        return Plan(
            self.config,
            self.split,
            self.initial_shared,
            self.channels,
            pretrained,
            {part: step for part, step in made.items() if step},
            {part: move for part, move in moves.items() if move},
            self.start,
            judged,
        )

    def _parts(self, stop: Callable[[], bool] = lambda: False) -> ServerParts:
        return ServerParts(
            self.config,
            self.split,
            self.model,
            self.initial_shared,
            self.initial_personal,
            self.source,
            public_images,
            self.device,
            stop,
        )

    def given_pretrained(self) -> State | None:
        """The state of f that the user gave, checked; None where f is not needed or is made by pretraining."""
        return self.config.mixer.given(self._parts())

    def leaving(self, *, joining: bool = False) -> dict[str, list[int] | None]:
        """Names and shapes of the tensors that a site sends, in channels too.

        Args:
            joining: the site joins after the run, and sends no model.
        """
        gate = self.gate(joining=joining)
        own = {name: shape for name, (shape, _) in gate.shared.items()}
        beside = {name: entry.shape for channel in gate.channels for name, entry in channel.named.items()}
        return {name: list(shape) for name, shape in (own | beside).items()}

    def site(self, name: str, store: SiteStore, policy: SitePolicy = OPEN, secret: bytes | None = None) -> Site:
        """A site with its data on the device.

        Args:
            name: its name.
            store: its own.
            policy: its own.
            secret: see :class:`~medpfl.site.worker.Site`.

        Raises:
            TooManyValues: the run would make more values of its data than its policy lets.
            UserError: the data cannot be read.
        """
        self._require_start(name)
        data = read_data(policy, self.source, name, self.device)
        first = self._first_of_rivals
        chance = Chance(self.config.seed)
        if policy.own_seed and secret is not None:
            chance = own_chance(self.config, secret)
        rival = Rival(name, self.config, data, store, lambda: first, chance) if self.config.has_rival else None
        return Site(
            name=name,
            config=self.config,
            split=self.split,
            initial_personal=self.initial_personal,
            data=data,
            store=store,
            rival=rival,
            channels=self.channels,
            delivery=self.delivery(store.folder, durable=store.durable) if isinstance(store, DiskStore) else None,
            selects=policy.measures == "none" or not self.config.mixes,
            secret=secret,
            chance=chance,
            least=policy.least_patients,
        )

    def _require_start(self, name: str) -> None:
        if self.config.init and not self.start:
            raise UserError(f"{name}: the run's start weights are not here: give --init and the file")

    def guarded(
        self,
        party: Site | Newcomer,
        *,
        policy: SitePolicy = OPEN,
        contract: Contract | None = None,
        book: Book | None = None,
        account: Account | None = None,
        sets: TrainingSets | None = None,
    ) -> Guarded:
        """A site, or one that joins, behind the run's contract, its policy and its gate.

        Args:
            party: from :meth:`site` or :meth:`newcomer`.
            policy: the site's.
            contract: by default this run's, submitted by nobody.
            book: keeps what was answered; by default in memory.
            account: of the run, in the site's ledger.
            sets: which patients earlier runs trained on.
        """
        joining, here = isinstance(party, Newcomer), isinstance(party, Site)
        contract = contract or Contract(self.config, self.config if joining else None)
        arriving = Arriving(
            config=contract.config,
            policy=policy,
            start={} if joining else self.initial_shared,
            first=self._drawn() if self.start or self.config.mixer.under_model else self.initial_shared,
            check_shared=self.split.check_shared,
            begins=dict(self.start.state) if self.start else {},
            received=party.received if here else lambda round_, model: None,
            first_step=(lambda model: party.first_step(self.initial_shared, model)) if here else lambda model: 0.0,
        )
        return Guarded(
            party=party,
            contract=contract,
            policy=policy,
            gate=self.gate(policy, joining=joining),
            arriving=arriving,
            book=book or Book(),
            public=self.public and not joining,
            channels=self.channels,
            account=account,
            sets=sets,
        )

    def gate(self, policy: SitePolicy = OPEN, *, joining: bool = False) -> Gate:
        """What may leave a site in this run, by name, shape and type."""
        shared = {} if joining else {name: (tuple(t.shape), t.dtype) for name, t in self.initial_shared.items()}
        tasks = {"statistics", "join"} if joining else {"prepare", "train"}
        channels = [c for c in self.channels if c.to_server and tasks & set(c.tasks)]
        words = [name for c in channels for name in (c.name, *c.named)] + [part.name for part in self.config.parts]
        names = frozenset([*shared, *words, *self.split.personal_names, *self.split.description()])
        learned = self.config.learned
        return Gate(shared, channels, self.config.numbers, learned.schema, learned.spans, policy, names)

    def newcomer(
        self,
        name: str,
        source: DataSource,
        data: SiteData,
        folder: Path,
        *,
        here: bool = False,
        secret: bytes | None = None,
    ) -> Newcomer:
        """A site that joins this run after its end.

        Args:
            name: its name.
            source: where its data come from.
            data: its own, on the device.
            folder: where its model goes.
            here: it is in the process of whoever asks.
            secret: see :class:`~medpfl.site.worker.Site`.
        """
        self._require_start(name)
        return Newcomer(
            name=name,
            config=self.config,
            split=self.split,
            first=self.first(),
            channels=self.channels,
            data=data,
            input_format=input_format(source),
            delivery=self.delivery(folder, source, durable=not here),
            here=here,
            secret=secret,
        )

    def input_format(self) -> dict[str, Any]:
        """See :func:`~medpfl.data.source.input_format`: of the run's data."""
        return input_format(self.source)

    def delivery(self, folder: Path, source: DataSource | None = None, *, durable: bool = False) -> Delivery:
        """What leaves a site's models in a folder of its own; ``source`` where its data do not come from the run's."""
        config = self.config
        arguments = {"name": config.model, **self.source.model_arguments(), "model_args": config.model_args}
        inputs = (source or self.source).inputs()
        if own := [spec.partition(":")[0] for what, spec in named_code(config) if what == "model"]:
            arguments["code"] = own  # the bundle permits it to whoever runs the bundle
        if config.adapters:
            arguments["adapters"] = config.adapters
        return Delivery(folder, config, {**arguments, "pooling": config.pooling}, inputs, durable)
