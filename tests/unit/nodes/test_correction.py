"""Importance weights and rejection by hand: degenerate batches, what is refused, and what must change nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowgraph import Mask
from flowgraph.errors import FlowError, LawError, SettingError
from nodes.correction import Level, Test, importance_weights, normalized_weights, rejected
from nodes.values import ImportanceWeights, LogProbs
from tests.looped import looped
from tests.parity.formulas.batches import Batch, batches

NAN, INF = float("nan"), float("inf")
MASK = Mask(torch.tensor([[1.0, 0, 1], [1, 0, 0], [0, 0, 0]]))
OLD = LogProbs(torch.tensor([[-1.0, NAN, -2.0], [-3.0, NAN, NAN], [NAN, NAN, NAN]]))
DRAWN = LogProbs(torch.tensor([[-2.0, NAN, -1.5], [-1.0, INF, NAN], [NAN, NAN, NAN]]))
TESTS: tuple[Test, ...] = get_args(Test)
LEVELS: tuple[Level, ...] = get_args(Level)


def means(value: Any) -> dict[str, float]:
    return {each.name: each.total / each.count for each in value.measures if each.count}


def test_tokens_are_weighed_one_by_one_and_rows_as_a_whole() -> None:
    e = torch.tensor([1.0, -0.5, -2.0, 0.5]).exp().tolist()
    tokens = importance_weights(OLD, MASK, behaviour=DRAWN, cap=None)
    assert tokens.data.flatten().tolist() == pytest.approx([e[0], 0, e[1], e[2], 0, 0, 0, 0, 0])
    rows = importance_weights(OLD, MASK, behaviour=DRAWN, cap=None, level="sequence")
    assert rows.data.flatten().tolist() == pytest.approx([e[3], 0, e[3], e[2], 0, 0, 0, 0, 0])
    assert means(rows)["weight"] == pytest.approx((e[3] + e[2]) / 2), "a row without a token is none"


def test_a_cap_truncates_and_bounds_leave_out() -> None:
    capped = importance_weights(OLD, MASK, behaviour=DRAWN, cap=1.5)
    assert capped.data[0].tolist() == pytest.approx([1.5, 0, 0.6065307])
    within = importance_weights(OLD, MASK, behaviour=DRAWN, cap=None, low=0.5, high=1.5)
    assert within.data[0].tolist() == pytest.approx([0, 0, 0.6065307])
    for each in (capped, importance_weights(OLD, MASK, behaviour=DRAWN, cap=None, low=1 / 1.5, high=1.5)):
        assert means(each)["weight_high"] == pytest.approx(1 / 3)
        assert means(each)["weight_low"] == pytest.approx(2 / 3)
    assert "weight_low" not in means(importance_weights(OLD, MASK, behaviour=DRAWN, cap=None, high=1.5))


def test_the_effective_sample_size_is_read_from_two_means() -> None:
    told = means(importance_weights(OLD, MASK, behaviour=DRAWN))
    weights = importance_weights(OLD, MASK, behaviour=DRAWN).data[MASK.data > 0].double()
    wanted = 1 / ((weights / weights.mean()) ** 2).mean()
    assert told["weight"] ** 2 / told["weight_squared"] == pytest.approx(float(wanted))


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_log_ratios_are_held_where_they_would_overflow(level: Any) -> None:
    far, mask = torch.full((1, 2), -500.0), Mask(torch.ones(1, 2))
    for old, drawn, wanted in ((torch.zeros(1, 2), far, 20.0), (far, torch.zeros(1, 2), -20.0)):
        found = importance_weights(LogProbs(old), mask, behaviour=LogProbs(drawn), cap=None, level=level)
        assert found.data.tolist() == [pytest.approx([float(torch.tensor(wanted).exp())] * 2)]
    impossible = LogProbs(torch.full((1, 2), -INF))
    assert importance_weights(impossible, mask, behaviour=LogProbs(far), level=level).data.isfinite().all()


def test_no_gradient_flows_through_weights() -> None:
    old = torch.zeros(1, 2, requires_grad=True)
    weights = importance_weights(LogProbs(old), Mask(torch.ones(1, 2)), behaviour=LogProbs(torch.zeros(1, 2)))
    assert not weights.data.requires_grad
    assert not normalized_weights(weights, Mask(torch.ones(1, 2)), level="token").data.requires_grad


@looped("rows, tokens", [(0, 0), (0, 3), (2, 0), (2, 3)])
@looped("test", TESTS)
@looped("level", ["token", "sequence"])
def test_a_batch_in_which_nothing_counts_gives_nothing(rows: int, tokens: int, test: Test, level: Any) -> None:
    none, mask = LogProbs(torch.full((rows, tokens), NAN)), Mask(torch.zeros(rows, tokens))
    weights = importance_weights(none, mask, behaviour=none, level=level)
    for made in (weights, normalized_weights(weights, mask, level=level)):
        assert torch.equal(made.data, torch.zeros(rows, tokens)) and means(made) == {}
    left = rejected(mask, old=none, behaviour=none, test=test, high=2.0)
    assert torch.equal(left.data, mask.data) and means(left) == {}


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_weights_that_are_all_0_stay_0(level: Any) -> None:
    nothing = ImportanceWeights(torch.zeros(3, 3))
    assert torch.equal(normalized_weights(nothing, MASK, level=level).data, torch.zeros(3, 3))


def test_normalising_counts_tokens_or_rows() -> None:
    weights = ImportanceWeights(torch.tensor([[1.0, NAN, 1.0], [4.0, 9.0, 9.0], [9.0, 9.0, 9.0]]))
    assert normalized_weights(weights, MASK, level="token").data.flatten().tolist() == [0.5, 0, 0.5, 2, 0, 0, 0, 0, 0]
    by_rows = normalized_weights(weights, MASK, level="sequence")
    assert by_rows.data.flatten().tolist() == pytest.approx([0.4, 0, 0.4, 1.6, 0, 0, 0, 0, 0])
    assert means(by_rows) == {"scale": 2.5}


# ------------------------------------------------------------------------------------------- rejection


def test_a_test_of_tokens_drops_tokens_and_one_of_rows_drops_rows() -> None:
    def left(test: Test, **bounds: float) -> list[float]:
        told: dict[str, Any] = {"test": test, **bounds}
        left: list[float] = rejected(MASK, old=OLD, behaviour=DRAWN, **told).data.flatten().tolist()
        return left

    nobody, everybody = [0.0] * 9, MASK.data.flatten().tolist()
    assert left("token_k1", high=2.0) == [0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert left("token_k1", low=0.1, high=2.0) == [1, 0, 1, 0, 0, 0, 0, 0, 0], "behaviour / old is 0.37, 1.6 and 7.4"
    assert left("token_k2", high=0.5) == [1, 0, 1, 0, 0, 0, 0, 0, 0]
    assert left("seq_sum_k1", high=1.7) == [1, 0, 1, 0, 0, 0, 0, 0, 0], "the product is 0.6: 1 and -0.5 make up"
    assert left("seq_mean_k1", high=1.2) == nobody
    assert left("seq_mean_k1", high=8.0) == everybody
    assert left("seq_max_k2", high=0.4) == nobody
    assert left("seq_max_k3", high=1.2) == [1, 0, 1, 1, 0, 0, 0, 0, 0]


def test_tests_are_nested_to_ask_for_all_of_them() -> None:
    rows = rejected(MASK, old=OLD, behaviour=DRAWN, test="seq_max_k2", high=1.0)
    both = rejected(rows, old=OLD, behaviour=DRAWN, test="token_k2", high=0.3)
    assert both.data.flatten().tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert (means(rows), means(both)) == (
        {"rejected": pytest.approx(1 / 3), "rejected_rows": 0.5},
        {"rejected": 0.5, "rejected_rows": 0.0},
    )


def test_what_is_nan_fails_every_test() -> None:
    old, drawn, mask = LogProbs(torch.full((1, 1), NAN)), LogProbs(torch.zeros(1, 1)), Mask(torch.ones(1, 1))
    for test in TESTS:
        assert rejected(mask, old=old, behaviour=drawn, test=test, high=2.0).data.tolist() == [[0.0]]


# ------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    "told",
    [torch.tensor([[-1.0, NAN]]), torch.tensor([[-1.0, -INF]]), torch.zeros(1, 0), None],
    ids=["one lacks", "one is impossible", "no column", "no data"],
)
def test_an_engine_that_tells_no_log_probs_is_named(told: torch.Tensor | None) -> None:
    old, mask = LogProbs(torch.zeros(1, 2)), Mask(torch.ones(1, 2))
    lacking = 1 if told is not None and told.shape[1] else 2
    calls: dict[str, Callable[[], object]] = {
        "importance_weights": lambda: importance_weights(old, mask, behaviour=LogProbs(told)),
        "rejected": lambda: rejected(mask, old=old, behaviour=LogProbs(told), test="token_k1", high=2.0),
    }
    for name, call in calls.items():
        with pytest.raises(LawError) as caught:
            call()
        assert str(caught.value) == (
            f"{name}(behaviour=) needs the log-probs that rows were sampled with, but {lacking} of 2 tokens have none\n"
            "  hint: sample on an engine that reports them, or leave the correction out"
        )


@looped(
    "settings, said",
    [
        ({"low": 0.5, "high": 2.0}, "low=0.5: a cap truncates and bounds leave out: with low or high, set cap=None"),
        ({"high": 2.0}, "high=2.0: a cap truncates and bounds leave out"),
        ({"cap": 3.0, "low": 0.1}, "low=0.1: a cap truncates and bounds leave out"),
        ({"cap": None, "low": 2.0, "high": 2.0}, "high=2.0: should be greater than low=2.0"),
        ({"cap": 0.0}, "cap=0.0: should be greater than 0"),
        ({"cap": NAN}, "cap=nan: "),
        ({"cap": None, "low": -1.0}, "low=-1.0: should be greater than 0"),
        ({"level": "row"}, "level='row': should be 'token' or 'sequence'"),
    ],
)
def test_weights_take_one_form(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError) as caught:
        importance_weights(OLD, MASK, behaviour=DRAWN, **settings)
    assert f"importance_weights.{said}" in str(caught.value)


@looped(
    "settings, said",
    [
        ({"test": "token_k1"}, "lacks the setting `high`"),
        ({"test": "token_k1", "high": 1.0}, "high=1.0: should be greater than 1, for low is 1 / high unless it is set"),
        ({"test": "token_k1", "low": 1.0, "high": 1.0}, "high=1.0: should be greater than low=1.0"),
        ({"test": "seq_sum_k3", "low": 0.1, "high": 1.0}, "low=0.1: seq_sum_k3 has an upper bound only"),
        ({"test": "seq_max_k1", "high": 2.0}, "test='seq_max_k1': should be"),
    ],
)
def test_a_test_takes_the_bounds_that_it_has(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(FlowError) as caught:
        rejected(MASK, old=OLD, behaviour=DRAWN, **settings)
    assert said in str(caught.value)


# ------------------------------------------------------------------------------------------- what changes nothing

Made = Callable[[torch.Tensor, torch.Tensor, Mask], torch.Tensor]


def weights_of(level: Level, old: torch.Tensor, drawn: torch.Tensor, mask: Mask) -> torch.Tensor:
    found: torch.Tensor = importance_weights(LogProbs(old), mask, behaviour=LogProbs(drawn), level=level).data
    return found


def normalized(level: Level, old: torch.Tensor, drawn: torch.Tensor, mask: Mask) -> torch.Tensor:
    found: torch.Tensor = normalized_weights(ImportanceWeights((old - drawn).exp()), mask, level=level).data
    return found


def left_by(test: Test, old: torch.Tensor, drawn: torch.Tensor, mask: Mask) -> torch.Tensor:
    left: torch.Tensor = rejected(mask, old=LogProbs(old), behaviour=LogProbs(drawn), test=test, high=1.5).data
    return left


MAKERS: dict[str, Made] = {
    **{f"weights by {level}": partial(weights_of, level) for level in LEVELS},
    **{f"normalized by {level}": partial(normalized, level) for level in LEVELS},
    **{test: partial(left_by, test) for test in TESTS},
}


@pytest.mark.parametrize("name", MAKERS)
@given(batch=batches(), data=st.data())
def test_rows_in_another_order_and_masked_tokens_change_nothing(name: str, batch: Batch, data: st.DataObject) -> None:
    make, mask = MAKERS[name], batch.masks()
    old, drawn = (torch.from_numpy(batch.column(each, -2.0, 0.0)) for each in ("old", "drawn"))
    made = make(old, drawn, mask)
    order = torch.tensor(data.draw(st.permutations(range(len(old)))))
    torch.testing.assert_close(make(old[order], drawn[order], Mask(mask.data[order])), made[order])
    pad = torch.nn.functional.pad
    padded = make(pad(old, (0, 2), value=NAN), pad(drawn, (0, 2), value=NAN), Mask(pad(mask.data, (0, 2))))
    torch.testing.assert_close(padded, pad(made, (0, 2)))
    assert made.dtype == old.dtype
