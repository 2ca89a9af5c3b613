"""A finished run that sites can join."""

from tiny import sites_of

from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process

HELD_OUT = {"held_out": "hospital-5,hospital-6"}
SAMPLE = {"sites": 2, "held_out": 1, "rounds": 1, "local_epochs": 1, "train_fraction": 0.03, "device": "cpu"}


def finished(folder, run_config):
    """Runs a federation and leaves its checkpoint as a run's folder has it; returns the federation and the state."""
    federation = Federation.of(run_config)
    server = folder / "state" / "server"
    server.mkdir(parents=True)
    state = run_in_process(federation.plan(), sites_of(federation), federation.model, workers=1, checkpoint=server)
    return federation, state
