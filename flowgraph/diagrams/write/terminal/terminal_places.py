"""Draw a plan for a terminal: a panel for each pool, in it each copy of weights and the nodes that run on it."""

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
from flowgraph.diagrams.write.terminal.terminal_flow import details, kind_text

_BORDERS: Mapping[str, str] = {"home": ARROW_INKS[ArrowStyle.SYNC]}

# Arrows between places, by the heading of their list; data within a place is shown with the node that reads it.
_LISTED: Mapping[ArrowStyle, str] = {
    ArrowStyle.TRANSFER: "transfers",
    ArrowStyle.SYNC: "syncs",
    ArrowStyle.STALE: "reads that may lag",
    ArrowStyle.CARRY: "carried to the next step",
}


def is_placed(picture: Picture) -> bool:
    """Return whether a picture shows places: pools, machines and devices."""
    return any(frame.kind != "frame" for frame in picture.frames) or any(box.kind == "device" for box in picture.boxes)


def panels(picture: Picture) -> Iterator[RenderableType]:
    """Yield the boxes outside of all frames, a panel for each outer frame, then the arrows between places."""
    yield from _inside(picture, None)
    for style, heading in _LISTED.items():
        arrows = [arrow for arrow in picture.arrows if arrow.style is style]
        if arrows:
            yield Text(heading, ARROW_INKS[style])
            yield from (_arrow(picture, arrow) for arrow in arrows)


def _inside(picture: Picture, frame: Frame | None) -> Iterator[RenderableType]:
    """Yield the boxes that stand right inside a frame, then a panel for each frame in it."""
    name = None if frame is None else frame.id
    yield from (_box(picture, box) for box in picture.boxes_in(name))
    for inner in picture.frames_in(name):
        yield Panel(
            Group(*_inside(picture, inner)),
            title=Text(signed(inner.label, inner.status), "bold"),
            title_align="left",
            box=SQUARE if inner.kind == "pool" else ROUNDED,
            border_style=STATUS_INKS.get(inner.status) or _BORDERS.get(inner.kind) or "",
        )


def _box(picture: Picture, box: Box) -> Text:
    """Return a box's name and kind, its details, and what it reads in its place."""
    name = signed(box.label[0] if box.label else "", box.status)
    line = Text.assemble((name, f"bold {STATUS_INKS.get(box.status, '')}"), "  ", kind_text(box))
    line.append(f" · {more}" if (more := details(box)) else "")
    reads = [arrow for arrow in picture.arrows if arrow.target == box.id and arrow.style not in _LISTED]
    names = dict.fromkeys(_name(picture, arrow.source, box.inside) for arrow in reads)
    return line.append(f"  ← {', '.join(names)}" if names else "", "dim")


def _arrow(picture: Picture, arrow: Arrow) -> Text:
    source, target = _name(picture, arrow.source), _name(picture, arrow.target)
    return Text(f"  {SIGNS[arrow.status]}{source} → {target}  {clean(arrow.label)}")


def _name(picture: Picture, box_id: str, reader_frame: str | None = None) -> str:
    """Return a box's name, with its frame if boxes elsewhere have that name too."""
    names = {box.id: clean(box.label[0] if box.label else "") for box in picture.boxes}
    name = names[box_id]
    box = next(box for box in picture.boxes if box.id == box_id)
    frames = picture.frames_around(box.inside)
    ambiguous = Counter(names.values())[name] > 1 and frames and box.inside != reader_frame
    return f"{name} ({clean(frames[0].label)})" if ambiguous else name
