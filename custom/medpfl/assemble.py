"""From a configuration to the parts that an engine needs: the seeded model, the server's plan, a site."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from medpfl.config import RunConfig
from medpfl.data.sites import DataSource, open_source
from medpfl.errors import UserError
from medpfl.models import build_model
from medpfl.parameters import ParameterSplit, State, parse_declaration
from medpfl.seeding import derive_seed
from medpfl.server.pretraining import load_pretrained, pretrain
from medpfl.server.rounds import Plan
from medpfl.site.store import SiteStore
from medpfl.site.worker import Site


def pick_device(config: RunConfig) -> torch.device:
    """The device that the configuration asks for; ``auto`` takes a GPU if there is one.

    Raises:
        UserError: a GPU is asked for and there is none.
    """
    available = torch.cuda.is_available()
    if config.device == "auto":
        return torch.device("cuda" if available else "cpu")
    if config.device.startswith("cuda") and not available:
        raise UserError(f"--device {config.device}: torch sees no GPU here; use --device cpu or auto")
    return torch.device(config.device)


def seeded_model(config: RunConfig, source: DataSource, device: torch.device) -> nn.Module:
    """The run's first model: the same values at the server and at every site."""
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(config.seed, "model"))
        model = build_model(config.model, **source.model_arguments(), model_args=config.model_args)
    return model.to(device)


@dataclass
class Federation:
    """One run's parts, made as they are asked for.

    Attributes:
        config: the run.
        source: where the sites' data come from.
        device: where models live.
        split: what is shared.
        initial_personal: where every site's personal state starts.
    """

    config: RunConfig
    source: DataSource
    device: torch.device
    split: ParameterSplit
    initial_shared: State
    initial_personal: State

    @classmethod
    def of(cls, config: RunConfig) -> Federation:
        """Builds the model once and resolves what is shared. Reads no images of any site."""
        source, device = open_source(config), pick_device(config)
        model = seeded_model(config, source, torch.device("cpu"))
        split = ParameterSplit(model, parse_declaration(config.resolved_personal))
        if config.resolved_mixing != "identity" and not split.shared_names:
            raise UserError(f"--personal {config.resolved_personal} leaves nothing to share for {config.model}")
        return cls(config, source, device, split, split.shared_state(model), split.personal_state(model))

    def model(self) -> nn.Module:
        """A fresh model on the device."""
        return seeded_model(self.config, self.source, self.device)

    def plan(self) -> Plan:
        """The server's plan; pretrains f where the mixing needs it."""
        pretrained = None
        if self.config.needs_pretraining:
            settings = self.config.all_settings
            if settings["pretrain"] == "pooled":
                share = self.source.pooled_training(settings["pretrain_share"], self.device)
                pretrained = pretrain(self.config, self.model(), share)
            else:
                pretrained = load_pretrained(Path(settings["pretrain"]), self.model().cpu())
        return Plan(self.config, self.split, self.initial_shared, pretrained)

    def site(self, name: str, store: SiteStore) -> Site:
        """A site with its data on the device."""
        return Site(
            name=name,
            config=self.config,
            split=self.split,
            initial_personal=self.initial_personal,
            data=self.source.site(name, self.device),
            store=store,
        )
