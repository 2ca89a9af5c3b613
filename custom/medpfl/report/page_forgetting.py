"""What the page says of a local training while it goes on: what the model forgets, class by class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from medpfl.report.charts import Curve, line_chart
from medpfl.report.measures import first
from medpfl.report.page_parts import Part
from medpfl.report.reading import Results, mean_or_none

_PASSES = "passes over the site's data"


def forgetting_course(run: Results, found: dict[str, Any]) -> Iterator[Part]:
    """Means over sites before the training and after each pass: of the first measure, and of each class's recall.

    Nothing of results of earlier versions, which have no course.
    """
    courses = [course for course in (found.get("course") or {}).values() if course]
    if not courses:
        return
    measure, passes = first(run), range(min(map(len, courses)))
    whose = [("the other sites' data", "others"), ("the site's own data", "own")]
    sides = [(name, [mean_or_none(c[k].get(key) for c in courses) for k in passes]) for name, key in whose]
    number = len(run["data"]["classes"]) if all("classes" in course[0] for course in courses) else 0
    by_class = [
        (str(run["data"]["classes"][c]), [mean_or_none(course[k]["classes"][c] for course in courses) for k in passes])
        for c in range(number)
    ]
    title = f"test {measure.titled}"
    share = {"share": measure.share, "number": measure.number}
    charts = [
        line_chart(of, curves, over=_PASSES, **options)
        for of, curves, options in (
            (title, _curves(sides), share),
            ("share that is right of each class, on the other sites' data", _curves(by_class), {"share": True}),
        )
        if curves
    ]
    note = "Means over sites; 0 is the model that a site receives."
    if len(passes) - 1 > (epochs := run["config"].get("local_epochs") or len(passes)):
        note += f" There are more passes than the round's {epochs} epochs: the method reads the data for more."
    yield Part("Course of one local training", charts=charts, note=note)


def _curves(named: list[tuple[str, list[float | None]]]) -> list[Curve]:
    known = [(name, [(k, value) for k, value in enumerate(values) if value is not None]) for name, values in named]
    return [Curve(name, points) for name, points in known if points]
