"""Draw for a terminal what is where: a panel for each pool, in it each copy of weights and what runs on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from rich.box import ROUNDED, SQUARE
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from flowgraph.diagrams.model.labels import SIGNS, clean, signed
from flowgraph.diagrams.model.picture import Arrow, ArrowStyle, Box, Frame, Picture
from flowgraph.diagrams.write.palette import ARROW_INKS, STATUS_INKS
from flowgraph.diagrams.write.terminal.terminal_flow import around, details, kind_text

_BORDERS: Mapping[str, str] = {"home": ARROW_INKS[ArrowStyle.SYNC]}

# What goes from place to place, each under its word; data within a place is told beside what reads it.
_LISTED: Mapping[ArrowStyle, str] = {
    ArrowStyle.TRANSFER: "transfers",
    ArrowStyle.SYNC: "syncs",
    ArrowStyle.STALE: "reads that may lag",
    ArrowStyle.CARRY: "carried to the next step",
}


def is_placed(picture: Picture) -> bool:
    """Say whether a picture shows places: pools, machines and devices."""
    return any(frame.kind != "frame" for frame in picture.frames) or any(box.kind == "device" for box in picture.boxes)


def panels(picture: Picture) -> Iterator[RenderableType]:
    """Give what stands nowhere, a panel for each outer frame, then what goes between places."""
    yield from (_box(picture, box) for box in picture.boxes if box.inside is None)
    yield from (_panel(picture, frame) for frame in picture.frames if frame.parent is None)
    for style, word in _LISTED.items():
        listed = [arrow for arrow in picture.arrows if arrow.style is style]
        if listed:
            yield Text(word, ARROW_INKS[style])
            yield from (_arrow(picture, arrow) for arrow in listed)


def _panel(picture: Picture, frame: Frame) -> Panel:
    inside: list[RenderableType] = [
        *(_box(picture, box) for box in picture.boxes if box.inside == frame.id),
        *(_panel(picture, inner) for inner in picture.frames if inner.parent == frame.id),
    ]
    return Panel(
        Group(*inside),
        title=Text(signed(frame.label, frame.status), "bold"),
        title_align="left",
        box=SQUARE if frame.kind == "pool" else ROUNDED,
        border_style=STATUS_INKS.get(frame.status) or _BORDERS.get(frame.kind) or "",
    )


def _box(picture: Picture, box: Box) -> Text:
    """Write a box's name and kind, what its label says beneath its name, and what it reads where it is."""
    name = signed(box.label[0] if box.label else "", box.status)
    line = Text.assemble((name, f"bold {STATUS_INKS.get(box.status, '')}"), "  ", kind_text(box))
    line.append(f" · {more}" if (more := details(box)) else "")
    read = [arrow for arrow in picture.arrows if arrow.target == box.id and arrow.style not in _LISTED]
    names = dict.fromkeys(_name(picture, arrow.source, box.inside) for arrow in read)
    return line.append(f"  ← {', '.join(names)}" if names else "", "dim")


def _arrow(picture: Picture, arrow: Arrow) -> Text:
    names = _name(picture, arrow.source), _name(picture, arrow.target)
    return Text(f"  {SIGNS[arrow.status]}{names[0]} → {names[1]}  {clean(arrow.label)}")


def _name(picture: Picture, box_id: str, here: str | None = None) -> str:
    """Give a box's name, and the frame that it is in if others elsewhere have that name too."""
    known = {box.id: box for box in picture.boxes}
    counts = Counter(clean(box.label[0] if box.label else "") for box in picture.boxes)
    box = known[box_id]
    name, frames = clean(box.label[0] if box.label else ""), around(picture, box)
    return f"{name} ({clean(frames[-1].label)})" if counts[name] > 1 and frames and box.inside != here else name
