"""What must hold of one number of a batch, and the nearest values of which it does. Integers only, no graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

MOST = 2**24  # no value beyond is offered: more prompts than a step reads anywhere


class SizeRule(Protocol):
    """A rule of one number: the nearest values from it on, up and down, of which it holds; None if there is none."""

    def up(self, value: int) -> int | None:
        """Return the least value from this one on of which the rule holds."""
        ...

    def down(self, value: int) -> int | None:
        """Return the greatest value up to this one of which the rule holds."""
        ...


@dataclass(frozen=True)
class AtLeast:
    """The number is not below a limit."""

    limit: int

    def up(self, value: int) -> int | None:
        """Return the value, or the limit."""
        return max(value, self.limit)

    def down(self, value: int) -> int | None:
        """Return the value, if it is not below the limit."""
        return value if value >= self.limit else None


@dataclass(frozen=True)
class AtMost:
    """The number is not above a limit."""

    limit: int

    def up(self, value: int) -> int | None:
        """Return the value, if it is not above the limit."""
        return value if value <= self.limit else None

    def down(self, value: int) -> int | None:
        """Return the value, or the limit."""
        return min(value, self.limit)


@dataclass(frozen=True)
class EvenMinibatches:
    """So many prompts, cut as evenly as they go into minibatches of at most `size`, leave `least` in the smallest.

    Of the prompts that make `count` minibatches, from (count - 1) · size + 1 to count · size, those from count · least
    on do.

    >>> [prompts for prompts in range(1, 10) if EvenMinibatches(3, 2).up(prompts) == prompts]
    [2, 3, 4, 5, 6, 7, 8, 9]
    """

    size: int
    least: int

    def up(self, value: int) -> int | None:
        """Return the value, or the first of its block that does; minibatches of fewer than `least` never do."""
        count = max(1, -(-value // self.size))
        return max(value, count * self.least) if self.least <= self.size else None

    def down(self, value: int) -> int | None:
        """Return the value, or the last of the block before."""
        count = max(1, -(-value // self.size))
        if self.least > self.size or (value < count * self.least and count == 1):
            return None
        return value if value >= count * self.least else (count - 1) * self.size


def nearest_values(value: int, rules: Sequence[SizeRule]) -> list[int]:
    """Return the nearest values below and above, other than this one, of which all rules hold.

    >>> nearest_values(5, [AtLeast(8)]), nearest_values(9, [AtMost(8), AtLeast(3)])
    ([8], [8])
    >>> nearest_values(5, [EvenMinibatches(4, 4)])
    [4, 8]
    """
    found = [_settled(value - 1, rules, up=False), _settled(value + 1, rules, up=True)]
    return [each for each in found if each is not None]


def _settled(value: int, rules: Sequence[SizeRule], *, up: bool) -> int | None:
    """Move on, rule by rule, until all hold; each moves no further than it must, so none is passed over."""
    while True:
        start = value
        for rule in rules:
            moved = rule.up(value) if up else rule.down(value)
            if moved is None or moved > MOST:
                return None
            value = moved
        if value == start:
            return value


def least_minibatch(prompts: int, least: int) -> int:
    """Return the smallest minibatch of so many prompts that leaves `least` of them in each.

    >>> least_minibatch(7, 4), least_minibatch(9, 2), least_minibatch(16, 4)
    (7, 3, 4)

    Raises ValueError for fewer prompts than `least`.
    """
    if prompts < least:
        raise ValueError(f"{prompts} prompts hold no minibatch of {least}")
    return -(-prompts // (prompts // least))
