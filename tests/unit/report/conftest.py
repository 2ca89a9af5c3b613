"""Results as runs write them: plain, with nothing in every place where nothing is allowed, and large."""

import copy
import random
from statistics import fmean, stdev

import pytest

from medpfl.algorithms import algorithms
from medpfl.tasks import TASKS
from medpfl.tasks.summary import summary

MEASURES = ("accuracy", "balanced_accuracy", "auroc")


def scores_of(accuracy):
    """A 'selected' or 'last' part whose other measures follow from the accuracy of each site."""
    sites = {}
    for name, value in accuracy.items():
        auroc = min(0.999, value + 0.06)
        sites[name] = {
            "n": 100,
            "accuracy": value,
            "balanced_accuracy": value - 0.05,
            "auroc": auroc,
            "auroc_ci95": [auroc - 0.02, min(1.0, auroc + 0.02)],
            "auroc_classes": 3,
        }
    part = {"sites": sites, "mean": {}, "std": {}, "worst": {}, "worst_site": {}}
    for measure in MEASURES:
        values = {name: entry[measure] for name, entry in sites.items()}
        part["mean"][measure] = fmean(values.values())
        part["std"][measure] = stdev(values.values()) if len(values) > 1 else None
        part["worst_site"][measure] = min(values, key=values.get)
        part["worst"][measure] = min(values.values())
    return part


def run_of(algorithm, accuracy, local=None, seed=0, rounds=6, classes=4, **config):
    """Finished results with the given accuracy of every site, and of local training at every site."""
    rng = random.Random(seed)
    names = list(accuracy)
    sites = {}
    for index, name in enumerate(names):
        counts = {str((index + k) % classes): rng.randint(5, 90) for k in range(min(3, classes))}
        total = sum(counts.values())
        sites[name] = {"train": total - total // 2, "validation": 0, "test": total // 2, "classes": counts}
    history = []
    for n in range(1, rounds + 1):
        entries = {}
        for name in names:
            level = accuracy[name] * (1 - 0.6 * 0.6**n)
            entries[name] = {
                "train_loss": 2.2 * 0.75**n + 0.1 * rng.random(),
                "validation": {"accuracy": level + 0.01 * rng.random(), "auroc": min(1.0, level + 0.05)},
                "sent_bytes": 240_000,
                "received_bytes": 250_000,
                "seconds": 0.8,
            }
        history.append({"round": n, "seconds": 4.5, "participants": names, "sites": entries})
    share = 1 / max(len(names) - 1, 1)
    matrix = [[0.5 if i == j else 0.5 * share for j in names] for i in names]
    if len(names) > 2:
        for i in range(len(names)):
            weights = [0 if i == j else 1 / (1 + min(abs(i - j), len(names) - abs(i - j))) for j in range(len(names))]
            matrix[i] = [0.5 if i == j else 0.5 * weight / sum(weights) for j, weight in enumerate(weights)]
    method = algorithms().get(algorithm) or algorithms()["fedavg"]
    results = {
        "schema": 1,
        "status": "finished",
        "algorithm": algorithm,
        "choices": {
            "personal": method.personal.format(**method.settings | config.get("settings", {})),
            "mixing": method.mixing.name,
            "objective": "ce",
            "server": [],
        },
        "config": {
            "algorithm": algorithm,
            "data": "organamnist",
            "model": "lenet5",
            "sites": len(names),
            "rounds": rounds,
            "local_epochs": 1,
            "partition": "dirichlet:0.1",
            "seed": seed,
            **config,
        },
        "environment": {"env": "inprocess", "nvflare": "2.9.0", "torch": "2.13.0", "cpu": "a CPU", "gpu": None},
        "data": {"name": "organamnist", "md5": "0123abcd", "partition": "dirichlet:0.1", "sites": sites},
        "rounds": history,
        "selected_round": rounds - 1,
        "final": {"selected": scores_of(accuracy), "last": scores_of({k: v - 0.01 for k, v in accuracy.items()})},
        "mixing": {"sites": names, "matrix": matrix},
        "traffic": {"sent_bytes": 240_000 * rounds * len(names), "received_bytes": 250_000 * rounds * len(names)},
        "seconds": {"total": 31.5, "start": 2.5, "training": 27.0},
    }
    if local is not None:
        part = scores_of(local)
        results["reference"] = {"algorithm": "local", "final": {"selected": part, "last": copy.deepcopy(part)}}
    return results


FIVE = {"site-1": 0.93, "site-2": 0.95, "site-3": 0.87, "site-4": 0.91, "site-5": 0.91}
FIVE_LOCAL = {"site-1": 0.95, "site-2": 0.94, "site-3": 0.92, "site-4": 0.91, "site-5": 0.965}


@pytest.fixture
def make_run():
    return run_of


def of_task(task, algorithm, tested, local=None, **config):
    """Finished results of another task, of schema 3; ``tested`` and ``local`` have each site's measures."""
    learned = TASKS[task]
    first = learned.names[0]
    run = run_of(
        algorithm, {name: entry[first] for name, entry in tested.items()}, task=task, select_by=first, **config
    )
    for entry in run["rounds"]:
        for site in entry["sites"].values():
            site["validation"] = {first: site["validation"]["accuracy"]}

    def part(sites):
        return {"sites": sites, **summary(sites, learned.measures)}

    run |= {"schema": 3, "measures": learned.described()}
    run["final"] = {"selected": part(tested), "last": part(tested)}
    if local is not None:
        run["reference"] = {"algorithm": "local", "final": {"selected": part(local), "last": part(local)}}
    return run


def masked(dice):
    """A site's measures by its Dice: surfaces are 20 mm apart where it is 0, and volumes off by half of what is missed.

    The liver's is 0.1 more, the tumour's 0.1 less.
    """
    return {
        "n": 40,
        "dice": dice,
        "dice_ci95": [dice - 0.05, dice + 0.05],
        "dice_by_class": [dice + 0.1, dice - 0.1],
        "hd95": 20 * (1 - dice),
        "volume_error": (1 - dice) / 2,
    }


def segmented_run(algorithm, dice, local=None, **config):
    tested, alone = ({name: masked(value) for name, value in each.items()} for each in (dice, local or {}))
    run = of_task("segmentation", algorithm, tested, alone or None, **config)
    run["data"]["classes"] = ["background", "liver", "tumour"]
    return run


def graded(kappa, error):
    """A site's measures of grades."""
    return {"n": 40, "kappa": kappa, "mae": error, "accuracy": 0.6, "balanced_accuracy": 0.5}


def labelled(auroc):
    """A site's measures of three labels, of which the last cannot be measured, by its AUC."""
    by_label = [auroc + 0.05, auroc - 0.05, None]
    return {"n": 40, "auroc": auroc, "auroc_ci95": None, "auroc_by_label": by_label, "accuracy": auroc - 0.1}


@pytest.fixture
def make_segmented():
    return segmented_run


MASKS = {"north": 0.8, "south": 0.6, "east": 0.5, "west": 0.7}
MASKS_ALONE = {"north": 0.7, "south": 0.62, "east": 0.4, "west": 0.64}


@pytest.fixture
def masks():
    """FedAvg at four sites: mean Dice 0.65, worst east with 0.5; alone 0.59: +10, -2, +10 and +6 points."""
    return segmented_run("fedavg", MASKS, MASKS_ALONE)


@pytest.fixture
def findings():
    """Several labels at two sites: mean AUC 0.85, alone 0.80."""
    return of_task(
        "multi-label",
        "fedbn",
        {"a": labelled(0.9), "b": labelled(0.8)},
        {"a": labelled(0.82), "b": labelled(0.78)},
    )


@pytest.fixture
def grades():
    """Grades at two sites, without a reference."""
    return of_task("ordinal", "fedbn", {"a": graded(0.5, 0.8), "b": graded(-0.1, 1.25)})


@pytest.fixture
def five():
    """FedAP at five sites: mean 0.914, worst site-3 with 0.870; local training: mean 0.937."""
    return run_of("fedap", FIVE, FIVE_LOCAL, **{"lambda": 0.5})


@pytest.fixture
def told(five):
    """The same with what sites tell: one gains, one loses, at two no difference was found, one tells nothing."""
    said = {
        "site-1": (1.0, "as published", (0.02, 0.005, 0.04)),
        "site-2": (0.0, "as received", (0.0, -0.02, 0.02)),
        "site-3": (1.0, "before fine-tuning", (-0.05, -0.09, -0.012)),
        "site-4": (0.6, "as published", (0.01, -0.03, 0.05)),
    }
    sites = {}
    for name, (weight, candidate, ends) in said.items():
        difference = dict(zip(("difference", "low", "high"), ends, strict=True))
        sites[name] = {
            "alone_round": 4,
            "used": {"candidate": candidate, "round": 5, "weight": weight},
            "gain": {"accuracy": difference, "balanced_accuracy": difference, "auroc": None},
            "verdict": "gains" if ends[1] > 0 else "loses" if ends[2] < 0 else "no difference found",
        }
    counts = {"gains": 1, "no difference found": 2, "loses": 1}
    five |= {"schema": 2, "verdict": {"measure": "accuracy", "use": "blend", "counts": counts, "sites": sites}}
    return five


@pytest.fixture
def empty():
    """Two sites and one round, with null wherever the contract allows it."""
    results = run_of("fedavg", {"a": 0.5, "b": 0.6}, rounds=1)
    for part in results["final"].values():
        for entry in part["sites"].values():
            entry |= dict.fromkeys((*MEASURES, "auroc_ci95", "auroc_classes"))
        for key in ("mean", "std", "worst", "worst_site"):
            part[key] = dict.fromkeys(MEASURES)
    for entry in results["rounds"]:
        for site in entry["sites"].values():
            site |= dict.fromkeys(("train_loss", "validation", "sent_bytes", "received_bytes", "seconds"))
        entry["seconds"] = None
    for site in results["data"]["sites"].values():
        site["classes"] = None
    results |= dict.fromkeys(("mixing", "traffic", "seconds", "selected_round", "reference", "failures", "notes"))
    results["an unknown key"] = {"of": "a later version"}
    return results


@pytest.fixture
def running():
    """After two of six rounds."""
    results = run_of("fedap", FIVE)
    results |= {"status": "running", "final": None, "selected_round": None}
    results["rounds"] = results["rounds"][:2]
    return results


@pytest.fixture
def twenty():
    """Nine algorithms at twenty sites and eleven classes, on one split."""
    algorithms = ("local", "fedavg", "fedprox", "fedbn", "fedper", "lg-fedavg", "fedap", "d-fedap", "f-fedap")
    local = {f"site-{i}": 0.90 + 0.004 * i for i in range(1, 21)}
    runs = []
    for index, algorithm in enumerate(algorithms):
        rng = random.Random(index)
        accuracy = {name: value - 0.03 * index - 0.05 * rng.random() * (index > 0) for name, value in local.items()}
        runs.append(run_of(algorithm, accuracy, local, rounds=20, classes=11))
    return runs
