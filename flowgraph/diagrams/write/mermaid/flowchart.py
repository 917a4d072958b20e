"""Write a picture as Mermaid's flowchart text, which GitHub, GitLab, VS Code and Jupyter draw.

Checked against mermaid 11 and 12. Ids are generated and every label is quoted and escaped, so no name can be syntax.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from flowgraph.diagrams.model.labels import clean, signed_label, signed_lines
from flowgraph.diagrams.model.picture import ArrowStyle, BoxKind, Picture
from flowgraph.diagrams.write.palette import ARROW_INKS, FRAME_LINES, INKS, STATUS_INKS, TEXT

_NAMED = {'"': "quot", "<": "lt", ">": "gt", "&": "amp"}

# These begin an icon, a formula or a new line even when escaped, unless an invisible joiner (U+2060) follows them.
_NEED_JOINER = re.compile(r":(?=\w)|\$(?=\$)|\\(?=n)")

# The layout and look that are the default of mermaid 11 but not of 12; the spacing keeps labels from touching.
_SETTINGS = '%%{init: {"layout": "dagre", "look": "classic", "flowchart": {"nodeSpacing": 60, "rankSpacing": 60}}}%%'

# Characters that need no escape: letters, digits, spaces, and some signs inside a word. Any other could be Markdown,
# HTML, an icon or a link to some version of the library.
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
_DASHES = ",stroke-dasharray:6 3"


def mermaid(picture: Picture) -> str:
    """Return a picture of boxes and arrows as the text of a Mermaid flowchart.

    Boxes of state that is carried to the next step are declared first and linked invisibly, so that Mermaid draws only
    the arrows to the next step upwards.
    """
    carried = list(dict.fromkeys(arrow.target for arrow in picture.arrows if arrow.style is ArrowStyle.CARRY))
    boxes = {box.id: box for box in picture.boxes}
    ranks = dict[str, int]()
    for rank, name in enumerate(carried):
        for thing in (name, *(frame.id for frame in picture.frames_around(boxes[name].inside))):
            ranks.setdefault(thing, rank)
    ordered = replace(
        picture,
        boxes=tuple(sorted(picture.boxes, key=lambda box: ranks.get(box.id, len(ranks)))),
        frames=tuple(sorted(picture.frames, key=lambda frame: ranks.get(frame.id, len(ranks)))),
    )
    ties = [f"{upper} ~~~ {lower}" for upper, lower in pairwise(carried)]
    kinds = {frame.kind for frame in picture.frames}
    borders = {kind: css.replace(";", ",") for kind, css in FRAME_LINES.items() if kind in kinds}
    lines = [
        _SETTINGS,
        "flowchart TD",
        f"    accTitle: {escaped(picture.title)}",
        *_inside(ordered, None, "    "),
        *(f"    {tie}" for tie in ties),
        *(
            f'    {link.source} {_LINES[link.style]}|"{escaped(signed_label(link.label, link.status))}"| {link.target}'
            for link in picture.arrows
        ),
        *(
            f"    classDef {kind} fill:{ink.fill},stroke:{ink.border},color:{TEXT},stroke-width:1.5px"
            for kind, ink in INKS.items()
            if any(box.kind == kind for box in picture.boxes)
        ),
        *_looks(picture, len(ties)),
        *(f"    classDef {kind} fill:none,{border}" for kind, border in borders.items()),
    ]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Return a text, cleaned by `clean`, with the characters escaped that Mermaid would interpret.

    >>> escaped("policy.generate n=8"), escaped('a"] --> b'), escaped("1. <b>")
    ('policy.generate n=8', 'a#quot;#93; #45;#45;#gt; b', '1#46; #lt;b#gt;')
    """
    line = clean(text)
    inert = {match.start() for match in _INERT.finditer(line)}
    joined = {match.start() for match in _NEED_JOINER.finditer(line)}
    letters = (
        letter if place in inert else f"#{_NAMED.get(letter, ord(letter))};" for place, letter in enumerate(line)
    )
    return "".join(letter + "#8288;" * (place in joined) for place, letter in enumerate(letters))


def _inside(picture: Picture, frame: str | None, indent: str) -> Iterator[str]:
    for box in picture.boxes_in(frame):
        left, right = _SHAPES.get(box.kind, _ROUNDED)
        label = "<br/>".join(map(escaped, signed_lines(box)))
        yield f'{indent}{box.id}{left}"{label}"{right}:::{box.kind}'
    for inner in picture.frames_in(frame):
        yield f'{indent}subgraph {inner.id}["{escaped(signed_label(inner.label, inner.status))}"]'
        yield from _inside(picture, inner.id, indent + "    ")
        yield f"{indent}end"
        yield f"{indent}class {inner.id} {inner.kind}"


def _looks(picture: Picture, first: int) -> Iterator[str]:
    places: dict[str, list[str]] = {}
    order = [*ARROW_INKS, ArrowStyle.DATA]
    for place, arrow in sorted(enumerate(picture.arrows, first), key=lambda numbered: order.index(numbered[1].style)):
        ink = STATUS_INKS.get(arrow.status, ARROW_INKS.get(arrow.style))
        if ink:
            dashes = _DASHES if arrow.status == "removed" else ""
            look = f"stroke:{ink},stroke-width:{_WIDTHS_PX.get(arrow.style, '3px')}{dashes}"
            places.setdefault(look, []).append(str(place))
    for look, links in places.items():
        yield f"    linkStyle {','.join(links)} {look}"
    for status, ink in STATUS_INKS.items():
        ids = [box.id for box in picture.boxes if box.status == status]
        ids += [frame.id for frame in picture.frames if frame.status == status]
        if ids:
            yield f"    class {','.join(ids)} {status}"
            yield f"    classDef {status} stroke:{ink},stroke-width:3px{_DASHES if status == 'removed' else ''}"
