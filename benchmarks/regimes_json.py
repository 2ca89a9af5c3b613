"""What ``medpfl advise`` ships with: the rows of ``regimes_table.py`` and each regime's features, as JSON.

The features are of the partitions that were trained on, made again from the data (``MEDPFL_BENCHMARK_DATA``), by the
function that ``medpfl advise`` uses for anybody's sites.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from regimes import METHODS, STEPS, config_of, regimes
from regimes_masks import REGIMES, configured
from regimes_records import Record, Together, together

from medpfl.core.numbers_in_words import count
from medpfl.core.permitted_code import permit
from medpfl.report.advice.numbers import Features, features_of
from medpfl.report.advice.regimes import Regime, Regimes, Row
from medpfl.runs.numbers import numbers_of

DATA = {
    "organ": "abdominal CT slices of 11 organs (OrganAMNIST)",
    "blood": "blood cells of 8 kinds (BloodMNIST)",
    "chest": "chest X-rays of two hospitals, tuberculosis or not",
    "phantom": "chest CT of six centres, made by the computer, emphysema or not",
}
MASKS = {
    "brain-mri": "tumours on brain MR slices of four hospitals",
    "chest-lungs": "lungs on chest X-rays of two hospitals",
    "sarcoma-mr": "sarcomas on MR volumes from scanners of three vendors",
}
SHIFTED = ("organ-shift", "organ-shift-73", "chest", "phantom", *MASKS)
"""Where the same class looks different from site to site."""
SPLIT = {
    "0.05": "labels by Dirichlet 0.05",
    "0.5": "labels by Dirichlet 0.5",
    "iid": "labels alike",
    "uneven": "labels and sizes by Dirichlet 0.5",
    "shift": "labels alike, grey levels, blur and noise of each site's own",
}


def write(
    file: Path,
    found: Mapping[str, Mapping[str, Sequence[Record]]],
    methods: Mapping[str, str],
    twice: Callable[[str], set[str]],
) -> None:
    """Writes the file.

    Args:
        file: where.
        found: by regime and row the lines of ``regimes.csv``.
        methods: by row the name of the results.
        twice: from a regime to the rows that stand there under another name.
    """
    permit("regimes_data")
    known = regimes() | REGIMES
    regimes_: list[Regime] = []
    for name, of in found.items():
        # Seeds differ by more than methods do: only rows with all of the regime's can be held against each other.
        whole = [title for title in methods if len(of.get(title, ())) == len(of["alone"]) and title not in twice(name)]
        rows = [_row(title, methods[title], together(of[title])) for title in whole]
        mine, alone = [row for row in rows if row.title != "alone"], together(of["alone"])
        if not any(row.federated for row in mine):
            print(f"{name}: left out, no method has results yet", flush=True)
            continue
        features = _mean([_features(name, known[name], seed) for seed in alone.seeds])
        line, accuracy = f"{_description(name, features)}; {_schedule(name)}", round(alone.accuracy, 4)
        what = {"measure": "dice", "network": "unet"} if name in MASKS else {"measure": "accuracy", "network": "lenet5"}
        given = {"features": features, "seeds": alone.seeds, "alone": accuracy, "rows": mine}
        own = Regime(name=name, description=line, **what, **given)
        regimes_.append(own)
        print(f"{name}: seeds {alone.seeds}, {len(mine)} rows, {features}", flush=True)
    content = Regimes(schema=2, regimes=regimes_).model_dump(by_alias=True, mode="json")
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _row(title: str, method: str, of: Together) -> Row:
    return Row(
        title=title.strip("*"),
        command=_command(title.strip("*"), method),
        federated=not method.startswith("alone"),
        seeds=len(of.seeds),
        sites=of.sites,
        gain=round(of.gain, 3),
        sd_seeds=None if of.sd_seeds is None else round(of.sd_seeds, 3),
        sd_sites=round(of.sd_sites, 3),
        worse_off=round(of.worse_off / of.sites, 4),
        worst=of.worst,
        each_round=_each_round(method),
        chooses=_rule(title) is not None,
    )


def _rule(title: str) -> str | None:
    """By which sites choose in a row."""
    if title.strip("*").startswith("FedBlend") or title.endswith(", blended"):
        return "blend"
    last = title.rpartition(", ")[2]
    return last if last in ("best", "blend") else None


def _each_round(method: str) -> str:
    return "" if method.startswith("alone") else config_of(_written(method), 0, regimes()["organ-iid"]).each_round


def _written(method: str) -> str:
    """As ``medpfl compare`` has it."""
    return {name.replace(":", "_"): name for name in METHODS}[method]


def _command(title: str, method: str) -> str | None:
    """What ``medpfl run`` is asked for a row; None if no command does it."""
    if title.startswith("FedBlend"):
        return title.lower().replace(", ", " --set ")
    if method.startswith("alone"):
        return None
    algorithm, _, settings = _written(method).partition(":")
    words = [algorithm, *(f"--set {setting}" for setting in settings.split(",") if setting)]
    if "fine-tuned" in title:
        words.append(f"--set finetune_steps={STEPS}")
    if rule := _rule(title):
        words.append(f"--use {rule}")
    return " ".join(words)


def _features(name: str, fields: Mapping, seed: int) -> Features:
    configured_ = configured if name in MASKS else config_of
    sites, _, _ = numbers_of(configured_("fedavg", seed, fields))
    return features_of(sites, name in SHIFTED)


def _mean(of: Sequence[Features]) -> Features:
    """Over the seeds, each of which has a partition of its own."""
    known = [name for name in NUMBERS if getattr(of[0], name) is not None]
    means = {name: round(float(np.mean([getattr(f, name) for f in of])), 4) for name in known}
    return of[0].model_copy(update=means)


NUMBERS = ("train", "validation", "skew", "unevenness")


def _schedule(name: str) -> str:
    """Of a regime's training, which is that of training alone, too."""
    config = (configured if name in MASKS else config_of)("fedavg", 0, (regimes() | REGIMES)[name])
    optimizer = config.all_settings["optimizer"].replace("sgd", "SGD").replace("adam", "Adam")
    rounds, epochs = count(config.rounds, "round"), count(config.local_epochs, "epoch")
    return f"{rounds} of {epochs}, {optimizer}, learning rate {config.all_settings['lr']:g}"


def _description(name: str, features: Features) -> str:
    if name in MASKS:
        return f"{MASKS[name]}, median {features.train:.0f} images or volumes to train on; sizes as they are"
    data, _, rest = name.partition("-")
    split = rest.removesuffix("-73")
    how = [SPLIT[split]] if split else ["labels and sizes as they are"]
    of = "patients" if name == "phantom" else "images"
    return f"{DATA[data]}; {features.sites} sites, median {features.train:.0f} training {of}; {', '.join(how)}"
