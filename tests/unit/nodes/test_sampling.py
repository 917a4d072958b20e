"""`generate`: what a rollout holds. How tokens are drawn is held in tests/parity/test_sampling.py."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
import torch

from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import SettingError
from flowgraph.language import Key
from flowgraph.language.values import Group
from nodes import Columns, Policy, Prompts, generate
from nodes.data.source import prompts_at

Tiny = Callable[..., LocalModel]


def test_a_rollout_holds_n_rows_for_each_prompt_side_by_side(tiny: Tiny, uneven_rows: pa.Table) -> None:
    rollout = generate(Policy(tiny(version=4), 4), prompts_at(uneven_rows, [6, 2]), n=3, max_tokens=5)
    assert rollout.group.data.tolist() == [6, 6, 6, 2, 2, 2]
    assert rollout.sample.data.tolist() == [0, 1, 2] * 2
    assert rollout.trajectory.data.tolist() == [0] * 6
    texts = ["1+2+3+4+5=?1"] * 3 + ["3+4=?"] * 3
    assert [row[0]["content"] for row in rollout.columns.data["prompt"].to_pylist()] == texts
    assert [len(row) for row in rollout.context.data.to_pylist()] == [14] * 3 + [7] * 3
    assert rollout.temperature.data == 1.0


def test_token_columns_lie_inside_the_lengths_and_are_zero_beyond(tiny: Tiny, uneven_rows: pa.Table) -> None:
    rollout = generate(Policy(tiny(version=4), 4), prompts_at(uneven_rows, list(range(12))), n=4, max_tokens=9)
    lengths, width = rollout.lengths.data, int(rollout.lengths.data.max())
    inside = torch.arange(width)[None] < lengths[:, None]
    assert len(set(lengths.tolist())) > 2
    assert torch.equal(rollout.mask.data, inside.float())
    assert torch.equal(rollout.versions.data, inside.long() * 4)
    for column in (rollout.tokens, rollout.logprobs):
        assert column.data.shape == inside.shape and not column.data[~inside].any()
    assert (rollout.logprobs.data[inside] < 0).all()
    assert rollout.tokens.data.dtype == torch.int64 and rollout.logprobs.data.dtype == torch.float32


def test_a_response_is_finished_where_it_ends_by_itself_and_its_text_has_no_end_token(
    tiny: Tiny, uneven_rows: pa.Table
) -> None:
    rollout = generate(Policy(tiny()), prompts_at(uneven_rows, list(range(12))), n=8, max_tokens=6)
    rows = zip(rollout.tokens.data.tolist(), rollout.lengths.data.tolist(), rollout.finished.data.tolist(), strict=True)
    for (tokens, length, finished), text in zip(rows, rollout.text.data.to_pylist(), strict=True):
        assert finished == (tokens[length - 1] == 2) and (finished or length == 6)
        assert "<eos>" not in text
    assert 0 < rollout.finished.data.float().mean() < 1


def test_what_is_reported_is_counted_in_responses_and_in_tokens(tiny: Tiny, uneven_rows: pa.Table) -> None:
    rollout = generate(Policy(tiny()), prompts_at(uneven_rows, [0, 1]), n=2, max_tokens=5)
    told = {each.name: (each.total, each.count) for each in rollout.measures}
    tokens = float(rollout.lengths.data.sum())
    assert told["response_length"] == (tokens, 4)
    assert told["finished"] == (float(rollout.finished.data.sum()), 4)
    assert told["entropy"] == (pytest.approx(-float(rollout.logprobs.data.sum())), tokens)
    greedy = generate(Policy(tiny()), prompts_at(uneven_rows, [0]), temperature=0.0, max_tokens=5)
    assert {each.name: each.count for each in greedy.measures}["entropy"] == 0


def test_no_prompts_give_no_rows(tiny: Tiny, uneven_rows: pa.Table) -> None:
    nothing = Prompts(group=Group(torch.zeros(0, dtype=torch.int64)), columns=Columns(uneven_rows.slice(0, 0)))
    rollout = generate(Policy(tiny()), nothing, n=2)
    assert rollout.tokens.data.shape == (0, 0) and rollout.group.data.dtype == torch.int64
    assert len(rollout.text.data) == 0 and rollout.columns.data.num_rows == 0


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("n", 0),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", 1e-300),
        ("temperature", 0.0099),
        ("max_tokens", 0),
        ("stop", [10**30]),
        ("stop", [2**31]),
    ],
)
def test_settings_out_of_range_are_refused(tiny: Tiny, uneven_rows: pa.Table, setting: str, value: float) -> None:
    with pytest.raises(SettingError, match=f"generate.{setting}="):
        generate(Policy(tiny()), prompts_at(uneven_rows, [0]), **{setting: value})  # type: ignore[arg-type]


def test_a_temperature_that_is_too_low_is_refused_with_the_bound_and_the_reason(
    tiny: Tiny, uneven_rows: pa.Table
) -> None:
    prompts = prompts_at(uneven_rows, [0])
    with pytest.raises(SettingError) as caught:
        generate(Policy(tiny()), prompts, temperature=1e-300)
    why = "should be 0, which is greedy, or at least 0.01: gradients are divided by it, and vLLM samples no colder"
    assert str(caught.value).endswith(f"generate.temperature=1e-300: {why}")
    assert generate(Policy(tiny()), prompts, temperature=0.01, max_tokens=2).temperature.data == 0.01


def test_called_by_hand_a_node_draws_with_the_key_it_is_given(tiny: Tiny, uneven_rows: pa.Table) -> None:
    policy, prompts = Policy(tiny()), prompts_at(uneven_rows, [0, 3])
    one, same, other = (generate(policy, prompts, n=4, max_tokens=8, key=key) for key in (Key(1), Key(1), Key(2)))
    assert torch.equal(one.tokens.data, same.tokens.data)
    assert one.text.data != other.text.data
