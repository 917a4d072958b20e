"""Draw placements as an SVG, one row each: a strip that its pools divide, and a bar of its seconds a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowgraph.diagrams.model.charts import Comparison, PoolShare, Strip
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.quantities import many, show_s
from flowgraph.diagrams.write.svg.geometry import MARGIN, TITLE_HEIGHT, WIDTH, Rect, shares
from flowgraph.diagrams.write.svg.marks import Mark, group, rect, text_mark
from flowgraph.diagrams.write.svg.svg_frame import ALONE, Look, svg_document
from flowgraph.diagrams.write.svg.text_lines import LINE, TextLine, clean_and_cut, widest, width_of, wrapped

NAME_MAX, NAME_MIN = 190.0, 64.0
BAR_ROOM, BAR_HEIGHT = 230.0, 16.0
POOL_MIN, POOL_PADDING, POOL_GAP = 96.0, 6.0, 3.0
ROLES_MAX = 6  # lines in a pool; of more, the last says how many there are
HEAD_HEIGHT, ROW_GAP = 18.0, 16.0
CHOSEN = "chosen"
WHY_CHARACTERS = 200


@dataclass(frozen=True)
class ColumnEdges:
    """The x coordinates, in pixels, of the columns of strips and of seconds, and the scales that all rows share."""

    strip_left: float
    strip_right: float
    bar_left: float
    bar_right: float
    devices: int
    max_s: float


def comparison_svg(comparison: Comparison, look: Look = ALONE) -> str:
    """Return placements as SVG text, 960 pixels wide: a row each, with a strip of pools and a bar of seconds a step.

    `look` says whether the picture is embedded in a page. A pool is as wide as its share of the devices, but at least
    96 pixels if there is room; all bars have one scale of seconds.
    """
    strips = comparison.strips
    names = widest((clean_and_cut(strip.label, NAME_MAX, "strong") for strip in strips), "strong")
    left, right = MARGIN + max(names, NAME_MIN) + 14, WIDTH - MARGIN - BAR_ROOM
    bar_right = max(WIDTH - MARGIN - widest(map(_seconds_text, strips), "strong") - 8, right + 40)
    devices = max([comparison.devices, *(sum(pool.devices for pool in strip.parts) for strip in strips)])
    max_s = max((strip.seconds or 0.0 for strip in strips), default=0.0) or 1.0
    edges, y = ColumnEdges(left, right - 16, right, bar_right, devices, max_s), TITLE_HEIGHT + 8
    marks = [
        text_mark(TextLine(left, y, many(comparison.devices, "device"), "small muted")),
        text_mark(TextLine(right, y, "time of a step", "small muted")),
    ]
    top = bottom = TITLE_HEIGHT + HEAD_HEIGHT
    for place, strip in enumerate(strips):
        row, bottom = _row(place, strip, edges, top, look)
        marks.append(row)
        top = bottom + ROW_GAP
    return svg_document("comparison", comparison, marks, look, height=bottom + MARGIN)


def _seconds_text(strip: Strip) -> str:
    if strip.seconds is not None:
        return show_s(strip.seconds)
    return "time not known" if strip.parts else "does not fit"


def _row(place: int, strip: Strip, edges: ColumnEdges, top: float, look: Look) -> tuple[Mark, float]:
    left = edges.strip_left
    first, second = (*wrapped(strip.label, left - 14 - MARGIN, "strong", max_lines=2), "")[:2]
    marks = [
        text_mark(TextLine(MARGIN, top + 14, first, "strong")),
        text_mark(TextLine(MARGIN, top + 14 + LINE, second, "strong")),
    ]
    parts, height = _parts(strip, edges, top, look)
    bottom, middle = top + height, top + height / 2
    if strip.chosen:
        marks.append(text_mark(TextLine(MARGIN, top + 30 + (LINE if second else 0.0), CHOSEN, "small strong")))
        marks.append(rect("around", Rect(left - 4, top - 4, edges.strip_right - left + 8, height + 8), 5))
    marks += parts
    text = _seconds_text(strip)
    if strip.seconds is None:
        marks.append(text_mark(TextLine(edges.bar_left, middle + 4, text, "small muted")))
    else:
        length = (edges.bar_right - edges.bar_left) * strip.seconds / edges.max_s
        bar = Rect(edges.bar_left, middle - BAR_HEIGHT / 2, max(length, 1.0), BAR_HEIGHT)
        marks.append(group("length", rect("shape", bar)))
        marks.append(text_mark(TextLine(bar.right + 6, middle + 4.3, text, "strong" if strip.chosen else "")))
    if why := clean_and_cut(strip.why, WIDTH - MARGIN - left, "small muted", WHY_CHARACTERS) if strip.why else "":
        marks.append(text_mark(TextLine(left, bottom + 18, why, "small muted")))
    classes = f"strip{' chosen' if strip.chosen else ''}"
    return group(classes, *marks, title=row_title(strip), row=place, focus=True), bottom + (22 if why else 4)


def row_title(strip: Strip) -> str:
    """Return the tooltip of a placement's row: its name, seconds a step and pools, and how it compares with the best.

    Without seconds, the tooltip says that they are not known, or "does not fit" for a placement without pools.

    >>> row_title(Strip("all on one", 2.0, (PoolShare("all", 8, ("policy",)),), "the best", chosen=True))
    'all on one (chosen): 2 s a step; all, 8 devices: policy. the best'
    """
    chosen = f" ({CHOSEN})" if strip.chosen else ""
    seconds = _seconds_text(strip) if strip.seconds is None else f"{show_s(strip.seconds)} a step"
    why = f". {clean(strip.why, 2 * WHY_CHARACTERS)}" if strip.why else ""
    return f"{clean(strip.label)}{chosen}: {'; '.join([seconds, *map(_pool_title, strip.parts)])}{why}"


def _pool_title(pool: PoolShare) -> str:
    roles = ", ".join(map(clean, pool.roles)) or "nothing"
    return f"{clean(pool.pool)}, {many(pool.devices, 'device')}: {roles}"


def _parts(strip: Strip, edges: ColumnEdges, top: float, look: Look) -> tuple[list[Mark], float]:
    unused = edges.devices - sum(pool.devices for pool in strip.parts)
    counts = [float(pool.devices) for pool in strip.parts] + ([float(unused)] if unused > 0 else [])
    if not counts:
        return [], LINE * 2
    room = edges.strip_right - edges.strip_left - POOL_GAP * (len(counts) - 1)
    widths = shares(counts, room, POOL_MIN)
    roles = [role_lines(pool, width) for pool, width in zip(strip.parts, widths, strict=False)]
    height = 2 * POOL_PADDING + LINE * (2 + max(map(len, roles), default=1))
    marks, left = list[Mark](), edges.strip_left
    for place, width in enumerate(widths):
        area = Rect(left, top, width, height)
        if place < len(roles):
            pool = strip.parts[place]
            lines, classes = [pool.pool, *roles[place]], f"part {look.pool(pool.pool)}"
            marks.append(_part(classes, area, lines, pool.devices, "on small", "on small strong", _pool_title(pool)))
        else:
            title = f"{many(unused, 'device')} unused"
            marks.append(_part("unused", area, ["unused"], unused, "small muted", "small muted", title))
        left += width + POOL_GAP
    return marks, height


def role_lines(pool: PoolShare, width: float) -> list[str]:
    """Return the roles of a pool as lines for a block that is `width` pixels wide; a name takes two lines at most.

    Of more than 6 roles, only the first 5 are written; the last line has the number of the others.

    >>> role_lines(PoolShare("all", 8, tuple("abcdefgh")), 100)
    ['a', 'b', 'c', 'd', 'e', 'and 3 more']
    """
    roles = pool.roles
    if len(roles) > ROLES_MAX:
        roles = (*roles[: ROLES_MAX - 1], f"and {len(roles) - ROLES_MAX + 1} more")
    return [line for role in roles for line in wrapped(role, width - 2 * POOL_PADDING, "small", max_lines=2)]


def _part(classes: str, area: Rect, lines: Sequence[str], devices: int, look: str, first_look: str, title: str) -> Mark:
    room, x, y = area.width - 2 * POOL_PADDING, area.left + POOL_PADDING, area.top + POOL_PADDING + 10
    first, *rest = lines
    texts = [TextLine(x, y, clean_and_cut(first, room, first_look), first_look)]
    texts += [TextLine(x, y + LINE * place, text, look) for place, text in enumerate(rest, 1)]
    count = next((text for text in (many(devices, "device"), f"{devices:,}") if width_of(text, look) <= room), "")
    texts.append(TextLine(x, area.bottom - POOL_PADDING - 2, count, look))
    return group(classes, rect("shape", area, 3), *map(text_mark, texts), title=title)
