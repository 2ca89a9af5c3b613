"""FedAP's pretrained model f, under which the sites take their statistics.

In order of preference: a checkpoint that the user gives; pretraining on a pooled share of the sites' training data as
in the paper (20 %), which only a simulation can do and every result says so; none, which is f-FedAP.
"""

from __future__ import annotations

from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from medpfl.config import RunConfig
from medpfl.errors import UserError
from medpfl.parameters import State
from medpfl.seeding import derive_seed, generator
from medpfl.server.rounds import Plan, ServerState
from medpfl.site.data import SiteData
from medpfl.site.training import train_epochs
from medpfl.threads import intra_op_threads


def pretrain(config: RunConfig, model: nn.Module, pooled: SiteData) -> State:
    """Trains the seeded first model on pooled data; deterministic from the configuration.

    Args:
        config: the settings ``pretrain_epochs``, ``lr`` and ``batch_size`` are used.
        model: trained in place.
        pooled: a share of all sites' training data.
    """
    with torch.random.fork_rng(), intra_op_threads(config.intra_op_threads):
        torch.manual_seed(derive_seed(config.seed, "pretraining"))
        order = generator(config.seed, "pretraining", "shuffle")
        train_epochs(model, pooled, config.all_settings, config.all_settings["pretrain_epochs"], order)
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


def require_same_pretrained(plan: Plan, state: ServerState) -> None:
    """Refuses another f than the one under which the run's sites took their statistics, for they are compared.

    Raises:
        UserError: the file that the user gave has changed, or is not the one whose fingerprint the run names.
    """
    if plan.config.pretrained and plan.given_f not in (None, plan.config.pretrained):
        raise UserError(
            f"pretrain: {plan.config.all_settings['pretrain']} is not the model that the run names by its fingerprint, "
            f"{plan.config.pretrained[:12]}: give that file"
        )
    if state.pretrained and plan.given_f != state.pretrained:
        raise UserError(
            f"pretrain: {plan.config.all_settings['pretrain']} is not the model under which the run's sites took their "
            "statistics; restore the file"
        )


def load_pretrained(path: Path, model: nn.Module) -> State:
    """A checkpoint of the run's architecture: safetensors, or a torch state dict.

    Raises:
        UserError: there is no such file, it cannot be read, or it is another architecture's.
    """
    if not path.is_file():
        raise UserError(f"pretrain: no file {path}; give a checkpoint, `pooled`, or use f-fedap, which needs none")
    try:
        if path.suffix == ".safetensors":
            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, UnpicklingError, RuntimeError, OSError, ValueError, EOFError) as error:
        first = str(error).partition("\n")[0]
        raise UserError(f"pretrain: {path} cannot be read as safetensors or as a torch state dict: {first}") from None
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        first = str(error).splitlines()[-1].strip()
        raise UserError(f"pretrain: {path} does not fit {type(model).__name__}: {first}") from None
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
