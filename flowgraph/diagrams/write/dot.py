"""Write a picture as Graphviz DOT text, to be edited and laid out by anyone who has Graphviz.

Checked with Graphviz 14. Ids are generated and every label is quoted and escaped, so no name can be syntax; no
attribute is a link.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flowgraph.diagrams.model.labels import clean, signed_label, signed_lines
from flowgraph.diagrams.model.picture import ArrowStyle, BoxKind, Picture, Status
from flowgraph.diagrams.write.palette import ARROW_INKS, FRAME_LINES, INKS, STATUS_INKS, TEXT

_FONT = "Helvetica,Arial,sans-serif"
_FIXED = (
    f'graph [fontname="{_FONT}", fontsize=16, labelloc=t, nodesep=0.35, ranksep=0.45, pad=0.1]',
    f'node [fontname="{_FONT}", fontsize=12, fontcolor="{TEXT}", shape=box, style="filled,rounded", penwidth=1.5]',
    f'edge [fontname="{_FONT}", fontsize=11, color="#57606a", arrowsize=0.8]',
)
_SHAPES: Mapping[BoxKind, str] = {
    "data": "shape=cylinder, style=filled",
    "model": "shape=hexagon, style=filled",
    "arithmetic": "shape=circle, style=filled, margin=0.02, width=0.4",
    "result": "shape=oval, style=filled",
    "device": "shape=box3d, style=filled",
}
_LINES: Mapping[ArrowStyle, str] = {
    ArrowStyle.WEIGHTS: "penwidth=2",
    ArrowStyle.STALE: "penwidth=2, style=dashed",
    ArrowStyle.CARRY: "penwidth=2.5, style=dashed",
    ArrowStyle.TRANSFER: "penwidth=2",
    ArrowStyle.SYNC: "penwidth=4",
}
_STATUS: Mapping[Status, str] = {"added": "penwidth=3", "removed": "penwidth=3, style=dashed", "changed": "penwidth=3"}
_FROM_CSS: Mapping[str, str] = {"stroke": "color", "stroke-width": "penwidth"}  # attributes by their names in CSS
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\\": r"\\"})


def dot(picture: Picture) -> str:
    """Return a picture of boxes and arrows as the text of a Graphviz digraph, in the DOT language.

    An arrow to the next step is written from its target to its source with `dir=back`, so that it points up.
    """
    lines = ["digraph {", *(f"    {fixed}" for fixed in _FIXED), f"    label={quoted(picture.title)}"]
    lines += _inside(picture, None, "    ")
    for arrow in picture.arrows:
        label = quoted(signed_label(arrow.label, arrow.status))[1:-1]
        attributes = [f'label="  {label} "']  # a little away from its line
        ink = STATUS_INKS.get(arrow.status, ARROW_INKS.get(arrow.style))
        attributes += [f'color="{ink}"'] if ink else []
        attributes += [_LINES[arrow.style]] if arrow.style in _LINES else []
        attributes += [_STATUS[arrow.status]] if arrow.status in _STATUS else []
        ends = arrow.source, arrow.target
        if arrow.style is ArrowStyle.CARRY:  # written backwards, so that it points back and pulls nothing
            ends = ends[::-1]
            attributes.append("dir=back")
        lines.append(f"    {' -> '.join(ends)} [{', '.join(attributes)}]")
    return "\n".join([*lines, "}"]) + "\n"


def quoted(*lines: str) -> str:
    r"""Return the lines of a label, each cleaned by `clean`, as one quoted Graphviz string; no character is syntax.

    Characters of HTML are written as entities, which Graphviz decodes once; a backslash is doubled.

    >>> print(quoted("policy", "n=8"), quoted('a"] -> b'), quoted(r"<b>\N &lt;"))
    "policy\nn=8" "a&quot;] -&gt; b" "&lt;b&gt;\\N &amp;lt;"
    """
    label = r"\n".join(clean(line).translate(_ENTITIES) for line in lines)
    return f'"{label}"'


def _inside(picture: Picture, frame: str | None, indent: str) -> Iterator[str]:
    for box in picture.boxes_in(frame):
        ink = INKS[box.kind]
        border = STATUS_INKS.get(box.status, ink.border)
        attributes = [f"label={quoted(*signed_lines(box))}", f'fillcolor="{ink.fill}"', f'color="{border}"']
        attributes += [_SHAPES[box.kind]] if box.kind in _SHAPES else []
        if box.status in _STATUS:
            attributes.append("penwidth=3" + (', style="filled,dashed"' if box.status == "removed" else ""))
        yield f"{indent}{box.id} [{', '.join(attributes)}]"
    for inner in picture.frames_in(frame):
        yield f"{indent}subgraph cluster_{inner.id} {{"
        rules = dict(rule.split(":") for rule in FRAME_LINES[inner.kind].split(";"))
        lines = {name: rules[css].removesuffix("px") for css, name in _FROM_CSS.items() if css in rules}
        lines |= {"style": "dashed"} if "stroke-dasharray" in rules else {}
        lines |= {"color": STATUS_INKS[inner.status], "penwidth": "2"} if inner.status in STATUS_INKS else {}
        label, border = (
            quoted(signed_label(inner.label, inner.status)),
            "; ".join(f'{k}="{v}"' for k, v in lines.items()),
        )
        yield f"{indent}    label={label}; labeljust=l; fontsize=12; margin=14; {border}"
        inside = [*_inside(picture, inner.id, indent + "    ")]
        yield from inside or [f"{indent}    {inner.id}_empty [shape=point, style=invis]"]  # else it is not drawn
        yield f"{indent}}}"
