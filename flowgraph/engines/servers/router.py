"""Distribution of requests over replicas: by the fewest open tokens, with all samples of a prompt on one replica."""

from __future__ import annotations

from collections.abc import Sequence

from flowgraph.language.handle import SampleRequest
from flowgraph.language.keys import Key

MAX_PROMPTS = 65536  # whose replica is remembered; beyond this it is chosen anew


class Router:
    """Distributes requests over `replicas` replicas, numbered from 0; a request is open until `done`.

    `under_way` has, for each replica, the sum of `max_request_tokens` over its open requests.
    """

    def __init__(self, replicas: int) -> None:
        self.under_way = [0] * replicas
        self._replicas = dict[tuple[Key, int], int]()

    def deal(self, requests: Sequence[SampleRequest]) -> list[int]:
        """Return the index of the replica for each request, and count the requests as open.

        All samples of a prompt (requests with equal `key` and `prompt`) go to one replica, also in later calls; a call
        that finds more than 65,536 remembered prompts forgets these first. Prompts are assigned in descending order of
        their tokens in this call, a new one to the replica with the fewest open tokens, the first if several have
        equally few.

        >>> requests = [SampleRequest((1,) * size, size, 0, 10, 1.0, Key()) for size in (5, 30, 5, 20)]
        >>> router = Router(2)
        >>> router.deal(requests), router.under_way
        ([1, 0, 1, 1], [40, 60])
        """
        prompts = dict[tuple[Key, int], int]()
        for request in requests:
            prompt = request.key, request.prompt
            prompts[prompt] = prompts.get(prompt, 0) + max_request_tokens(request)
        if len(self._replicas) > MAX_PROMPTS:
            self._replicas.clear()
        for prompt, size in sorted(prompts.items(), key=lambda item: -item[1]):
            replica = self._replicas.setdefault(prompt, self.under_way.index(min(self.under_way)))
            self.under_way[replica] += size
        return [self._replicas[request.key, request.prompt] for request in requests]

    def done(self, replica: int, request: SampleRequest) -> None:
        """Subtract the `max_request_tokens` of a request that has ended or failed from its replica's open tokens."""
        self.under_way[replica] -= max_request_tokens(request)


def max_request_tokens(request: SampleRequest) -> int:
    """Return the largest number of tokens that a request can have: its context plus `max_tokens`."""
    return len(request.context) + request.max_tokens
