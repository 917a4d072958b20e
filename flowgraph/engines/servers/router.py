"""Which replica gets which request: the one with the fewest open tokens; samples of one prompt stay together."""

from __future__ import annotations

from collections.abc import Sequence

from flowgraph.language.handle import SampleRequest
from flowgraph.language.keys import Key

MAX_PROMPTS = 65536  # whose replica is remembered; beyond this it is chosen anew


class Router:
    """Distributes requests over replicas, which it numbers from 0; a request counts as open until it is `done`."""

    def __init__(self, replicas: int) -> None:
        self.under_way = [0] * replicas
        self._replicas = dict[tuple[Key, int], int]()

    def deal(self, requests: Sequence[SampleRequest]) -> list[int]:
        """Choose a replica for each request: whole prompts, the largest first, so that replicas end together.

        >>> requests = [SampleRequest((1,) * size, size, 0, 10, 1.0, Key()) for size in (5, 30, 5, 20)]
        >>> router = Router(2)
        >>> router.deal(requests), router.under_way
        ([1, 0, 1, 1], [40, 60])
        """
        prompts = dict[tuple[Key, int], int]()
        for request in requests:
            prompt = request.key, request.prompt
            prompts[prompt] = prompts.get(prompt, 0) + tokens(request)
        if len(self._replicas) > MAX_PROMPTS:
            self._replicas.clear()
        for prompt, size in sorted(prompts.items(), key=lambda item: -item[1]):
            replica = self._replicas.setdefault(prompt, self.under_way.index(min(self.under_way)))
            self.under_way[replica] += size
        return [self._replicas[request.key, request.prompt] for request in requests]

    def done(self, replica: int, request: SampleRequest) -> None:
        """Count a request as done."""
        self.under_way[replica] -= tokens(request)


def tokens(request: SampleRequest) -> int:
    """Return the most tokens that a request can have, prompt and response."""
    return len(request.context) + request.max_tokens
