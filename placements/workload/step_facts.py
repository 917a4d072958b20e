"""Static facts of a step: rows, tokens and FLOPs of each node, and the bytes of each value that a node reads.

Counted for responses of maximal length; what is not known is None. FLOPs of one pass are in `flops`, bytes of
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
from flowgraph.lowering.program import HOST, read_by, typed_results, value_name
from placements.workload.batch_partition import UpdatePartition
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
    """What a node does in a step: `rows` that it makes or reads, `tokens` that it passes through a model, their FLOPs.

    `role` is `host` for a node that reads no model. A token counts each time that it passes.
    """

    node: str
    kind: str
    role: str
    rows: int | None
    tokens: int | None
    flops: int | None


@dataclass(frozen=True)
class EdgeFacts:
    """What a node reads of one value: the bytes of each part, and whether a plan sends it there from another place.

    A value that several nodes read in one place travels there once.
    """

    value: str
    reader: str
    parts: tuple[ValueColumn, ...]
    crosses: bool | None = None

    @property
    def known_bytes(self) -> int:
        """Return the bytes of the parts whose bytes are known."""
        return sum(part.size_bytes or 0 for part in self.parts)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Name the parts whose bytes are not known."""
        return tuple(part.name for part in self.parts if part.size_bytes is None)

    @property
    def size_bytes(self) -> int | None:
        """Return the bytes of all parts, None if those of one are not known."""
        return None if self.unknown else self.known_bytes


@dataclass(frozen=True)
class StepFacts:
    """The facts of one step of a flow: `prompts` of at most `prompt_tokens`, every response of its maximal length."""

    flow: str
    prompts: int
    prompt_tokens: int
    nodes: tuple[NodeFacts, ...]
    edges: tuple[EdgeFacts, ...]

    @property
    def flops(self) -> int | None:
        """Return the FLOPs of all nodes, None if those of one are not known."""
        flops = [node.flops for node in self.nodes if node.flops is not None]
        return sum(flops) if len(flops) == len(self.nodes) else None


def step_facts(
    graph: Graph, shapes: Mapping[str, ModelShape], workload: StepWorkload, plan: Plan | None = None
) -> StepFacts:
    """Return the facts of a step of a named graph: `shapes` are the sizes of models by the flow's parameter.

    A plan decides over how many data ranks rows are split, which costs contexts that are read again, and which values
    travel. FLOPs of a model are not known without its sizes.
    """
    step = _StepReader(graph, shapes, workload, plan)
    return StepFacts(graph.name, workload.prompts, workload.prompt_tokens, tuple(step.nodes()), tuple(step.edges()))


@dataclass(frozen=True)
class _StepReader:
    """A graph, the sizes of its models, its workload and perhaps a plan, from which facts are read."""

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
    def updates(self) -> Mapping[str, UpdatePartition]:
        sizes = sizes_of(self.graph, self.workload.prompts, plan=self.plan, prompt_tokens=self.workload.prompt_tokens)
        return {update.node: update for update in sizes.updates}

    # --------------------------------------------------------------------------------------- nodes

    def nodes(self) -> Iterator[NodeFacts]:
        """Yield the facts of each node; of nodes that share a forward pass the first has it."""
        role_of = {name: role for role in reversed(self.roles) for name in role.nodes}
        shared = set[object]()
        for node in self.graph.nodes:
            role, rows = role_of.get(node.name), self._rows(node)
            if role is None or pass_of(node) in shared:
                yield NodeFacts(node.name, node.op.kind, role.name if role is not None else HOST, rows, 0, 0)
                continue
            shared.add(pass_of(node))
            yield self._passing(NodeFacts(node.name, node.op.kind, role.name, rows, None, None), node, role)

    def _rows(self, node: Node) -> int | None:
        return self.extents[node].rows if node.op.kind == "generate" else widest(self.extents, node.edges()).rows

    def _passing(self, facts: NodeFacts, node: Node, role: Role) -> NodeFacts:
        placed, shape = self._placed.get(role.name), self.shapes.get(role.param)
        passed = self._passes(node, 1 if placed is None else placed.layout.data)
        if passed is None:
            return facts
        flops = training_flops if node.regions else forward_flops
        return replace(facts, tokens=passed.tokens, flops=None if shape is None else flops(shape, passed))

    def _passes(self, node: Node, ranks: int) -> ModelPass | None:
        """Return what a node passes through a model; None if that is not known."""
        if node.op.kind == "generate":
            return self._generating(node, ranks)
        if node.regions:
            return self._training(node)
        rows = widest(self.extents, node.edges())
        return self._reading(rows, ranks, self.workload.forward_tokens) if _reads_once(node) else None

    def _generating(self, node: Node, ranks: int) -> ModelPass | None:
        """Return what passes while responses are generated: for all prompts, though fewer groups may be kept."""
        read, extent = widest(self.extents, node.edges()), self.extents[node]
        if read.prompts is None or extent.tokens is None:
            return None
        shares = even(read.prompts, ranks)
        contexts = sum(contexts_read(size, extent.n, self.workload.sample_rows) * count for size, count in shares)
        return decoding(contexts, read.prompts * extent.n, self.workload.prompt_tokens, extent.tokens)

    def _reading(
        self, rows: ValueExtent, ranks: int, budget: int | None, row_tokens: int | None = None
    ) -> ModelPass | None:
        """Return a pass over these rows, in parts of at most `budget` tokens (None: one part) on each of `ranks`."""
        if rows.prompts is None or rows.rows is None or rows.tokens is None:
            return None
        width = row_tokens or self.workload.prompt_tokens + rows.tokens
        take = max(1, rows.rows if budget is None else budget // width)
        contexts = sum(contexts_read(size, rows.n, take) * count for size, count in even(rows.prompts, ranks))
        return reading(contexts, rows.rows, self.workload.prompt_tokens, rows.tokens)

    def _training(self, node: Node) -> ModelPass | None:
        """Return what passes in an update: each epoch all rows, by minibatches, once for each pass of its losses.

        Minibatches are assumed to lie evenly on the ranks.
        """
        total, update = ModelPass(), self.updates.get(node.name)
        inner = [each for _, region in node.regions for each in region.inner if each.model() is not None]
        for reader in {pass_of(node): node for node in inner}.values():
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
        """Yield each value that each node reads, and what the flow returns except models."""
        for node in self.graph.nodes:
            needed = parts_needed([node], self.types)
            for name, (edge, reader) in {value_name(edge): (edge, reader) for edge, reader in read_by(node)}.items():
                if issubclass(edge.type, Model):
                    yield self._weights(name, edge, node, reader)
                else:
                    parts = self._columns(name, edge, needed.get(name, ()))
                    yield EdgeFacts(name, node.name, parts, self._crosses(edge, self._place(node)))
        for name, edge in {value_name(edge): edge for edge in self.graph.outputs}.items():
            if not issubclass(edge.type, Model):
                yield EdgeFacts(name, RETURN, self._columns(name, edge, ()), self._crosses(edge, HOST))

    def _columns(self, name: str, edge: Edge, paths: Iterable[str]) -> tuple[ValueColumn, ...]:
        source = edge.source
        assert isinstance(source, Node | Param), "a graph with real data in it has no facts"
        return tuple(columns_of(self.types[name], self.extents[source], self.workload.prompt_tokens, paths))

    def _weights(self, name: str, edge: Edge, node: Node, reader: str) -> EdgeFacts:
        """Return the weights that a node reads, as they are sent; frozen ones are loaded everywhere."""
        role = self._role(edge, reader)
        origin = self._trained.get(role.param) if role is not None else None
        if role is None or origin is None:
            return EdgeFacts(name, node.name, (ValueColumn("weights", 0),), None if self.plan is None else False)
        shape = self.shapes.get(role.param)
        size = None if shape is None else sent_number_bytes(self.plan, role.param) * shape.trained
        crosses = None if self.plan is None else self._home(role) != self._home(origin)
        return EdgeFacts(name, node.name, (ValueColumn("weights", size),), crosses)

    @cached_property
    def _trained(self) -> Mapping[str, Role]:
        """Return the role that has the newest version of each model whose weights change."""
        moved = {node.root.name for node in self.graph.nodes if node.root is not None}
        return {role.param: role for role in self.roles if role.use == "train" and role.param in moved}

    def _role(self, edge: Edge, reader: str) -> Role | None:
        """Return the role in which a node reads the model on an edge."""
        param = carried_from(edge) if issubclass(edge.type, Model) else None
        own = (role for role in self.roles if param is not None and role.param == param.name)
        return next((role for role in own if reader in role.nodes), None)

    @cached_property
    def _placed(self) -> Mapping[str, PlacedRole]:
        return {role.role: role for role in self.plan.placed} if self.plan is not None else {}

    def _home(self, role: Role) -> tuple[object, ...]:
        placed = self._placed[role.name]
        return placed.pool, placed.engine, placed.layout

    def _place(self, node: Node) -> str:
        """Return the pool that a node runs on, that of the first model that it reads; the host if it reads none."""
        read = (self._role(edge, reader) for edge, reader in read_by(node))
        role = next((role for role in read if role is not None), None)
        return HOST if role is None or self.plan is None else self._placed[role.name].pool

    def _crosses(self, edge: Edge, place: str) -> bool | None:
        made = self._place(edge.source) if isinstance(edge.source, Node) else HOST
        return None if self.plan is None else made != place


def _reads_once(node: Node) -> bool:
    """Return whether a node is known to be one forward pass over the rows that it reads."""
    return node.op.stat is not None or node.op.kind == "logprob"
