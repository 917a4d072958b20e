"""Law 6: a response does not depend on its batch, and its log-probs are those that the model gives when it reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest
import torch

from flowgraph import Key
from flowgraph.engines.local.model import LocalModel
from nodes import Policy, Rollout, generate, logprobs
from nodes.data.source import prompts_at

Tiny = Callable[..., LocalModel]
KEY = Key(3, 1, "policy.generate")


def drawn(
    handle: LocalModel, rows: pa.Table, places: Sequence[int], key: Key = KEY, n: int = 4, temperature: float = 1.0
) -> Rollout:
    return generate(Policy(handle), prompts_at(rows, places), n=n, temperature=temperature, max_tokens=10, key=key)


def named(rollout: Rollout) -> dict[tuple[int, int], tuple[list[int], list[float]]]:
    """Give tokens and log-probs by the row's identity."""
    columns = (rollout.group, rollout.sample, rollout.lengths, rollout.tokens, rollout.logprobs)
    rows = zip(*(column.data.tolist() for column in columns), strict=True)
    return {(group, sample): (tokens[:n], logprobs[:n]) for group, sample, n, tokens, logprobs in rows}


def assert_same(one: Rollout, two: Rollout) -> None:
    """Compare the rows that both have."""
    first, second = named(one), named(two)
    shared = first.keys() & second.keys()
    assert shared
    for name in shared:
        assert first[name][0] == second[name][0]
        assert first[name][1] == pytest.approx(second[name][1], abs=1e-5)


@pytest.mark.parametrize("sample_rows", [1, 3])
def test_responses_do_not_depend_on_how_many_are_decoded_side_by_side(
    tiny: Tiny, uneven_rows: pa.Table, sample_rows: int
) -> None:
    everything = drawn(tiny(sample_rows=256), uneven_rows, range(12))
    assert_same(drawn(tiny(sample_rows=sample_rows), uneven_rows, range(12)), everything)


def test_responses_do_not_depend_on_the_order_of_prompts_or_on_what_else_is_asked(
    tiny: Tiny, uneven_rows: pa.Table
) -> None:
    everything = drawn(tiny(), uneven_rows, range(12))
    for places in ([11, 3, 7, 0, 5, 1, 2, 4, 6, 8, 9, 10], [6], [10, 4]):
        assert_same(drawn(tiny(), uneven_rows, places), everything)
    assert_same(drawn(tiny(), uneven_rows, [2, 9], n=9), everything)


def test_greedy_responses_do_not_depend_on_their_batch_either(tiny: Tiny, uneven_rows: pa.Table) -> None:
    everything = drawn(tiny(), uneven_rows, range(12), n=1, temperature=0.0)
    for places in ([3], [11, 0, 6]):
        assert_same(drawn(tiny(), uneven_rows, places, Key(9), n=1, temperature=0.0), everything)


def test_each_seed_step_node_prompt_and_sample_draws_for_itself(tiny: Tiny, uneven_rows: pa.Table) -> None:
    handle, twins = tiny(), pa.concat_tables([uneven_rows.slice(6, 1)] * 2)
    keys = [KEY, Key(4, 1, "policy.generate"), Key(3, 2, "policy.generate"), Key(3, 1, "policy.generate#2")]
    rollouts = [drawn(handle, twins, [0, 1], key, n=6) for key in keys]
    responses = [tuple(tokens) for rollout in rollouts for tokens, _ in named(rollout).values()]
    long = [response for response in responses if len(response) > 3]  # two may well end at once
    assert len(set(long)) == len(long) > 30


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0, 1.3])
def test_log_probs_of_the_sampler_are_those_of_reading_the_response(
    tiny: Tiny, uneven_rows: pa.Table, temperature: float
) -> None:
    handle = tiny(sample_rows=5, forward_tokens=60)
    rollout = drawn(handle, uneven_rows, range(12), temperature=temperature)
    assert torch.allclose(rollout.logprobs.data, logprobs(Policy(handle), rollout).data, rtol=0, atol=1e-5)
