"""The laws of a described graph: a table that a person can read, and the checks that hold it.

Each law is held by the types, by a check here, or by the runtime; `LAWS` says which. Checks run when a node is
described (so that the error names its line), on every finished graph, and on every result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, get_args

from flowgraph.errors import FlowError, FlowTypeError, LawError, nearest, with_article
from flowgraph.graph import Const, Edge, Graph, Node, NodeKind, Op, Param, Region, Site, carried_from, newest, reachable
from flowgraph.loss import Loss
from flowgraph.rows import leaves
from flowgraph.values import Kind, Mask, State, Value

if TYPE_CHECKING:
    from flowgraph.signature import Signature


@dataclass(frozen=True)
class Law:
    """One law: what it says, what holds it, and the check of a finished graph if it has one."""

    number: int
    name: str
    says: str
    held_by: str
    check: Callable[[Graph], Iterator[FlowError]] | None = None


def check(graph: Graph) -> None:
    """Raise the first broken law of a described graph."""
    for law in LAWS:
        for error in law.check(graph) if law.check else ():
            raise error


def check_op(op: Op, signature: Signature) -> None:
    """Refuse an op that a graph cannot hold: ports that could be swapped unseen, a loss without its mask."""
    where, positional = str(signature.at), [port for port in op.ports if port.name in signature.positional]
    if op.kind not in get_args(NodeKind):
        raise FlowTypeError.bad_node(
            where, op.name, f"there is no kind `{op.kind}`", nearest(op.kind, get_args(NodeKind))
        )
    for a, b in combinations([port for port in positional if not port.region], 2):
        if issubclass(a.value_type, b.value_type) or issubclass(b.value_type, a.value_type):
            why = f"`{a.name}` and `{b.name}` both take {b.value_type.__name__} by position"
            raise FlowTypeError.bad_node(
                where, op.name, why, f"make one a keyword: `*, {b.name}: {b.value_type.__name__}`"
            )
    if op.carries is not None:
        _check_carry(op, where)
    losses = [port.name for port in op.ports if not port.region and issubclass(port.value_type, Loss)]
    masks = [port.name for port in op.ports if issubclass(port.value_type, Mask)]
    if not any(issubclass(bound_type(each), Loss) for each in op.returns):
        return
    if len(op.returns) > 1:
        raise FlowTypeError.bad_node(where, op.name, "returns a Loss beside other values", "make it two nodes")
    if losses and masks:
        raise FlowTypeError.bad_node(where, op.name, "takes a Loss and a mask, and returns a Loss", "make it two nodes")
    if not losses and len(masks) != 1:
        why = f"returns a Loss, but takes {len(masks)} masks"
        raise FlowTypeError.bad_node(where, op.name, why, "a loss takes the one mask it is averaged over")


def _check_carry(op: Op, where: str) -> None:
    """Refuse a carry that is no state, or whose next version would not be the first result."""
    if op.carries not in [port.name for port in op.ports if not port.region]:
        raise FlowTypeError.bad_node(where, op.name, f"carries `{op.carries}`, which is no port")
    port = op.port(op.carries)
    if not issubclass(port.value_type, State):
        why = f"carries `{port.name}`, {with_article(port.value_type.__name__)}, which is no State"
        raise FlowTypeError.bad_node(where, op.name, why, "derive its type from State")
    if op.returns[0] != port.type:
        why = f"carries `{port.name}`, but does not return {with_article(port.value_type.__name__)} first"
        raise FlowTypeError.bad_node(where, op.name, why, f"its first result is the next version of `{port.name}`")


def bound_type(hint: Any) -> type[Value]:
    """Give the class that a type stands for, a TypeVar's bound included."""
    bound: type[Value] = getattr(hint, "__bound__", None) or hint
    return bound


def check_region(op: Op, region: Region, site: Site) -> None:
    """Refuse a region that trains nothing, draws, updates, or averages over what it trains."""
    if not region.inner:
        what = f"`{region.name}` never reads `{region.params[0].name}`: {op.name} would change nothing"
        raise LawError(what, where=str(region.at), hint=f"pass `{region.params[0].name}` to a node in it")
    inside = [n for n in reachable([region.output]) if isinstance(n, Node) and n.stamp > region.params[0].stamp]
    for node in inside:
        if not node.op.pure:
            why = "draws" if node.op.key else "has effects"
            what = (
                f"{node.op.name} {why}, so it cannot stand in the loss `{region.name}`, which runs once a micro-batch"
            )
            raise LawError(what, where=str(node.at), notes=[f"in the loss of {op.name} at {site}"], hint="move it out")
    for node in region.inner:
        _check_inner(op, node, region, site)
    for edge in region.captures:
        if issubclass(edge.type, Loss):
            what = f"a term of the loss `{region.name}` does not depend on `{region.params[0].name}`, which it trains"
            hint = f"pass `{region.params[0].name}` to what it reads, or leave the term out"
            raise LawError(what, where=str(region.at), notes=[edge.made()], hint=hint)


def _check_inner(op: Op, node: Node, region: Region, site: Site) -> None:
    """Refuse a loss inside a loss, and what would have to run before the terms' masks can be counted."""
    pi = region.params[0].name
    if node.regions:
        what = f"{node.op.name} takes a function, so it cannot stand in the loss `{region.name}`"
        raise LawError(what, where=str(node.at), notes=[f"in the loss of {op.name} at {site}"], hint="move it out")
    if not issubclass(node.returns[0], Loss):
        return
    combines = not any(issubclass(edge.type, Mask) for _, edge in node.inputs)
    for port, edge in node.inputs:
        moves = edge.source is region.params[0] or edge.source in region.inner
        if moves and (issubclass(edge.type, Mask) or (combines and not issubclass(edge.type, Loss))):
            what = f"{node.op.name}({port}=) depends on `{pi}`, which it trains"
            thing = "what losses are combined by" if combines else "a mask"
            hint = f"{thing} is {'read' if combines else 'counted'} before the first micro-batch runs"
            raise LawError(what, where=str(node.at), hint=hint)


def check_returns(name: str, signature: Signature, outputs: Sequence[Any]) -> None:
    """Refuse a flow that returns something else than it says."""
    where = str(signature.at)
    if len(outputs) != len(signature.returns):
        many = f"{len(signature.returns)} value{'s' if len(signature.returns) > 1 else ''}"
        why = f"says it returns {many}, but returned {len(outputs)}"
        raise FlowTypeError.bad_flow(where, name, why)
    for out, said in zip(outputs, signature.returns, strict=True):
        if not isinstance(out, bound_type(said)) or out.edge is None:
            got = "a real value" if isinstance(out, Value) and out.edge is None else type(out).__name__
            raise FlowTypeError.bad_flow(
                where, name, f"says it returns {bound_type(said).__name__}, but returned {got}"
            )


def check_result(node: Node, result: Any) -> None:
    """Refuse a result whose type or shape is not what the op declares."""
    results = result if isinstance(result, tuple) else (result,)
    if len(results) != len(node.returns):
        raise LawError(f"{node.op.name} returned {len(results)} values, not {len(node.returns)}", where=str(node.at))
    for value, said in zip(results, node.returns, strict=True):
        if not isinstance(value, said):
            what = f"{node.op.name} returned {type(value).__name__}, not {said.__name__}"
            raise LawError(what, where=str(node.at))
        for part in leaves([value]):
            shape = getattr(part.data, "shape", None)
            if part.kind is Kind.TOKEN and (shape is None or len(shape) != 2):
                holds = f"a {type(part.data).__name__}" if shape is None else f"shape {list(shape)}"
                what = f"{node.op.name} returned {with_article(type(part).__name__)} of {holds}, not [rows, tokens]"
                raise LawError(what, where=str(node.at))


def stale_read(op: Op, edge: Edge, site: Site) -> LawError:
    """Say that only sampling may read weights that lag."""
    return LawError(
        f"{op.name} reads {edge} {_late(edge)}; only sampling may",
        where=str(site),
        hint="give the stale model to a generate node only",
    )


def _late(edge: Edge) -> str:
    return f"up to {edge.at_most} update{'s' if edge.at_most > 1 else ''} late"


def consumed_once(graph: Graph) -> Iterator[FlowError]:
    """Find a version of state that two ops consume: weights are updated in place, so there is no fork."""
    consumers = _consumers(graph)
    for node in graph.nodes:
        if node.op.carries is None:
            continue
        edge = dict(node.inputs)[node.op.carries]
        first = consumers[newest(edge)]
        if first is not node:
            yield LawError(
                f"{node.op.name} consumes a version of {edge} that {first.op.name} at {first.at} has consumed already",
                where=str(node.at),
                hint="give the second the model that the first returned",
            )


def one_flow(graph: Graph) -> Iterator[FlowError]:
    """Find values that belong to another flow or to a loss, or that are real."""
    regions = [region for node in graph.nodes for _, region in node.regions]
    homes: dict[Any, Region] = {each: region for region in regions for each in (*region.params, *region.inner)}
    start = min((param.stamp for param in graph.params), default=0)  # what is older belongs to another flow
    readers = [(node, node.edges(), f"{node.op.name} uses", node.at) for node in graph.all_nodes if node.stamp > start]
    for reader, edges, uses, at in (*readers, (None, graph.outputs, f"flow {graph.name} returns", graph.at)):
        for edge in edges:
            why = _misplaced(graph, edge, start, homes, homes.get(reader))
            if why:
                hint = "" if "loss" in why else "make it a parameter"
                yield LawError(f"{uses} {edge}, which {why}", where=str(at), notes=[edge.made()], hint=hint)


def _misplaced(graph: Graph, edge: Edge, start: int, homes: Mapping[Any, Region], home: Region | None) -> str:
    """Say why an edge cannot be read in the region `home` (None: in the flow itself), or return nothing."""
    source = edge.source
    if isinstance(source, Const):
        return "is real data"
    if source in homes:
        return "" if homes[source] is home else "lives in a loss only"
    if source.stamp < start or (isinstance(source, Param) and source not in graph.params):
        loose = isinstance(source, Param) and source.owner.startswith("the loss ")
        return "lives in a loss only" if loose else f"belongs to another flow than {graph.name}"
    return ""


def readers_come_first(graph: Graph) -> Iterator[FlowError]:
    """Find a reader of a version that can only run after the update that consumes it."""
    from flowgraph.passes.order_nodes import blocked_reader

    found = blocked_reader(graph)
    if found is not None:
        reader, consumer = found
        yield LawError(
            f"{reader.op.name} reads weights that {consumer.op.name} at {consumer.at} has replaced by then",
            where=str(reader.at),
            notes=["it depends on that update's result"],
            hint=f"give it the model that {consumer.op.name} returned",
        )


def state_comes_out(graph: Graph) -> Iterator[FlowError]:
    """Find state that comes out but was never a parameter, comes out at an old version, or is updated and lost."""
    where, consumers = str(graph.at), _consumers(graph)
    for edge in graph.outputs:
        if not issubclass(edge.type, State):
            continue
        consumer = consumers.get(newest(edge))
        if carried_from(edge) is None:
            yield LawError(f"flow {graph.name} returns state that is the next version of no parameter", where=where)
        elif edge.at_most:
            what = f"flow {graph.name} returns {edge} {_late(edge)}; only sampling may read it so"
            yield LawError(what, where=where, hint="return the model that is not stale")
        elif consumer is not None:
            what = f"flow {graph.name} returns {edge}, which {consumer.op.name} at {consumer.at} has replaced"
            yield LawError(what, where=where, hint=f"return what {consumer.op.name} returned")
    carried = graph.carries()
    for edge, consumer in consumers.items():
        param = carried_from(edge)
        if param in graph.params and param.name not in carried:
            yield LawError(
                f"flow {graph.name} does not return `{param.name}`, which {consumer.op.name} at {consumer.at} replaces",
                where=where,
                hint="return its next version, so that the next step can take it",
            )


def _consumers(graph: Graph) -> dict[Edge, Node]:
    """Map each version of state to the first node that consumes it."""
    consumers: dict[Edge, Node] = {}
    for node in graph.nodes:
        if node.op.carries is not None:
            consumers.setdefault(newest(dict(node.inputs)[node.op.carries]), node)
    return consumers


LAWS: tuple[Law, ...] = (
    Law(0, "one flow", "a graph holds only what its own parameters and nodes make", "check", one_flow),
    Law(1, "versions", "a version of weights is consumed by at most one update", "check", consumed_once),
    Law(1, "readers first", "readers of a version run before what consumes it", "check", readers_come_first),
    Law(2, "state", "state is a parameter and a result; nodes hold none", "check", state_comes_out),
    Law(
        3,
        "terms",
        "a loss is terms, divided by the global counts of their masks",
        "check_op, Loss, BoundRegion.counts",
    ),
    Law(4, "kinds", "a value is row, row x token, scalar, model or state; a row has an identity", "values.Kind"),
    Law(5, "bodies", "a body sees padded [B, T] tensors and their mask; ragged on the wire", "check_result, to_table"),
    Law(6, "keys", "draws are keyed by seed, step, node, prompt, sample, position", "keys.Key, a parameter"),
    Law(7, "equal micro-batches", "every rank does as many; none generates on shards", "BoundRegion.level"),
    Law(8, "one forward", "full logits never leave the model; one pass gives all statistics", "evaluate.SharedForward"),
    Law(9, "requests", "sampling is one asynchronous request; a batch is a gather", "executors.base.Request"),
    Law(10, "separable", "whether a row's result depends on other rows is a trait", "Op.separable"),
    Law(11, "two hashes", "one of the structure, one of everything", "store.structure_hash, store.full_hash"),
    Law(12, "flat", "graphs travel as flat JSON, with a user's files", "store.to_json, runtime.ship.stage"),
    Law(
        13,
        "a store per pool",
        "the local executor runs the lowered program",
        "lowering.check_program.check_program, runtime.execute.Executor",
    ),
    Law(14, "layouts", "an executor declares the layouts it can run as data", "executors.layouts.LAYOUTS"),
)
