"""Every format that a picture can be written in, by the name that a file's ending has."""

from __future__ import annotations

from collections.abc import Mapping

from flowgraph.diagrams.model.drawing import Drawing
from flowgraph.diagrams.write.as_data import as_json
from flowgraph.diagrams.write.svg.any_picture import svg
from flowgraph.diagrams.write.terminal.any_picture import terminal
from flowgraph.diagrams.write.text_formats import dot_text, mermaid_text
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


def format_of(ending: str, where: str) -> str:
    """Give the format that an ending stands for. Raises UsageError for one that stands for none.

    >>> format_of(".gv", "a.gv")
    'dot'
    """
    if ending.lower() in ENDINGS:
        return ENDINGS[ending.lower()]
    hint = nearest(ending, ENDINGS) or f"endings are {' '.join(ENDINGS)}"
    raise UsageError(f"cannot draw a {ending or 'file without an ending'}", where=where, hint=hint)


def text_in(drawing: Drawing, name: str, *, columns: int = COLUMNS, colour: bool = False) -> str:
    """Write a picture in a format of text: svg, mmd, md, dot, json, or text for a terminal of so many columns.

    Raises UsageError for a format that has no such picture.
    """
    if name == "svg":
        return svg(drawing)
    if name in ("mmd", "md"):
        text = mermaid_text(drawing)
        return f"```mermaid\n{text}```\n" if name == "md" else text
    if name == "dot":
        return dot_text(drawing)
    if name == "json":
        return as_json(drawing)

    return terminal(drawing, columns, colour=colour)
