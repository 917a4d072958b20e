"""Static facts as text and JSON: what each node of a step does, what travels on each edge, what a run carries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from flowgraph.analysis.facts import ValueFacts
from flowgraph.analysis.state import StateItem, state_json, state_text
from flowgraph.cluster.cluster import show_bytes
from flowgraph.serialize.columns import columns

if TYPE_CHECKING:
    from placements import report

COLUMNS = 120
UNKNOWN = "?"
PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z")


def facts_text(facts: report.StepFacts, state: Sequence[StateItem]) -> str:
    """Print facts and state as plain tables; `?` is what is not known."""
    prompts = f"{facts.prompts:,} prompt{'' if facts.prompts == 1 else 's'} of at most {facts.prompt_tokens:,} tokens"
    lines = [f"facts of a step of {facts.flow}: {prompts}, every response of its most tokens"]
    lines += ["", *_nodes(facts), "", *_edges(facts.edges), "", "state that a run carries, and a checkpoint holds"]
    return "\n".join([*lines, *(f"  {line}" for line in state_text(state).splitlines())])


def values_text(values: Sequence[ValueFacts]) -> str:
    """Print what is known of each value: whose rows it has, which mask aligns its tokens, which weights made it."""
    heads = ["value", "type", "kind", "rows of", "mask", "weights, at temperature"]
    cells = [[each.value, each.type, each.kind, each.rows, each.mask, each.weights] for each in values]
    return "\n".join(_indented([heads, *cells], ()))


def _nodes(facts: report.StepFacts) -> Iterator[str]:
    head = ["node", "kind", "role", "rows", "tokens", "FLOPs"]
    rows = [
        [each.node, each.kind, each.role, _count(each.rows), _count(each.tokens), show_flops(each.flops)]
        for each in facts.nodes
    ]
    total = ["all", "", "", "", "", show_flops(facts.flops)]
    yield from _indented([head, *rows, total], right=(3, 4, 5))


def _edges(edges: Sequence[report.EdgeFacts]) -> Iterator[str]:
    """Print each edge with its parts, on as many lines as they take."""
    planned = any(each.crosses is not None for each in edges)
    rows = [["value", "read by", "bytes", *(["travels"] if planned else [])]]
    rows += [[each.value, each.reader, _size(each), *(_travels(each) if planned else [])] for each in edges]
    heads = list(_indented(rows, right=(2,)))
    place = max(map(len, heads)) + 2
    yield f"{heads[0].ljust(place)}parts"
    for head, edge in zip(heads[1:], edges, strict=True):
        lines = _wrapped([_part(part.name, part.size_bytes) for part in edge.parts], COLUMNS - place)
        yield from (start.ljust(place) + line for start, line in zip(chain([head], repeat("")), lines, strict=False))


def _wrapped(parts: Sequence[str], width: int) -> Iterator[str]:
    line = ""
    for part in parts:
        if line and len(f"{line} · {part}") > width:
            yield line
            line = ""
        line = f"{line} · {part}" if line else part
    yield line


def _size(edge: report.EdgeFacts) -> str:
    known = show_bytes(edge.known_bytes)
    return known if edge.size_bytes is not None else f"{known} + {UNKNOWN}" if edge.known_bytes else UNKNOWN


def _part(name: str, size_bytes: int | None) -> str:
    return f"{name} {UNKNOWN if size_bytes is None else show_bytes(size_bytes)}"


def _travels(edge: report.EdgeFacts) -> list[str]:
    return ["yes" if edge.crosses else "no"]


def _count(count: int | None) -> str:
    return UNKNOWN if count is None else f"{count:,}"


def _indented(rows: Sequence[Sequence[str]], right: Sequence[int]) -> Iterator[str]:
    return (f"  {line}" for line in columns(rows, right))


def show_flops(flops: int | None) -> str:
    """Write a number of operations in the largest decimal unit that it fills.

    >>> show_flops(1_234_000_000), show_flops(999), show_flops(999_999), show_flops(0), show_flops(None)
    ('1.23 G', '999', '1.00 M', '0', '?')
    """
    if flops is None:
        return UNKNOWN
    scale = 0
    while scale < len(PREFIXES) - 1 and float(f"{flops / 1000**scale:.3g}") >= 1000:
        scale += 1
    return f"{flops / 1000**scale:.2f} {PREFIXES[scale]}" if scale else str(flops)


def facts_json(facts: report.StepFacts, state: Sequence[StateItem]) -> dict[str, Any]:
    """Return facts and state as JSON does; null is what is not known."""
    edges = [
        {
            "value": each.value,
            "reader": each.reader,
            "crosses": each.crosses,
            "bytes": each.size_bytes,
            "parts": {part.name: part.size_bytes for part in each.parts},
        }
        for each in facts.edges
    ]
    return {
        "flow": facts.flow,
        "prompts": facts.prompts,
        "prompt_tokens": facts.prompt_tokens,
        "nodes": [asdict(each) for each in facts.nodes],
        "edges": edges,
        "state": state_json(state),
    }
