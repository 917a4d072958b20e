"""Values of tokens next to a rollout: cut to the responses, of so many rows, with their types."""

from __future__ import annotations

import pyarrow as pa

from examples.grpo import grpo
from examples.ppo import ppo
from flowgraph.passes import compile_graph
from flowgraph.runtime.record.recorded_values import TYPES, rollout_nodes, row_values, token_values, with_values

ROLLOUT = pa.table({"lengths": [2, 0, 3, 1], "mask": [[1.0], [1.0], [1.0], [1.0]]})
PADDED = [[1.0, 2.0, 0.0], [0.0, 0.0, 0.0], [3.0, 4.0, 5.0], [6.0, 0.0, 0.0]]


def plain(values: list[object]) -> pa.Table:
    return pa.table({"value": values})


def test_token_values_are_cut_to_each_response_and_null_after_the_last_recorded_row() -> None:
    names, types = ["ref.logprobs", "score"], {"ref.logprobs": "LogProbs"}
    values = [plain([*PADDED]), plain([0.5, 1.0, 0.0, 0.25])]
    table = with_values(ROLLOUT, values, names, types, token_rows=3)
    assert table["ref.logprobs"].to_pylist() == [[1.0, 2.0], [], [3.0, 4.0, 5.0], None]
    assert table["score"].to_pylist() == [0.5, 1.0, 0.0, 0.25]
    assert table.field("ref.logprobs").metadata == {TYPES: b"LogProbs"}


def test_values_that_do_not_fit_the_responses_are_left_out() -> None:
    short = plain([[1.0], [], [1.0, 2.0], [1.0]])  # the third response has three tokens
    for value in (short, plain([[1.0, 1.0, 1.0]]), pa.table({"other": [1, 2, 3, 4]})):
        assert with_values(ROLLOUT, [value], ["kl"], {}, token_rows=9).column_names == ROLLOUT.column_names
    assert with_values(ROLLOUT, [plain([1, 2, 3, 4])], ["mask"], {}, 0).column_names[-1] == "mask()"


def test_what_is_recorded_is_computed_from_one_rollout_alone() -> None:
    graph = compile_graph(grpo.graph())
    (node,) = rollout_nodes(graph)
    assert row_values(graph, node) == {"score": "Scores Linear", "group_normalize": "Advantages Linear"}
    assert token_values(graph, node) == {"ref.logprobs": "LogProbs"}
    graph = compile_graph(ppo.graph())
    tokens = token_values(graph, rollout_nodes(graph)[0])
    assert tokens["whiten"].split()[1] == "Advantages" and tokens["gae.1"] == "Returns"
