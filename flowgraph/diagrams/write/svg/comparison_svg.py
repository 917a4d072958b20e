"""Draw placements beside each other as an SVG: a strip each, whose pools share out the devices, and its seconds a step.

The geometry is here; `templates/comparison.svg.j2` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flowgraph.diagrams.model.charts import Comparison, PoolShare, Strip
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.quantities import show_s
from flowgraph.diagrams.write.style import SIZE_PX, SMALL_PX
from flowgraph.diagrams.write.svg.geometry import (
    LINE,
    MARGIN,
    TITLE_HEIGHT,
    WIDTH,
    Rect,
    TextLine,
    cut,
    heading,
    shares,
    widest,
    width_of,
)
from flowgraph.diagrams.write.svg.svg_frame import ALONE, Look, framed
from flowgraph.diagrams.write.svg.text_width import wrapped

NAME_AT_MOST, NAME_AT_LEAST = 190.0, 64.0
BAR_ROOM, BAR_HEIGHT = 230.0, 16.0
PART_AT_LEAST, PART_PADDING, PART_GAP = 96.0, 6.0, 3.0
ROLES_AT_MOST = 6  # lines in a pool; of more, the last says how many there are
HEAD_HEIGHT, ROW_GAP = 18.0, 16.0
CHOSEN = "chosen"
WHY_CHARACTERS = 200


@dataclass(frozen=True)
class PoolBlock:
    """A pool in a strip, or the devices that none has."""

    kind: str
    pool: str
    rect: Rect
    lines: tuple[TextLine, ...]
    told: str


@dataclass(frozen=True)
class StripRow:
    """A placement on the picture; `bar` is its seconds as a length, and `border` what is around its strip if chosen."""

    name: tuple[TextLine, ...]
    blocks: tuple[PoolBlock, ...]
    bar: Rect | None
    seconds: TextLine
    why: TextLine | None
    border: Rect | None
    told: str
    bottom: float


@dataclass(frozen=True)
class ColumnEdges:
    """Where the three columns of the picture begin and end: names, strips, seconds."""

    strip_left: float
    strip_right: float
    bar_left: float
    bar_right: float


def comparison_svg(comparison: Comparison, look: Look = ALONE) -> str:
    """Draw placements as one SVG, 960 units wide; strips share a scale of devices, and bars one of seconds."""
    columns = _columns(comparison.strips)
    rows = tuple(_rows(comparison, columns, TITLE_HEIGHT + HEAD_HEIGHT, look))
    return framed(
        "comparison.svg.j2",
        look,
        title=comparison.title,
        about=comparison.about,
        width=WIDTH,
        height=(rows[-1].bottom if rows else TITLE_HEIGHT + HEAD_HEIGHT) + MARGIN,
        heading=heading(comparison.title),
        heads=(
            TextLine(columns.strip_left, TITLE_HEIGHT + 8, _devices(comparison.devices), "small muted"),
            TextLine(columns.bar_left, TITLE_HEIGHT + 8, "time of a step", "small muted"),
        ),
        rows=rows,
    )


def _devices(count: int) -> str:
    return f"{count:,} device{'' if count == 1 else 's'}"


def _devices_in(count: int, room: float, classes: str) -> str:
    return next((text for text in (_devices(count), f"{count:,}") if width_of(text, classes) <= room), "")


def _columns(strips: Sequence[Strip]) -> ColumnEdges:
    names = widest((cut(strip.label, NAME_AT_MOST, "strong") for strip in strips), "strong")
    left = MARGIN + max(names, NAME_AT_LEAST) + 14
    right = WIDTH - MARGIN - BAR_ROOM
    numbers = widest((_seconds_text(strip) for strip in strips), "strong")
    return ColumnEdges(left, right - 16, right, max(WIDTH - MARGIN - numbers - 8, right + 40))


def _seconds_text(strip: Strip) -> str:
    """Write a placement's seconds; without any it does not fit, or has pools whose speed is not known."""
    if strip.seconds is not None:
        return show_s(strip.seconds)
    return "not known" if strip.parts else "does not fit"


def _rows(comparison: Comparison, columns: ColumnEdges, top: float, look: Look) -> Iterator[StripRow]:
    most_s = max((strip.seconds or 0.0 for strip in comparison.strips), default=0.0) or 1.0
    used = max((sum(part.devices for part in strip.parts) for strip in comparison.strips), default=0)
    total = max(comparison.devices, used)
    for strip in comparison.strips:
        row = _row(strip, columns, top, total, most_s, look)
        yield row
        top = row.bottom + ROW_GAP


def _row(strip: Strip, columns: ColumnEdges, top: float, devices: int, most_s: float, look: Look) -> StripRow:
    blocks = tuple(_blocks(strip, columns, top, devices, look))
    height = blocks[0].rect.height if blocks else LINE * 2
    middle = top + height / 2
    bar, seconds = _bar(strip, columns, middle, most_s)
    below = top + height
    why = cut(strip.why, WIDTH - MARGIN - columns.strip_left, "small muted", WHY_CHARACTERS) if strip.why else ""
    around = Rect(columns.strip_left - 4, top - 4, columns.strip_right - columns.strip_left + 8, height + 8)
    return StripRow(
        name=_name(strip, columns, top),
        blocks=blocks,
        bar=bar,
        seconds=seconds,
        why=TextLine(columns.strip_left, below + 18, why, "small muted") if why else None,
        border=around if strip.chosen else None,
        told=_told(strip),
        bottom=below + (22 if why else 4),
    )


def _name(strip: Strip, columns: ColumnEdges, top: float) -> tuple[TextLine, ...]:
    room = columns.strip_left - 14 - MARGIN
    first, second = (*wrapped(strip.label, room, SIZE_PX, bold=True, most=2), "")[:2]
    name = TextLine(MARGIN, top + 14, first, "strong"), TextLine(MARGIN, top + 14 + LINE, second, "strong")
    below = top + 30 + (LINE if second else 0.0)
    return (*name, TextLine(MARGIN, below, CHOSEN, "small strong")) if strip.chosen else name


def _told(strip: Strip) -> str:
    """Tell a placement in a sentence.

    >>> _told(Strip("all on one", 2.0, (PoolShare("all", 8, ("policy",)),), "the best", chosen=True))
    'all on one (chosen): 2 s a step; all, 8 devices: policy. the best'
    """
    chosen = f" ({CHOSEN})" if strip.chosen else ""
    seconds = "does not fit" if strip.seconds is None else f"{show_s(strip.seconds)} a step"
    parts = "; ".join(_part_told(part) for part in strip.parts)
    why = f". {clean(strip.why, 2 * WHY_CHARACTERS)}" if strip.why else ""
    return f"{clean(strip.label)}{chosen}: {seconds}{'; ' + parts if parts else ''}{why}"


def _part_told(part: PoolShare) -> str:
    roles = ", ".join(map(clean, part.roles)) or "nothing"
    return f"{clean(part.pool)}, {_devices(part.devices)}: {roles}"


def _bar(strip: Strip, columns: ColumnEdges, middle: float, most_s: float) -> tuple[Rect | None, TextLine]:
    classes = "strong" if strip.chosen else ""
    text = _seconds_text(strip)
    if strip.seconds is None:
        return None, TextLine(columns.bar_left, middle + 4, text, "small muted")
    length = (columns.bar_right - columns.bar_left) * strip.seconds / most_s
    bar = Rect(columns.bar_left, middle - BAR_HEIGHT / 2, max(length, 1.0), BAR_HEIGHT)
    return bar, TextLine(bar.right + 6, middle + 4.3, text, classes)


def _blocks(strip: Strip, columns: ColumnEdges, top: float, devices: int, look: Look) -> Iterator[PoolBlock]:
    unused = devices - sum(part.devices for part in strip.parts)
    counts = [float(part.devices) for part in strip.parts] + ([float(unused)] if unused > 0 else [])
    room = columns.strip_right - columns.strip_left - PART_GAP * (len(counts) - 1)
    widths, left = shares(counts, room, PART_AT_LEAST), columns.strip_left
    lines = [len(_role_lines(part, width)) for part, width in zip(strip.parts, widths, strict=False)]
    height = 2 * PART_PADDING + LINE * (2 + max(lines, default=1))
    for at, width in enumerate(widths):
        rect = Rect(left, top, width, height)
        left += width + PART_GAP
        yield _part(strip.parts[at], rect, look) if at < len(strip.parts) else _unused(unused, rect)


def _role_lines(part: PoolShare, width: float) -> list[str]:
    """Give the roles of a pool as they are written in a block of this width, each on two lines at most."""
    return [line for role in shown(part) for line in wrapped(role, width - 2 * PART_PADDING, SMALL_PX, most=2)]


def _part(part: PoolShare, rect: Rect, look: Look) -> PoolBlock:
    """Lay out a pool: its name, its roles one a line, and its devices at the foot."""
    room, x = rect.width - 2 * PART_PADDING, rect.left + PART_PADDING
    first = rect.top + PART_PADDING + 10
    name = TextLine(x, first, cut(part.pool, room, "on small strong"), "on small strong")
    roles = tuple(
        TextLine(x, first + LINE * (at + 1), text, "on small") for at, text in enumerate(_role_lines(part, rect.width))
    )
    devices = TextLine(x, rect.bottom - PART_PADDING - 2, _devices_in(part.devices, room, "on small"), "on small")
    return PoolBlock("part", look.pool(part.pool), rect, (name, *roles, devices), _part_told(part))


def shown(part: PoolShare) -> list[str]:
    """Give the roles of a pool that are written, and how many more there are.

    >>> shown(PoolShare("all", 8, tuple("abcdefgh")))
    ['a', 'b', 'c', 'd', 'e', 'and 3 more']
    """
    if len(part.roles) <= ROLES_AT_MOST:
        return list(part.roles)
    kept = ROLES_AT_MOST - 1
    return [*part.roles[:kept], f"and {len(part.roles) - kept} more"]


def _unused(count: int, rect: Rect) -> PoolBlock:
    room = rect.width - 2 * PART_PADDING
    x, classes = rect.left + PART_PADDING, "small muted"
    lines = (cut("unused", room, classes), _devices_in(count, room, classes))
    levels = (rect.top + PART_PADDING + 10, rect.bottom - PART_PADDING - 2)
    words = tuple(TextLine(x, y, text, classes) for y, text in zip(levels, lines, strict=True))
    return PoolBlock("unused", "", rect, words, f"{_devices(count)} unused")
