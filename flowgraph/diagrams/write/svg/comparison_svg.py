"""Draw placements as an SVG, one row each: a strip that its pools divide, and a bar of its seconds a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flowgraph.diagrams.model.charts import Comparison, PoolShare, Strip
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.quantities import many, show_s
from flowgraph.diagrams.write.style import SIZE_PX, SMALL_PX
from flowgraph.diagrams.write.svg.geometry import (
    LINE,
    MARGIN,
    TITLE_HEIGHT,
    WIDTH,
    Rect,
    TextLine,
    cut,
    shares,
    widest,
    width_of,
)
from flowgraph.diagrams.write.svg.marks import Mark, group, rect, words
from flowgraph.diagrams.write.svg.svg_frame import ALONE, Look, framed
from flowgraph.diagrams.write.svg.text_width import wrapped

NAME_MAX, NAME_MIN = 190.0, 64.0
BAR_ROOM, BAR_HEIGHT = 230.0, 16.0
POOL_MIN, POOL_PADDING, POOL_GAP = 96.0, 6.0, 3.0
ROLES_MAX = 6  # lines in a pool; of more, the last says how many there are
HEAD_HEIGHT, ROW_GAP = 18.0, 16.0
CHOSEN = "chosen"
WHY_CHARACTERS = 200


@dataclass(frozen=True)
class ColumnEdges:
    """Where the columns of strips and of seconds begin and end, and the scales that all rows share."""

    strip_left: float
    strip_right: float
    bar_left: float
    bar_right: float
    devices: int
    max_s: float


def comparison_svg(comparison: Comparison, look: Look = ALONE) -> str:
    """Draw placements as one SVG, 960 units wide; strips share a scale of devices, and bars one of seconds."""
    edges, y = _edges(comparison), TITLE_HEIGHT + 8
    marks = [
        words(TextLine(edges.strip_left, y, many(comparison.devices, "device"), "small muted")),
        words(TextLine(edges.bar_left, y, "time of a step", "small muted")),
    ]
    top = bottom = TITLE_HEIGHT + HEAD_HEIGHT
    for place, strip in enumerate(comparison.strips):
        row, bottom = _row(place, strip, edges, top, look)
        marks.append(row)
        top = bottom + ROW_GAP
    size = {"width": WIDTH, "height": bottom + MARGIN}
    return framed("comparison", marks, look, title=comparison.title, about=comparison.about, **size)


def _edges(comparison: Comparison) -> ColumnEdges:
    strips = comparison.strips
    names = widest((cut(strip.label, NAME_MAX, "strong") for strip in strips), "strong")
    left = MARGIN + max(names, NAME_MIN) + 14
    right = WIDTH - MARGIN - BAR_ROOM
    numbers = widest((_seconds_text(strip) for strip in strips), "strong")
    devices = max([comparison.devices, *(sum(pool.devices for pool in strip.parts) for strip in strips)])
    max_s = max((strip.seconds or 0.0 for strip in strips), default=0.0) or 1.0
    return ColumnEdges(left, right - 16, right, max(WIDTH - MARGIN - numbers - 8, right + 40), devices, max_s)


def _seconds_text(strip: Strip) -> str:
    """Write a placement's seconds; without any it does not fit, or has pools of unknown speed."""
    if strip.seconds is not None:
        return show_s(strip.seconds)
    return "not known" if strip.parts else "does not fit"


def _row(place: int, strip: Strip, edges: ColumnEdges, top: float, look: Look) -> tuple[Mark, float]:
    """Return the row of a placement and its bottom: name, strip, bar, and why it is slower."""
    areas = _areas(strip, edges, top)
    height = areas[0].height if areas else LINE * 2
    bottom = top + height
    border = Rect(edges.strip_left - 4, top - 4, edges.strip_right - edges.strip_left + 8, height + 8)
    first, second = (*wrapped(strip.label, edges.strip_left - 14 - MARGIN, SIZE_PX, bold=True, max_lines=2), "")[:2]
    name = [TextLine(MARGIN, top + 14, first, "strong"), TextLine(MARGIN, top + 14 + LINE, second, "strong")]
    if strip.chosen:
        name.append(TextLine(MARGIN, top + 30 + (LINE if second else 0.0), CHOSEN, "small strong"))
    why = cut(strip.why, WIDTH - MARGIN - edges.strip_left, "small muted", WHY_CHARACTERS) if strip.why else ""
    mark = group(
        f"strip{' chosen' if strip.chosen else ''}",
        *map(words, name),
        rect("around", border, 5) if strip.chosen else None,
        *(_pool(pool, area, look) for pool, area in zip(strip.parts, areas, strict=False)),
        *(_unused(edges, strip, area) for area in areas[len(strip.parts) :]),
        *_bar(strip, edges, top + height / 2),
        words(TextLine(edges.strip_left, bottom + 18, why, "small muted")) if why else None,
        title=_title(strip),
        row=place,
        focus=True,
    )
    return mark, bottom + (22 if why else 4)


def _title(strip: Strip) -> str:
    """Describe a placement in a sentence.

    >>> _title(Strip("all on one", 2.0, (PoolShare("all", 8, ("policy",)),), "the best", chosen=True))
    'all on one (chosen): 2 s a step; all, 8 devices: policy. the best'
    """
    chosen = f" ({CHOSEN})" if strip.chosen else ""
    seconds = "does not fit" if strip.seconds is None else f"{show_s(strip.seconds)} a step"
    why = f". {clean(strip.why, 2 * WHY_CHARACTERS)}" if strip.why else ""
    return f"{clean(strip.label)}{chosen}: {'; '.join([seconds, *map(_pool_title, strip.parts)])}{why}"


def _pool_title(pool: PoolShare) -> str:
    roles = ", ".join(map(clean, pool.roles)) or "nothing"
    return f"{clean(pool.pool)}, {many(pool.devices, 'device')}: {roles}"


def _bar(strip: Strip, edges: ColumnEdges, middle: float) -> Iterator[Mark]:
    text = _seconds_text(strip)
    if strip.seconds is None:
        yield words(TextLine(edges.bar_left, middle + 4, text, "small muted"))
        return
    length = (edges.bar_right - edges.bar_left) * strip.seconds / edges.max_s
    bar = Rect(edges.bar_left, middle - BAR_HEIGHT / 2, max(length, 1.0), BAR_HEIGHT)
    yield group("length", rect("shape", bar))
    yield words(TextLine(bar.right + 6, middle + 4.3, text, "strong" if strip.chosen else ""))


def _areas(strip: Strip, edges: ColumnEdges, top: float) -> list[Rect]:
    """Return the area of each pool in a strip, and of the unused devices if there are any."""
    unused = edges.devices - sum(pool.devices for pool in strip.parts)
    counts = [float(pool.devices) for pool in strip.parts] + ([float(unused)] if unused > 0 else [])
    room = edges.strip_right - edges.strip_left - POOL_GAP * (len(counts) - 1)
    widths = shares(counts, room, POOL_MIN)
    lines = [len(_role_lines(pool, width)) for pool, width in zip(strip.parts, widths, strict=False)]
    height = 2 * POOL_PADDING + LINE * (2 + max(lines, default=1))
    areas, left = list[Rect](), edges.strip_left
    for width in widths:
        areas.append(Rect(left, top, width, height))
        left += width + POOL_GAP
    return areas


def _role_lines(pool: PoolShare, width: float) -> list[str]:
    """Return the roles of a pool as they are written in a block of this width, each on one or two lines."""
    return [
        line for role in listed_roles(pool) for line in wrapped(role, width - 2 * POOL_PADDING, SMALL_PX, max_lines=2)
    ]


def listed_roles(pool: PoolShare) -> list[str]:
    """Return the roles of a pool that are written, and how many more there are.

    >>> listed_roles(PoolShare("all", 8, tuple("abcdefgh")))
    ['a', 'b', 'c', 'd', 'e', 'and 3 more']
    """
    if len(pool.roles) <= ROLES_MAX:
        return list(pool.roles)
    return [*pool.roles[: ROLES_MAX - 1], f"and {len(pool.roles) - ROLES_MAX + 1} more"]


def _pool(pool: PoolShare, area: Rect, look: Look) -> Mark:
    """Draw a pool: its name, its roles one a line, and its devices at the foot."""
    roles = ((role, "on small") for role in _role_lines(pool, area.width))
    lines = [(cut(pool.pool, area.width - 2 * POOL_PADDING, "on small strong"), "on small strong"), *roles]
    texts = (
        words(TextLine(area.left + POOL_PADDING, area.top + POOL_PADDING + 10 + LINE * place, text, classes))
        for place, (text, classes) in enumerate(lines)
    )
    foot = _devices(pool.devices, area, "on small")
    return group(f"part {look.pool(pool.pool)}", rect("shape", area, 3), *texts, foot, title=_pool_title(pool))


def _unused(edges: ColumnEdges, strip: Strip, area: Rect) -> Mark:
    devices, classes = edges.devices - sum(pool.devices for pool in strip.parts), "small muted"
    text = cut("unused", area.width - 2 * POOL_PADDING, classes)
    name = words(TextLine(area.left + POOL_PADDING, area.top + POOL_PADDING + 10, text, classes))
    foot = _devices(devices, area, classes)
    return group("unused", rect("shape", area, 3), name, foot, title=f"{many(devices, 'device')} unused")


def _devices(count: int, area: Rect, classes: str) -> Mark:
    """Write a number of devices at the foot of an area, in as many words as fit."""
    room = area.width - 2 * POOL_PADDING
    text = next((text for text in (many(count, "device"), f"{count:,}") if width_of(text, classes) <= room), "")
    return words(TextLine(area.left + POOL_PADDING, area.bottom - POOL_PADDING - 2, text, classes))
