"""Facts about a graph's values beyond their types: whose rows they are, and which weights made them.

Derived from the graph alone, node by node, in the order of the flow. An unknown fact is None, and no law judges it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from functools import lru_cache
from typing import Any

from flowgraph.language.graph import Edge, Graph, Node, Param, carried_from, lag_text, newest
from flowgraph.language.handle import Truncation
from flowgraph.language.rows import leaf_paths
from flowgraph.language.values import Group, Kind, Mask, Model, Record, Sample, State, Trajectory, Value, cached, fields

Origin = Node | Param


@dataclass(frozen=True)
class MadeBy:
    """The weights that computed or sampled a value: a version of the model parameter `param`.

    `at_most` is their maximum lag in policy updates, and `temperature` that of the distribution (None: unknown).
    `reshaped` are other sampling settings that changed the distribution, as (name, value): a truncation or a penalty.
    `trained` means that a loss trains the weights as its own parameter; `corrected`, that a loss must correct for the
    staleness of rows that the weights sample.
    """

    param: Param
    version: Edge
    trained: bool = False
    at_most: int = 0
    corrected: bool = True
    temperature: float | None = None
    reshaped: tuple[tuple[str, float], ...] = ()

    @property
    def late(self) -> str:
        """Return the maximum lag of the weights as text, such as `up to 4 updates late`."""
        return lag_text(self.at_most)

    def reads_as(self, other: MadeBy) -> bool:
        """Return whether `other` has the same parameter, version and maximum lag; other fields are ignored."""
        return (self.param, self.version, self.at_most) == (other.param, other.version, other.at_most)

    def __str__(self) -> str:
        return f"`{self.version}`" + (f", {self.late}" if self.at_most else "")


@dataclass(frozen=True)
class RowSet:
    """The rows of one origin (a parameter, or the node that made them), in any order.

    `identity` names the ids that distinguish the rows. `drawn` are the weights that sampled the rows; None if unknown.
    `kept` names the input of a carried state that may have kept rows of earlier steps, or is "".
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
    """The facts of a parameter or of a node's results: the rows, and the weights that made them; None if unknown."""

    rows: RowSet | None = None
    made: MadeBy | None = None


@dataclass(frozen=True)
class GraphFacts:
    """The facts of a graph by node and parameter (`of`), and the parameters of its losses.

    `regional` maps each parameter of a loss to the flow's parameter that the loss trains, or to None.
    """

    of: Mapping[Origin, Facts]
    regional: Mapping[Param, Param | None]

    def at(self, edge: Edge) -> Facts:
        """Return the facts of the value on an edge; the rows of a model and of a type without rows are None."""
        if issubclass(edge.type, Model):
            return Facts(None, self.weights(edge))
        facts = self.of.get(edge.source, Facts()) if isinstance(edge.source, Node | Param) else Facts()
        return facts if has_rows(edge.type) else Facts(None, facts.made)

    def weights(self, edge: Edge) -> MadeBy | None:
        """Return the weights of the model on an edge, or None if they do not come from a parameter of the flow."""
        root = carried_from(edge)
        param = self.regional.get(root, root) if root is not None else None
        if param is None:
            return None
        return MadeBy(param, newest(edge), root in self.regional, edge.at_most, edge.corrected)


@cached  # records in records share their parts: without it the time doubles with each level
def has_rows(kind: type[Value]) -> bool:
    """Return whether a type has rows: an entry per row or per token, or, for a record, a part that has rows."""
    if issubclass(kind, Record):
        return any(map(has_rows, fields(kind).values()))
    return kind.kind in (Kind.ROW, Kind.TOKEN)


@lru_cache(maxsize=4)
def facts_of(graph: Graph) -> GraphFacts:
    """Return the facts of every value of a graph: its rows, and the weights that made it; cached for four graphs."""
    regional = {param: node.root for node in graph.nodes for _, region in node.regions for param in region.params}
    of: dict[Origin, Facts] = {}
    facts = GraphFacts(of, regional)
    for param in graph.params:
        identity = _identity([param.type])
        of[param] = Facts(RowSet(param, identity) if identity else None)
    for node in graph.all_nodes:
        weights = _weights_behind(node, facts)
        of[node] = Facts(_rows_of(node, weights, facts) if any(map(has_rows, node.returns)) else None, weights)
    return facts


def _rows_of(node: Node, weights: MadeBy | None, facts: GraphFacts) -> RowSet | None:
    """Return the rows of a node's results; merged rows were sampled by the stalest of one version, if all are known."""
    read = [rows for _, rows in rows_read(node, facts)]
    identity = _identity(node.returns)
    samples = node.op.kind == "generate" and bool(identity)
    if node.op.rows != "new" and read:
        return replace(read[0], drawn=weights) if samples else read[0]
    if not identity:
        return None
    drawn = [rows.drawn for rows in read if rows.drawn is not None]
    known = len(drawn) == len(read) and len({(made_by.param, made_by.version) for made_by in drawn}) == 1
    stalest = max(drawn, key=lambda made_by: (made_by.corrected, made_by.at_most)) if known else None
    states = (port for port, edge in node.inputs if issubclass(edge.type, State) and not issubclass(edge.type, Model))
    keeper = next((port for port in states if not node.op.port(port).no_rows), "")
    kept = keeper or next((rows.kept for rows in read if rows.kept), "")
    return RowSet(node, identity, weights if samples else stalest, kept)


def rows_read(node: Node, facts: GraphFacts) -> Iterator[tuple[str, RowSet]]:
    """Yield (port, rows) for each input of a node whose rows have a known origin, in the order of the inputs.

    Ports that may take rows of another origin are left out.
    """
    free = {port.name for port in node.op.ports if port.other_rows}
    for port, edge in node.inputs:
        rows = facts.at(edge).rows
        if rows is not None and port not in free:
            yield port, rows


def _weights_behind(node: Node, facts: GraphFacts) -> MadeBy | None:
    """Return the weights that a node reads and the settings it or its rows sample with, or else those of its input."""
    model = node.model()
    if model is None:
        sources = {facts.at(edge).made for _, edge in node.inputs if edge.type in node.returns}
        return sources.pop() if len(sources) == 1 else None
    weights = facts.weights(model)
    temperature, reshaped = getattr(node.settings, "temperature", None), reshaped_by(node)
    if temperature is None:
        samplers = (rows.drawn for _, rows in rows_read(node, facts) if rows.drawn is not None)
        sampler = next(samplers, None)
        temperature = sampler.temperature if sampler is not None else None
        reshaped = tuple(pair for pair in sampler.reshaped if pair[0] != PENALTY) if sampler is not None else ()
    return replace(weights, temperature=temperature, reshaped=reshaped) if weights is not None else None


PENALTY = "repetition_penalty"  # a forward pass computes a truncation again, but no penalty


def reshaped_by(node: Node) -> tuple[tuple[str, float], ...]:
    """Return (name, value) of each sampling setting of a node, besides the temperature, that changes the distribution.

    These are `top_k`, `top_p`, `min_p` and `repetition_penalty` if they differ from their defaults; greedy sampling has
    only the penalty, because a truncation does not change it.
    """
    settings: Any = node.settings
    values: dict[str, Any] = {
        rule.name: getattr(settings, rule.name, rule.default) for rule in dataclass_fields(Truncation)
    }
    greedy = getattr(node.settings, "temperature", None) == 0
    penalty = getattr(node.settings, PENALTY, 1.0)
    truncation = () if greedy else Truncation(**values).changed()
    return (*truncation, *([(PENALTY, penalty)] if penalty != 1 else []))


_IDENTITY = {"prompt": Group, "sample": Sample, "trajectory": Trajectory}


def _identity(kinds: Iterable[type[Value]]) -> tuple[str, ...]:
    parts = [part for kind in kinds if issubclass(kind, Record) for part in fields(kind).values()]
    return tuple(name for name, kind in _IDENTITY.items() if any(issubclass(part, kind) for part in parts))


@dataclass(frozen=True)
class ValueFacts:
    """The facts of one value as text; a fact that is unknown or does not apply is "".

    `kind` is "record" for a record, which has no `dtype`. `rows` is the node or parameter that the rows come from,
    `identity` the ids that distinguish them, and `mask` the masks of their tokens. `weights` has the version, the
    maximum lag and the sampling settings; the version of weights that are being trained is written `pi of policy`.
    """

    value: str
    type: str
    kind: str
    dtype: str
    rows: str = ""
    identity: str = ""
    mask: str = ""
    weights: str = ""


def value_facts(graph: Graph) -> list[ValueFacts]:
    """Return the facts of every value of a named graph as text: parameters first, then results in the flow's order."""
    facts, edges = facts_of(graph), [Edge(param, param.type) for param in graph.params]
    for node in graph.all_nodes:
        ports = map(str, range(len(node.returns))) if len(node.returns) > 1 else [""]
        edges += [Edge(node, kind, port) for kind, port in zip(node.returns, ports, strict=True)]
    values = list[ValueFacts]()
    for edge in edges:
        kind, record, rows, made = edge.type, issubclass(edge.type, Record), facts.at(edge).rows, facts.at(edge).made
        weights, has_tokens = list[str](), any(part.kind is Kind.TOKEN for _, part in leaf_paths(kind))
        if made is not None:
            weights += [f"{made.version} of {made.param.name}" if made.trained else str(made.version)]
            weights += [made.late] if made.at_most else []
            weights += [f"at {made.temperature}"] if made.temperature is not None else []
            weights += [f"{name}={number:g}" for name, number in made.reshaped]
        values.append(
            ValueFacts(
                value=str(edge),
                type=kind.__name__,
                kind="record" if record else str(kind.kind),
                dtype="" if record else kind.dtype,
                rows=_name(rows.origin) if rows is not None else "",
                identity=", ".join(rows.identity) if rows is not None else "",
                mask=", ".join(masks_along(rows)) if rows is not None and has_tokens else "",
                weights=", ".join(weights),
            )
        )
    return values


def _name(origin: Origin) -> str:
    return origin.name or (origin.op.name if isinstance(origin, Node) else "")


def masks_along(rows: RowSet) -> Sequence[str]:
    """Return the dotted names of the masks that select tokens of `rows`, such as `policy.generate.mask`.

    They are the parts of type Mask in the records that the rows' origin (a node or a parameter) gives; empty if there
    are none. For a node with several results, the result's index comes before the part: `policy.generate.0.mask`.
    """
    origin = rows.origin
    kinds = (origin.type,) if isinstance(origin, Param) else origin.returns
    records = [(str(i), kind) for i, kind in enumerate(kinds) if issubclass(kind, Record)]
    return [
        ".".join([_name(origin), *([i] if len(kinds) > 1 else []), name])
        for i, kind in records
        for name, part in fields(kind).items()
        if issubclass(part, Mask)
    ]


def cross_model_reads(graph: Graph) -> set[tuple[str, str]]:
    """Return (reader, sampler) pairs of model parameters by name: `reader` computes statistics of the sampler's tokens.

    Pairs of a parameter with itself are left out.
    """
    facts, pairs = facts_of(graph), set[tuple[str, str]]()
    for node in graph.all_nodes:
        model = node.model()
        reader = facts.weights(model) if node.op.stat is not None and model is not None else None
        samplers = {rows.drawn.param.name for _, rows in rows_read(node, facts) if rows.drawn is not None}
        pairs |= {(reader.param.name, sampler) for sampler in samplers if reader and reader.param.name != sampler}
    return pairs
