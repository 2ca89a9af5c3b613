"""The page's part on batch norm's running statistics beside those of its inputs (FedAP's figure 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from medpfl.report.page_parts import Part, Table
from medpfl.report.svg import Scale, dot, drawing, line, text, tick_label, ticks


def running_part(found: Mapping[str, Any]) -> Part:
    """Of a result's ``running_statistics``."""
    heads = ("Layer", "Correlation of the means", "of the deviations")
    rows = [(path, _told(of["mean"]), _told(of["deviation"])) for path, of in found["correlation"].items()]
    charts = [
        _scatter(f"{path}: {what}", of[f"running_{name}"], of[name])
        for path, of in found["channels"].items()
        for name, what in (("mean", "mean"), ("deviation", "standard deviation"))
    ]
    note = (
        "Correlations over a layer's channels, mean over sites: of batch norm's running statistics in the model that a "
        "site uses with those of the layer's input over its training data, variances by their roots. In the figures a "
        f"dot is a channel, at {found['site']}; on the dashed line both are the same."
    )
    table = Table("Correlation of running statistics with those of the inputs", heads, rows)
    return Part("Batch norm's running statistics beside those of its inputs", table=table, charts=charts, note=note)


def _told(correlation: float | None) -> str:
    return "–" if correlation is None else f"{correlation:.2f}"


def _scatter(title: str, running: Sequence[float], inputs: Sequence[float]) -> Markup:
    """A dot for each channel, with the same scale on both axes."""
    left, top, bottom, width, height = 52, 26, 40, 320, 300
    steps = ticks(min(*running, *inputs), max(*running, *inputs), 4)
    x, y = Scale(steps[0], steps[-1], left, width - 14), Scale(steps[0], steps[-1], height - bottom, top)
    parts = [text(0, 11, title, css="axis")]
    for step in steps:
        parts.append(line(left, y(step), width - 14, y(step), "grid"))
        parts.append(text(left - 6, y(step) + 4, tick_label(step, steps), "end", "tick"))
        parts.append(text(x(step), height - bottom + 17, tick_label(step, steps), "middle", "tick"))
    parts.append(line(x(steps[0]), y(steps[0]), x(steps[-1]), y(steps[-1]), "level"))
    pairs = list(zip(inputs, running, strict=True))
    parts += [dot(x(i), y(r), 3.5, "site", f"input {i:.3g}, running {r:.3g}") for i, r in pairs]
    parts.append(text((left + width - 14) / 2, height - 4, "of the input", "middle", "axis"))
    parts.append(text(12, (top + height - bottom) / 2, "running", "middle", "axis", turn=-90))
    apart = max(abs(i - r) for i, r in pairs)
    said = f"{title}, running against that of the input. {len(pairs)} channels, at most {apart:.3g} apart."
    return drawing(width, height, said, parts)
