"""No room but ``algorithms/``, the reports and the command line knows a method, or a method's mechanism, by name."""

import re
from pathlib import Path

import pytest

import medpfl

ROOT = Path(medpfl.__file__).parent
ROOMS = ("algorithms", "report", "cli")
"""Those that may."""
NAMES = (
    "fedap", "fedavg", "fedprox", "fedbn", "fedper", "lg-fedavg", "lg_fedavg", "fedimpres", "vit-heads", "vit_heads",
    "impression", "similarity", "consistency", "proximal", "ditto", "apfl", "fedrep", "scaffold", "fedbabu",
    "fedcurv", "fedreg", "vhl", "fedvss", "fedopt", "fedadam", "fedyogi", "server_optimizer",
)  # fmt: skip
FOUND = re.compile("|".join(map(re.escape, NAMES)), re.IGNORECASE)

ALLOWED = {
    # Networks are named by the papers that they are from, and a user asks for one by that name.
    "models/alexnet_bn.py": {"FedAP"},
    "models/lenet5.py": {"FedAP"},
    "models/pamap2_cnn.py": {"FedAP"},
    "models/impression_cnn.py": {"FedImpres", "impression", "Impression"},
    "models/factory.py": {"FedAP", "FedImpres", "impression", "Impression"},
    # What a user asks for with --partition, and the paper whose numbers these are.
    "data/partition/published_counts.py": {"fedimpres", "FedImpres", "Impression"},
    # The paper whose figure is measured.
    "runs/forgetting.py": {"Impression"},
    # Examples of what a user types.
    "runs/comparison.py": {"fedap"},
    "__init__.py": {"fedap", "fedavg", "fedbn"},
    "runs/api.py": {"fedap", "fedavg", "FedAvg", "fedbn", "FedBN", "fedper", "fedprox", "FedProx"},
    # Values that --mixing and --partition take, as --help says them without loading what has them.
    "config/fields.py": {"similarity", "fedimpres"},
    # A class of FLARE's.
    "flare/transport/controller.py": {"fedavg", "FedAvg"},
    # A part of the kidney.
    "data/kinds/npz/medmnist.py": {"proximal"},
}


def modules() -> dict[str, Path]:
    files = {file.relative_to(ROOT).as_posix(): file for file in ROOT.rglob("*.py")}
    return {name: file for name, file in files.items() if name.partition("/")[0] not in ROOMS}


def named(source: str) -> dict[str, int]:
    """Names of methods in identifiers, strings, comments and docstrings, each with the line where it stands first."""
    found: dict[str, int] = {}
    for number, line in enumerate(source.splitlines(), 1):
        for word in FOUND.findall(line):
            found.setdefault(word, number)
    return found


def test_no_method_is_known_by_name():
    found = {name: named(name) | named(file.read_text(encoding="utf-8")) for name, file in modules().items()}
    more = [
        f"{name}, line {line}: {word}"
        for name, words in found.items()
        for word, line in words.items()
        if word not in ALLOWED.get(name, ())
    ]
    assert not more, f"{'; '.join(more)}: a method's own belongs into algorithms/"


def test_nothing_is_allowed_that_is_not_there():
    there = modules()
    for name, words in ALLOWED.items():
        assert words <= named(there[name].read_text(encoding="utf-8")).keys(), name


@pytest.mark.parametrize(
    "source",
    [
        "x = 1  # as FedAvg does",
        '"""Mean.\n\nOf fedprox."""',
        "def draw_scaffold(): ...",
        "kinds = ['lg-fedavg']",
        "what = f'{n} impressions'",
    ],
)
def test_a_name_is_found_wherever_it_stands(source):
    assert named(source)
    assert not named("mean = 'of all'  # and no more")


def test_the_rooms_that_are_looked_at_are_there():
    assert {"core", "site", "server", "engine", "flare", "config", "training", "tasks", "data", "runs"} <= {
        name.partition("/")[0] for name in modules()
    }
