"""Every format that a picture can be written in, by the extension of its files."""

from __future__ import annotations

from collections.abc import Mapping

from flowgraph.diagrams.model.charts import Lanes, MemoryChart
from flowgraph.diagrams.model.drawing import Drawing
from flowgraph.diagrams.model.picture import Picture, SequenceDiagram
from flowgraph.diagrams.write.as_data import as_json, kind_of
from flowgraph.diagrams.write.dot import dot
from flowgraph.diagrams.write.mermaid.flowchart import mermaid
from flowgraph.diagrams.write.mermaid.mermaid_gantt import mermaid_gantt
from flowgraph.diagrams.write.mermaid.mermaid_memory import mermaid_memory
from flowgraph.diagrams.write.mermaid.mermaid_sequence import mermaid_sequence
from flowgraph.diagrams.write.svg.any_picture import svg
from flowgraph.diagrams.write.terminal.any_picture import terminal
from flowgraph.errors import UsageError, nearest

ENDINGS: Mapping[str, str] = {
    ".svg": "svg",
    ".png": "png",
    ".html": "html",
    ".htm": "html",
    ".mmd": "mmd",
    ".mermaid": "mmd",
    ".md": "md",
    ".dot": "dot",
    ".gv": "dot",
    ".json": "json",
    ".txt": "text",
}
FORMATS: tuple[str, ...] = tuple(dict.fromkeys(ENDINGS.values()))
COLUMNS = 100  # of a text that goes into a file

_NAMES: Mapping[str, str] = {
    "sequence": "a sequence diagram",
    "lanes": "a timeline",
    "memory": "a memory chart",
    "comparison": "a comparison of placements",
    "scatter": "a scatter of candidates",
    "curves": "curves",
}
_DRAW_ALL = ("svg", "png", "html", "json", "txt")


def format_of(ending: str, where: str) -> str:
    """Return the format of a file extension. Raises UsageError for an unknown one.

    >>> format_of(".gv", "a.gv")
    'dot'
    """
    if ending.lower() in ENDINGS:
        return ENDINGS[ending.lower()]
    hint = nearest(ending, ENDINGS) or f"endings are {' '.join(ENDINGS)}"
    raise UsageError(f"cannot draw a {ending or 'file without an ending'}", where=where, hint=hint)


def text_in(drawing: Drawing, name: str, *, columns: int = COLUMNS, colour: bool = False) -> str:
    """Write a picture in a text format: svg, mmd, md, dot, json, or text for a terminal of this many columns.

    Raises UsageError for a format that cannot draw such a picture.
    """
    match name:
        case "svg":
            return svg(drawing)
        case "mmd":
            return mermaid_text(drawing)
        case "md":
            return f"```mermaid\n{mermaid_text(drawing)}```\n"
        case "dot" if isinstance(drawing, Picture):
            return dot(drawing)
        case "dot":
            raise UsageError.cannot_draw("Graphviz", _NAMES[kind_of(drawing)], _DRAW_ALL)
        case "json":
            return as_json(drawing)
        case _:
            return terminal(drawing, columns, colour=colour)


def mermaid_text(drawing: Drawing) -> str:
    """Return a picture as Mermaid. Raises UsageError for a kind that Mermaid cannot draw."""
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
