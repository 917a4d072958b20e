"""Seconds by part: of a pass, a transfer, a step. A part that is not known is None, and so is the sum with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Seconds:
    """What takes how long, part after part: `matmul`, `attention`, `collectives`, `decode` and so on.

    >>> Seconds({"matmul": 2.0, "wait": None}).total_s is None, Seconds({"matmul": 2.0, "wait": 1.0}).total_s
    (True, 3.0)
    """

    parts: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])

    @property
    def total_s(self) -> float | None:
        """Return the sum; None if one part is not known."""
        known = [each for each in self.parts.values() if each is not None]
        return sum(known) if len(known) == len(self.parts) else None

    @property
    def unknown(self) -> tuple[str, ...]:
        """Name the parts that are not known."""
        return tuple(name for name, each in self.parts.items() if each is None)

    def __add__(self, other: Seconds) -> Seconds:
        return added((self, other))

    def times(self, factor: float) -> Seconds:
        """Return so many times of it."""
        return Seconds({name: None if each is None else factor * each for name, each in self.parts.items()})


def added(all_of: Iterable[Seconds]) -> Seconds:
    """Add up part by part; a part that one of them does not know is not known.

    >>> dict(added([Seconds({"matmul": 1.0}), Seconds({"matmul": 2.0, "sync": None})]).parts)
    {'matmul': 3.0, 'sync': None}
    """
    total = dict[str, float | None]()
    for each in all_of:
        for name, value in each.parts.items():
            before = total.get(name, 0.0)
            total[name] = None if before is None or value is None else before + value
    return Seconds(total)
