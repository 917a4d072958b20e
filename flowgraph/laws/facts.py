"""The laws of what is known of values: rows that belong together, and weights that made what a port asks for."""

from __future__ import annotations

from collections.abc import Iterator

from flowgraph.errors import FlowError, LawError
from flowgraph.facts import Known, Made, RowSet, facts_of, rows_read
from flowgraph.graph import Edge, Graph, Node, Port, Region, reachable
from flowgraph.traits import By
from flowgraph.values import Kind


def rows_agree(graph: Graph) -> Iterator[FlowError]:
    """Find a node, or a loss, that reads rows of two origins as if they were the same."""
    known, mixed = facts_of(graph), set[Node]()
    for node in graph.all_nodes:
        read = list(rows_read(node, known))
        for port, rows in read[1:] if node.op.rows != "new" else ():
            if rows.origin is not read[0][1].origin:
                mixed.add(node)
                first, other = f"{node.op.name}({read[0][0]}=)", f"{node.op.name}({port}=)"
                hint = _hint(rows, read[0][1])
                yield LawError.other_rows(str(node.at), first, str(read[0][1]), other, str(rows), hint)
                break
        for _, region in node.regions:
            if mixed.isdisjoint(region.inner):  # the loss mixes rows because a node in it does
                yield from _one_batch(region, known)


def _hint(rows: RowSet, others: RowSet) -> str:
    """Say what to do: rows that a node kept of others are read from it; else both are taken from one rollout."""
    for kept, whole in ((rows.origin, others.origin), (others.origin, rows.origin)):
        if isinstance(kept, Node) and kept.op.kind != "generate" and whole in reachable(kept.edges()):
            return f"{kept.op.name} gives rows of its own: after it, read the parts of what it gave"
    return "take both from one rollout; a node whose port may have other rows says Annotated[…, Rows.OTHER]"


def _one_batch(region: Region, known: Known) -> Iterator[FlowError]:
    """Find what a loss captures that is of other rows than the rest: its rows are cut together."""
    read = [(edge, rows) for edge in region.captures if (rows := known.at(edge).rows) is not None]
    for edge, rows in read[1:]:
        if rows.origin is not read[0][1].origin:
            what = f"the loss `{region.name}` reads rows of {read[0][1]}, and of {rows}"
            hint = "rows of a loss are cut together: one update for each rollout, or one loss over one rollout"
            yield LawError(what, where=str(region.at), notes=[edge.made()], hint=hint)
            return


def made_as_asked(graph: Graph) -> Iterator[FlowError]:
    """Find a value made by other weights than its port asks for: the trained model's, the sampler's, or a fixed one."""
    known = facts_of(graph)
    regions = {inner: region for node in graph.nodes for _, region in node.regions for inner in region.inner}
    for node in graph.all_nodes:
        for port, edge in _asking(node):
            made, rows = known.at(edge).made, _rows_at(node, known)
            if made is not None:
                yield from _judge(node, port, edge, made, rows, regions.get(node))


def _asking(node: Node) -> Iterator[tuple[Port, Edge]]:
    for port in node.op.ports:
        edge = node.input(port.name)
        if port.by is not None and edge is not None:
            yield port, edge


def _rows_at(node: Node, known: Known) -> RowSet | None:
    return next((rows for _, rows in rows_read(node, known)), None)


def _judge(
    node: Node, port: Port, edge: Edge, made: Made, rows: RowSet | None, region: Region | None
) -> Iterator[FlowError]:
    where, name = str(node.at), f"{node.op.name}({port.name}=)"
    pi = region.params[0].name if region is not None else ""
    if port.by is By.TRAINED and region is not None and not made.trained:
        wants, hint = f"the model that `{region.name}` trains (`{pi}`)", f"compute it in `{region.name}`, from `{pi}`"
        yield LawError.other_weights(where, name, wants, str(made), edge.made(), hint)
    elif port.by in (By.FIXED, By.SAMPLER) and made.trained:
        wants, hint = "weights that this loss does not train", f"compute it outside `{region.name}`" if region else ""
        yield LawError.other_weights(where, name, wants, str(made), edge.made(), hint)
    elif port.by is By.SAMPLER and rows is not None and rows.drawn is not None and not _same(made, rows.drawn):
        wants = f"the weights that drew its rows ({rows.drawn})"
        hint = "rows carry the log-probs they were drawn with: `rollout.logprobs`"
        yield LawError.other_weights(where, name, wants, str(made), edge.made(), hint)


def _same(made: Made, drawn: Made) -> bool:
    return (made.param, made.version, made.at_most) == (drawn.param, drawn.version, drawn.at_most)


def one_temperature(graph: Graph) -> Iterator[FlowError]:
    """Find a node that compares what was computed at two temperatures."""
    known = facts_of(graph)
    for node in graph.all_nodes:
        told = [
            (port, edge, made.temperature)
            for port, edge in node.inputs
            if (made := known.at(edge).made) is not None and made.temperature is not None and _is_column(edge)
        ]
        for port, edge, temperature in told[1:]:
            if temperature != told[0][2]:
                what = (
                    f"{node.op.name}({port}=) is at temperature {temperature}, but "
                    f"{node.op.name}({told[0][0]}=) at {told[0][2]}"
                )
                yield LawError(what, where=str(node.at), notes=[edge.made()], hint="compare them at one temperature")
                break


def _is_column(edge: Edge) -> bool:
    return edge.type.kind is Kind.TOKEN


def lag_is_corrected(graph: Graph) -> Iterator[FlowError]:
    """Find a loss on rows that stale weights drew, which has nothing that corrects for it."""
    known = facts_of(graph)
    for node in graph.nodes:
        for _, region in node.regions:
            late_rows = [each for inner in region.inner if (each := _late_rows(inner, known)) is not None]
            if not late_rows or late_rows[0].drawn is None:
                continue
            plain = [inner for inner in region.inner if inner.op.on_policy]
            ports = (
                port for inner in region.inner for port in inner.op.ports if not port.optional or inner.input(port.name)
            )
            corrected = any(port.by is By.SAMPLER for port in ports)
            if plain or not corrected:
                yield _uncorrected(region, plain, late_rows[0], late_rows[0].drawn)


def _late_rows(node: Node, known: Known) -> RowSet | None:
    rows = _rows_at(node, known)
    drawn = rows.drawn if rows is not None else None
    return rows if drawn is not None and drawn.at_most and drawn.corrected else None


def _uncorrected(region: Region, plain: list[Node], rows: RowSet, drawn: Made) -> LawError:
    at = plain[0].at if plain else region.at
    who = (
        f"{plain[0].op.name} wants rows that the newest weights drew" if plain else f"`{region.name}` corrects nothing"
    )
    what = f"{who}, but those of {rows} may be drawn {drawn.late}"
    hint = "use a loss that corrects by the log-probs they were drawn with, or say stale(…, corrected=False)"
    return LawError(what, where=str(at), hint=hint)
