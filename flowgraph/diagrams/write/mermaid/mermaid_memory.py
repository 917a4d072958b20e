"""Write a chart of memory as Mermaid's bar chart: a bar for each phase of each pool, against what a device has."""

from __future__ import annotations

import json
import re

from flowgraph.diagrams.model.charts import MemoryChart, Phase, PoolMemory
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.picture import ArrowStyle
from flowgraph.diagrams.write.mermaid.flowchart import escaped
from flowgraph.diagrams.write.palette import ARROW_INKS, INKS

_GIB = 2**30
_BAR_PX, _MARGIN_PX = 34, 110
_LABEL_CHARACTERS = 24  # Mermaid leaves all labels out when one takes too much of the width
_SYNTAX = re.compile(r"""["`#;:&<>%\\]""")


def mermaid_memory(chart: MemoryChart) -> str:
    """Give a chart of memory as Mermaid's bars, one under the other: GiB of each phase, and a line at the capacity.

    Mermaid has no bar in parts, so a bar is the sum of what a device holds.
    """
    phases = [(store, phase) for store in chart.stores for phase in store.phases]
    held = [phase.size_bytes / _GIB for _, phase in phases]
    room = [store.capacity_bytes / _GIB for store, _ in phases]
    lines = [
        f"%%{{init: {json.dumps(_settings(len(phases)))}}}%%",
        "xychart-beta horizontal",
        f"    title {_quoted(chart.title)}",
        f"    accTitle: {escaped(chart.title)}",
        f"    x-axis [{', '.join(_quoted(_label(*each)) for each in phases) or _quoted('nothing')}]",
        f'    y-axis "GiB" 0 --> {max([*held, *room, 1.0]) * 1.05:.4g}',
        f"    bar [{_numbers(held)}]",
        f"    line [{_numbers(room)}]",
    ]
    return "\n".join(lines) + "\n"


def _settings(phases: int) -> dict[str, object]:
    colours = f"{INKS['model'].fill}, {ARROW_INKS[ArrowStyle.CARRY]}"
    sizes = {"width": 800, "height": _MARGIN_PX + _BAR_PX * max(1, phases)}
    return {"look": "classic", "xyChart": sizes, "themeVariables": {"xyChart": {"plotColorPalette": colours}}}


def _label(store: PoolMemory, phase: Phase) -> str:
    return f"{clean(store.label, _LABEL_CHARACTERS)} · {clean(phase.label, _LABEL_CHARACTERS)}"


def _quoted(text: str) -> str:
    """Quote a label; signs that say nothing between quotes stay, for labels are measured with their entities.

    >>> _quoted("train (2) · a;b")
    '"train (2) · a#59;b"'
    """
    return f'"{_SYNTAX.sub(lambda found: f"#{ord(found[0])};", clean(text))}"'


def _numbers(sizes: list[float]) -> str:
    return ", ".join(f"{size:.3f}" for size in sizes) or "0"
