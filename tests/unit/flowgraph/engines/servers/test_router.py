"""Requests are dealt to replicas by tokens under way, and samples of one prompt stay together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowgraph.engines.servers.router import Router, max_request_tokens
from flowgraph.language import Key
from flowgraph.language.handle import SampleRequest


def asked(prompts: list[int], samples: int, step: int = 0) -> list[SampleRequest]:
    """Return requests, one list entry a prompt with so many context tokens."""
    return [
        SampleRequest((1,) * many, prompt, sample, 8, 1.0, Key(0, step, "g"))
        for prompt, many in enumerate(prompts)
        for sample in range(samples)
    ]


@given(st.lists(st.integers(1, 500), min_size=1, max_size=40), st.integers(1, 4), st.integers(1, 5))
def test_samples_of_one_prompt_stay_on_one_replica_and_no_replica_has_a_prompt_too_many(
    prompts: list[int], samples: int, replicas: int
) -> None:
    router, requests = Router(replicas), asked(prompts, samples)
    dealt = router.deal(requests)
    homes = {request.prompt: home for request, home in zip(requests, dealt, strict=True)}
    assert dealt == [homes[request.prompt] for request in requests]
    largest = max(samples * (many + 8) for many in prompts)
    assert max(router.under_way) - min(router.under_way) <= largest


def test_a_later_request_of_a_prompt_goes_where_its_prefix_is_cached() -> None:
    router = Router(3)
    (first,) = router.deal(asked([10], 1))
    router.deal(asked([900, 900, 900], 1, step=1))
    assert router.deal(asked([10], 1)) == [first]


def test_another_step_is_dealt_anew() -> None:
    router = Router(2)
    first = router.deal(asked([10, 500], 1))
    assert router.deal(asked([10, 10], 1, step=1)) == [first[0], first[0]]


def test_what_is_done_no_longer_counts() -> None:
    router, requests = Router(2), asked([10, 20, 30], 2)
    for replica, request in zip(router.deal(requests), requests, strict=True):
        router.done(replica, request)
    assert router.under_way == [0, 0]
    assert max_request_tokens(requests[0]) == 18
