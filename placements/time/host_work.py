"""The host's work in a step, and its seconds: nodes without a model, rows that are read, and transfers of values.

An estimate: rows and tokens are counted, but the cost of a user's function is not known. Not here: bytes of one column
(`workload.value_bytes`).
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
from placements.hardware.engine_constants import HostConstants
from placements.time.seconds import Seconds
from placements.workload.graph_workload import StepWorkload
from placements.workload.lengths import LengthDistribution
from placements.workload.planning_problem import PlanningProblem
from placements.workload.value_bytes import ValueExtent, columns_of, extents, widest

TEXT_BYTES = 4.0  # of a token as text, or in a table of unknown columns: English has 4 to 5 characters a token


@dataclass(frozen=True, eq=False)
class HostWork:
    """The host's work in a step of `prompts` prompts; every row has the mean lengths, in tokens.

    A value with an unknown number of rows is assumed to have `rows`.
    """

    graph: Graph
    prompts: int
    prompt_tokens: int
    response_tokens: int
    rows: int

    def node_seconds(self, name: str, constants: HostConstants) -> Seconds:
        """Return the seconds of one node that runs no model on rows, without the overhead of the call.

        A scoring node takes a constant time for each row, under the key `score`. Other nodes take time for each row,
        under `rows`, and if they read or return a number per token, for each token, under `tokens` (else 0). Raises
        KeyError for a node that the graph does not have.
        """
        node = self._nodes[name]
        extent = widest(self._extents, node.edges())
        rows = extent.rows or 0
        if node.op.kind == "score":
            return Seconds({"score": constants.score_row_s * rows})
        per_token = any(kind.kind is Kind.TOKEN for kind in (*(edge.type for edge in node.edges()), *node.returns))
        tokens = rows * (extent.tokens or 0) if per_token else 0
        return Seconds({"rows": constants.row_s * rows, "tokens": constants.token_s * tokens})

    def value_bytes(self, value: str, parts: Parts) -> float:
        """Return the bytes of a value in a transfer; of a record, only those of the fields in `parts` (empty: all).

        A column of unknown size is estimated as text of 4 bytes per token.
        """
        key = value, parts
        if key not in self._bytes:
            extent = self._extents[self._sources[value]]
            columns = columns_of(self._types[value], extent, self.prompt_tokens, parts)
            text = TEXT_BYTES * (extent.rows or 1) * (extent.tokens or self.prompt_tokens)
            self._bytes[key] = sum(text if column.size_bytes is None else column.size_bytes for column in columns)
        return self._bytes[key]

    def travel_seconds(self, value: str, parts: Parts, bytes_per_s: float, constants: HostConstants) -> Seconds:
        """Return the seconds in which a value is written as a table, sent over a link, and read.

        The keys are `call` for the overhead of the task, `tables` for writing and reading, and `link` for sending. Of a
        record, only the fields in `parts` are sent (empty: all). `bytes_per_s` is the rate of the link.
        """
        size_bytes = self.value_bytes(value, parts)
        tables_s = 2 * size_bytes / constants.arrow_bytes_per_s
        return Seconds({"call": constants.call_s, "tables": tables_s, "link": size_bytes / bytes_per_s})

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
    def _extents(self) -> dict[Node | Param, ValueExtent]:
        workload = StepWorkload(self.prompts, self.prompt_tokens, self.response_tokens)
        filled = dict[Node | Param, ValueExtent]()
        for source, extent in extents(self.graph, workload).items():
            prompts = ceil(self.rows / extent.n) if extent.prompts is None else extent.prompts
            tokens = self.response_tokens if prompts else extent.tokens
            filled[source] = replace(extent, prompts=prompts, tokens=tokens)
        return filled


@lru_cache(maxsize=16)
def host_work_of(problem: PlanningProblem) -> HostWork:
    """Return the host's work in a step of a planning problem; prompts and responses have mean lengths, rounded up.

    A value with an unknown number of rows is assumed to have as many as the node with the most rows. If the problem has
    no lengths of responses, those of the node with the longest mean are used.
    """
    rows = max((load.rows for load in problem.loads), default=problem.prompts)
    response = problem.response or max((load.response for load in problem.loads), key=lambda length: length.mean)
    return _host_work(problem.running, problem.prompts, problem.prompt, response, rows)


@lru_cache(maxsize=64)
def _host_work(
    graph: Graph, prompts: int, prompt: LengthDistribution, response: LengthDistribution, rows: int
) -> HostWork:
    return HostWork(graph, prompts, ceil(prompt.mean), ceil(response.mean), rows)
