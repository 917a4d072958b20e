"""Write a picture as Mermaid's flowchart text, which GitHub, GitLab, VS Code and Jupyter draw.

Checked against mermaid 11 and 12. Ids are generated and every label is quoted and escaped, so no name can be syntax.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

from flowgraph.diagrams.model.labels import clean, signed
from flowgraph.diagrams.model.picture import Arrow, ArrowStyle, Box, BoxKind, Frame, Picture
from flowgraph.diagrams.write.palette import ARROW_INKS, FRAME_LINES, INKS, STATUS_INKS, TEXT

Direction = Literal["TD", "LR"]

_NAMED = {'"': "quot", "<": "lt", ">": "gt", "&": "amp"}

# These begin an icon, a formula or a new line even when escaped, unless an unseen joiner (U+2060) stands behind them.
_KEPT_APART = re.compile(r":(?=\w)|\$(?=\$)|\\(?=n)")

# The layout and look that mermaid 11 has anyway and 12 no longer; the spacing keeps labels from touching.
_SETTINGS = '%%{init: {"layout": "dagre", "look": "classic", "flowchart": {"nodeSpacing": 60, "rankSpacing": 60}}}%%'

# What stands for itself: letters, digits, spaces, and some signs inside a word. All else could be Markdown, HTML, an
# icon or a link to some version of the library.
_INERT = re.compile(r"[^\W_]|[ ≤×…·]|(?<=[^\W_])[.=_,-](?=[^\W_])|(?<=[^\W_]),(?= )|^\+$")
_SHAPES: Mapping[BoxKind, tuple[str, str]] = {
    "data": ("[(", ")]"),
    "model": ("{{", "}}"),
    "arithmetic": ("((", "))"),
    "result": ("([", "])"),
    "device": ("[[", "]]"),
}
_ROUNDED = ("(", ")")
_LINES: Mapping[ArrowStyle, str] = {
    ArrowStyle.DATA: "-->",
    ArrowStyle.WEIGHTS: "==>",
    ArrowStyle.STALE: "-.->",
    ArrowStyle.CARRY: "-.->",
    ArrowStyle.TRANSFER: "-->",
    ArrowStyle.SYNC: "==>",
}
_WIDTHS_PX: Mapping[ArrowStyle, str] = {
    ArrowStyle.WEIGHTS: "2px",
    ArrowStyle.STALE: "2px",
    ArrowStyle.CARRY: "3px",
    ArrowStyle.TRANSFER: "2px",
    ArrowStyle.SYNC: "5px",
}


def mermaid(picture: Picture, direction: Direction = "TD") -> str:
    """Give a picture as a Mermaid flowchart.

    Mermaid lays a cycle out from the box it meets first, so what is carried is declared first, and tied into one chain
    by links that do not show: then the ways back, and no others, point upwards. Frames around it come first, too.
    """
    back = [arrow.target for arrow in picture.arrows if arrow.style is ArrowStyle.CARRY]
    carried = list(dict.fromkeys(back))
    ranks = {each: place for place, name in reversed([*enumerate(carried)]) for each in _around(picture, name)}
    boxes = sorted(picture.boxes, key=lambda box: ranks.get(box.id, len(ranks)))
    frames = sorted(picture.frames, key=lambda frame: ranks.get(frame.id, len(ranks)))
    ties = [f"{first} ~~~ {then}" for first, then in pairwise(carried)]
    lines = [
        _SETTINGS,
        f"flowchart {direction}",
        f"    accTitle: {escaped(picture.title)}",
        *_boxes(replace(picture, boxes=tuple(boxes), frames=tuple(frames)), None, "    "),
        *(f"    {tie}" for tie in ties),
        *(f"    {_arrow(arrow)}" for arrow in picture.arrows),
        *_classes(picture.boxes),
        *_colours(picture.arrows, len(ties)),
        *_statuses(picture),
    ]
    kinds = {frame.kind for frame in picture.frames}
    lines += [
        f"    classDef {kind} fill:none,{line.replace(';', ',')}" for kind, line in FRAME_LINES.items() if kind in kinds
    ]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Write a name so that Mermaid shows it and reads nothing else in it.

    >>> escaped("policy.generate n=8"), escaped('a"] --> b'), escaped("1. <b>")
    ('policy.generate n=8', 'a#quot;#93; #45;#45;#gt; b', '1#46; #lt;b#gt;')
    """
    line = clean(text)
    inert = {found.start() for found in _INERT.finditer(line)}
    apart = {found.start() for found in _KEPT_APART.finditer(line)}
    letters = (letter if place in inert else _entity(letter) for place, letter in enumerate(line))
    return "".join(letter + "#8288;" * (place in apart) for place, letter in enumerate(letters))


def _entity(letter: str) -> str:
    return f"#{_NAMED.get(letter, ord(letter))};"


def _around(picture: Picture, box: str) -> Iterator[str]:
    """Give a box and the frames around it, by their ids."""
    outer = {each.id: each.inside for each in picture.boxes} | {each.id: each.parent for each in picture.frames}
    inner: str | None = box
    while inner is not None:
        yield inner
        inner = outer[inner]


def _boxes(picture: Picture, frame: str | None, indent: str) -> Iterator[str]:
    """Write the boxes that stand right inside a frame, then the frames in it."""
    for box in picture.boxes:
        if box.inside == frame:
            yield f"{indent}{_box(box)}"
    for inner in picture.frames:
        if inner.parent == frame:
            yield from _frame(picture, inner, indent)


def _frame(picture: Picture, frame: Frame, indent: str) -> Iterator[str]:
    yield f'{indent}subgraph {frame.id}["{escaped(signed(frame.label, frame.status))}"]'
    yield from _boxes(picture, frame.id, indent + "    ")
    yield f"{indent}end"
    yield f"{indent}class {frame.id} {frame.kind}"


def _box(box: Box) -> str:
    left, right = _SHAPES.get(box.kind, _ROUNDED)
    label = [signed(line, "same" if place else box.status) for place, line in enumerate(box.label)]
    return f'{box.id}{left}"{"<br/>".join(map(escaped, label))}"{right}:::{box.kind}'


def _arrow(arrow: Arrow) -> str:
    return f'{arrow.source} {_LINES[arrow.style]}|"{escaped(signed(arrow.label, arrow.status))}"| {arrow.target}'


def _classes(boxes: Sequence[Box]) -> Iterator[str]:
    used = {box.kind for box in boxes}
    for kind, ink in INKS.items():
        if kind in used:
            yield f"    classDef {kind} fill:{ink.fill},stroke:{ink.border},color:{TEXT},stroke-width:1.5px"


def _colours(arrows: Sequence[Arrow], first: int) -> Iterator[str]:
    places: dict[str, list[str]] = {}
    order = [*ARROW_INKS, ArrowStyle.DATA]
    for place, arrow in sorted(enumerate(arrows, first), key=lambda each: order.index(each[1].style)):
        places.setdefault(_look(arrow), []).append(str(place))
    for look, found in places.items():
        if look:
            yield f"    linkStyle {','.join(found)} {look}"


def _look(arrow: Arrow) -> str:
    """Give an arrow's line: the colour of what became of it, else of what travels; a later style would replace it."""
    ink = STATUS_INKS.get(arrow.status, ARROW_INKS.get(arrow.style))
    dashes = ",stroke-dasharray:6 3" if arrow.status == "removed" else ""
    return f"stroke:{ink},stroke-width:{_WIDTHS_PX.get(arrow.style, '3px')}{dashes}" if ink else ""


def _statuses(picture: Picture) -> Iterator[str]:
    """Mark what was added, removed or changed, over the look of its kind."""
    for status, ink in STATUS_INKS.items():
        ids = [box.id for box in picture.boxes if box.status == status]
        ids += [frame.id for frame in picture.frames if frame.status == status]
        if ids:
            dashes = ",stroke-dasharray:6 3" if status == "removed" else ""
            yield f"    class {','.join(ids)} {status}"
            yield f"    classDef {status} stroke:{ink},stroke-width:3px{dashes}"
