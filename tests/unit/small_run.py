"""A run of three sites with few images, in one process."""

from medpfl.config.run import make_config
from medpfl.runs.experiment import run_experiment


def small(algorithm="fedap", **fields):
    """The configuration."""
    settings = ({"pretrain_epochs": 1} if algorithm == "fedap" else {}) | fields.pop("settings", {})
    defaults = {
        "sites": 3,
        "rounds": 2,
        "train_fraction": 0.05,
        "partition": "equal-dirichlet:0.5",
        "device": "cpu",
        "alone": "no",
    }
    return make_config(algorithm=algorithm, settings=settings, **(defaults | fields))


def start(out, config=None, **options):
    """Runs it."""
    return run_experiment(config or small(), out, **{"env": "inprocess", "threads": 1, **options})
