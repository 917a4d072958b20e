"""Which results of a step are recorded next to a rollout, and their columns in its table.

A column's metadata names the types of its value, so that a reader of the file needs no graph. Not here: writing files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowgraph.language.graph import Graph, Node
from flowgraph.language.values import Kind, Record, Value
from flowgraph.lowering.program import typed_results
from flowgraph.runtime.batch import EXTRAS, PLAIN

if TYPE_CHECKING:
    import pyarrow as pa

TYPES = b"flowgraph.types"  # of a column: the types of its value, from the most specific, separated by spaces
MAX_EXTRAS = 64  # columns of a value's extras: their names come from the data
TOKEN_ROWS = 256  # of each step: the responses whose values of tokens are recorded, if the run sets no number


def rollout_nodes(graph: Graph) -> list[Node]:
    """Return the nodes that sample rollouts; a judge is left out, because it samples but returns scores."""
    return [node for node in graph.nodes if node.op.kind == "generate" and issubclass(node.returns[0], Record)]


def row_values(graph: Graph, node: Node) -> dict[str, str]:
    """Return the types of values with one entry per row, such as scores, by the name of the node that computes each.

    The types of a value are a text: class names from the most specific, separated by spaces. Only the values of nodes
    with one result are returned whose inputs from nodes all derive from the rollout of `node`.
    """
    readers = (reader for reader in _readers(graph, node) if len(reader.returns) == 1)
    return {reader.name: _types(reader.returns[0]) for reader in readers if reader.returns[0].kind is Kind.ROW}


def token_values(graph: Graph, node: Node) -> dict[str, str]:
    """Return the types of values with one entry per token, such as another model's log-probs, by name.

    The types are text as in `row_values`. A name is that of the node that computes the value, or `NODE.INDEX` if it has
    several results. Only the values of nodes whose inputs from nodes all derive from the rollout of `node` are
    returned, and none of a node that also returns a record.
    """
    results = (result for reader in _readers(graph, node) for result in typed_results(reader))
    return {name: _types(kind) for name, kind in results if kind.kind is Kind.TOKEN}


def _readers(graph: Graph, node: Node) -> Iterator[Node]:
    derived = {node}
    for reader in graph.nodes:
        sources = {edge.source for _, edge in reader.inputs if isinstance(edge.source, Node)}
        if sources & derived and sources <= derived:
            derived.add(reader)
            if not any(issubclass(kind, Record) for kind in reader.returns):
                yield reader


def _types(kind: type[Value]) -> str:
    return " ".join(base.__name__ for base in kind.__mro__ if issubclass(base, Value) and base is not Value)


def with_values(
    rollout: pa.Table, values: Sequence[pa.Table], names: Sequence[str], types: Mapping[str, str], token_rows: int
) -> pa.Table:
    """Return the table of a rollout with computed values, such as scores and log-probs, appended as columns.

    `values` are tables of one value each, and `names` are the names of the nodes that computed them. `types` maps a
    name to the text of the value's types, which becomes metadata of its column. A column is called by its name, or
    `name()` if the rollout has a column of that name. A value is skipped if its table has no plain column (of a scalar
    or record) or another number of rows than the rollout. Values with one entry per token are cut to the lengths of the
    responses, and null after the first `token_rows` rows; they are skipped if the rollout has no lengths, or if one is
    null or shorter than its response. If a value has a column of extras, it is appended too.
    """
    import pyarrow as pa

    parts = rollout.column_names
    for name, table in zip(names, values, strict=True):
        if PLAIN not in table.column_names or table.num_rows != rollout.num_rows:
            continue
        column = table.column(PLAIN)
        if pa.types.is_list(column.type) and (column := token_column(column, rollout, token_rows)) is None:
            continue
        field = pa.field(f"{name}()" if name in parts else name, column.type)
        rollout = rollout.append_column(field.with_metadata({TYPES: types.get(name, "").encode()}), column)
        if f"{PLAIN}{EXTRAS}" in table.column_names:
            rollout = rollout.append_column(f"{field.name}{EXTRAS}", table.column(f"{PLAIN}{EXTRAS}"))
    return rollout


def with_extras(rollout: pa.Table) -> pa.Table:
    """Return a rollout with each column of extras replaced by a column for each name in them, such as `score.acc`.

    Extras are JSON objects, one per row. A column has texts if any entry is a text, and numbers otherwise; missing
    entries are null. Of each value, the first 64 names are used. Extras of a value without a column are not changed.
    """
    import pyarrow as pa

    for extras in [name for name in rollout.column_names if name.endswith(EXTRAS)]:
        value = extras.removesuffix(EXTRAS)
        if value not in rollout.column_names:
            continue  # a column of the data
        rows = [json.loads(text or "{}") for text in rollout.column(extras).to_pylist()]
        rollout = rollout.drop([extras])
        for name in list(dict.fromkeys(name for row in rows for name in row))[:MAX_EXTRAS]:
            entries = [row.get(name) for row in rows]
            texts = any(isinstance(entry, str) for entry in entries)
            entries = [entry if entry is None or not texts else str(entry) for entry in entries]
            column = pa.array(entries, pa.string() if texts else pa.float64())
            rollout = rollout.append_column(f"{value}.{name}", column)
    return rollout


def token_column(column: pa.ChunkedArray, rollout: pa.Table, token_rows: int) -> Any:
    """Return a padded column of lists cut to the responses' lengths, as an array that is null from row `token_rows` on.

    Returns None if the rollout has no lengths, or if a list is null or shorter than its response.
    """
    import numpy as np
    import pyarrow as pa

    lists = column.combine_chunks()
    lengths = rollout.column("lengths").to_numpy() if "lengths" in rollout.column_names else None
    widths = lists.value_lengths().to_numpy(zero_copy_only=False)
    if lengths is None or lists.null_count or (widths < lengths).any():
        return None
    counts = np.where(np.arange(len(lengths)) < token_rows, lengths, 0)
    starts = lists.offsets.to_numpy()[:-1].astype(np.int64)
    places = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(starts, counts)
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    numbers = lists.values.take(pa.array(places))
    return pa.ListArray.from_arrays(offsets, numbers, mask=pa.array(np.arange(len(lengths)) >= token_rows))
