"""README's picture of every site's accuracy, from the records beside this file.

    python benchmarks/sites_picture.py docs/images/organamnist-sites.svg

Methods that were run again when each site selected its own round have those runs' figures.
"""

import json
import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from medpfl.report.charts import strip_plot

HERE = Path(__file__).parent
RECORDS = ("organamnist-equal-dirichlet-0.05", "organamnist-own-rounds-0.05")
"""The later replaces what both have."""
LOCAL = "Local training"


def groups() -> dict[str, dict[str, Any]]:
    """By title what was recorded of a method."""
    read = [json.loads((HERE / name / "comparison.json").read_text()) for name in RECORDS]
    return {group["label"]: group for record in read for group in record["groups"]}


def picture() -> str:
    """An SVG that needs no page: dark on white, with the page's shapes."""
    found = groups()
    rows = [(label, group["sites"]) for label, group in found.items()]
    figure = strip_plot("test accuracy", rows, ("local training", found[LOCAL]["accuracy"]["mean"]))
    shapes = re.search(r'viewBox="0 0 (\d+) (\d+)" style="[^"]*">(.*)</svg>', figure, re.DOTALL)
    width, height, inner = shapes.groups()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f'<style>{_light()}</style><rect width="{width}" height="{height}" fill="#fff"/>{inner}</svg>\n'
    )


def _light() -> str:
    """What of the page's style figures take, without its dark colours: an image does not know what it lies on."""
    css = (files("medpfl.report") / "templates" / "page.css").read_text().partition("@media (max-width")[0]
    colours = re.search(r"--page:.*?\}", css, re.DOTALL).group()
    rules = [rule for rule in css.splitlines() if re.match(r"svg|\.(?:grid|level|site|mean)\b", rule)]
    return "".join([":root{", colours.replace("\n", ""), *rules, "svg{font-family:system-ui,sans-serif}"])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(picture())
