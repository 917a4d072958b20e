"""Bytes of values as they travel, column by column: Arrow tables without padding, rows' ids beside them.

Counted as if every response had its most tokens. What a type does not say is None, never nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from flowgraph.cluster.plan import Plan
from flowgraph.language.graph import Edge, Graph, Node, Param
from flowgraph.language.rows import leaf_paths
from flowgraph.language.values import Context, Group, Kind, Sample, Trajectory, Value
from placements.work import Workload, samples_of, uncounted, whole_setting

IDS = (Group, Sample, Trajectory)
ID_BYTES = 8
OFFSET_BYTES = 4  # of where a row's list ends, in Arrow
PLAIN = "value"  # the column of a value that is no record


@dataclass(frozen=True)
class Extent:
    """How far a value goes: `n` rows to each of `prompts`, responses of `tokens`, `ids` that tell its rows apart.

    None is not known; no prompts at all are a value without rows.
    """

    prompts: int | None = 0
    n: int = 1
    tokens: int | None = None
    ids: int = 0

    @property
    def rows(self) -> int | None:
        """Return the rows."""
        return None if self.prompts is None else self.prompts * self.n


@dataclass(frozen=True)
class Part:
    """One column of a value, or its rows' ids, or a model's weights; None where its bytes are not known."""

    name: str
    size_bytes: int | None


def extents(graph: Graph, workload: Workload) -> dict[Node | Param, Extent]:
    """Return the extent of each parameter and node of a named graph.

    A sampler makes `n` rows to each prompt that it reads, or to the `groups` that it keeps. Rows that a node of another
    kind makes are not known.
    """
    found = dict[Node | Param, Extent]()
    for param in graph.params:
        rows = workload.prompts if _has_rows(param.type) else 0
        found[param] = Extent(rows, ids=_ids((param.type,)))
    for node in graph.nodes:
        read = widest(found, (edge for port, edge in node.inputs if not node.op.port(port).other_rows))
        found[node] = _made(node, read, workload)
    return found


def _made(node: Node, read: Extent, workload: Workload) -> Extent:
    ids = _ids(node.returns)
    if node.op.kind == "generate":
        kept = (
            None
            if read.prompts is None or uncounted(node)
            else min(read.prompts, whole_setting(node, "groups", read.prompts))
        )
        tokens = whole_setting(node, "max_tokens", workload.response_tokens)
        return Extent(kept, samples_of(node), tokens, ids)
    return replace(read, prompts=None, ids=ids) if node.op.rows == "new" else replace(read, ids=max(ids, read.ids))


def widest(found: Mapping[Node | Param, Extent], edges: Iterable[Edge]) -> Extent:
    """Return the extent of the most rows among what these edges carry; not known as soon as one is not."""
    rows = [found[e.source] for e in edges if _has_rows(e.type) and isinstance(e.source, Node | Param)]
    unknown = (each for each in rows if each.rows is None)
    return next(unknown, max(rows, key=lambda each: each.rows or 0, default=Extent()))


def columns_of(kind: type[Value], extent: Extent, prompt_tokens: int, paths: Iterable[str] = ()) -> Iterator[Part]:
    """Return the bytes of each column of a value, of a record those at `paths` if any are named, then those of ids."""
    wanted = set(paths)
    for path, part in leaf_paths(kind):
        if not wanted or path in wanted:
            yield Part(path or PLAIN, column_bytes(part, extent, prompt_tokens))
    if _has_rows(kind) and extent.ids:
        yield Part("ids", None if extent.rows is None else extent.rows * extent.ids * ID_BYTES)


def column_bytes(kind: type[Value], extent: Extent, prompt_tokens: int) -> int | None:
    """Return the bytes of one column: entries of its type's width, and of lists where each ends; flags are bits.

    >>> class Flag(Value):
    ...     kind, dtype = Kind.ROW, "bool"
    >>> column_bytes(Flag, Extent(16), 0), column_bytes(Context, Extent(2), 5)
    (2, 52)
    """
    bits = dtype_bits(kind.dtype)
    if kind.kind not in (Kind.ROW, Kind.TOKEN):
        return None if bits is None else -(-bits // 8)
    entries = extent.tokens if kind.kind is Kind.TOKEN else prompt_tokens if issubclass(kind, Context) else 1
    if bits is None or extent.rows is None or entries is None:
        return None
    listed = kind.kind is Kind.TOKEN or issubclass(kind, Context)
    return -(-bits * extent.rows * entries // 8) + (OFFSET_BYTES * (extent.rows + 1) if listed else 0)


def sent_number_bytes(plan: Plan | None, param: str) -> int:
    """Return the bytes of one weight of a model as it is sent: in float32, or in the half of it to what runs in less.

    That is what samples the model, or else the first of its roles; without a plan it is float32. What an engine keeps
    in fewer bits than 16 it converts by itself.
    """
    own = [each for each in plan.placed if each.role.partition(".")[0] == param] if plan is not None else []
    own.sort(key=lambda each: not each.role.endswith(".sample"))
    return 4 if not own or own[0].running.precision == "float32" else 2


def dtype_bits(dtype: str) -> int | None:
    """Return the bits of one entry by the name that numpy has for its type; None for texts, tables and the unknown.

    >>> dtype_bits("float32"), dtype_bits("bool"), dtype_bits("text"), dtype_bits("")
    (32, 1, None, None)
    """
    found = re.fullmatch(r"(?:u?int|b?float)(\d+)", dtype)
    return int(found[1]) if found else 1 if dtype == "bool" else None


def _has_rows(kind: type[Value]) -> bool:
    return kind.kind in (Kind.ROW, Kind.TOKEN)


def _ids(kinds: Iterable[type[Value]]) -> int:
    """Count what tells the rows of the best told of these values apart: prompt, sample, trajectory."""
    leaves = ([part for _, part in leaf_paths(kind)] for kind in kinds)
    return max((sum(any(issubclass(part, each) for part in parts) for each in IDS) for parts in leaves), default=0)
