"""`refill`: which groups are kept, when it stops, and that neither rounds nor ranks show in what is drawn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from flowgraph import Key
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import SettingError
from flowgraph.language.rows import take
from nodes import Policy, Prompts, Rollout, generate, score
from nodes.data.source import prompts_at
from nodes.refill import ScoredRollout, refill
from tests.unit.nodes.refill_rules import by_sample, flat, some

Tiny = Callable[..., LocalModel]

ROWS = [40, 3, 17, 8, 25, 11, 32, 5, 29, 14, 2, 36]  # the step's prompts, in no order
KEY = Key(5, 2, "policy.refill")


def told(rollout: Rollout) -> dict[str, tuple[float, float]]:
    """Add up what was reported, as the runtime does."""
    sums = dict[str, tuple[float, float]]()
    for each in rollout.measures:
        total, count = sums.get(each.name, (0.0, 0.0))
        sums[each.name] = (total + each.total, count + each.count)
    return sums


def groups_of(rollout: Rollout) -> list[int]:
    return list(dict.fromkeys(rollout.group.data.tolist()))


def order_of(rows: Sequence[int], key: Key) -> list[int]:
    """Give the order in which prompts are tried, worked out anew."""
    words = key.generator().bit_generator.random_raw(len(rows))
    return [sorted(rows)[i] for i in np.argsort(words, kind="stable")]


def same(one: Rollout, two: Rollout) -> bool:
    """Say whether two rollouts hold the same rows; log-probs may round otherwise in a batch of other rows."""
    for name, part in one.parts.items():
        a, b = part.data, two.parts[name].data
        if name == "logprobs":
            torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
        elif not (torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b):
            return False
    return True


# ------------------------------------------------------------------------------------------- what is kept


def test_it_stops_after_the_round_that_fills_the_batch_and_drops_what_is_over(tiny: Tiny, digit_rows: pa.Table) -> None:
    got = refill(
        Policy(tiny()), prompts_at(digit_rows, ROWS), groups=3, rounds=3, n=2, max_tokens=4, by=by_sample, key=KEY
    )
    order = order_of(ROWS, KEY)
    assert groups_of(got) == [row for row in ROWS if row in order[:3]]
    assert got.sample.data.tolist() == [0, 1] * 3
    assert got.scores.data.tolist() == [0.0, 1.0] * 3
    sums = told(got)
    assert (sums["rounds"], sums["groups_tried"], sums["groups_kept"]) == ((1, 1), (4, 1), (3, 1))
    assert sums["no_signal"] == (0, 4) and sums["reward"] == (4.0, 8) and sums["response_length"][1] == 8


def test_it_goes_on_round_by_round_until_there_are_enough_with_signal(tiny: Tiny, digit_rows: pa.Table) -> None:
    order = order_of(ROWS, KEY)
    even = [row for row in order if row % 2 == 0]
    for wanted in range(1, len(even) + 1):
        got = refill(
            Policy(tiny()), prompts_at(digit_rows, ROWS), groups=wanted, rounds=6, n=2, max_tokens=3, by=some, key=KEY
        )
        rounds = order.index(even[wanted - 1]) // 2 + 1
        assert told(got)["rounds"] == (rounds, 1)
        assert groups_of(got) == [row for row in ROWS if row in even[:wanted]]
        flat_ones = sum(row % 2 for row in order[: 2 * rounds])
        assert told(got)["no_signal"] == (flat_ones, 2 * rounds)


def test_it_is_bounded_by_its_rounds_and_keeps_what_there_is(tiny: Tiny, digit_rows: pa.Table) -> None:
    got = refill(Policy(tiny()), prompts_at(digit_rows, ROWS), groups=50, rounds=5, n=2, max_tokens=3, by=some, key=KEY)
    assert groups_of(got) == [row for row in ROWS if row % 2 == 0]
    sums = told(got)
    assert (sums["rounds"], sums["groups_tried"], sums["groups_kept"]) == ((5, 1), (12, 1), (6, 1))


def test_with_no_signal_anywhere_one_group_is_kept(tiny: Tiny, digit_rows: pa.Table) -> None:
    got = refill(Policy(tiny()), prompts_at(digit_rows, ROWS), groups=4, rounds=2, n=3, max_tokens=3, by=flat, key=KEY)
    assert groups_of(got) == order_of(ROWS, KEY)[:1] and len(got.scores.data) == 3
    sums = told(got)
    assert (sums["rounds"], sums["groups_kept"], sums["no_signal"]) == ((2, 1), (1, 1), (12, 12))


def test_a_group_of_one_response_has_signal(tiny: Tiny, digit_rows: pa.Table) -> None:
    got = refill(Policy(tiny()), prompts_at(digit_rows, ROWS), groups=5, rounds=4, n=1, max_tokens=3, by=flat, key=KEY)
    assert groups_of(got) == [row for row in ROWS if row in order_of(ROWS, KEY)[:5]]
    assert told(got)["rounds"] == (2, 1)


def test_more_rounds_than_prompts_are_as_many_as_prompts(tiny: Tiny, digit_rows: pa.Table) -> None:
    got = refill(
        Policy(tiny()), prompts_at(digit_rows, ROWS[:2]), groups=1, rounds=9, n=2, max_tokens=3, by=flat, key=KEY
    )
    assert told(got)["rounds"] == (2, 1) and len(got.group.data) == 2


def test_no_prompts_give_no_rows(tiny: Tiny, digit_rows: pa.Table) -> None:
    nothing = take(prompts_at(digit_rows, ROWS), torch.zeros(0, dtype=torch.int64))
    got = refill(Policy(tiny()), nothing, groups=1, n=2, key=KEY)
    assert len(got.scores.data) == 0 and told(got)["rounds"] == (1, 1)


def test_the_order_of_prompts_differs_from_step_to_step_and_seed_to_seed(tiny: Tiny, digit_rows: pa.Table) -> None:
    def kept(key: Key) -> list[int]:
        prompts = prompts_at(digit_rows, ROWS)
        return groups_of(refill(Policy(tiny()), prompts, groups=5, n=2, max_tokens=2, by=by_sample, key=key))

    found = [kept(Key(seed, step, "policy.refill")) for seed, step in ((0, 0), (0, 1), (1, 0))]
    assert found[0] == kept(Key(0, 0, "policy.refill"))
    assert len({tuple(each) for each in found}) == 3


# ------------------------------------------------------------------------------------------- what is drawn


@pytest.mark.parametrize("rounds", [1, 2, 5, 12])
def test_a_response_and_its_score_are_those_of_one_generate_whatever_the_round(
    tiny: Tiny, uneven_rows: pa.Table, rounds: int
) -> None:
    policy, prompts = Policy(tiny(version=3), 3), prompts_at(uneven_rows, [9, 0, 4, 11, 2, 7, 5])
    got = refill(policy, prompts, groups=7, rounds=rounds, n=3, max_tokens=6, by=by_sample, key=KEY)
    whole = generate(policy, prompts, n=3, max_tokens=6, key=KEY)
    assert same(whole, got)
    assert torch.equal(got.scores.data, score(whole, by=by_sample).data)
    assert {name: told(got)[name] for name in told(whole)} == {
        name: pytest.approx(each) for name, each in told(whole).items()
    }


def test_signal_is_that_of_the_rule_that_the_data_name(tiny: Tiny, digit_rows: pa.Table) -> None:
    policy, prompts = Policy(tiny()), prompts_at(digit_rows, list(range(30)))
    got = refill(policy, prompts, groups=30, n=4, max_tokens=4, key=KEY)
    whole = generate(policy, prompts, n=4, max_tokens=4, key=KEY)
    scores = score(whole).data.reshape(-1, 4)
    differ = scores.amax(1) > scores.amin(1)
    assert 0 < int(differ.sum()) < 30
    assert groups_of(got) == differ.nonzero()[:, 0].tolist()
    assert torch.equal(got.scores.data.reshape(-1, 4), scores[differ])


# ------------------------------------------------------------------------------------------- ranks


@dataclass
class Meeting:
    """What ranks that are threads share."""

    count: int
    given: dict[int, torch.Tensor] = field(default_factory=dict[int, torch.Tensor])

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.count, timeout=60)


@dataclass
class ThreadRanks:
    """Ranks that are threads of this process."""

    rank: int
    meeting: Meeting

    @property
    def count(self) -> int:
        """Give how many threads there are."""
        return self.meeting.count

    def union(self, numbers: torch.Tensor) -> torch.Tensor:
        """Join what each thread gives."""
        self.meeting.given[self.rank] = numbers
        self.meeting.barrier.wait()
        joined = torch.cat([self.meeting.given[rank] for rank in range(self.count)])
        self.meeting.barrier.wait()
        return joined

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        """Add up what each thread gives."""
        return self.union(numbers[None]).sum(0)


def on_ranks(tiny: Tiny, parts: Sequence[Prompts], **settings: Any) -> list[ScoredRollout]:
    """Run one refill on ranks that have these prompts each."""
    meeting = Meeting(len(parts))
    handles = [tiny(ranks=ThreadRanks(rank, meeting)) for rank in range(len(parts))]

    def run(rank: int) -> ScoredRollout:
        return refill(Policy(handles[rank]), parts[rank], key=KEY, **settings)

    with ThreadPoolExecutor(len(parts)) as pool:
        return list(pool.map(run, range(len(parts))))


SPLITS = {
    "even": [ROWS[:6], ROWS[6:]],
    "uneven": [ROWS[:1], ROWS[1:]],
    "one has none": [[], ROWS],
    "three": [ROWS[::3], ROWS[1::3], ROWS[2::3]],
}
CASES: dict[str, dict[str, Any]] = {
    "some": {"groups": 4, "rounds": 4, "by": some},
    "all": {"groups": 3, "rounds": 2, "by": by_sample},
    "none": {"groups": 3, "rounds": 3, "by": flat},
    "too few": {"groups": 20, "rounds": 5, "by": some},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("split", SPLITS)
def test_the_rows_kept_are_those_of_one_rank_however_prompts_are_split(
    tiny: Tiny, digit_rows: pa.Table, split: str, case: str
) -> None:
    settings: dict[str, Any] = CASES[case] | {"n": 2, "max_tokens": 4}
    alone = refill(Policy(tiny()), prompts_at(digit_rows, ROWS), key=KEY, **settings)
    told_by = on_ranks(tiny, [prompts_at(digit_rows, rows) for rows in SPLITS[split]], **settings)
    for rows, each in zip(SPLITS[split], told_by, strict=True):
        own = [i for i, group in enumerate(alone.group.data.tolist()) if group in rows]
        order = sorted(own, key=lambda i: rows.index(int(alone.group.data[i])))
        expected = take(alone, torch.tensor(order, dtype=torch.int64))
        width = int(each.lengths.data.max()) if len(order) else 0
        assert same(take(expected, torch.arange(len(order)), width), take(each, torch.arange(len(order)), width))
        assert len(each.group.data) == len(order)
        for name in ("rounds", "groups_tried", "groups_kept"):
            assert told(each)[name] == told(alone)[name]
        assert told(each)["no_signal"] == told(alone)["no_signal"]
    for name in ("reward", "response_length", "finished", "entropy"):
        sums = [told(each)[name] for each in told_by]
        total, count = told(alone)[name]
        assert sum(each for each, _ in sums) == pytest.approx(total) and sum(each for _, each in sums) == count


# ------------------------------------------------------------------------------------------- what it refuses


@pytest.mark.parametrize(
    ("setting", "value"),
    [("groups", 0), ("rounds", 0), ("n", 0), ("temperature", -1.0), ("max_tokens", 0), ("on_error", "skip")],
)
def test_settings_out_of_range_are_refused(tiny: Tiny, digit_rows: pa.Table, setting: str, value: object) -> None:
    settings: dict[str, Any] = {"groups": 1, setting: value}
    with pytest.raises(SettingError, match=f"refill.{setting}="):
        refill(Policy(tiny()), prompts_at(digit_rows, [0]), **settings)
