"""The laws of what is known of values: rows that belong together, and weights that made what a port asks for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from flowgraph.analysis.facts import GraphFacts, MadeBy, RowSet, facts_of, rows_read
from flowgraph.errors import FlowError, LawError
from flowgraph.language.graph import Edge, Graph, Node, Port, Region, reachable
from flowgraph.language.loss import Loss
from flowgraph.language.traits import By
from flowgraph.language.values import Kind
from flowgraph.passes.dedupe_nodes import dedupe_nodes


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


def _one_batch(region: Region, known: GraphFacts) -> Iterator[FlowError]:
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
            if port.by is By.SAMPLER and rows is not None and rows.drawn is not None and rows.drawn.temperature == 0:
                yield _greedy(node, port, edge, rows)
            elif port.by is By.SAMPLER and rows is not None and rows.kept and _computed(node, port, edge):
                wants = f"the weights that drew its rows, of an earlier step where `{rows.kept}` kept them"
                hint = "rows carry the log-probs they were drawn with: read them from the rows"
                name = f"{node.op.name}({port.name}=)"
                yield LawError.other_weights(str(node.at), name, wants, str(made), edge.made(), hint)
            elif made is not None:
                yield from _judge(node, port, edge, made, rows, regions.get(node))


def _computed(node: Node, port: Port, edge: Edge) -> bool:
    """Say whether a model computed a value anew, and nothing says that it is corrected for."""
    decoupled = any(port.name == each.corrects for each, _ in _corrections(node))
    return not decoupled and isinstance(edge.source, Node) and edge.source.model() is not None


def _asking(node: Node) -> Iterator[tuple[Port, Edge]]:
    for port in node.op.ports:
        edge = node.input(port.name)
        if port.by is not None and edge is not None:
            yield port, edge


def _greedy(node: Node, port: Port, edge: Edge, rows: RowSet) -> LawError:
    what = f"{node.op.name}({port.name}=) corrects by how likely its rows were, but those of {rows} are greedy"
    hint = "at temperature 0 the likeliest token is taken, and nothing is drawn: sample at another temperature"
    return LawError(what, where=str(node.at), notes=[edge.made()], hint=hint)


def _rows_at(node: Node, known: GraphFacts) -> RowSet | None:
    return next((rows for _, rows in rows_read(node, known)), None)


def _judge(
    node: Node, port: Port, edge: Edge, made: MadeBy, rows: RowSet | None, region: Region | None
) -> Iterator[FlowError]:
    where, name = str(node.at), f"{node.op.name}({port.name}=)"
    pi = region.params[0].name if region is not None else ""
    decoupled = any(port.name == each.corrects for each, _ in _corrections(node))  # what corrects says the rest
    drawn = rows.drawn if rows is not None and not decoupled else None
    if port.by is By.TRAINED and region is not None and not made.trained:
        wants, hint = f"the model that `{region.name}` trains (`{pi}`)", f"compute it in `{region.name}`, from `{pi}`"
        yield LawError.other_weights(where, name, wants, str(made), edge.made(), hint)
    elif port.by in (By.FIXED, By.SAMPLER) and made.trained:
        wants, hint = "weights that this loss does not train", f"compute it outside `{region.name}`" if region else ""
        yield LawError.other_weights(where, name, wants, str(made), edge.made(), hint)
    elif port.by is By.SAMPLER and drawn is not None and not _same(made, drawn):
        wants = f"the weights that drew its rows ({drawn})"
        hint = "rows carry the log-probs they were drawn with: `rollout.logprobs`"
        yield LawError.other_weights(where, name, wants, str(made), edge.made(), hint)


def _same(made: MadeBy, drawn: MadeBy) -> bool:
    return (made.param, made.version, made.at_most) == (drawn.param, drawn.version, drawn.at_most)


def _corrections(node: Node) -> list[tuple[Port, Edge]]:
    """Give what a node is given to correct for the weights that drew its rows."""
    ports = (port for port in node.op.ports if port.corrects is not None)
    return [(port, edge) for port in ports if (edge := node.input(port.name)) is not None]


def corrected_once(graph: Graph) -> Iterator[FlowError]:
    """Find a correction of other values than those it is used with, and one that compares a value with itself.

    In the first the ratio would be applied twice, or not at all. Of a correction that no node made nothing is known.
    What is computed twice is one value here.
    """
    asking = any(port.by is By.SAMPLER or port.corrects for node in graph.all_nodes for port in node.op.ports)
    for node in dedupe_nodes(graph).all_nodes if asking else ():
        if not issubclass(node.returns[0], Loss):
            yield from _of_itself(node)
        for port, edge in _corrections(node):
            maker = _maker(edge)
            if isinstance(maker.source, Node) and port.corrects:
                yield from _of_others(node, port, maker, maker.source.input(port.corrects))


def _of_itself(node: Node) -> Iterator[FlowError]:
    """Find a node outside of what is summed to a loss that reads one value as the sampler's and as another's."""
    alike = [(port, edge) for port in node.op.ports if (edge := node.input(port.name)) is not None]
    for (one, read), (other, again) in combinations(alike, 2):
        if By.SAMPLER in (one.by, other.by) and read == again:
            what = (
                f"{node.op.name}({one.name}=) and {node.op.name}({other.name}=) read the same, so it corrects nothing"
            )
            hint = "compare what the sampler told with what the trained model says: compute it from the model"
            yield LawError(what, where=str(node.at), notes=[read.made()], hint=hint)


def _of_others(node: Node, port: Port, maker: Edge, corrected: Edge | None) -> Iterator[FlowError]:
    """Find a correction that its maker computed from other values than those that the node reads beside it."""
    name, used = f"{node.op.name}({port.corrects}=)", node.input(port.corrects or "")
    if used is None or corrected == used:
        return
    assert isinstance(maker.source, Node), "what nothing made is not judged"
    by = maker.source
    if corrected is None:
        what = f"{node.op.name}({port.name}=) corrects for {name}, but {by.op.name} takes no `{port.corrects}`"
        yield LawError(what, where=str(node.at), notes=[maker.made()], hint=f"name its port `{port.corrects}`")
        return
    drawn = (edge for each, edge in _asking(by) if each.by is By.SAMPLER)
    twice = any(edge == used for edge in drawn)
    what = f"{node.op.name}({port.name}=) corrects `{corrected}`, but {name} is `{used}`"
    why = "the ratio would be applied twice" if twice else "what is used would not be corrected"
    hint = f"leave {port.name}= out" if twice else f"give {by.op.name}({port.corrects}=) and {name} the same"
    yield LawError(f"{what}: {why}", where=str(node.at), notes=[corrected.made(), used.made()], hint=hint)


def _maker(edge: Edge) -> Edge:
    """Give what made a value, through nodes that take one value of its type and give that type."""
    while isinstance(edge.source, Node):
        alike = [read for _, read in edge.source.inputs if read.type is edge.type]
        if len(alike) != 1:
            break
        edge = alike[0]
    return edge


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
            first = next(each for each in told if each[1].type is edge.type)
            if temperature != first[2]:
                what = (
                    f"{node.op.name}({port}=) is at temperature {temperature}, but "
                    f"{node.op.name}({first[0]}=) at {first[2]}"
                )
                yield LawError(what, where=str(node.at), notes=[edge.made()], hint="compare them at one temperature")
                break


def _is_column(edge: Edge) -> bool:
    return edge.type.kind is Kind.TOKEN


def lag_is_corrected(graph: Graph) -> Iterator[FlowError]:
    """Find a loss on rows of other weights than it trains: where a node wants their own, or nothing corrects for lag.

    Only a loss of the model that drew the rows has a lag to correct for; a critic, or a student, has none.
    """
    known = facts_of(graph)
    sampled = {edge.source for node in graph.nodes if node.op.kind == "generate" and (edge := node.model())}
    for node in graph.nodes:
        for _, region in node.regions:
            read = [(inner, rows) for inner in region.inner if (rows := _rows_at(inner, known)) is not None]
            if node.root in sampled or any(each.root is node.root for each in sampled if isinstance(each, Node)):
                yield from _kept_uncorrected(region, read)
            late = [(inner, rows) for inner, rows in read if _is_late(rows.drawn, node)]
            plain = [(inner, rows) for inner, rows in late if inner.op.on_policy and not _corrections(inner)]
            lags = [rows for _, rows in late if rows.drawn and rows.drawn.at_most and rows.drawn.param is node.root]
            yield from (fault for inner in region.inner for fault in _reaches_others(inner, node, known))
            if plain:
                yield _uncorrected(region, *plain[0])
            elif lags and not any(_corrects(inner) for inner in region.inner):
                yield _uncorrected(region, None, lags[0])


def _kept_uncorrected(region: Region, read: list[tuple[Node, RowSet]]) -> Iterator[FlowError]:
    """Find a loss on rows that a carried state may have kept from an earlier step, which nothing in it corrects for."""
    kept = [(inner, rows) for inner, rows in read if rows.kept]
    plain = next((each for each in kept if each[0].op.on_policy and not _corrections(each[0])), None)
    if kept and (plain is not None or not any(_corrects(inner) for inner in region.inner)):
        inner, rows = plain or kept[0]
        who = f"{inner.op.name} wants rows of the newest weights" if plain else f"`{region.name}` corrects for no lag"
        what = f"{who}, but those of {rows} may be of an earlier step: `{rows.kept}` is carried from step to step"
        hint = (
            "use a loss that corrects by the log-probs they were drawn with; of a state without rows, "
            "its port says Annotated[…, Rows.NONE]"
        )
        yield LawError(what, where=str(inner.at if plain else region.at), hint=hint)


def _reaches_others(inner: Node, node: Node, known: GraphFacts) -> Iterator[FlowError]:
    """Find a correction, of a loss without a ratio, that leads to other weights than those that `node` updates."""
    for port, edge in _corrections(inner):
        maker = _maker(edge).source
        if port.corrects or not isinstance(maker, Node):
            continue
        drawn = [each for asked, each in _asking(maker) if asked.by is By.SAMPLER]
        by = {each.name: each.by for each in maker.op.ports}
        for name, read in maker.inputs:
            made = known.at(read).made
            if (
                by[name] is By.SAMPLER
                or made is None
                or read in drawn
                or read.type not in {each.type for each in drawn}
            ):
                continue
            if made.param is not node.root or not (made.trained or made.version == node.carried()) or made.at_most:
                wants = (
                    f"the weights that are trained (`{node.carried()}`), which {inner.op.name}({port.name}=) leads to"
                )
                hint = "a loss without a ratio has no `old`: its weights correct to what is trained"
                where, what = str(inner.at), f"{maker.op.name}({name}=)"
                yield LawError.other_weights(where, what, wants, str(made), read.made(), hint)


def _is_late(drawn: MadeBy | None, node: Node) -> bool:
    """Say whether rows may be drawn by other weights than those that this node is given to update."""
    return drawn is not None and drawn.corrected and (drawn.at_most > 0 or drawn.version != node.carried())


def _corrects(node: Node) -> bool:
    """Say whether a node is given what corrects for the lag: log-probs that rows were drawn with, or weights."""
    return any(port.by is By.SAMPLER for port, _ in _asking(node)) or bool(_corrections(node))


def _uncorrected(region: Region, plain: Node | None, rows: RowSet) -> LawError:
    drawn, at = rows.drawn, plain.at if plain is not None else region.at
    assert drawn is not None, "rows that are late are drawn"
    who = f"{plain.op.name} wants rows that the newest weights drew" if plain else f"`{region.name}` corrects nothing"
    how = f"may be drawn {drawn.late}" if drawn.at_most else f"were drawn by {drawn}, and other weights are trained"
    hint = "use a loss that corrects by the log-probs they were drawn with, or say stale(…, corrected=False)"
    return LawError(f"{who}, but those of {rows} {how}", where=str(at), hint=hint)
