"""Writes hospital.txt and torch-cuda.txt beside this file: every package that medpfl needs, with its files' hashes.

The versions are those of constraints.txt; the hashes are of all files that the public registry has of a version. Needs
`uv` and the registry.
"""

import re
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
HEAD = "# Written by requirements/make_hashes.py for Python 3.11 on Linux, x86-64. Do not edit: `make hashes`.\n"
GPU = re.compile(r"(torch|triton|nvidia-.*|cuda-.*)==")


def locked() -> list[str]:
    """One entry a package: its version, and a line for each hash."""
    command = ["uv", "pip", "compile", "pyproject.toml", "--constraint", "constraints.txt", "--generate-hashes"]
    command += ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28"]
    command += ["--no-config", "--no-header", "--no-annotate", "--quiet"]
    done = subprocess.run(command, cwd=HERE.parent, check=True, capture_output=True, text=True)
    return re.findall(r"^\S.*\n(?: .*\n)*", done.stdout, flags=re.MULTILINE)


def main() -> None:
    """Writes both files."""
    entries = locked()
    (HERE / "hospital.txt").write_text(HEAD + "".join(entry for entry in entries if not GPU.match(entry)))
    (HERE / "torch-cuda.txt").write_text(HEAD + "".join(entry for entry in entries if GPU.match(entry)))


if __name__ == "__main__":
    main()
