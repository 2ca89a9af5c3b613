"""FedAP's pretrained model f, under which the sites take their statistics.

In order of preference: a checkpoint that the user gives; pretraining on a pooled share of the sites' training data as
in the paper (20 %), which only a simulation can do and every result says so; none, which is f-FedAP.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from medpfl.algorithms.mechanism import Run
from medpfl.core.errors import UserError
from medpfl.core.parameters import State, on_cpu
from medpfl.core.seeding import derive_seed, drawn_apart, generator, seed_global
from medpfl.core.site_data import SiteData
from medpfl.core.threads import intra_op_threads
from medpfl.models.start_weights import content_of
from medpfl.training.loop import plain_objective, train_epochs


def pretrain(run: Run, epochs: int, model: nn.Module, pooled: SiteData) -> State:
    """Trains the seeded first model on pooled data; deterministic from the configuration.

    Args:
        run: its seed and its settings of training are used.
        epochs: passes over the pooled data.
        model: trained in place.
        pooled: a share of all sites' training data.
    """
    with drawn_apart(next(model.parameters()).device), intra_op_threads(run.intra_op_threads):
        seed_global(derive_seed(run.seed, "pretraining"))
        order = generator(run.seed, "pretraining", "shuffle")
        objective = plain_objective(model, run.trainer.loss(run.learned.loss, pooled))
        train_epochs(model, pooled, run.trainer, epochs, order, objective)
    return on_cpu(model)


def load_pretrained(path: Path, model: nn.Module) -> State:
    """A checkpoint of the run's architecture: safetensors, or a torch state dict.

    Raises:
        UserError: there is no such file, it cannot be read, or it is another architecture's.
    """
    if not path.is_file():
        raise UserError(f"pretrain: no file {path}; give a checkpoint, `pooled`, or use f-fedap, which needs none")
    state = content_of(path, f"pretrain: {path}")
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        first = str(error).splitlines()[-1].strip()
        raise UserError(f"pretrain: {path} does not fit {type(model).__name__}: {first}") from None
    return on_cpu(model)
