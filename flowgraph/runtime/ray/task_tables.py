"""The Arrow tables of a task on one rank: of its results, of what it sends, and of the chunks that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from flowgraph.lowering.program import Run, results_given
from flowgraph.runtime.batch import select, to_table
from flowgraph.runtime.join_chunks import with_terms
from flowgraph.runtime.row_identity import StoredValue, lengths_for, with_ids
from flowgraph.runtime.worker import DeviceWorker, NodeResults

if TYPE_CHECKING:
    import pyarrow as pa

Shards = Sequence[tuple[int, bool]]
"""For each value that a task reads: the number of its tables, and whether their rows are this rank's already."""


def table_with_ids(stored: StoredValue, inputs: Sequence[StoredValue] = ()) -> pa.Table:
    """Return a stored value as a table, with the ids of its rows as columns. Raises LawError as `to_table` does.

    Token columns are cut to the lengths in their record. Where there are none, they are cut to the first lengths in
    `inputs`, the inputs of the node that computed the value, that fit (see `lengths_for`); if none fit, all tokens are
    kept.
    """
    return with_ids(to_table(stored.value, lengths_for(stored.value, inputs)), stored.ids)


def result_tables(task: Run, rows: NodeResults) -> list[pa.Table]:
    """Return the tables of a task on this rank's `rows`: one for each result, then one for each value that it sends."""
    tables = {
        name: with_terms(table_with_ids(stored, rows.inputs[name]), stored.terms)
        for name, stored in rows.values.items()
    }
    return [*tables.values(), *(select(tables[name], parts) for name, parts in task.sends)]


def empty_tables(worker: DeviceWorker, task: Run) -> list[pa.Table]:
    """Return what a task returns for a chunk without groups: tables without columns, one per result and sent value."""
    import pyarrow as pa

    nodes = {node.name: node for node in worker.graph.nodes}
    return [pa.table({})] * (sum(1 for _ in results_given(task, nodes)) + len(task.sends))


def chunk_tables(task: Run, shards: Shards, tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Return the tables of the values that a task reads chunk by chunk, of all its input `tables`, in their order."""
    waiting = iter(tables)
    pieces = {name: list(islice(waiting, number)) for name, (number, _) in zip(task.reads, shards, strict=True)}
    return [piece for name in task.streamed for piece in pieces[name]]
