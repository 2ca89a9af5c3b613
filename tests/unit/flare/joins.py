"""A run that sites can join through FLARE."""

from safetensors.torch import save_file
from tiny import Net, config, sites_of

from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process

SAID = {"data": "tiny:site_data", "sites": 2, "local_epochs": 2}


def finished(folder, run_config, *, rounds=None):
    """Leaves a run's checkpoint as its folder has it, after all rounds or only some."""
    federation = Federation.of(run_config)
    (folder / "state" / "server").mkdir(parents=True)

    def stop(state):
        if state.round == rounds:
            raise KeyboardInterrupt

    try:
        run_in_process(
            federation.plan(),
            sites_of(federation),
            federation.model,
            workers=1,
            checkpoint=folder / "state" / "server",
            after_step=stop,
        )
    except KeyboardInterrupt:
        assert rounds


def with_f(folder, algorithm, **fields):
    settings = {}
    if algorithm in ("fedap", "d-fedap"):
        settings["pretrain"] = str(folder / "f.safetensors")
        if not (folder / "f.safetensors").exists():
            save_file(Net().state_dict(), folder / "f.safetensors")
    return config(algorithm, settings=settings, rounds=2, **fields)
