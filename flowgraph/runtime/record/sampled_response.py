"""One response of a step in the form that a display shows: the end of its prompt, its text, and its scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowgraph.language.graph import Graph
from flowgraph.runtime.batch import PLAIN
from flowgraph.runtime.record.recorded_values import rollout_nodes, row_values

if TYPE_CHECKING:
    import pyarrow as pa

CHARACTERS_AT_MOST = 2000  # of the prompt and of the response; a display has no room for more


@dataclass(frozen=True, kw_only=True)
class SampledResponse:
    """A response and its prompt as text; `scores` are the scores of the response by the node that computed them."""

    prompt: str
    response: str
    scores: Mapping[str, float]


def sampled_names(graph: Graph) -> tuple[str, ...]:
    """Return the names of the results that `sampled_response` needs: the first node that samples, then its scores.

    The scores are the results of nodes that score this node's rollout alone. Empty if no node samples.
    """
    nodes = rollout_nodes(graph)
    scores = {node.name for node in graph.nodes if node.op.kind == "score"}
    return (nodes[0].name, *(name for name in row_values(graph, nodes[0]) if name in scores)) if nodes else ()


def sampled_response(tables: Sequence[pa.Table], names: Sequence[str], place: int) -> SampledResponse | None:
    """Return the response in row `place`, modulo the number of rows; None if the rollout has no text or no rows.

    The first of `tables` is the rollout; the others are scores, and `names` are the names of these scores. A score
    table with another number of rows is skipped; without scores, those of the rollout itself are used. The prompt (for
    a chat, its last message) is cut to its last 2,000 characters, and the response to its first 2,000.
    """
    rollout, *values = tables
    if "text" not in rollout.column_names or not rollout.num_rows:
        return None
    at = place % rollout.num_rows
    row = rollout.slice(at, 1)
    scores = {
        name: table.column(PLAIN)[at].as_py()
        for name, table in zip(names, values, strict=True)
        if table.num_rows == rollout.num_rows and PLAIN in table.column_names
    }
    if not scores and "scores" in row.column_names:  # a node that samples and scores
        scores = {"score": row.column("scores")[0].as_py()}
    prompt = row.column("columns.prompt")[0].as_py() if "columns.prompt" in row.column_names else ""
    if isinstance(prompt, list):  # of messages, what the last one says
        prompt = prompt[-1] if prompt else ""
        prompt = prompt.get("content", "") if isinstance(prompt, dict) else prompt
    return SampledResponse(
        prompt=("" if prompt is None else str(prompt))[-CHARACTERS_AT_MOST:],
        response=str(row.column("text")[0].as_py())[:CHARACTERS_AT_MOST],
        scores={name: float(value) for name, value in scores.items() if isinstance(value, (int, float))},
    )
