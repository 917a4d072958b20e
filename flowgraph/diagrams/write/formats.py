"""Every format that a picture can be written in, by the extension of its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flowgraph.diagrams.model.charts import Comparison, Curves, Drawing, Lanes, MemoryChart, Scatter
from flowgraph.diagrams.model.picture import Picture, SequenceDiagram
from flowgraph.diagrams.write.as_data import as_json
from flowgraph.diagrams.write.dot import dot
from flowgraph.diagrams.write.mermaid.flowchart import mermaid
from flowgraph.diagrams.write.mermaid.mermaid_charts import mermaid_gantt, mermaid_memory, mermaid_sequence
from flowgraph.diagrams.write.svg.comparison_svg import comparison_svg
from flowgraph.diagrams.write.svg.curves import curves_svg
from flowgraph.diagrams.write.svg.graph_svg import graph_svg
from flowgraph.diagrams.write.svg.lanes_svg import lanes_svg
from flowgraph.diagrams.write.svg.memory_svg import memory_svg
from flowgraph.diagrams.write.svg.scatter_svg import scatter_svg
from flowgraph.diagrams.write.svg.sequence_svg import sequence_svg
from flowgraph.diagrams.write.svg.svg_frame import ALONE, Look
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

_DRAW_ALL = ("svg", "png", "html", "json", "txt")


@dataclass(frozen=True)
class Writers:
    """The name of a kind of picture in an error, and its writers as SVG and, if there is one, as Mermaid."""

    name: str
    svg: Callable[[Any, Look], str]
    mermaid: Callable[[Any], str] | None = None


WRITERS: Mapping[type[Drawing], Writers] = {
    Picture: Writers("a picture of boxes", graph_svg, mermaid),
    SequenceDiagram: Writers("a sequence diagram", sequence_svg, mermaid_sequence),
    Lanes: Writers("a timeline", lanes_svg, mermaid_gantt),
    MemoryChart: Writers("a memory chart", memory_svg, mermaid_memory),
    Comparison: Writers("a comparison of placements", comparison_svg),
    Scatter: Writers("a scatter of candidates", scatter_svg),
    Curves: Writers("curves", curves_svg),
}


def format_for_extension(ending: str, where: str) -> str:
    """Return the name of the format for a file extension with its dot, such as ".gv", in upper or lower case.

    `where` is the file's name in errors. Raises UsageError for an unknown extension, with the nearest or all as a hint.

    >>> format_for_extension(".gv", "a.gv")
    'dot'
    """
    if ending.lower() in ENDINGS:
        return ENDINGS[ending.lower()]
    hint = nearest(ending, ENDINGS) or f"endings are {' '.join(ENDINGS)}"
    raise UsageError(f"cannot draw a {ending or 'file without an ending'}", where=where, hint=hint)


def text_in(drawing: Drawing, name: str, *, columns: int = COLUMNS, colour: bool = False) -> str:
    """Return a picture as text in the format `name`: svg, mmd, md, dot, json, or `text` for a terminal.

    `columns` is the width of the terminal, and `colour` adds escape codes to text for it. `md` is Mermaid in a Markdown
    code block. Raises UsageError for any other format, such as png, for one that cannot draw such a picture, and for
    the svg of a picture with boxes and arrows if Graphviz is not installed.
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
            raise UsageError.cannot_draw("Graphviz", WRITERS[type(drawing)].name, _DRAW_ALL)
        case "json":
            return as_json(drawing)
        case "text":
            return terminal(drawing, columns, colour=colour)
        case _:
            raise UsageError(f"{name} is not a text format", hint="text, svg, mmd, md, dot or json")


def svg(drawing: Drawing, look: Look = ALONE) -> str:
    """Return a picture of any kind as SVG text; `look` says whether the picture is embedded in a page.

    Raises UsageError if the picture has boxes and arrows and Graphviz is not installed.
    """
    return WRITERS[type(drawing)].svg(drawing, look)


def mermaid_text(drawing: Drawing) -> str:
    """Return a picture as Mermaid text: a flowchart, a sequence diagram, a Gantt chart or a bar chart, by its kind.

    Raises UsageError for a comparison, a scatter plot or curves, which Mermaid cannot draw.
    """
    writers = WRITERS[type(drawing)]
    if writers.mermaid is None:
        raise UsageError.cannot_draw("Mermaid", writers.name, _DRAW_ALL)
    return writers.mermaid(drawing)
