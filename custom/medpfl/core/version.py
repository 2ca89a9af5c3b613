"""Versions: of this package, also where a job carries its code and nothing is installed, and of what it stands on."""

from functools import cache
from hashlib import sha256
from pathlib import Path

__version__ = "0.1.0"


@cache  # the metadata of an installed package is a file of a thousand lines
def version(package: str) -> str:
    """Of an installed package."""
    from importlib import metadata

    return metadata.version(package)


@cache
def own_sha256() -> str:
    """Of this package's Python files, their places in it and their content, wherever it lies."""
    package = Path(__file__).parents[1]
    digest = sha256()
    for name, file in sorted((file.relative_to(package).as_posix(), file) for file in package.rglob("*.py")):
        content = file.read_bytes()
        digest.update(f"{name}\n{len(content)}\n".encode() + content)
    return digest.hexdigest()
