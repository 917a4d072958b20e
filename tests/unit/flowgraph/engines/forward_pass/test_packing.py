"""Rows laid end to end, what attends to what in them, and attention by every way against the explicit mask."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flowgraph.engines.forward_pass.attention import PackedAttention, Way, flex_block_mask, run_keys, segment_mask
from flowgraph.engines.forward_pass.buckets import bucketed
from flowgraph.engines.forward_pass.forward import split_rows
from flowgraph.engines.forward_pass.packed import peer_slice
from flowgraph.engines.forward_pass.packing import pack, packed_tokens
from flowgraph.errors import LawError
from flowgraph.language.handle import ResponseRows


def rows_of(contexts: Sequence[Sequence[int]], lengths: Sequence[int], wide: int | None = None) -> ResponseRows:
    wide = max([1, *lengths]) if wide is None else wide
    tokens = 100 * (1 + torch.arange(len(lengths)))[:, None] + torch.arange(wide)
    return ResponseRows(pa.array(contexts, pa.list_(pa.int64())), tokens, torch.tensor(lengths, dtype=torch.int64))


SOME = rows_of([[1, 2, 3], [9], [1, 2, 3], [9]], [3, 1, 2, 0])
shapes = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=8)


def drawn(shape: Sequence[tuple[int, int]]) -> ResponseRows:
    """Make rows of some of four contexts, of 1 to 7 tokens."""
    return rows_of([range(1, 2 + 2 * context) for context, _ in shape], [length for _, length in shape])


def test_contexts_are_packed_once_and_before_what_continues_them() -> None:
    packed = pack(SOME)
    assert packed.ids.tolist() == [1, 2, 3, 100, 101, 300, 9]
    assert packed.positions.tolist() == [0, 1, 2, 3, 4, 3, 0]
    assert packed.reads.tolist() == [2, 3, 4, 6, 2, 5]
    assert packed.targets.tolist() == [100, 101, 102, 200, 300, 301]
    seen_by = ["1......", "11.....", "111....", "1111...", "11111..", "111..1.", "......1"]
    told = segment_mask(packed.segments, None, "cpu").int().tolist()
    assert ["".join(".1"[each] for each in row) for row in told] == seen_by


def test_of_a_window_a_token_sees_itself_and_those_before_it_by_their_places() -> None:
    told = segment_mask(pack(SOME).segments, 2, "cpu").int().tolist()
    wanted = ["1......", "11.....", ".11....", "..11...", "...11..", "..1..1.", "......1"]
    assert ["".join(".1"[each] for each in row) for row in told] == wanted


def test_no_rows_are_one_token_and_tokens_are_filled_up_to_a_multiple() -> None:
    none = pack(rows_of([], []))
    assert (none.ids.tolist(), none.reads.tolist(), none.shape) == ([0], [], (0, 1))
    filled = pack(SOME, 5)
    assert filled.ids.tolist() == [*pack(SOME).ids.tolist(), 0, 0, 0]
    assert filled.segments.before.tolist()[-1] == 0 and filled.segments.tokens.tolist()[-1] == 3


def test_what_lies_beyond_a_rows_length_is_not_packed() -> None:
    wide = rows_of([[1, 2, 3], [9], [1, 2, 3], [9]], [3, 1, 2, 0], wide=8)
    assert pack(wide).ids.tolist() == pack(SOME).ids.tolist()


def test_rows_that_are_a_part_of_others_are_packed_alone() -> None:
    part = ResponseRows(SOME.context.slice(1, 2), SOME.tokens[1:3], SOME.lengths[1:3])
    assert pack(part).ids.tolist() == [9, 1, 2, 3, 300]


def test_an_empty_context_is_refused() -> None:
    with pytest.raises(LawError) as caught:
        pack(rows_of([[1], []], [2, 2]))
    assert str(caught.value) == "a response to 0 tokens has no token that its first token could follow"


@given(shapes)
def test_the_count_of_each_row_adds_up_to_the_packed_tokens(shape: Sequence[tuple[int, int]]) -> None:
    rows = drawn(sorted(shape))
    assert packed_tokens(rows).sum() == (len(pack(rows).ids) if shape else 0)


@given(shapes, st.integers(1, 40))
def test_rows_are_cut_in_order_into_parts_within_the_budget(shape: Sequence[tuple[int, int]], budget: int) -> None:
    rows = drawn(shape)
    parts = split_rows(rows, budget)
    assert torch.equal(torch.cat([part.tokens for part in parts]), rows.tokens)
    assert [each for part in parts for each in part.context.to_pylist()] == rows.context.to_pylist()
    assert all(len(pack(part).ids) <= budget or len(part.tokens) == 1 for part in parts)
    for part, after in pairwise(parts):
        assert len(part.tokens) and len(after.tokens)


@given(shapes)
def test_each_token_is_a_query_of_one_bucket_and_reads_what_it_may_see(shape: Sequence[tuple[int, int]]) -> None:
    packed = pack(drawn(shape))
    buckets, back = bucketed(packed.segments, 64, "cpu")
    queries = torch.cat([each.queries for each in buckets])
    assert torch.equal(queries[back], torch.arange(len(packed.ids)))
    found = torch.zeros(len(queries), len(packed.ids), dtype=torch.bool)
    filled = 0
    for each in buckets:
        keys, mask = each.keys.view(each.runs, -1), each.mask(None, torch.float32)
        wide = keys.shape[1]
        most = len(each.queries) // each.runs
        open_ = torch.ones(most, wide).tril()[None, None].bool() if mask is None else mask == 0
        for run, query, key in open_.expand(each.runs, 1, most, wide)[:, 0].nonzero().tolist():
            found[filled + run * most + query, keys[run, key]] = True
        filled += len(each.queries)
    assert torch.equal(found[back], segment_mask(packed.segments, None, "cpu"))


Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def qkv(tokens: int, heads: int, shared: int, *, size: int = 8, value_size: int = 6) -> Triple:
    random = torch.Generator().manual_seed(tokens)
    sizes = ((heads, size), (shared, size), (shared, value_size))
    made = [torch.randn(1, each, tokens, wide, generator=random, dtype=torch.float64) for each, wide in sizes]
    query, key, value = (each.requires_grad_() for each in made)
    return query, key, value


@pytest.mark.parametrize("window", [None, 3, 100])
@pytest.mark.parametrize("shared", [4, 2, 1])
@settings(max_examples=15)
@given(shape=shapes)
def test_runs_in_buckets_are_read_as_under_the_explicit_mask(
    shape: Sequence[tuple[int, int]], window: int | None, shared: int
) -> None:
    packed = pack(drawn(shape))
    given_, told = qkv(len(packed.ids), 4, shared), list[tuple[torch.Tensor, ...]]()
    ways: tuple[Way, Way] = ("segments", "mask")
    for way in ways:
        out = PackedAttention(packed.segments, way, "cpu").attend(*given_, 0.3, window)
        told.append((out, *torch.autograd.grad((out * out).sum(), given_)))
    for one, other in zip(*told, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-10)


@given(shapes, st.sampled_from([None, 3]))
def test_the_keys_of_each_run_and_the_blocks_of_flex_attention_are_those_of_the_mask(
    shape: Sequence[tuple[int, int]], window: int | None
) -> None:
    """What goes to kernels that only GPUs run: keys by run, bottom right, and a mask by the place of a pair."""
    packed = pack(drawn(shape))
    segments, tokens = packed.segments, len(packed.ids)
    wanted = segment_mask(segments, window, "cpu")
    index, (query_ends, key_ends), _ = run_keys(segments, "cpu")
    found = torch.zeros(tokens, tokens, dtype=torch.bool)
    for run in range(len(segments.start)):
        (first, last), (begin, end) = query_ends[run : run + 2].tolist(), key_ends[run : run + 2].tolist()
        for query in range(first, last):
            place = (end - begin) - (last - first) + query - first
            left = 0 if window is None else max(0, place - (window - 1))
            found[query, index[begin + left : begin + place + 1]] = True
    assert torch.equal(found, wanted)
    visible = flex_block_mask(segments, window, "cpu").mask_mod
    pairs = torch.arange(tokens)
    assert torch.equal(visible(0, 0, pairs[:, None], pairs[None]), wanted)


@given(shapes, st.integers(1, 4))
def test_slices_of_packed_tokens_are_all_of_them_and_their_statistics_are_found(
    shape: Sequence[tuple[int, int]], count: int
) -> None:
    packed = pack(drawn(shape), count)
    parts = [peer_slice(packed, rank, count, "cpu") for rank in range(count)]
    assert torch.cat([part.ids for part in parts], 1)[0].tolist() == packed.ids.tolist()
    wide = len(packed.ids) // count
    places = torch.cat([rank * wide + part.reads for rank, part in enumerate(parts)])
    targets = torch.cat([part.targets for part in parts])
    for part in parts:
        assert places[part.order].tolist() == packed.reads.tolist()
        assert targets[part.order].tolist() == packed.targets.tolist()
        assert len(part.reads) == len(parts[0].reads) >= 1


def test_runs_of_near_lengths_share_a_call_and_a_long_one_has_its_own() -> None:
    rows = rows_of([[1, 2]] * 9, [30, 31, 32, 33, 34, 30, 31, 32, 900])
    buckets, _ = bucketed(pack(rows).segments, 64, "cpu")
    assert sorted(each.runs for each in buckets) == [1, 1, 8]
    assert np.diff(pack(rows).segments.start).min() > 0
