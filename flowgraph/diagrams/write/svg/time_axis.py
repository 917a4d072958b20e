"""The unit in which an axis of time is told, and its marks."""

from __future__ import annotations

from dataclasses import dataclass

from flowgraph.diagrams.model.ticks import number_text, ticks


@dataclass(frozen=True)
class TimeUnit:
    """A unit of time: its name, and its seconds."""

    name: str
    seconds: float


UNITS = (TimeUnit("ms", 1e-3), TimeUnit("s", 1.0), TimeUnit("min", 60.0), TimeUnit("h", 3600.0))
FROM_S = (0.0, 1.0, 180.0, 3 * 3600.0)  # the length of an axis from which each unit is the one that reads best


def unit_of(length_s: float) -> TimeUnit:
    """Give the unit in which an axis of this length is told.

    >>> unit_of(0.02).name, unit_of(90).name, unit_of(600).name, unit_of(36000).name
    ('ms', 's', 'min', 'h')
    """
    return [unit for unit, least in zip(UNITS, FROM_S, strict=True) if length_s >= least][-1]


def time_ticks(length_s: float, about: int = 8) -> tuple[tuple[float, str], ...]:
    """Give the round marks of an axis of time, from 0: seconds, and text.

    >>> time_ticks(1.5, 3)
    ((0.0, '0 s'), (0.5, '0.5 s'), (1.0, '1.0 s'), (1.5, '1.5 s'))
    """
    unit = unit_of(length_s)
    marks = ticks(0.0, length_s / unit.seconds, about)
    gap = marks[1] - marks[0] if len(marks) > 1 else 1.0
    texts = [number_text(mark, gap) if mark else "0" for mark in marks]
    return tuple((mark * unit.seconds, f"{text} {unit.name}") for mark, text in zip(marks, texts, strict=True))
