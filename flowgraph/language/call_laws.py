"""The laws of one call: what an op, a region, a flow's results and a node's real results must be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, cast, get_args

from flowgraph.errors import FlowTypeError, LawError, nearest, with_article
from flowgraph.language.call_site import Site
from flowgraph.language.graph import Edge, Node, NodeKind, Op, Region, how_late, reachable
from flowgraph.language.loss import Loss
from flowgraph.language.rows import find, leaves
from flowgraph.language.traits import RowTrait
from flowgraph.language.values import Group, Kind, Mask, Metric, Record, Sample, State, Trajectory, Value, fields

if TYPE_CHECKING:
    from flowgraph.language.signature import Signature


def check_op(op: Op, signature: Signature) -> None:
    """Refuse an op that a graph cannot hold: ports that could be swapped unseen, a loss without its mask."""
    where, positional = str(signature.at), [port for port in op.ports if port.name in signature.positional]
    _check_traits(op, where)
    for a, b in combinations([port for port in positional if not port.region], 2):
        if issubclass(a.value_type, b.value_type) or issubclass(b.value_type, a.value_type):
            why = f"`{a.name}` and `{b.name}` both take {b.value_type.__name__} by position"
            raise FlowTypeError.bad_node(
                where, op.name, why, f"make one a keyword: `*, {b.name}: {b.value_type.__name__}`"
            )
    if op.carries is not None:
        _check_carry(op, where)
    _check_rows(op, where)
    _check_corrections(op, where)
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


def _check_traits(op: Op, where: str) -> None:
    """Refuse a trait that is not known, or of another type than it has."""
    for name, known in (("kind", get_args(NodeKind)), ("rows", get_args(RowTrait))):
        if getattr(op, name) not in known:
            why = f"{name}={getattr(op, name)!r}, and there is no such {name}"
            raise FlowTypeError.bad_node(where, op.name, why, nearest(str(getattr(op, name)), known))
    types: dict[str, Any] = {
        "pure": bool,
        "separable": bool,
        "on_policy": bool,
        "regroups": bool,
        "carries": str | None,
        "stat": str | None,
    }
    for name, kind in types.items():
        if not isinstance(getattr(op, name), kind):
            raise FlowTypeError.bad_node(
                where, op.name, f"{name}={getattr(op, name)!r} is no {'truth' if kind is bool else 'name'}"
            )
    for setting in op.samples if op.samples not in (None, ("n",)) else ():
        field = op.settings.model_fields.get(setting)
        if op.kind != "generate" or field is None or field.annotation is not int:
            why = f"samples={setting!r} names no whole-number setting of a generate node"
            raise FlowTypeError.bad_node(where, op.name, why, nearest(setting, op.settings.model_fields))
    for metric in cast("tuple[object, ...]", op.metrics):
        if not isinstance(metric, Metric):
            raise FlowTypeError.bad_node(where, op.name, f"metrics hold {metric!r}", "name each: Metric('share')")


def _check_rows(op: Op, where: str) -> None:
    """Refuse a node that makes, drops or moves rows and gives them without their ids."""
    if op.rows == "kept":
        return
    results = [bound_type(each) for each in op.returns]
    if not any(has_ids(each) for each in results):
        gives = ", ".join(each.__name__ for each in results)
        why = f'has rows="{op.rows}", but gives {gives}, which does not say which row is which'
        raise FlowTypeError.bad_node(where, op.name, why, "give a Record with a Group: identity goes with the rows")


def _check_corrections(op: Op, where: str) -> None:
    """Refuse a port that corrects another one which is not there, or is no value."""
    for port in op.ports:
        others = [each.name for each in op.ports if each is not port and not each.region]
        if port.corrects and port.corrects not in others:
            why = f"`{port.name}` corrects `{port.corrects}`, and the node has no other port of that name"
            raise FlowTypeError.bad_node(where, op.name, why, nearest(port.corrects, others))


def has_ids(kind: type[Value]) -> bool:
    """Say whether values of this type tell their rows apart: records with a Group."""
    return issubclass(kind, Record) and any(issubclass(each, Group) for each in fields(kind).values())


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
    inside = [n for n in reachable([region.output], newer=region.params[0].stamp) if isinstance(n, Node)]
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
            at = edge.source.at if isinstance(edge.source, Node) else region.at
            raise LawError(what, where=str(at), notes=[f"in the loss of {op.name} at {site}"], hint=hint)


def _check_inner(op: Op, node: Node, region: Region, site: Site) -> None:
    """Refuse a loss inside a loss, and what would have to run before the terms' masks can be counted."""
    pi = region.params[0].name
    if node.regions:
        what = f"{node.op.name} takes a function, so it cannot stand in the loss `{region.name}`"
        raise LawError(what, where=str(node.at), notes=[f"in the loss of {op.name} at {site}"], hint="move it out")
    if not node.op.separable:
        what = f"{node.op.name} reads all rows together, but the loss `{region.name}` runs on a few at a time"
        raise LawError(what, where=str(node.at), notes=[f"in the loss of {op.name} at {site}"], hint="move it out")
    for port, edge in node.inputs:
        if issubclass(edge.type, Group):
            what = f"{node.op.name}({port}=) reads which rows share a prompt, but `{region.name}` runs on some of them"
            hint = f"micro-batches cut groups; compute it outside `{region.name}`"
            raise LawError(what, where=str(node.at), notes=[f"in the loss of {op.name} at {site}"], hint=hint)
    if not issubclass(node.returns[0], Loss):
        return
    combines = not any(issubclass(port.value_type, Mask) for port in node.op.ports)
    for port, edge in node.inputs:
        moves = edge.source is region.params[0] or edge.source in region.inner
        if moves and (issubclass(edge.type, Mask) or (combines and not issubclass(edge.type, Loss))):
            what = f"{node.op.name}({port}=) depends on `{pi}`, which it trains"
            thing = "what losses are combined by" if combines else "a mask"
            hint = f"{thing} is {'read' if combines else 'counted'} before the first micro-batch runs"
            raise LawError(what, where=str(node.at), hint=hint)
        if combines and edge.type.kind in (Kind.ROW, Kind.TOKEN):
            what = f"{node.op.name}({port}=) has rows, but the factor of a loss is one number for all micro-batches"
            raise LawError(what, where=str(node.at), hint="take it in the node that gives the term, or as a scalar")


def check_returns(name: str, signature: Signature, outputs: Sequence[Any]) -> None:
    """Refuse a flow that returns something else than it says."""
    where = str(signature.at)
    if len(outputs) != len(signature.returns):
        many = f"{len(signature.returns)} value{'s' if len(signature.returns) > 1 else ''}"
        why = f"says it returns {many}, but returned {len(outputs)}"
        raise FlowTypeError.bad_flow(where, name, why, "its last line returns what its annotation says")
    for out, said in zip(outputs, signature.returns, strict=True):
        if not isinstance(out, bound_type(said)) or out.edge is None:
            got = "a real value" if isinstance(out, Value) and out.edge is None else type(out).__name__
            why = f"says it returns {bound_type(said).__name__}, but returned {got}"
            hint = "a flow ends with a `return`" if out is None else ""
            raise FlowTypeError.bad_flow(where, name, why, hint)


def check_result(node: Node, result: Any, inputs: Mapping[str, Any]) -> None:
    """Refuse a result whose type, shape or dtype is not what the op declares, or whose rows are not its inputs'."""
    results = result if isinstance(result, tuple) else (result,)
    if len(results) != len(node.returns):
        raise LawError(f"{node.op.name} returned {len(results)} values, not {len(node.returns)}", where=str(node.at))
    for value, said in zip(results, node.returns, strict=True):
        if not isinstance(value, said):
            what = f"{node.op.name} returned {type(value).__name__}, not {said.__name__}"
            raise LawError(what, where=str(node.at))
        for part in leaves([value]):
            _check_column(node, part)
    if node.op.rows == "kept":
        _check_kept(node, results, inputs)


def _check_column(node: Node, value: Value) -> None:
    """Refuse a column of tokens that is not [rows, tokens], and numbers of another sort than the type says."""
    shape, name = getattr(value.data, "shape", None), with_article(type(value).__name__)
    if value.kind is Kind.TOKEN and (shape is None or len(shape) != 2):
        holds = f"a {type(value.data).__name__}" if shape is None else f"shape {list(shape)}"
        raise LawError(f"{node.op.name} returned {name} of {holds}, not [rows, tokens]", where=str(node.at))
    dtype = str(getattr(value.data, "dtype", "")).removeprefix("torch.")
    if dtype and value.dtype and _sort(dtype) != _sort(value.dtype):
        raise LawError(f"{node.op.name} returned {name} of {dtype}, not {value.dtype}", where=str(node.at))


def _sort(dtype: str) -> str:
    """Give the sort of number: `int64` and `uint8` are whole, `float32` and `bfloat16` are not."""
    return dtype.strip("0123456789").removeprefix("u").removeprefix("b") if dtype != "bool" else dtype


def _check_kept(node: Node, results: Sequence[Value], inputs: Mapping[str, Any]) -> None:
    """Refuse rows of another number or order than those of the inputs, of a node that is said to keep them."""
    ports = {port.name for port in node.op.ports if not port.other_rows}
    given = [value for name, value in inputs.items() if name in ports and isinstance(value, Value)]
    for value in results:
        count = _rows(value)
        if count is None:
            continue
        counts = {found for each in given if (found := _rows(each)) is not None}
        if counts and counts != {count}:
            many = " and ".join(map(str, sorted(counts)))
            what = f"{node.op.name} was given {many} rows and returned {count}"
            hint = 'a node that filters or makes rows is a @node(rows="new"), and gives a Record with their ids'
            raise LawError(what, where=str(node.at), hint=hint)
        for each in given:
            if _moved(each, value):
                what = f"{node.op.name} returned its rows in another order"
                hint = 'a node that reorders rows is a @node(rows="reordered")'
                raise LawError(what, where=str(node.at), hint=hint)


def _rows(value: Value) -> int | None:
    """Give how many rows a value has, None if it has none."""
    return next((len(each.data) for each in leaves([value]) if each.kind in (Kind.ROW, Kind.TOKEN)), None)


def _moved(before: Value, after: Value) -> bool:
    """Say whether two records tell their rows apart, and not alike."""
    import torch

    for kind in (Group, Sample, Trajectory):
        first, then = find([before], kind), find([after], kind)
        if first is not None and then is not None and not torch.equal(first.data.cpu(), then.data.cpu()):
            return True
    return False


def stale_read(op: Op, edge: Edge, site: Site) -> LawError:
    """Say that only sampling may read weights that lag."""
    return LawError(
        f"{op.name} reads {edge} {how_late(edge.at_most)}; only sampling may",
        where=str(site),
        hint="give the stale model to a generate node only",
    )
