"""What host processes do: run host nodes, read and write rows, join chunks, and call functions on tables."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.language.region import Observations
from flowgraph.lowering.program import Join
from flowgraph.runtime.batch import write_rows
from flowgraph.runtime.finished_groups import Pick, picked_table
from flowgraph.runtime.join_chunks import joined_table
from flowgraph.runtime.measure.measured_task import about_task, measuring
from flowgraph.runtime.places import RowSource
from flowgraph.runtime.ray.device import Flows, RankActor
from flowgraph.runtime.ray.task_tables import table_with_ids
from flowgraph.runtime.row_identity import IDS, StoredValue, join_shards

if TYPE_CHECKING:
    import pyarrow as pa


def join_chunk_tables(task: Join, counts: Sequence[int], *tables: pa.Table) -> tuple[pa.Table, Observations]:
    """Join the tables of a value's chunks into one, and return it with the metrics that are those of the whole batch.

    `tables` are those of one chunk after another, then those of the value that has the order of the rows; `counts` has
    the number of tables of each. The returned observations also have the measured time of this task. Raises the errors
    of `joined_table`.
    """
    parts = iter(tables)
    *chunks, like = [list(islice(parts, count)) for count in counts]
    with measuring(about_task(task)) as meter:
        meter.reads(*tables)
        joined, observed = joined_table(chunks, like, task.value, task.like)
        meter.gives(joined)
    observed.measured.append(meter.measured)
    return joined, observed


def pick_tables(picks: Sequence[Pick], groups: Sequence[str], name: str, *tables: pa.Table) -> pa.Table:
    """Return a table with the picked rows of each table, in order; the arguments are those of `picked_table`.

    Raises LawError as `picked_table` does.
    """
    return picked_table(tables, picks, groups, name)


def read_source(source: RowSource, step: int) -> pa.Table:
    """Return the rows of step `step` from a source as a table with the rows' ids."""
    return table_with_ids(StoredValue.of(source.batch(step)))


def keep_tables(path: Path, *tables: pa.Table) -> None:
    """Join the tables of one value, each from one rank, and write them with the row ids to the Arrow file `path`.

    An existing file is replaced. Raises LawError if the ranks return different scalars, and OSError if writing fails.
    """
    write_rows(join_shards(list(tables), path.name), path)


def apply_to_tables(function: Callable[..., Any], counts: Sequence[int], rest: Sequence[Any], *tables: pa.Table) -> Any:
    """Join the tables of each result, call `function(joined_tables, *rest)`, and return what the function returns.

    `tables` are the tables of one result after another, each from one rank; `counts` has the number of tables of each
    result. Columns of row ids are left out. Raises LawError if the ranks of a result return different scalars.
    """
    parts = iter(tables)
    joined_tables = [join_shards(list(islice(parts, count)), "a result") for count in counts]
    columns = [[name for name in table.column_names if name not in IDS] for table in joined_tables]
    return function([table.select(names) for table, names in zip(joined_tables, columns, strict=True)], *rest)


@cache
def host_process(flows: Flows) -> RankActor:
    """Return the actor that runs host nodes in this process; it is created by the first call with these flows."""
    return RankActor(flows)


def warm_up(flows: Flows) -> None:
    """Import torch and the flows in this host process, so that the first node does not wait for them."""
    importlib.import_module("torch")  # not used here, but by every node's body
    host_process(flows).read()


def run_on_host(flows: Flows, scratch: Path, *rest: Any) -> tuple[Any, ...]:
    """Run a task in this host process, and return what `RankActor.run` returns.

    `rest` are the arguments of `RankActor.run`. Temporary files of the task are created in `scratch`, if it exists on
    this machine: Ray kills this process and its children at the end, so they cannot be relied on to remove their files.
    """
    if scratch.is_dir():  # not on another machine
        tempfile.tempdir = str(scratch)
    return host_process(flows).run(*rest)
