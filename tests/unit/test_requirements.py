"""What is tested, what a hospital installs by hash, and what the package asks for are the same versions."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as canonical

ROOT = Path(__file__).parents[2]
FILES = ("hospital.txt", "torch-cuda.txt")


def entries(name):
    """Of a file with hashes: version and hashes by package."""
    text = (ROOT / "requirements" / name).read_text()
    found = {}
    for entry in re.findall(r"^[^\s#].*\n(?: .*\n)*", text, flags=re.MULTILINE):
        # A version and hashes, and nothing else: no index, no URL.
        package, version, rest = re.fullmatch(
            r"([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n", entry
        ).groups()
        found[canonical(package)] = (version, re.findall("[0-9a-f]{64}", rest))
    return found


def pinned():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonical(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}


def asked():
    """pyproject.toml's own dependencies; without tomllib, which Python 3.10 lacks."""
    [listed] = re.findall(
        r"^dependencies = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL
    )
    return [Requirement(line.strip(' ",')) for line in listed.splitlines()]


@pytest.mark.parametrize("name", FILES)
def test_every_package_has_a_version_and_hashes(name):
    found = entries(name)
    assert len(found) > 10
    assert all(hashes and len(set(hashes)) == len(hashes) for _, hashes in found.values())


def test_what_is_installed_by_hash_is_what_is_pinned():
    pins, hashed = pinned(), {package: version for package, (version, _) in entries("hospital.txt").items()}
    assert hashed == {package: pins.get(package) for package in hashed}
    assert entries("torch-cuda.txt")["torch"][0] == pins["torch"]


def test_what_the_package_asks_for_is_there_in_a_version_that_it_takes():
    hashed = {package: version for name in FILES for package, (version, _) in entries(name).items()}
    pins = pinned()
    for requirement in asked():
        package = canonical(requirement.name)
        assert requirement.specifier.contains(hashed[package])
        assert pins[package] == hashed[package]


def test_no_package_is_in_both_files_so_that_torch_can_come_from_elsewhere():
    hospital, cuda = (set(entries(name)) for name in FILES)
    assert not hospital & cuda
    assert "torch" in cuda
    assert not [name for name in hospital if re.match("(nvidia|cuda|triton)", name)]


def test_no_older_version_is_taken_than_those_that_are_tested():
    """What lies in a user's environment stays there, whatever its age, where nothing is said against it."""
    assert not [str(asks) for asks in asked() if not any(of.operator == ">=" for of in asks.specifier)]
