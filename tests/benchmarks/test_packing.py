"""The packing and balancing benchmarks: every way does the same work, and figures are of one round each."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks import balancing, packing
from benchmarks.packing import PACKED, PADDED, SORTED, Setting

SMALL = Setting(4, 3, 5, 6, 1.0, 20, 60, 16, 1, 1)


def test_all_ways_give_the_same_sum_and_the_same_gradient() -> None:
    model, rows = packing.model_of(SMALL), packing.drawn(SMALL)
    told = list[tuple[float, torch.Tensor]]()
    for way in (packing.packed_pass, None):
        model.zero_grad()
        if way is not None:
            value = way(model, rows)
        else:
            value = sum(packing.padded_pass(model, batch) for batch in packing.arrived(rows, 3, by_length=True))
        told.append((value, torch.cat([each.grad.flatten() for each in model.parameters()])))
    assert told[0][0] == pytest.approx(told[1][0], rel=1e-5)
    assert torch.allclose(told[0][1], told[1][1], rtol=1e-4, atol=1e-4)


def test_ways_that_did_other_work_are_refused() -> None:
    packing.same([-100.0, -100.001])
    with pytest.raises(SystemExit, match=r"^the ways give other sums: \[-100.0, -101.0\]$"):
        packing.same([-100.0, -101.0])


def test_a_prompt_is_read_once_for_its_group_and_padding_is_counted() -> None:
    told = packing.measure(SMALL)
    assert told.tokens[PACKED] < told.tokens[SORTED] <= told.tokens[PADDED]
    alone = packing.measure(replace(SMALL, prompts=12, samples=1))
    assert alone.tokens[PACKED] > told.tokens[PACKED]
    assert {way: len(each) for way, each in told.seconds.items()} == {PACKED: 1, PADDED: 1, SORTED: 1}


def test_every_row_is_in_one_micro_batch_sorted_or_not() -> None:
    rows = packing.drawn(SMALL)
    for by_length in (False, True):
        batches = packing.arrived(rows, 3, by_length=by_length)
        assert len(batches) == 3
        assert sorted(map(len, (text for texts, _ in batches for text in texts))) == sorted(
            (rows.lengths + SMALL.prompt_tokens).tolist()
        )


def test_responses_to_one_prompt_may_be_alike_in_length() -> None:
    lengths = packing.drawn(replace(SMALL, alike=1.0)).lengths.reshape(SMALL.prompts, SMALL.samples)
    assert (lengths == lengths[:, :1]).all()
    assert len(set(lengths[:, 0].tolist())) > 1


def test_both_ways_of_dealing_give_each_row_to_one_rank_and_keep_groups_whole() -> None:
    setting = replace(SMALL, prompts=7)
    for shares in (balancing.by_number(setting, 3), balancing.by_work(setting, packing.drawn(setting), 3)):
        assert sorted(row for each in shares for row in each) == list(range(21))
        assert all({row // 3 for row in a}.isdisjoint(row // 3 for row in b) for a in shares for b in shares if a != b)


def test_by_work_the_busiest_rank_has_less_of_the_work() -> None:
    setting = replace(SMALL, prompts=16, alike=0.8, longest_tokens=200)
    rows = packing.drawn(setting)
    tokens = rows.lengths + setting.prompt_tokens
    most = [
        max(int(tokens[each].sum()) for each in shares)
        for shares in (balancing.by_number(setting, 4), balancing.by_work(setting, rows, 4))
    ]
    assert most[1] < most[0]


def test_a_step_is_as_long_as_its_busiest_rank() -> None:
    told = balancing.Told({balancing.PADDED: [[1.0, 4.0]], balancing.BALANCED: [[2.0, 2.0]]}, 100)
    assert told.steps(balancing.PADDED) == [4.0]
    assert told.waits(balancing.PADDED) == pytest.approx(0.375)
    assert told.waits(balancing.BALANCED) == 0.0
    assert told.faster(balancing.BALANCED) == 2.0


def test_each_rank_of_each_way_is_timed() -> None:
    told = balancing.measure(SMALL, 2)
    ways = (balancing.PADDED, balancing.PACKED, balancing.BALANCED)
    assert {way: [len(ranks) for ranks in each] for way, each in told.seconds.items()} == {way: [2] for way in ways}
    assert "2 ranks" in balancing.report(SMALL, told).splitlines()[0]
