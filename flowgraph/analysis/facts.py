"""What is known of a graph's values beyond their types: whose rows they are, and which weights made them.

Derived from the graph alone, node by node, as they were written. What is not known is None, and no law judges it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, cast

from flowgraph.language.graph import Edge, Graph, Node, Param, carried_from, how_late, newest
from flowgraph.language.values import Group, Kind, Mask, Model, Record, Sample, State, Trajectory, Value, fields

Origin = Node | Param


@dataclass(frozen=True)
class MadeBy:
    """Which weights made a value: a version of a parameter's, read up to `at_most` updates late, at a temperature.

    `trained` says that a loss trains them: they are those of its own parameter. `corrected` says that what they draw
    late has to be corrected for.
    """

    param: Param
    version: Edge
    trained: bool = False
    at_most: int = 0
    corrected: bool = True
    temperature: float | None = None

    @property
    def late(self) -> str:
        """Say how late they may be: `up to 4 updates late`."""
        return how_late(self.at_most)

    def __str__(self) -> str:
        return f"`{self.version}`" + (f", {self.late}" if self.at_most else "")


@dataclass(frozen=True)
class RowSet:
    """The rows of one origin, in any order. `drawn` says which weights drew them, if any did.

    `kept` names a carried state that they may come out of: they were then drawn in an earlier step.
    """

    origin: Origin
    identity: tuple[str, ...]  # what tells them apart: prompt, sample, trajectory
    drawn: MadeBy | None = None
    kept: str = ""

    def __str__(self) -> str:
        origin = self.origin
        if isinstance(origin, Param):
            return f"the parameter `{origin.name}`"
        return f"{origin.name or origin.op.name} at {origin.at}"


@dataclass(frozen=True)
class Facts:
    """What is known of a node's results: their rows, and the weights that made them."""

    rows: RowSet | None = None
    made: MadeBy | None = None


@dataclass(frozen=True)
class GraphFacts:
    """The facts of a graph by node, and which parameter the own one of a loss stands for, if its node trains any."""

    of: Mapping[Origin, Facts]
    regional: Mapping[Param, Param | None]

    def at(self, edge: Edge) -> Facts:
        """Give the facts of what an edge carries."""
        if issubclass(edge.type, Model):
            return Facts(None, self.weights(edge))
        found = self.of.get(edge.source, Facts()) if isinstance(edge.source, Node | Param) else Facts()
        return found if has_rows(edge.type) else Facts(None, found.made)

    def weights(self, edge: Edge) -> MadeBy | None:
        """Give which weights a model's edge reads."""
        root = carried_from(edge)
        param = self.regional.get(root, root) if root is not None else None
        if param is None:
            return None
        return MadeBy(param, newest(edge), root in self.regional, edge.at_most, edge.corrected)


def has_rows(kind: type[Value]) -> bool:
    """Say whether values of this type have rows: columns, and records that hold one."""
    return _has_rows(cast("Any", kind))  # mypy: no class with a __hash__ for its instances is Hashable itself


@cache
def _has_rows(kind: Any) -> bool:
    if issubclass(kind, Record):
        return any(has_rows(each) for each in fields(kind).values())
    return kind.kind in (Kind.ROW, Kind.TOKEN)


@lru_cache(maxsize=4)
def facts_of(graph: Graph) -> GraphFacts:
    """Derive the facts of every value of a graph."""
    regional = {param: node.root for node in graph.nodes for _, region in node.regions for param in region.params}
    found: dict[Origin, Facts] = {}
    known = GraphFacts(found, regional)
    for param in graph.params:
        identity = _identity([param.type])
        found[param] = Facts(RowSet(param, identity) if identity else None)
    for node in graph.all_nodes:
        found[node] = _facts(node, known)
    return known


def _facts(node: Node, known: GraphFacts) -> Facts:
    made = _made(node, known)
    if not any(has_rows(each) for each in node.returns):
        return Facts(None, made)
    read = list(rows_read(node, known))
    draws = node.op.kind == "generate" and any(_identity([each]) for each in node.returns)
    if node.op.rows != "new" and read:
        return Facts(replace(read[0][1], drawn=made) if draws else read[0][1], made)
    identity = _identity(node.returns)
    drawn = made if draws else _drawn([rows.drawn for _, rows in read])
    kept = next((port for port, edge in node.inputs if _keeps_rows(node, port, edge)), "")
    before = next((rows.kept for _, rows in read if rows.kept), "")
    return Facts(RowSet(node, identity, drawn, kept or before) if identity else None, made)


def _keeps_rows(node: Node, port: str, edge: Edge) -> bool:
    """Say whether a value that a node makes rows of may hold some of an earlier step: a state that is no model."""
    plain = issubclass(edge.type, State) and not issubclass(edge.type, Model)
    return plain and not node.op.port(port).no_rows


def _drawn(before: Sequence[MadeBy | None]) -> MadeBy | None:
    """Say what drew rows that are made of others: of one model the latest that any of them may be, of two nothing."""
    known = [each for each in before if each is not None]
    if len(known) < len(before) or len({(each.param, each.version) for each in known}) != 1:
        return None
    return max(known, key=lambda each: (each.corrected, each.at_most))


def rows_read(node: Node, known: GraphFacts) -> Iterator[tuple[str, RowSet]]:
    """Give the rows that a node reads on each port, those left out that may be others."""
    other = {port.name for port in node.op.ports if port.other_rows}
    for port, edge in node.inputs:
        rows = known.at(edge).rows
        if rows is not None and port not in other:
            yield port, rows


def _made(node: Node, known: GraphFacts) -> MadeBy | None:
    """Give the weights behind a node's results: those it reads, else those behind the one input of the same type."""
    model = node.model()
    if model is not None:
        made = known.weights(model)
        return _heated(made, node, known) if made is not None else None
    alike = {known.at(edge).made for _, edge in node.inputs if edge.type in node.returns}
    return alike.pop() if len(alike) == 1 else None


def _heated(made: MadeBy, node: Node, known: GraphFacts) -> MadeBy:
    """Add the temperature that a node samples at, or reads with the rows that it is given."""
    own = getattr(node.settings, "temperature", None)
    if own is None:
        drawn = (rows.drawn for _, rows in rows_read(node, known) if rows.drawn is not None)
        own = next((each.temperature for each in drawn), None)
    return MadeBy(made.param, made.version, made.trained, made.at_most, made.corrected, own)


def _identity(kinds: Iterable[type[Value]]) -> tuple[str, ...]:
    """Say what tells the rows of these results apart."""
    parts = [part for kind in kinds if issubclass(kind, Record) for part in fields(kind).values()]
    told = {"prompt": Group, "sample": Sample, "trajectory": Trajectory}
    return tuple(name for name, kind in told.items() if any(issubclass(part, kind) for part in parts))


@dataclass(frozen=True)
class ValueFacts:
    """What is known of one value, as text: its type and kind, whose rows, which mask aligns it, what made it.

    `weights` says which version, how late, and at which temperature: `pi of policy, at 1.0` is being trained.
    """

    value: str
    type: str
    kind: str
    dtype: str
    rows: str = ""
    identity: str = ""
    mask: str = ""
    weights: str = ""


def values_of(graph: Graph) -> list[ValueFacts]:
    """Give what is known of every parameter and result of a named graph, in the order they were written."""
    known, told = facts_of(graph), list[ValueFacts]()
    for param in graph.params:
        told.append(_value_facts(param.name, Edge(param, param.type), known))
    for node in graph.all_nodes:
        many = len(node.returns) > 1
        for i, kind in enumerate(node.returns):
            edge = Edge(node, kind, str(i) if many else "")
            told.append(_value_facts(str(edge), edge, known))
    return told


def _value_facts(name: str, edge: Edge, known: GraphFacts) -> ValueFacts:
    facts, kind = known.at(edge), edge.type
    record = issubclass(kind, Record)
    mask = ", ".join(masks_along(facts.rows)) if facts.rows is not None and _has_tokens(kind) else ""
    return ValueFacts(
        value=name,
        type=kind.__name__,
        kind="record" if record else str(kind.kind),
        dtype="" if record else kind.dtype,
        rows=_name(facts.rows.origin) if facts.rows is not None else "",
        identity=", ".join(facts.rows.identity) if facts.rows is not None else "",
        mask=mask,
        weights=_weights(facts.made) if facts.made is not None else "",
    )


def _weights(made: MadeBy) -> str:
    said = [f"{made.version} of {made.param.name}" if made.trained else str(made.version)]
    said += [made.late] if made.at_most else []
    return ", ".join(said if made.temperature is None else [*said, f"at {made.temperature}"])


def _has_tokens(kind: type[Value]) -> bool:
    if issubclass(kind, Record):
        return any(_has_tokens(each) for each in fields(kind).values())
    return kind.kind is Kind.TOKEN


def _name(origin: Origin) -> str:
    return origin.name or (origin.op.name if isinstance(origin, Node) else "")


def masks_along(rows: RowSet) -> Sequence[str]:
    """Name the masks that came with rows: they say which tokens of any token column of these rows count."""
    origin = rows.origin
    kinds = (origin.type,) if isinstance(origin, Param) else origin.returns
    records = [(str(i), kind) for i, kind in enumerate(kinds) if issubclass(kind, Record)]
    return [
        ".".join([_name(origin), *([i] if len(kinds) > 1 else []), part])
        for i, kind in records
        for part, each in fields(kind).items()
        if issubclass(each, Mask)
    ]


def readers_of_others(graph: Graph) -> set[tuple[str, str]]:
    """Pair each model parameter that reads tokens with the one that drew them, where these are two."""
    known, found = facts_of(graph), set[tuple[str, str]]()
    for node in (each for each in graph.all_nodes if each.op.stat is not None):
        model = node.model()
        reader = known.weights(model) if model is not None else None
        writers = {rows.drawn.param.name for _, rows in rows_read(node, known) if rows.drawn is not None}
        found |= {(reader.param.name, writer) for writer in writers if reader and reader.param.name != writer}
    return found
