"""What the host works on in a step, and how long it takes: nodes without a model, reads, and values on their way.

An estimate: rows and tokens are counted, but what a user's own function does with them is not known. Not here: bytes of
one column (`wire`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil

from flowgraph.language.graph import Graph, Node, Param
from flowgraph.language.values import Kind
from flowgraph.lowering.program import Parts, results_of
from flowgraph.lowering.project_columns import value_types
from placements.lengths import Lengths
from placements.seconds import Seconds
from placements.steps import HostConstants
from placements.wire import Extent, columns_of, extents, widest
from placements.work import Workload

TEXT_BYTES = 4.0  # of a token as text, or in a table whose columns nobody knows: English has 4 to 5 characters a token


@dataclass(frozen=True, eq=False)
class HostWork:
    """What the host works on in a step of `prompts`, every row of the mean lengths in tokens.

    Where it is not known how many rows there are, `rows` are taken.
    """

    graph: Graph
    prompts: int
    prompt_tokens: int
    response_tokens: int
    rows: int

    def node_seconds(self, name: str, takes: HostConstants) -> Seconds:
        """Return the seconds of one node that passes no rows through a model, the call itself left out.

        A node that scores takes its seconds for each row; any other for its rows, and for its tokens if it reads or
        makes a number for each.
        """
        node = self._nodes[name]
        extent = widest(self._extents, node.edges())
        rows = extent.rows or 0
        if node.op.kind == "score":
            return Seconds({"score": takes.score_row_s * rows})
        each_token = any(kind.kind is Kind.TOKEN for kind in (*(edge.type for edge in node.edges()), *node.returns))
        tokens = rows * (extent.tokens or 0) if each_token else 0
        return Seconds({"rows": takes.row_s * rows, "tokens": takes.token_s * tokens})

    def value_bytes(self, value: str, parts: Parts) -> float:
        """Return the bytes of a value as it travels, of a record those of these parts, if any are named."""
        key = value, parts
        if key not in self._bytes:
            extent = self._extents[self._sources[value]]
            own = columns_of(self._types[value], extent, self.prompt_tokens, parts)
            text = TEXT_BYTES * (extent.rows or 1) * (extent.tokens or self.prompt_tokens)
            self._bytes[key] = sum(text if each.size_bytes is None else each.size_bytes for each in own)
        return self._bytes[key]

    def travel_seconds(self, value: str, parts: Parts, bytes_per_s: float, takes: HostConstants) -> Seconds:
        """Return the seconds in which a value is written as a table, goes over a link of so many bytes, and is read."""
        size_bytes = self.value_bytes(value, parts)
        tables_s = 2 * size_bytes / takes.arrow_bytes_per_s
        return Seconds({"call": takes.call_s, "tables": tables_s, "link": size_bytes / bytes_per_s})

    @cached_property
    def _bytes(self) -> dict[tuple[str, Parts], float]:
        return {}

    @cached_property
    def _nodes(self) -> Mapping[str, Node]:
        return {node.name: node for node in self.graph.nodes}

    @cached_property
    def _types(self) -> Mapping[str, type]:
        return value_types(self.graph)

    @cached_property
    def _sources(self) -> Mapping[str, Node | Param]:
        return {param.name: param for param in self.graph.params} | {
            name: node for node in self.graph.nodes for name in results_of(node)
        }

    @cached_property
    def _extents(self) -> dict[Node | Param, Extent]:
        """Return how far each value goes, responses of the mean length, what is not known filled in."""
        found = extents(self.graph, Workload(self.prompts, self.prompt_tokens, self.response_tokens))
        return {source: self._known(extent) for source, extent in found.items()}

    def _known(self, extent: Extent) -> Extent:
        prompts = ceil(self.rows / extent.n) if extent.prompts is None else extent.prompts
        return replace(extent, prompts=prompts, tokens=self.response_tokens if prompts else extent.tokens)


@lru_cache(maxsize=64)
def host_work(graph: Graph, prompts: int, prompt: Lengths, response: Lengths, rows: int) -> HostWork:
    """Return what the host works on in a step of so many prompts, of these lengths."""
    return HostWork(graph, prompts, ceil(prompt.mean), ceil(response.mean), rows)
