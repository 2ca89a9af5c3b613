"""Versions: of this package, also where a job carries its code and nothing is installed, and of what it stands on."""

from functools import cache
from hashlib import sha256
from pathlib import Path

__version__ = "0.2.0.dev0"
NOT_IN_JOBS = ("__main__.py", "audit", "cli", "report", "runs")
"""Of this package's code what no process of a job needs: a job that carries the package leaves it out."""


@cache  # the metadata of an installed package is a file of a thousand lines
def version(package: str) -> str:
    """Of an installed package."""
    from importlib import metadata

    return metadata.version(package)


@cache
def own_sha256() -> str:
    """Of this package's code, wherever it lies (:func:`sha256_of`)."""
    return sha256_of(Path(__file__).parents[1])


def sha256_of(package: Path) -> str:
    """Of the Python files of a copy of this package, their places in it and their content.

    Without :data:`NOT_IN_JOBS`, so that a run by a job that carries the package has the hash of one that does not.
    """
    digest = sha256()
    for name, file in sorted((file.relative_to(package).as_posix(), file) for file in package.rglob("*.py")):
        if name.partition("/")[0] not in NOT_IN_JOBS:
            content = file.read_bytes()
            digest.update(f"{name}\n{len(content)}\n".encode() + content)
    return digest.hexdigest()
