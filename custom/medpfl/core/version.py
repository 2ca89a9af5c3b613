"""Versions: of this package, also where a job carries its code and nothing is installed, and of what it stands on."""

from functools import cache

__version__ = "0.1.0"


@cache  # the metadata of an installed package is a file of a thousand lines
def version(package: str) -> str:
    """Of an installed package."""
    from importlib import metadata

    return metadata.version(package)
