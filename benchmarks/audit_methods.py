"""The audit of `medpfl site audit` for the published methods, on OrganAMNIST's sample and the chest phantom.

    python benchmarks/audit_methods.py [audit-methods.md] [--minutes 3]

One site of each run is attacked. Writes a table with a row an attack, under a heading for each method and data set.
"""

import argparse
import tempfile
import time
from pathlib import Path

from medpfl.audit.report import markdown_row
from medpfl.cli.audit import open_audit
from medpfl.config.run import make_config
from medpfl.data.phantom.cohort import make_phantom
from medpfl.site.policy import HOSPITAL, OPEN, AuditThresholds

METHODS = ("fedavg", "fedbn", "fedap", "d-fedap", "f-fedap", "vit-heads", "fedimpres")
COMMON = {"rounds": 20, "local_epochs": 1, "device": "cpu"}
ORGANS = {"data": "organamnist-sample", "sites": 20}
PHANTOM = {
    "data": "phantom-ct",
    "data_args": {"classes": ["no emphysema", "emphysema"], "size": 32, "slices": 8},
    "partition": "natural",
    "sites": 6,
}


def main() -> None:
    """Audits every method on both sets of data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=Path("audit-methods.md"))
    parser.add_argument("--minutes", type=float, default=3.0, help="processor time of one audit")
    parser.add_argument("--policy", choices=("open", "hospital"), default="open")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    options = parser.parse_args()
    policy = {"open": OPEN, "hospital": HOSPITAL}[options.policy]
    begun, lines = time.process_time(), [f"# The audit under the policy `{options.policy}`", ""]
    with tempfile.TemporaryDirectory() as folder:
        make_phantom(Path(folder) / "phantom", patients=300, matrix=64)
        for data, fields, own in (
            ("OrganAMNIST's sample", ORGANS, None),
            ("the chest phantom", PHANTOM, Path(folder) / "phantom"),
        ):
            for method in options.methods:
                model = "vit-tiny" if method == "vit-heads" else "lenet5"
                config = make_config(algorithm=method, model=model, **COMMON, **fields)
                attacks = open_audit(config, own, None, policy, AuditThresholds(), 60 * options.minutes)
                started = time.process_time()
                findings = attacks.run()
                seconds = time.process_time() - started
                lines += [f"## {method} on {data}: {model}, {attacks.data.samples('train')} training images", ""]
                lines += ["| attack | what was tried | answered | what came back | verdict |", "|---|---|---:|---|---|"]
                lines += [*map(markdown_row, findings), "", f"{seconds:.0f} s.", ""]
                options.out.write_text("\n".join(lines))
                print(f"{method}, {data}: {seconds:.0f} s", flush=True)
    print(f"{options.out}: {time.process_time() - begun:.0f} s in all")


if __name__ == "__main__":
    main()
