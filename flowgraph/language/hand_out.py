"""Hand out the rows of finished groups while the other responses of a batch are still being sampled.

A node that samples says with the trait `hands_out` that it can: it passes `gather` a function that makes rows of some
of the completions. What a chunk of groups is for, and who reads it, is decided elsewhere (`lowering.stream_groups`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from flowgraph.errors import LawError

if TYPE_CHECKING:
    from flowgraph.language.handle import Completion
    from flowgraph.language.values import Value

Result = TypeVar("Result")
RowsOf = Callable[[Sequence[int], Sequence["Completion"]], "Value"]
"""Makes rows of the completions of some requests; the first argument has the places of these requests, ascending."""


def chunk_sizes(groups: int, chunks: int) -> list[int]:
    """Return the number of groups in each of `chunks` chunks: as equal as possible, the larger ones first.

    >>> chunk_sizes(10, 4), chunk_sizes(2, 3)
    ([3, 3, 2, 2], [1, 1, 0])
    """
    size, larger = divmod(groups, chunks)
    return [size + (index < larger) for index in range(chunks)]


@dataclass(eq=False)
class HandOut:
    """Cuts the groups of one batch into `chunks`, in the order in which they finish, and calls `give` with each.

    Without a number of chunks, each group is a chunk. `give` gets the index of a chunk, from 0, and its rows, in the
    order of the batch. A chunk without groups, where there are fewer groups than chunks, is not given.
    """

    chunks: int | None
    give: Callable[[int, Value], None]
    _groups: Sequence[int] = field(default=(), init=False)
    _sizes: list[int] = field(default_factory=list[int], init=False)
    _open: Counter[int] = field(default_factory=Counter[int], init=False)
    _places: dict[int, list[int]] = field(default_factory=dict[int, list[int]], init=False)
    _ended: dict[int, Any] = field(default_factory=dict[int, Any], init=False)
    _waiting: list[int] = field(default_factory=list[int], init=False)
    _given: int = field(default=0, init=False)

    def begin(self, groups: Sequence[int]) -> None:
        """Set the group of each request, the number of its prompt. Raises LawError if groups have been set already."""
        if self._places:
            what = "a node that hands out groups as they finish calls `gather` once"
            raise LawError(what, hint="leave out hands_out=True")
        self._groups, self._open = groups, Counter(groups)
        for place, group in enumerate(groups):
            self._places.setdefault(group, []).append(place)
        self._sizes = chunk_sizes(len(self._places), self.chunks or len(self._places))

    def ended(self, place: int, result: Result, rows: Callable[[Sequence[int], Sequence[Result]], Value]) -> None:
        """Record the completion of the request at index `place`, or another result for which `rows` makes rows.

        If a chunk is now full, `give` is called with its rows.
        """
        group = self._groups[place]
        self._ended[place] = result
        self._open[group] -= 1
        if self._open[group]:
            return
        self._waiting.append(group)
        if len(self._waiting) == self._sizes[self._given]:
            places = sorted(place for group in self._waiting for place in self._places[group])
            self._waiting.clear()
            self._given += 1
            self.give(self._given - 1, rows(places, [self._ended[place] for place in places]))


class HandingOut:
    """A model's handle with the hand-out of the batch that it samples; all else is the handle's own."""

    def __init__(self, handle: Any, hand_out: HandOut) -> None:
        self._handle, self.hand_out = handle, hand_out

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)
