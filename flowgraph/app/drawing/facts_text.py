"""Static facts as text and JSON: what each node of a step does, what travels on each edge, what a run carries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
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
    cells = [[value.value, value.type, value.kind, value.rows, value.mask, value.weights] for value in values]
    return "\n".join(_table([heads, *cells]))


def _nodes(facts: report.StepFacts) -> Iterator[str]:
    def count(number: int | None) -> str:
        return UNKNOWN if number is None else f"{number:,}"

    heads = ["node", "kind", "role", "rows", "tokens", "FLOPs"]
    cells = [
        [node.node, node.kind, node.role, count(node.rows), count(node.tokens), show_flops(node.flops)]
        for node in facts.nodes
    ]
    return _table([heads, *cells, ["all", "", "", "", "", show_flops(facts.flops)]], right=(3, 4, 5))


def _edges(edges: Sequence[report.EdgeFacts]) -> Iterator[str]:
    """Print each edge with its parts, on as many lines as they take."""
    planned = any(edge.crosses is not None for edge in edges)
    rows = [["value", "read by", "bytes", *(["travels"] if planned else [])]]
    for edge in edges:
        size = show_bytes(edge.known_bytes)
        if edge.size_bytes is None:
            size = f"{size} + {UNKNOWN}" if edge.known_bytes else UNKNOWN
        rows.append([edge.value, edge.reader, size, *(["yes" if edge.crosses else "no"] if planned else [])])
    heads = list(_table(rows, right=(2,)))
    place = max(map(len, heads)) + 2
    yield f"{heads[0].ljust(place)}parts"
    for head, edge in zip(heads[1:], edges, strict=True):
        start, line = head.ljust(place), ""
        for part in edge.parts:
            text = f"{part.name} {UNKNOWN if part.size_bytes is None else show_bytes(part.size_bytes)}"
            if line and len(f"{line} · {text}") > COLUMNS - place:
                yield start + line
                start, line = " " * place, ""
            line = f"{line} · {text}" if line else text
        yield start + line


def _table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> Iterator[str]:
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
            "value": edge.value,
            "reader": edge.reader,
            "crosses": edge.crosses,
            "bytes": edge.size_bytes,
            "parts": {part.name: part.size_bytes for part in edge.parts},
        }
        for edge in facts.edges
    ]
    return {
        "flow": facts.flow,
        "prompts": facts.prompts,
        "prompt_tokens": facts.prompt_tokens,
        "nodes": [asdict(node) for node in facts.nodes],
        "edges": edges,
        "state": state_json(state),
    }
