"""The laws of a described graph: a table that a person can read, and the checks that hold it.

Each law is held by the types, by a check here, or by the runtime; `LAWS` says which. Checks run when a node is described
(so that the error names its line), on every finished graph, and on every result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from flowgraph.errors import FlowError, FlowTypeError, LawError
from flowgraph.graph import Const, Edge, Graph, Node, Op, Param, Region, Site, reachable
from flowgraph.loss import Loss
from flowgraph.values import Kind, Mask, Record, State, Value

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
    for a, b in combinations([port for port in positional if not port.region], 2):
        if issubclass(a.value_type, b.value_type) or issubclass(b.value_type, a.value_type):
            why = f"`{a.name}` and `{b.name}` both take {b.value_type.__name__} by position"
            raise FlowTypeError.bad_node(where, op.name, why, f"make one a keyword: `*, {b.name}: {b.value_type.__name__}`")
    if op.carries is not None and op.carries not in [port.name for port in op.ports]:
        raise FlowTypeError.bad_node(where, op.name, f"carries `{op.carries}`, which is no port")
    if _bound(op.returns[0]) is Loss and not any(issubclass(port.value_type, Loss) for port in op.ports):
        masks = [port.name for port in op.ports if issubclass(port.value_type, Mask)]
        if len(masks) != 1:
            why = f"returns a Loss, but takes {len(masks)} masks"
            raise FlowTypeError.bad_node(where, op.name, why, "a loss takes the one mask it is averaged over")


def _bound(hint: Any) -> type[Value]:
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
            what = f"{node.op.name} {why}, so it cannot stand in the loss `{region.name}`, which runs once a micro-batch"
            raise LawError(what, where=str(node.at), notes=[f"in the loss of {op.name} at {site}"], hint="move it out")
        for port, edge in node.inputs:
            if issubclass(node.returns[0], Loss) and issubclass(edge.type, Mask) and edge.source in region.inner:
                what = f"{node.op.name}({port}=) depends on `{region.params[0].name}`, which it trains"
                raise LawError(what, where=str(node.at), hint="a mask is counted before the first micro-batch runs")


def check_returns(name: str, signature: Signature, outputs: Sequence[Any]) -> None:
    """Refuse a flow that returns something else than it says."""
    where = str(signature.at)
    if len(outputs) != len(signature.returns):
        why = f"says it returns {len(signature.returns)} values, but returned {len(outputs)}"
        raise FlowTypeError.bad_flow(where, name, why)
    for out, said in zip(outputs, signature.returns, strict=True):
        if not isinstance(out, _bound(said)) or out.edge is None:
            got = "a real value" if isinstance(out, Value) and out.edge is None else type(out).__name__
            raise FlowTypeError.bad_flow(where, name, f"says it returns {_bound(said).__name__}, but returned {got}")


def check_result(node: Node, result: Any) -> None:
    """Refuse a result whose type or shape is not what the op declares."""
    results = result if isinstance(result, tuple) else (result,)
    if len(results) != len(node.returns):
        raise LawError(f"{node.op.name} returned {len(results)} values, not {len(node.returns)}", where=str(node.at))
    for value, said in zip(results, node.returns, strict=True):
        if not isinstance(value, said):
            what = f"{node.op.name} returned {type(value).__name__}, not {said.__name__}"
            raise LawError(what, where=str(node.at))
        for part in value.parts.values() if isinstance(value, Record) else (value,):
            wanted = 2 if part.kind is Kind.TOKEN else None
            if wanted and part.data.dim() != wanted:
                what = f"{node.op.name} returned {type(part).__name__} of shape {list(part.data.shape)}, not [rows, tokens]"
                raise LawError(what, where=str(node.at))


def stale_read(op: Op, edge: Edge, site: Site) -> LawError:
    """Say that only sampling may read weights that lag."""
    return LawError(
        f"{op.name} reads {edge} up to {edge.at_most} updates late; only sampling may",
        where=str(site),
        hint="give the stale model to a generate node only",
    )


def consumed_once(graph: Graph) -> Iterator[FlowError]:
    """Find a version of state that two ops consume: weights are updated in place, so there is no fork."""
    consumers: dict[Edge, Node] = {}
    for node in graph.nodes:
        if node.op.carries is None:
            continue
        edge = dict(node.inputs)[node.op.carries]
        first = consumers.setdefault(edge, node)
        if first is not node:
            yield LawError(
                f"{node.op.name} consumes a version of {edge} that {first.op.name} at {first.at} has consumed already",
                where=str(node.at),
                hint="give the second the model that the first returned",
            )


def one_flow(graph: Graph) -> Iterator[FlowError]:
    """Find values that belong to another flow, or that are real."""
    inside = {param for node in graph.all_nodes for _, region in node.regions for param in region.params}
    regional = {n for node in graph.nodes for _, region in node.regions for n in region.inner}
    for reader in (*graph.all_nodes, None):
        for edge in reader.edges() if reader else graph.outputs:
            source, where = edge.source, str(reader.at if reader else graph.at)
            if isinstance(source, Param) and source not in graph.params and source not in inside:
                used = reader.op.name if reader else f"flow {graph.name}"
                what = f"{used} uses a value of {source.owner} in flow {graph.name}"
                yield LawError(what, where=where, notes=_path_note(reader), hint="pass it in as a parameter of this flow")
            elif isinstance(source, Const):
                yield LawError(f"flow {graph.name} holds real data", where=where, hint="pass it in as a parameter")
            elif reader is None and (source in inside or source in regional):
                yield LawError(f"flow {graph.name} returns {edge}, which lives in a loss only", where=where)
            elif reader is not None and reader not in regional and (source in inside or source in regional):
                what = f"{reader.op.name} uses {edge}, which lives in a loss only"
                yield LawError(what, where=where, notes=[edge.made()])


def _path_note(reader: Node | None) -> list[str]:
    return [f"read by {reader.op.name} at {reader.at}"] if reader else []


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
    """Find state that comes out but was never a parameter."""
    from flowgraph.graph import carried_from

    for edge in graph.outputs:
        if issubclass(edge.type, State) and carried_from(edge) is None:
            yield LawError(f"flow {graph.name} returns state that is the next version of no parameter", where=str(graph.at))


LAWS: tuple[Law, ...] = (
    Law(0, "one flow", "a graph holds only what its own parameters and nodes make", "check", one_flow),
    Law(1, "versions", "a version of weights is consumed by at most one update", "check", consumed_once),
    Law(1, "readers first", "every reader of a version runs before the update that consumes it", "check", readers_come_first),
    Law(2, "state", "state comes in as a parameter and goes out as a result; nodes hold none", "check", state_comes_out),
    Law(3, "terms", "a loss is terms, divided by the global count of their own mask", "check_op, Loss, BoundRegion.counts"),
    Law(4, "kinds", "every value is row, row x token, scalar, model or state; a row has an identity", "values.Kind, Group"),
    Law(5, "bodies", "a body sees padded [B, T] tensors and their mask; ragged on the wire", "check_result, batch.to_table"),
    Law(6, "keys", "random numbers are keyed by seed, step, node, prompt, sample, position", "keys.Key, an explicit parameter"),
    Law(7, "equal micro-batches", "every rank does the same number; none generates on sharded modules", "training.micro_batches"),
    Law(8, "one forward", "full logits never leave the model; statistics asked together are one pass", "evaluate.SharedForward"),
    Law(9, "requests", "sampling is one asynchronous request; a batch is a gather", "executors.base.Request"),
    Law(10, "separable", "whether a row's result depends on other rows is a trait", "Op.separable"),
    Law(11, "two hashes", "one of the structure, one of everything", "store.structure_hash, store.full_hash"),
    Law(12, "flat", "graphs travel as flat JSON; every traversal is a loop", "store.to_json, graph.reachable"),
    Law(13, "a store per pool", "the local executor runs the lowered program", "not yet: there is one pool"),
    Law(14, "layouts", "an executor declares the layouts it can run as data", "executors.layouts.LAYOUTS"),
)
