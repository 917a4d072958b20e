"""Bytes of values in transfers, column by column: Arrow tables without padding, and the ids of rows.

Responses are assumed to have their maximum length. Sizes that a type does not determine are None, never 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from flowgraph.cluster.plan import Plan
from flowgraph.language.graph import Edge, Graph, Node, Param
from flowgraph.language.rows import leaf_paths
from flowgraph.language.values import Context, Group, Kind, Sample, Trajectory, Value
from placements.workload.graph_workload import StepWorkload, samples_of, uncounted, whole_setting

IDS = (Group, Sample, Trajectory)
ID_BYTES = 8
OFFSET_BYTES = 4  # of where a row's list ends, in Arrow
PLAIN = "value"  # the column of a value that is not a record


@dataclass(frozen=True)
class ValueExtent:
    """The size of a value: `n` rows for each of `prompts`, responses of `tokens` tokens, and `ids` columns of row ids.

    None means not known; a value with 0 prompts has no rows.
    """

    prompts: int | None = 0
    n: int = 1
    tokens: int | None = None
    ids: int = 0

    @property
    def rows(self) -> int | None:
        """Return the number of rows; None if not known."""
        return None if self.prompts is None else self.prompts * self.n


@dataclass(frozen=True)
class ValueColumn:
    """One column of a value, the ids of its rows, or a model's weights; `size_bytes` is None if not known."""

    name: str
    size_bytes: int | None


def extents(graph: Graph, workload: StepWorkload) -> dict[Node | Param, ValueExtent]:
    """Return the extent of each parameter and node of a named graph: rows, tokens of responses, and columns of row ids.

    A sampler makes `n` rows for each prompt that it reads, or for each of the `groups` that it keeps. Other nodes have
    the rows of the largest value that they read. Unknown are the rows of samplers that do not declare how many
    responses they generate, and of other nodes that create rows.
    """
    sized = dict[Node | Param, ValueExtent]()
    for param in graph.params:
        rows = workload.prompts if _has_rows(param.type) else 0
        sized[param] = ValueExtent(rows, ids=_ids((param.type,)))
    for node in graph.nodes:
        read, ids = (
            widest(sized, (e for port, e in node.inputs if not node.op.port(port).other_rows)),
            _ids(node.returns),
        )
        if node.op.kind == "generate":
            groups = read.prompts
            if groups is not None:
                groups = None if uncounted(node) else min(groups, whole_setting(node, "groups", groups))
            tokens = whole_setting(node, "max_tokens", workload.response_tokens)
            sized[node] = ValueExtent(groups, samples_of(node), tokens, ids)
        elif node.op.rows == "new":
            sized[node] = replace(read, prompts=None, ids=ids)
        else:
            sized[node] = replace(read, ids=max(ids, read.ids))
    return sized


def widest(sized: Mapping[Node | Param, ValueExtent], edges: Iterable[Edge]) -> ValueExtent:
    """Return the extent with the most rows among the sources of `edges`; an extent without rows if no source has any.

    The first source with an unknown number of rows, if there is one, counts as having the most.
    """
    rows = [sized[e.source] for e in edges if _has_rows(e.type) and isinstance(e.source, Node | Param)]
    unknown = (extent for extent in rows if extent.rows is None)
    return next(unknown, max(rows, key=lambda extent: extent.rows or 0, default=ValueExtent()))


def columns_of(
    kind: type[Value], extent: ValueExtent, prompt_tokens: int, paths: Iterable[str] = ()
) -> Iterator[ValueColumn]:
    """Yield the columns of a value with their bytes, then the column `ids` if its rows have ids.

    Of a record, only the columns at `paths` are included; all if `paths` is empty. The column of a plain value is
    `value`.
    """
    named = set(paths)
    for path, part in leaf_paths(kind):
        if not named or path in named:
            yield ValueColumn(path or PLAIN, column_bytes(part, extent, prompt_tokens))
    if _has_rows(kind) and extent.ids:
        yield ValueColumn("ids", None if extent.rows is None else extent.rows * extent.ids * ID_BYTES)


def column_bytes(kind: type[Value], extent: ValueExtent, prompt_tokens: int) -> int | None:
    """Return the bytes of one column in an Arrow table; None if they are not known.

    Entries have the width of their type (a boolean is one bit), and lists have offsets in addition. A value without
    rows has one entry. Contexts have `prompt_tokens` entries in each row.

    >>> class Flag(Value):
    ...     kind, dtype = Kind.ROW, "bool"
    >>> column_bytes(Flag, ValueExtent(16), 0), column_bytes(Context, ValueExtent(2), 5)
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
    """Return the bytes of one weight of a model in a weight sync: 4 if the receiver runs in float32, else 2.

    The receiver is the role that samples the model, or else the first of its roles. The result is 4 without a plan, or
    if the plan has no role of the model. An engine with narrower weights converts them itself.
    """
    placed = [role for role in plan.placed if role.role.partition(".")[0] == param] if plan is not None else []
    placed.sort(key=lambda role: not role.role.endswith(".sample"))
    return 4 if not placed or placed[0].running.precision == "float32" else 2


def dtype_bits(dtype: str) -> int | None:
    """Return the bits of one entry of a NumPy dtype by name; None for texts, tables and unknown types.

    >>> dtype_bits("float32"), dtype_bits("bool"), dtype_bits("text"), dtype_bits("")
    (32, 1, None, None)
    """
    number = re.fullmatch(r"(?:u?int|b?float)(\d+)", dtype)
    return int(number[1]) if number else 1 if dtype == "bool" else None


def _has_rows(kind: type[Value]) -> bool:
    return kind.kind in (Kind.ROW, Kind.TOKEN)


def _ids(kinds: Iterable[type[Value]]) -> int:
    leaves = ([part for _, part in leaf_paths(kind)] for kind in kinds)
    return max((sum(any(issubclass(part, kind) for part in parts) for kind in IDS) for parts in leaves), default=0)
