"""A chunk of the groups of a step, which are handed out in several parts as they finish."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chunk:
    """One of the `of` chunks in which the groups of a step are handed out; `index` counts from 0, as they finish.

    Which groups are in a chunk depends on how long their responses take; how many, only on the number of groups.
    """

    index: int
    of: int

    @property
    def is_last(self) -> bool:
        """Return whether this is the last chunk of its step, with which all groups have finished."""
        return self.index == self.of - 1

    def named(self, value: str) -> str:
        """Return the name of this chunk of a value in a store.

        >>> Chunk(1, 4).named("score")
        'score 2/4'
        """
        return f"{value} {self}"

    def __str__(self) -> str:
        return f"{self.index + 1}/{self.of}"
