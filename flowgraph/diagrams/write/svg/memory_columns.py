"""The columns of a picture of memory: what a device holds in each phase, stacked, and what is written in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flowgraph.cluster.cluster import show_bytes
from flowgraph.diagrams.model.charts import Phase, PoolMemory
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.write.palette import TONES
from flowgraph.diagrams.write.svg.geometry import Rect, TextLine, baseline, cut, hatching, width_of

TRANSITION_SHARE = 0.6  # of the width of a phase
COLUMN_SHARE, COLUMN_AT_MOST = 0.74, 84.0
GAP_SHARE = 0.8  # of the gap between two columns, beside a narrower one
NAME_HEIGHT = 12.0  # a part that is lower has no name in it
LABEL_AT_MOST = 104.0  # of the name of a phase, where it is slanted
SLANT = 0.7072  # of 45 degrees
SLANTED_APART = 17.0  # names that are slanted would meet if they began closer


@dataclass(frozen=True)
class Segment:
    """One role's part of a column."""

    tone: int
    rect: Rect
    words: TextLine | None
    hatch: str
    told: str


@dataclass(frozen=True)
class Column:
    """A phase on the picture; `over` is the part beyond the capacity, if any."""

    rect: Rect
    segments: tuple[Segment, ...]
    passing: bool
    over: Rect | None
    hatch: str
    keys: tuple[TextLine, ...]
    label: TextLine
    slanted: bool
    measured: float | None
    told: str


@dataclass(frozen=True)
class Bytes:
    """The axis of memory: bytes from 0 to `most_bytes` from the foot of a plot up."""

    plot: Rect
    most_bytes: float

    def y(self, size_bytes: float) -> float:
        """Give the height at which so many bytes end."""
        return self.plot.bottom - self.plot.height * size_bytes / self.most_bytes


def over_text(phase: Phase, store: PoolMemory) -> str:
    """Say by how much a phase exceeds what there is; nothing if it does not.

    >>> store = PoolMemory("a", "a", (), capacity_bytes=8 * 2**30, room_bytes=7 * 2**30)
    >>> [over_text(Phase("p", (("m", size * 2**30),)), store) for size in (6, 8, 9)]
    ['', 'over the room by 1.0 GiB', 'over by 1.0 GiB']
    """
    if phase.size_bytes > store.capacity_bytes:
        return f"over by {show_bytes(phase.size_bytes - store.capacity_bytes)}"
    if phase.size_bytes > store.room_bytes:
        return f"over the room by {show_bytes(phase.size_bytes - store.room_bytes)}"
    return ""


def percent(part: float, whole: float) -> str:
    """Write a part of a whole in percent.

    >>> percent(3, 4), percent(1, 0)
    ('75%', '')
    """
    return f"{100 * part / whole:.0f}%" if whole > 0 else ""


def tone_of(at: int) -> int:
    """Give the tone of the role at a place in the legend."""
    return at % len(TONES)


def weights_of(store: PoolMemory) -> list[float]:
    """Give the width of each phase beside the others: a transition is narrower."""
    return [TRANSITION_SHARE if phase.transition else 1.0 for phase in store.phases]


def columns_of(
    store: PoolMemory, scale: Bytes, left: float, names: Sequence[str], *, slanted: bool
) -> tuple[Column, ...]:
    """Lay out a pool's phases; `names` are the roles of the whole picture, `left` is where its names may begin."""
    weights = weights_of(store)
    unit = scale.plot.width / max(sum(weights), 1.0)
    columns, x = list[Column](), scale.plot.left
    for phase, weight in zip(store.phases, weights, strict=True):
        columns.append(_column(phase, store, scale, Rect(x, 0, unit * weight, 0), left, names, slanted=slanted))
        x += unit * weight
    return _names_apart(columns) if slanted else tuple(columns)


def _names_apart(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Leave out each slanted name that would meet the one before it."""
    kept, free = list[Column](), float("-inf")
    for column in columns:
        fits = column.label.x >= free
        free = column.label.x + SLANTED_APART if fits else free
        kept.append(column if fits else replace(column, label=replace(column.label, text="")))
    return tuple(kept)


def _column(
    phase: Phase, store: PoolMemory, scale: Bytes, slot: Rect, left: float, names: Sequence[str], *, slanted: bool
) -> Column:
    width = min(slot.width * COLUMN_SHARE, COLUMN_AT_MOST)
    top = scale.y(phase.size_bytes)
    rect = Rect(slot.centre - width / 2, top, width, scale.plot.bottom - top)
    capacity = scale.y(store.capacity_bytes)
    lines = [
        scale.y(size) for size in (store.capacity_bytes, store.room_bytes, phase.measured_bytes) if size is not None
    ]
    over = Rect(rect.left, top, width, capacity - top) if phase.size_bytes > store.capacity_bytes else None
    segments = _segments(phase, scale, rect, names, lines, store.capacity_bytes)
    return Column(
        rect=rect,
        segments=segments,
        keys=_keys_beside(phase, segments, names, slot.width - width),
        passing=phase.transition,
        over=over,
        hatch=hatching(over, 5.0) if over else "",
        label=_phase_label(phase, scale.plot.bottom, slot, left, slanted=slanted),
        slanted=slanted,
        measured=None if phase.measured_bytes is None else scale.y(phase.measured_bytes),
        told=_phase_told(phase, store),
    )


def _phase_label(phase: Phase, bottom: float, slot: Rect, left: float, *, slanted: bool) -> TextLine:
    classes = "small muted" if phase.transition else "small"
    if not slanted:
        return TextLine(slot.centre, bottom + 15, cut(phase.label, slot.width, classes), classes, "middle")
    room = min(LABEL_AT_MOST, (slot.centre - left) / SLANT)
    return TextLine(slot.centre + 4, bottom + 12, cut(phase.label, room, classes), classes, "end")


def _phase_told(phase: Phase, store: PoolMemory) -> str:
    share = percent(phase.size_bytes, store.capacity_bytes)
    held = ", ".join(f"{clean(name)} {show_bytes(size)}" for name, size in phase.held) or "nothing"
    measured = f"; measured {show_bytes(phase.measured_bytes)}" if phase.measured_bytes is not None else ""
    over = over_text(phase, store)
    told = f"{clean(phase.label)}: {show_bytes(phase.size_bytes)} ({share}){', ' + over if over else ''}"
    return f"{told}: {held}{measured}"


def _segments(
    phase: Phase, scale: Bytes, column: Rect, names: Sequence[str], lines: Sequence[float], limit_bytes: int
) -> tuple[Segment, ...]:
    segments, below = list[Segment](), 0
    for name, size in phase.held:
        top = scale.y(below + size)
        rect = Rect(column.left, top, column.width, scale.y(below) - top)
        at, below = names.index(name), below + size
        hatch = hatching(rect) if at >= len(TONES) else ""
        words = _segment_words(name, at, below_line(rect, scale.y(limit_bytes)), lines)
        segments.append(Segment(tone_of(at), rect, words, hatch, clean(name)))
    return tuple(segments)


def _keys_beside(phase: Phase, segments: Sequence[Segment], names: Sequence[str], gap: float) -> tuple[TextLine, ...]:
    """Write the number of each part that is too low for it beside the column, above the axis and what is below it."""
    keys, free = list[TextLine](), segments[0].rect.bottom - NAME_HEIGHT / 2 if segments else 0.0
    for (name, size), part in zip(phase.held, segments, strict=True):
        level = min(part.rect.middle, free)
        key = TextLine(part.rect.right + 4, baseline(level, "small"), str(names.index(name) + 1), "small")
        near = part.rect.middle - level < 1.5 * NAME_HEIGHT
        if part.words is None and size and near and key.width + 7 <= gap * GAP_SHARE:
            keys.append(key)
            free = level - NAME_HEIGHT
    return tuple(keys)


def below_line(rect: Rect, y: float) -> Rect:
    """Give what of a rectangle is below a line, where names are not on the hatching.

    >>> below_line(Rect(0, 10, 5, 20), 15), below_line(Rect(0, 10, 5, 20), 50).height
    (Rect(left=0, top=15, width=5, height=15), 0.0)
    """
    top = max(rect.top, y)
    return Rect(rect.left, top, rect.width, max(rect.bottom - top, 0.0))


def _segment_words(name: str, at: int, rect: Rect, lines: Sequence[float]) -> TextLine | None:
    """Write a role's name in its part, or else its number in the legend, or nothing where no line leaves room."""
    key, whole = str(at + 1), clean(name)
    middle = free_middle(rect, lines)
    if middle is None or width_of(key, "small") > rect.width:
        return None
    text = whole if width_of(whole, "small") + 6 <= rect.width else key
    return TextLine(rect.centre, baseline(middle, "small"), text, "on small", "middle")


def free_middle(rect: Rect, lines: Sequence[float]) -> float | None:
    """Give the height nearest to a rectangle's middle where a name meets none of the lines across it, if there is one.

    >>> free_middle(Rect(0, 0, 9, 40), []), free_middle(Rect(0, 0, 9, 40), [20]), free_middle(Rect(0, 0, 9, 9), [])
    (20.0, 12.0, None)
    """
    reach = NAME_HEIGHT / 2
    tried = [rect.middle, *(line + side * (reach + 2) for line in lines for side in (-1, 1))]
    free = [
        at
        for at in tried
        if rect.top + reach <= at <= rect.bottom - reach and all(abs(line - at) > reach + 1 for line in lines)
    ]
    return min(free, key=lambda at: abs(at - rect.middle), default=None)
