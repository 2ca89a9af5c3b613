"""Runs to compare, made by hand."""

# Accuracy at sites a and b for seeds 0 and 1.
LOCAL = ({"a": 0.90, "b": 0.80}, {"a": 0.88, "b": 0.84})
FEDAVG = ({"a": 0.70, "b": 0.60}, {"a": 0.72, "b": 0.62})
FEDAP = ({"a": 0.92, "b": 0.78}, {"a": 0.90, "b": 0.86})


def fine_tuned(make_run, epochs, **more):
    settings = {"finetune_epochs": epochs, "finetune_steps": 0, "finetune_lr": 0.0, "lr": 0.1}
    return make_run("fedavg", FEDAVG[0], settings=settings | more)


def blended(make_run, accuracy, alone, **config):
    """A run of FedBlend beside its own rival, which has so much at each site and as many steps."""
    gain = {"accuracy": {"difference": 0.03, "low": 0.01, "high": 0.05}}
    return make_run("fedblend", accuracy, **config) | {
        "further": "200 steps",
        "reference": {"final": make_run("local", dict.fromkeys(accuracy, alone), **config)["final"]},
        "verdict": {"sites": {site: {"gain": gain} for site in accuracy}},
    }


def one_class_at(run, *names):
    for part in run["final"].values():
        for name in names:
            part["sites"][name] |= {"auroc": None, "auroc_ci95": None, "auroc_classes": 0}
    return run
