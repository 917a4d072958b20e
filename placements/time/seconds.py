"""Seconds by part, of a pass, a transfer or a step. An unknown part is None, and so is any sum that includes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Seconds:
    """Seconds by kind of work: `matmul`, `attention`, `collectives`, `decode` and so on.

    A function that returns such seconds names its kinds, which are the keys of `parts`.
    """

    parts: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])

    @property
    def total_s(self) -> float | None:
        """Return the sum of all parts, in seconds; None if any part is unknown, and 0 without parts."""
        parts = [seconds for seconds in self.parts.values() if seconds is not None]
        return sum(parts) if len(parts) == len(self.parts) else None

    def __add__(self, more_seconds: Seconds) -> Seconds:
        return added((self, more_seconds))

    def times(self, factor: float) -> Seconds:
        """Return seconds in which every part is multiplied by a factor; unknown parts stay None."""
        return Seconds({name: None if part is None else factor * part for name, part in self.parts.items()})


def added(terms: Iterable[Seconds]) -> Seconds:
    """Return the sum of several Seconds, part by part; a part that is unknown in any term is unknown in the sum."""
    total = dict[str, float | None]()
    for term in terms:
        for name, seconds in term.parts.items():
            before = total.get(name, 0.0)
            total[name] = None if before is None or seconds is None else before + seconds
    return Seconds(total)
