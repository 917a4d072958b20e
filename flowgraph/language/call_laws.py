"""The laws of one call: of an op, a region, a flow's results and a node's real results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, cast, get_args

from flowgraph.errors import FlowTypeError, LawError, nearest, with_article
from flowgraph.language.call_site import Site
from flowgraph.language.graph import Node, NodeKind, Op, Region, reachable
from flowgraph.language.loss import Loss
from flowgraph.language.rows import find, leaves
from flowgraph.language.traits import RowTrait
from flowgraph.language.values import Group, Kind, Mask, Metric, Record, Sample, State, Trajectory, Value, fields

if TYPE_CHECKING:
    from flowgraph.language.signature import Signature


def check_op(op: Op, signature: Signature) -> None:
    """Raise FlowTypeError, with the line of the node's function, if the declaration of an op is invalid.

    `signature` is the signature of that function. Errors: a trait with an invalid value; two positional ports that the
    same value fits; `carries` that does not name a port of type State whose next version is the first result; new or
    reordered rows if no result is a Record with a Group; `corrects` that does not name another port; a Loss next to
    other results; a Loss from a Loss and a mask, or from neither a Loss nor exactly one mask.
    """
    where, positional = str(signature.at), [port for port in op.ports if port.name in signature.positional]
    _check_traits(op, where)
    for a, b in combinations([port for port in positional if not port.region], 2):
        if issubclass(a.value_type, b.value_type) or issubclass(b.value_type, a.value_type):
            why = f"`{a.name}` and `{b.name}` both take {b.value_type.__name__} by position"
            hint = f"make one a keyword: `*, {b.name}: {b.value_type.__name__}`"
            raise FlowTypeError.bad_node(where, op.name, why, hint)
    _check_carry(op, where)
    results = [bound_type(hint) for hint in op.returns]
    if op.rows != "kept" and not any(map(has_ids, results)):
        names = ", ".join(kind.__name__ for kind in results)
        why = f'has rows="{op.rows}", but returns {names}, which does not identify its rows'
        raise FlowTypeError.bad_node(where, op.name, why, "return a Record with a Group: identity goes with the rows")
    for port in op.ports:
        others = [other.name for other in op.ports if other is not port and not other.region]
        if port.corrects and port.corrects not in others:
            why = f"`{port.name}` corrects `{port.corrects}`, and the node has no other port of that name"
            raise FlowTypeError.bad_node(where, op.name, why, nearest(port.corrects, others))
    if any(issubclass(kind, Loss) for kind in results):
        losses = [port.name for port in op.ports if not port.region and issubclass(port.value_type, Loss)]
        masks = [port.name for port in op.ports if issubclass(port.value_type, Mask)]
        why, hint = "", "make it two nodes"
        if len(results) > 1:
            why = "returns a Loss and other values"
        elif losses and masks:
            why = "takes a Loss and a mask, and returns a Loss"
        elif not losses and len(masks) != 1:
            why, hint = f"returns a Loss, but takes {len(masks)} masks", "a loss takes the one mask it is averaged over"
        if why:
            raise FlowTypeError.bad_node(where, op.name, why, hint)


_TRAIT_TYPES: Mapping[str, type] = dict.fromkeys(("pure", "separable", "on_policy", "regroups", "hands_out"), bool)


def _check_traits(op: Op, where: str) -> None:
    for name, values in (("kind", get_args(NodeKind)), ("rows", get_args(RowTrait))):
        if getattr(op, name) not in values:
            why = f"unknown {name} {getattr(op, name)!r}"
            raise FlowTypeError.bad_node(where, op.name, why, nearest(str(getattr(op, name)), values))
    for name in (*_TRAIT_TYPES, "carries", "stat"):
        value, kind = getattr(op, name), _TRAIT_TYPES.get(name, str)
        if not isinstance(value, kind) and not (kind is str and value is None):
            what = "True or False" if kind is bool else "a name"
            raise FlowTypeError.bad_node(where, op.name, f"{name}={value!r} is not {what}")
    if op.hands_out and (op.kind != "generate" or len(op.returns) != 1 or not has_ids(bound_type(op.returns[0]))):
        why = "hands_out=True is for a generate node whose only result is a record with the ids of its rows"
        raise FlowTypeError.bad_node(where, op.name, why)
    for setting in op.samples if op.samples not in (None, ("n",)) else ():
        field = op.settings.model_fields.get(setting)
        if op.kind != "generate" or field is None or field.annotation is not int:
            why = f"samples={setting!r} must name a whole-number setting of a generate node"
            raise FlowTypeError.bad_node(where, op.name, why, nearest(setting, op.settings.model_fields))
    for metric in cast("tuple[object, ...]", op.metrics):
        if not isinstance(metric, Metric):
            why = f"metrics must be Metric objects, not {metric!r}"
            raise FlowTypeError.bad_node(where, op.name, why, "name each: Metric('share')")


def has_ids(kind: type[Value]) -> bool:
    """Return whether a type is a Record with a part of type Group, so that its values identify their rows."""
    return issubclass(kind, Record) and any(issubclass(part, Group) for part in fields(kind).values())


def _check_carry(op: Op, where: str) -> None:
    if op.carries is None:
        return
    if op.carries not in [port.name for port in op.ports if not port.region]:
        raise FlowTypeError.bad_node(where, op.name, f"carries `{op.carries}`, which is not a port")
    port = op.port(op.carries)
    if not issubclass(port.value_type, State):
        why = f"carries `{port.name}`, {with_article(port.value_type.__name__)}, which is not a State"
        raise FlowTypeError.bad_node(where, op.name, why, "derive its type from State")
    if op.returns[0] != port.type:
        why = f"carries `{port.name}`, but does not return {with_article(port.value_type.__name__)} first"
        raise FlowTypeError.bad_node(where, op.name, why, f"its first result is the next version of `{port.name}`")


def bound_type(hint: Any) -> type[Value]:
    """Return the value type of an annotation: the class itself, or the bound of a TypeVar."""
    bound: type[Value] = getattr(hint, "__bound__", None) or hint
    return bound


def check_region(op: Op, region: Region, site: Site) -> None:
    """Raise LawError if micro-batches cannot compute the loss `region`, or if it would change nothing.

    Errors: the loss never reads the trained model; a node in it uses random numbers, has effects, takes a loss itself,
    reads all rows together, or reads groups; a mask or a factor depends on the trained model; a factor has rows; a term
    does not depend on the trained model. `op` and `site` are the call that takes the loss, for the error's text.
    """
    pi, notes = region.params[0], [f"in the loss of {op.name} at {site}"]
    refused = f"cannot be used in the loss `{region.name}`"
    if not region.inner:
        what = f"`{region.name}` never reads `{pi.name}`: {op.name} would change nothing"
        raise LawError(what, where=str(region.at), hint=f"pass `{pi.name}` to a node in it")
    for node in reachable([region.output], newer=pi.stamp):
        if isinstance(node, Node) and not node.op.pure:
            why = "uses random numbers" if node.op.key else "has effects"
            what = f"{node.op.name} {why}, so it {refused}, which runs once a micro-batch"
            raise LawError(what, where=str(node.at), notes=notes, hint="move it out")
    for node in region.inner:
        _check_inner(node, region, notes)
    for edge in region.captures:
        if issubclass(edge.type, Loss):
            what = f"a term of the loss `{region.name}` does not depend on `{pi.name}`, which it trains"
            hint = f"pass `{pi.name}` to a node inside this term, or leave the term out"
            at = edge.source.at if isinstance(edge.source, Node) else region.at
            raise LawError(what, where=str(at), notes=notes, hint=hint)


def _check_inner(node: Node, region: Region, notes: Sequence[str]) -> None:
    """Refuse a loss inside a loss, and a node that reads more rows than a micro-batch has.

    A node that makes a loss may take no mask or factor that depends on the trained model, and no factor with rows.
    """
    what, hint = "", "move it out"
    if node.regions:
        what = f"{node.op.name} takes a function, so it cannot be used in the loss `{region.name}`"
    elif not node.op.separable:
        what = f"{node.op.name} reads all rows together, but the loss `{region.name}` runs on a few at a time"
    elif grouped := next((port for port, edge in node.inputs if issubclass(edge.type, Group)), None):
        what = f"{node.op.name}({grouped}=) reads which rows share a prompt, but `{region.name}` runs on some of them"
        hint = f"micro-batches cut groups; compute it outside `{region.name}`"
    if what:
        raise LawError(what, where=str(node.at), notes=notes, hint=hint)
    if not issubclass(node.returns[0], Loss):
        return
    combines = not any(issubclass(port.value_type, Mask) for port in node.op.ports)
    for port, edge in node.inputs:
        trained = edge.source is region.params[0] or edge.source in region.inner
        if trained and (issubclass(edge.type, Mask) or (combines and not issubclass(edge.type, Loss))):
            what = f"{node.op.name}({port}=) depends on `{region.params[0].name}`, which it trains"
            read = "a factor is read" if combines else "a mask is counted"
            raise LawError(what, where=str(node.at), hint=f"{read} before the first micro-batch runs")
        if combines and edge.type.kind in (Kind.ROW, Kind.TOKEN):
            what = f"{node.op.name}({port}=) has rows, but the factor of a loss is one number for all micro-batches"
            raise LawError(what, where=str(node.at), hint="take it in the node that makes the term, or as a scalar")


def check_returns(name: str, signature: Signature, outputs: Sequence[Any]) -> None:
    """Raise FlowTypeError unless the results of the flow `name` are edges of the annotated types, in the same order."""
    where, count = str(signature.at), len(signature.returns)
    if len(outputs) != count:
        why = f"should return {count} value{'s' if count > 1 else ''}, but returned {len(outputs)}"
        raise FlowTypeError.bad_flow(where, name, why, "return the values of its annotation")
    for out, kind in zip(outputs, map(bound_type, signature.returns), strict=True):
        if not isinstance(out, kind) or out.edge is None:
            got = "a real value" if isinstance(out, Value) and out.edge is None else type(out).__name__
            hint = "end the flow with a `return`" if out is None else ""
            raise FlowTypeError.bad_flow(where, name, f"should return {kind.__name__}, but returned {got}", hint)


def check_result(node: Node, result: Any, inputs: Mapping[str, Any]) -> None:
    """Raise LawError if the real results of a node differ from what its op declares.

    `result` is a tuple if the node has several results; `inputs` are its values by port. Errors: too many or too few
    results; a result of the wrong type; a token column that is not [rows, tokens]; a column whose kind of number (int,
    float, bool) is not that of its type; and, unless the op makes or reorders rows, rows whose number or order of ids
    differs from that of the inputs, and a mask of tokens that no mask among the inputs has. Inputs on ports with
    `Rows.OTHER` are not compared.
    """
    results = result if isinstance(result, tuple) else (result,)
    where = str(node.at)
    if len(results) != len(node.returns):
        raise LawError(f"{node.op.name} returned {len(results)} values, not {len(node.returns)}", where=where)
    for value, kind in zip(results, node.returns, strict=True):
        if not isinstance(value, kind):
            raise LawError(f"{node.op.name} returned {type(value).__name__}, not {kind.__name__}", where=where)
        for part in leaves([value]):
            data, column = part.data, f"{node.op.name} returned {with_article(type(part).__name__)}"
            shape, dtype = getattr(data, "shape", None), str(getattr(data, "dtype", "")).removeprefix("torch.")
            if part.kind is Kind.TOKEN and (shape is None or len(shape) != 2):
                content = f"a {type(data).__name__}" if shape is None else f"shape {list(shape)}"
                raise LawError(f"{column} of {content}, not [rows, tokens]", where=where)
            if dtype and part.dtype and _number_kind(dtype) != _number_kind(part.dtype):
                raise LawError(f"{column} of {dtype}, not {part.dtype}", where=where)
    if node.op.rows == "kept":
        _check_kept(node, results, inputs)


def _number_kind(dtype: str) -> str:
    """Return `int` for `int64` and `uint8`, `float` for `float32` and `bfloat16`."""
    return dtype.strip("0123456789").removeprefix("u").removeprefix("b") if dtype != "bool" else dtype


def _check_kept(node: Node, results: Sequence[Value], inputs: Mapping[str, Any]) -> None:
    import torch

    ports = {port.name for port in node.op.ports if not port.other_rows}
    values = [value for name, value in inputs.items() if name in ports and isinstance(value, Value)]
    counts = {count for value in values if (count := _row_count(value)) is not None}
    for result in results:
        count = _row_count(result)
        if count is None:
            continue
        if counts and counts != {count}:
            what = f"{node.op.name} got {' and '.join(map(str, sorted(counts)))} rows and returned {count}"
            hint = 'a node that filters or makes rows is a @node(rows="new"), and returns a Record with their ids'
            raise LawError(what, where=str(node.at), hint=hint)
        _check_narrowed(node, result, values)
        for value, kind in product(values, (Group, Sample, Trajectory)):
            before, after = find([value], kind), find([result], kind)
            if before is not None and after is not None and not torch.equal(before.data.cpu(), after.data.cpu()):
                hint = 'a node that reorders rows is a @node(rows="reordered")'
                raise LawError(f"{node.op.name} returned its rows in another order", where=str(node.at), hint=hint)


def _check_narrowed(node: Node, result: Value, inputs: Sequence[Value]) -> None:
    """Refuse a mask with tokens that none of the masks among the inputs has, such as padding, or the text of a tool."""
    made, masks = find([result], Mask), [value.data for value in leaves(inputs) if isinstance(value, Mask)]
    masks = [mask for mask in masks if made is not None and mask.shape == made.data.shape]
    if made is None or not masks:
        return
    kept = sum((mask != 0).to(made.data.device) for mask in masks)
    extra = int(((made.data != 0) & (kept == 0)).sum())
    if extra:
        what = f"{node.op.name} returned a mask with {extra} tokens that the mask which it read leaves out"
        raise LawError(what, where=str(node.at), hint="a node may narrow a mask, and never widen it")


def _row_count(value: Value) -> int | None:
    return next((len(part.data) for part in leaves([value]) if part.kind in (Kind.ROW, Kind.TOKEN)), None)
