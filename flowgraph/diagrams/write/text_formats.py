"""Write any picture as Mermaid or DOT, where that format can draw it."""

from __future__ import annotations

from collections.abc import Mapping

from flowgraph.diagrams.model.charts import Lanes, MemoryChart
from flowgraph.diagrams.model.drawing import Drawing
from flowgraph.diagrams.model.picture import Picture
from flowgraph.diagrams.model.sequence import SequenceDiagram
from flowgraph.diagrams.write.as_data import kind_of
from flowgraph.diagrams.write.dot import dot
from flowgraph.diagrams.write.mermaid.flowchart import mermaid
from flowgraph.diagrams.write.mermaid.mermaid_gantt import mermaid_gantt
from flowgraph.diagrams.write.mermaid.mermaid_memory import mermaid_memory
from flowgraph.diagrams.write.mermaid.mermaid_sequence import mermaid_sequence
from flowgraph.errors import UsageError

_NAMES: Mapping[str, str] = {
    "sequence": "a sequence diagram",
    "lanes": "a timeline",
    "memory": "a chart of memory",
    "comparison": "placements beside each other",
    "scatter": "a scatter of candidates",
    "curves": "curves",
}
_DRAW_ALL = ("svg", "png", "html", "json", "txt")


def mermaid_text(drawing: Drawing) -> str:
    """Give a picture as Mermaid; raises `UsageError` for a kind that Mermaid cannot draw."""
    match drawing:
        case Picture():
            return mermaid(drawing)
        case SequenceDiagram():
            return mermaid_sequence(drawing)
        case Lanes():
            return mermaid_gantt(drawing)
        case MemoryChart():
            return mermaid_memory(drawing)
        case _:
            raise UsageError.cannot_draw("Mermaid", _NAMES[kind_of(drawing)], _DRAW_ALL)


def dot_text(drawing: Drawing) -> str:
    """Give a picture of boxes and arrows as DOT; raises `UsageError` for every other kind."""
    if isinstance(drawing, Picture):
        return dot(drawing)
    raise UsageError.cannot_draw("Graphviz", _NAMES[kind_of(drawing)], _DRAW_ALL)
