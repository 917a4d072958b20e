"""Static facts of a step: rows, tokens and FLOPs of each node, and the bytes of each value that a node reads.

Responses are assumed to have their maximum length; unknown numbers are None. FLOPs of one pass are in `flops`, bytes of
one column in `value_bytes`. Nothing is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from flowgraph.analysis.roles import Role, roles
from flowgraph.language.graph import Edge, Graph, Node, Param, carried_from
from flowgraph.language.values import Model, Value
from flowgraph.lowering.parts import parts_needed
from flowgraph.lowering.program import HOST, edges_read, typed_results, value_name
from placements.workload.batch_sizes import sizes_of
from placements.workload.flops import ModelPass, contexts_read, decoding, even, forward_flops, reading, training_flops
from placements.workload.graph_workload import StepWorkload, pass_of
from placements.workload.value_bytes import ValueColumn, ValueExtent, columns_of, extents, sent_number_bytes, widest

if TYPE_CHECKING:
    from flowgraph.cluster.plan import PlacedRole, Plan
    from flowgraph.models import ModelShape

RETURN = "return"
"""The reader of what a flow returns."""


@dataclass(frozen=True)
class NodeFacts:
    """The work of a node in a step: rows that it generates or reads, tokens that pass through a model, and their FLOPs.

    A token counts each time that it passes. `role` is `host` for a node that reads no model. Unknown numbers are None.
    """

    node: str
    kind: str
    role: str
    rows: int | None
    tokens: int | None
    flops: int | None


@dataclass(frozen=True)
class EdgeFacts:
    """A value that a node reads: the bytes of each part, and whether a plan sends it there from another place.

    `reader` is `return` for an output of the flow, and `crosses` is None without a plan. If several nodes in one place
    read the same value, it is sent there once.
    """

    value: str
    reader: str
    parts: tuple[ValueColumn, ...]
    crosses: bool | None = None

    @property
    def known_bytes(self) -> int:
        """Return the sum of the bytes of all parts with known bytes."""
        return sum(part.size_bytes or 0 for part in self.parts)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Return the names of the parts with unknown bytes."""
        return tuple(part.name for part in self.parts if part.size_bytes is None)

    @property
    def size_bytes(self) -> int | None:
        """Return the bytes of all parts; None if those of any part are unknown."""
        return None if self.unknown else self.known_bytes


@dataclass(frozen=True)
class StepFacts:
    """The facts of a flow's step: `prompts` prompts of at most `prompt_tokens` tokens, responses of maximum length."""

    flow: str
    prompts: int
    prompt_tokens: int
    nodes: tuple[NodeFacts, ...]
    edges: tuple[EdgeFacts, ...]

    @property
    def flops(self) -> int | None:
        """Return the FLOPs of all nodes; None if those of any node are unknown."""
        flops = [node.flops for node in self.nodes if node.flops is not None]
        return sum(flops) if len(flops) == len(self.nodes) else None


def step_facts(
    graph: Graph, shapes: Mapping[str, ModelShape], workload: StepWorkload, plan: Plan | None = None
) -> StepFacts:
    """Return the rows, tokens and FLOPs of each node of a step, and the bytes of each value that is read or returned.

    `shapes` has the sizes of models by parameter of the flow; FLOPs and weight bytes of a model without a shape are
    None. Responses have their maximum length. A plan determines among how many data ranks rows are divided, and which
    values are sent between places; without a plan there is one rank, and `crosses` is None. Raises KeyError if the plan
    has no place for a role of the flow.
    """
    step = _StepReader(graph, shapes, workload, plan)
    return StepFacts(graph.name, workload.prompts, workload.prompt_tokens, tuple(step.nodes()), tuple(step.edges()))


@dataclass(frozen=True)
class _StepReader:
    graph: Graph
    shapes: Mapping[str, ModelShape]
    workload: StepWorkload
    plan: Plan | None

    @cached_property
    def extents(self) -> Mapping[Node | Param, ValueExtent]:
        return extents(self.graph, self.workload)

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        return roles(self.graph)

    @cached_property
    def placed(self) -> Mapping[str, PlacedRole]:
        return {role.role: role for role in self.plan.placed} if self.plan is not None else {}

    # --------------------------------------------------------------------------------------- nodes

    def nodes(self) -> Iterator[NodeFacts]:
        """Yield the facts of each node; of nodes that share a forward pass, only the first has tokens and FLOPs."""
        role_of = {name: role for role in reversed(self.roles) for name in role.nodes}
        shared = set[object]()
        for node in self.graph.nodes:
            role, read = role_of.get(node.name), widest(self.extents, node.edges())
            rows = self.extents[node].rows if node.op.kind == "generate" else read.rows
            if role is None or pass_of(node) in shared:
                yield NodeFacts(node.name, node.op.kind, role.name if role is not None else HOST, rows, 0, 0)
                continue
            shared.add(pass_of(node))
            shape, passed = self.shapes.get(role.param), self._passed(node, read, role)
            flops = training_flops if node.regions else forward_flops
            node_flops = None if shape is None or passed is None else flops(shape, passed)
            tokens = None if passed is None else passed.tokens
            yield NodeFacts(node.name, node.op.kind, role.name, rows, tokens, node_flops)

    def _passed(self, node: Node, read: ValueExtent, role: Role) -> ModelPass | None:
        ranks = self.placed[role.name].layout.data if role.name in self.placed else 1
        if node.op.kind != "generate":
            if node.regions:
                return self._training(node)
            return self._reading(read, ranks, self.workload.forward_tokens) if _reads_once(node) else None
        extent = self.extents[node]
        if read.prompts is None or extent.tokens is None:
            return None
        contexts = _contexts(read.prompts, ranks, extent.n, self.workload.sample_rows)
        return decoding(contexts, read.prompts * extent.n, self.workload.prompt_tokens, extent.tokens)

    def _reading(
        self, rows: ValueExtent, ranks: int, budget: int | None, row_tokens: int | None = None
    ) -> ModelPass | None:
        if rows.prompts is None or rows.rows is None or rows.tokens is None:
            return None
        width = row_tokens or self.workload.prompt_tokens + rows.tokens
        contexts = _contexts(rows.prompts, ranks, rows.n, max(1, rows.rows if budget is None else budget // width))
        return reading(contexts, rows.rows, self.workload.prompt_tokens, rows.tokens)

    def _training(self, node: Node) -> ModelPass | None:
        workload, total = self.workload, ModelPass()
        sizes = sizes_of(self.graph, workload.prompts, plan=self.plan, prompt_tokens=workload.prompt_tokens)
        update = next((update for update in sizes.updates if update.node == node.name), None)
        inner = [reader for _, region in node.regions for reader in region.inner if reader.model() is not None]
        for reader in {pass_of(reader): reader for reader in inner}.values():
            rows = widest(self.extents, reader.edges())
            if update is None or rows.prompts is None or not _reads_once(reader):
                return None
            for size, count in even(rows.prompts, update.minibatches):
                minibatch = replace(rows, prompts=size)
                passed = self._reading(minibatch, update.ranks, update.budget_tokens, update.row_tokens)
                if passed is None:
                    return None
                total += passed.times(count * update.epochs)
        return total

    # --------------------------------------------------------------------------------------- edges

    @cached_property
    def types(self) -> Mapping[str, type[Value]]:
        params = {param.name: param.type for param in self.graph.params}
        return params | {name: kind for node in self.graph.nodes for name, kind in typed_results(node)}

    def edges(self) -> Iterator[EdgeFacts]:
        """Yield the facts of each value that each node reads, and then of each output of the flow except models."""
        for node in self.graph.nodes:
            needed = parts_needed([node], self.types)
            for name, (edge, reader) in {value_name(edge): (edge, reader) for edge, reader in edges_read(node)}.items():
                if issubclass(edge.type, Model):
                    yield EdgeFacts(name, node.name, *self._weights(self._role(edge, reader)))
                else:
                    yield self._value(name, edge, node.name, self._pool(node), needed.get(name, ()))
        for name, edge in {value_name(edge): edge for edge in self.graph.outputs}.items():
            if not issubclass(edge.type, Model):
                yield self._value(name, edge, RETURN, HOST)

    def _value(self, name: str, edge: Edge, reader: str, pool: str, paths: Iterable[str] = ()) -> EdgeFacts:
        source = edge.source
        assert isinstance(source, Node | Param), "a graph with real data in it has no facts"
        columns = columns_of(self.types[name], self.extents[source], self.workload.prompt_tokens, paths)
        source_pool = self._pool(source) if isinstance(source, Node) else HOST
        return EdgeFacts(name, reader, tuple(columns), None if self.plan is None else source_pool != pool)

    def _weights(self, role: Role | None) -> tuple[tuple[ValueColumn, ...], bool | None]:
        """Return the bytes of a role's weights as they are sent, and whether they are; frozen ones are loaded."""
        updated = {node.root.name for node in self.graph.nodes if node.root is not None}
        trained = {trained.param: trained for trained in self.roles if trained.use == "train"}
        if role is None or role.param not in updated & trained.keys():
            return (ValueColumn("weights", 0),), None if self.plan is None else False
        shape, crosses = self.shapes.get(role.param), None
        size = None if shape is None else sent_number_bytes(self.plan, role.param) * shape.trained
        if self.plan is not None:
            ends = (self.placed[end.name] for end in (role, trained[role.param]))
            crosses = len({placed.home for placed in ends}) > 1
        return (ValueColumn("weights", size),), crosses

    def _role(self, edge: Edge, reader: str) -> Role | None:
        param = carried_from(edge) if issubclass(edge.type, Model) else None
        alike = (role for role in self.roles if param is not None and role.param == param.name)
        return next((role for role in alike if reader in role.nodes), None)

    def _pool(self, node: Node) -> str:
        read = (self._role(edge, reader) for edge, reader in edges_read(node))
        role = next((role for role in read if role is not None), None)
        return HOST if role is None or self.plan is None else self.placed[role.name].pool


def _contexts(prompts: int, ranks: int, n: int, take: int) -> int:
    return sum(contexts_read(size, n, take) * count for size, count in even(prompts, ranks))


def _reads_once(node: Node) -> bool:
    return node.op.stat is not None or node.op.kind == "logprob"
