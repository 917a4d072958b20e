"""Write a chart of memory as Mermaid's bar chart: a bar for each phase of each pool, against the capacity."""

from __future__ import annotations

import json
import re

from flowgraph.diagrams.model.charts import MemoryChart
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.picture import ArrowStyle
from flowgraph.diagrams.write.mermaid.flowchart import escaped
from flowgraph.diagrams.write.palette import ARROW_INKS, INKS

_GIB = 2**30
_BAR_PX, _MARGIN_PX = 34, 110
_LABEL_CHARACTERS = 24  # Mermaid leaves all labels out when one takes too much of the width
_SYNTAX = re.compile(r"""["`#;:&<>%\\]""")


def mermaid_memory(chart: MemoryChart) -> str:
    """Return a chart of memory as Mermaid's bars, one under the other: GiB of each phase, and a line at the capacity.

    Mermaid has no stacked bars, so a bar is the sum of all parts.
    """
    phases = [(store, phase) for store in chart.stores for phase in store.phases]
    labels = [_quoted(f"{_label(store.label)} · {_label(phase.label)}") for store, phase in phases]
    sizes = [phase.size_bytes / _GIB for _, phase in phases]
    capacities = [store.capacity_bytes / _GIB for store, _ in phases]
    colours = f"{INKS['model'].fill}, {ARROW_INKS[ArrowStyle.CARRY]}"
    settings = {
        "look": "classic",
        "xyChart": {"width": 800, "height": _MARGIN_PX + _BAR_PX * max(1, len(phases))},
        "themeVariables": {"xyChart": {"plotColorPalette": colours}},
    }
    lines = [
        f"%%{{init: {json.dumps(settings)}}}%%",
        "xychart-beta horizontal",
        f"    title {_quoted(chart.title)}",
        f"    accTitle: {escaped(chart.title)}",
        f"    x-axis [{', '.join(labels) or _quoted('nothing')}]",
        f'    y-axis "GiB" 0 --> {max([*sizes, *capacities, 1.0]) * 1.05:.4g}',
        f"    bar [{_numbers(sizes)}]",
        f"    line [{_numbers(capacities)}]",
    ]
    return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return clean(text, _LABEL_CHARACTERS)


def _quoted(text: str) -> str:
    """Quote a label; harmless signs are not escaped, for labels are measured with their entities.

    >>> _quoted("train (2) · a;b")
    '"train (2) · a#59;b"'
    """
    return f'"{_SYNTAX.sub(lambda match: f"#{ord(match[0])};", clean(text))}"'


def _numbers(sizes: list[float]) -> str:
    return ", ".join(f"{size:.3f}" for size in sizes) or "0"
