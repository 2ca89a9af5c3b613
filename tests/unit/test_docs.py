"""What the documentation points to exists: files of the repository, headings in them, tests."""

import re
from pathlib import Path

import pytest

from medpfl.algorithms import OWN, mixings

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    file.relative_to(ROOT).as_posix()
    for pattern in ("README.md", "docs/**/*.md", "benchmarks/*.md", "app_config/**/*.md")
    for file in sorted(ROOT.glob(pattern))
]
OF_THE_PROJECT = ["CHANGELOG.md", "CONTRIBUTING.md"]


def text_of(file):
    """A document without its code blocks."""
    return re.sub(r"^```.*?^```$", "", file.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(file):
    """What GitHub calls the headings: lower case, no punctuation, ``-`` for each blank, a number for repeated ones."""
    found = []
    for heading in re.findall(r"^#{1,6} +(.+?) *$", text_of(file), flags=re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        seen = sum(re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", other) is not None for other in found)
        found.append(f"{anchor}-{seen}" if seen else anchor)
    return found


@pytest.mark.parametrize("document", DOCUMENTS + OF_THE_PROJECT)
def test_links_lead_somewhere(document):
    file = ROOT / document
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(file)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (file.parent / path) if path else file
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("document", DOCUMENTS + OF_THE_PROJECT)
def test_no_two_versions_of_a_text_stand_beside_each_other(document):
    """As git leaves them where it could not merge."""
    assert not re.findall(r"^(?:<<<<<<<|>>>>>>>) .*", (ROOT / document).read_text(), flags=re.MULTILINE)


def test_the_tests_that_faults_are_shown_by_exist():
    known = {
        (file.name, name)
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), flags=re.MULTILINE)
    }
    named = re.findall(r"(?:(test_\w+\.py)::)?\b(test_\w+)\b(?!\.py)", (ROOT / "docs" / "faults.md").read_text())
    names = {name for _, name in known}
    assert len(named) > 20
    assert [pair for pair in named if pair not in known and (pair[0] or pair[1] not in names)] == []


def test_every_method_is_described():
    described = {name: (ROOT / name).read_text() for name in ("README.md", "docs/algorithms.md", "docs/flare.md")}
    rows = {
        name: set(re.findall(r"`([\w-]+)`", " ".join(re.findall(r"^\| (`.+?) \|", text, flags=re.MULTILINE))))
        for name, text in described.items()
    }
    names = {method.name for method in OWN}
    assert names <= rows["README.md"] and names <= rows["docs/algorithms.md"]
    assert all(f"`{method.recipe}`" in described["docs/flare.md"] for method in OWN)
    assert all(f"- `{mixing}`" in described["docs/algorithms.md"] for mixing in mixings())


def test_the_map_of_the_house_has_every_room():
    rooms = {folder.parent.name for folder in (ROOT / "custom" / "medpfl").glob("*/__init__.py")}
    readme = re.search(r"^custom/medpfl/.+?^app_config", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[0]
    assert set(re.findall(r"^    (\w+)/ ", readme, re.MULTILINE)) == rooms
    layout = re.search(r"^## Layout.+?^## ", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE | re.DOTALL)[0]
    assert set(re.findall(r"`(\w+)/`", " ".join(re.findall(r"^\| (.+?) \|", layout, re.MULTILINE)))) == rooms


def test_anchors_are_githubs(tmp_path):
    file = tmp_path / "a.md"
    file.write_text("# A site's `own` model f, [here](b.md)\n## Two  words\n```\n# no heading\n```\n## Two  words\n")
    assert anchors(file) == ["a-sites-own-model-f-here", "two--words", "two--words-1"]
