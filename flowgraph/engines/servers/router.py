"""Which replica gets which request: the one with the fewest tokens under way; samples of one prompt stay together."""

from __future__ import annotations

from collections.abc import Sequence

from flowgraph.language.handle import SampleRequest
from flowgraph.language.keys import Key

HOMES_KEPT = 65536  # prompts whose replica is remembered, beyond which it is chosen anew


class Router:
    """Deals requests to replicas, known by their place; what was dealt counts until it is `done`."""

    def __init__(self, replicas: int) -> None:
        self.under_way = [0] * replicas
        self._homes = dict[tuple[Key, int], int]()

    def deal(self, requests: Sequence[SampleRequest]) -> list[int]:
        """Choose a replica for each request: whole prompts, the largest first, so that the ends are even.

        >>> asked = [SampleRequest((1,) * many, many, 0, 10, 1.0, Key()) for many in (5, 30, 5, 20)]
        >>> router = Router(2)
        >>> router.deal(asked), router.under_way
        ([1, 0, 1, 1], [40, 60])
        """
        prompts = dict[tuple[Key, int], int]()
        for each in requests:
            prompts[each.key, each.prompt] = prompts.get((each.key, each.prompt), 0) + tokens(each)
        if len(self._homes) > HOMES_KEPT:
            self._homes.clear()
        for prompt, many in sorted(prompts.items(), key=lambda item: -item[1]):
            home = self._homes.setdefault(prompt, self.under_way.index(min(self.under_way)))
            self.under_way[home] += many
        return [self._homes[each.key, each.prompt] for each in requests]

    def done(self, replica: int, request: SampleRequest) -> None:
        """Take a request that was dealt off the replica's account."""
        self.under_way[replica] -= tokens(request)


def tokens(request: SampleRequest) -> int:
    """Count the tokens that a request may come to."""
    return len(request.context) + request.max_tokens
