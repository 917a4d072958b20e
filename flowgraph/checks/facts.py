"""The laws of facts: rows that are read together belong together, and the right weights made what a port asks for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from flowgraph.analysis.facts import PENALTY, GraphFacts, MadeBy, RowSet, facts_of, rows_read
from flowgraph.errors import FlowError, LawError
from flowgraph.language.graph import Edge, Graph, Node, Port, Region, reachable
from flowgraph.language.loss import Loss
from flowgraph.language.traits import By
from flowgraph.language.values import Kind, Value
from flowgraph.passes.dedupe_nodes import dedupe_nodes


def check_rows_have_one_origin(graph: Graph) -> Iterator[FlowError]:
    """Yield an error for each node or loss that reads rows of two origins, such as two rollouts, as the same rows.

    Ports annotated with `Rows.OTHER` and nodes that return new rows are not checked. The values that a loss reads from
    outside must have one origin too, because they are divided into the same micro-batches. A node is reported once, and
    a loss only if no node inside it is.
    """
    facts, mixed = facts_of(graph), set[Node]()
    for node in graph.all_nodes:
        reads = list(rows_read(node, facts))
        for port, rows in reads[1:] if node.op.rows != "new" else ():
            first_port, first = reads[0]
            if rows.origin is not first.origin:
                mixed.add(node)
                hint = "take both from one rollout; a node that accepts other rows declares Annotated[…, Rows.OTHER]"
                for part, whole in ((first.origin, rows.origin), (rows.origin, first.origin)):
                    if isinstance(part, Node) and part.op.kind != "generate" and whole in reachable(part.edges()):
                        hint = f"{part.op.name} makes new rows: after it, read the parts of its result"
                names = [f"{node.op.name}({name}=)" for name in (first_port, port)]
                yield LawError.other_rows(str(node.at), names[0], str(first), names[1], str(rows), hint)
                break
        for _, region in node.regions:
            captured = [(edge, read) for edge in region.captures if (read := facts.at(edge).rows) is not None]
            others = [(edge, read) for edge, read in captured if read.origin is not captured[0][1].origin]
            if others and mixed.isdisjoint(region.inner):  # else the loss mixes rows because one of its nodes does
                what = f"the loss `{region.name}` reads rows of {captured[0][1]}, and of {others[0][1]}"
                hint = "rows of a loss are cut together: one update for each rollout, or one loss over one rollout"
                yield LawError(what, where=str(region.at), notes=[others[0][0].made()], hint=hint)


def check_weights_match_ports(graph: Graph) -> Iterator[FlowError]:
    """Yield an error for each input that was not computed with the weights that its port requires.

    A port can require the model that its loss trains, the weights that sampled its rows, or weights that the loss does
    not train; inputs of unknown weights are not compared. A port for the sampler's log-probs is also an error if its
    rows were sampled greedily, or if its log-probs are recomputed, without a correction, for rows that a carried state
    may have kept from an earlier step.
    """
    facts = facts_of(graph)
    regions = {inner: region for node in graph.nodes for _, region in node.regions for inner in region.inner}
    for node in graph.all_nodes:
        rows = _rows_at(node, facts)
        for port, edge in _ports_by(node):
            maker = facts.at(edge).made
            recomputed = isinstance(edge.source, Node) and edge.source.model() is not None
            if port.by is By.SAMPLER and rows is not None and rows.drawn is not None and rows.drawn.temperature == 0:
                name = f"{node.op.name}({port.name}=)"
                what = f"{name} corrects by how likely its rows were, but those of {rows} are greedy"
                hint = "at temperature 0 the likeliest token is always taken: sample at another temperature"
                yield LawError(what, where=str(node.at), notes=[edge.made()], hint=hint)
            elif (
                port.by is By.SAMPLER
                and rows is not None
                and rows.kept
                and recomputed
                and not _is_corrected(node, port)
            ):
                wants = f"the weights that sampled its rows, of an earlier step where `{rows.kept}` kept them"
                hint = "rows carry the log-probs they were sampled with: read them from the rows"
                name = f"{node.op.name}({port.name}=)"
                yield LawError.other_weights(str(node.at), name, wants, str(maker), edge.made(), hint)
            elif maker is not None:
                yield from _other_weights(node, port, edge, maker, rows, regions.get(node))


def _ports_by(node: Node) -> Iterator[tuple[Port, Edge]]:
    for port in node.op.ports:
        edge = node.input(port.name)
        if port.by is not None and edge is not None:
            yield port, edge


def _sampler_edges(node: Node) -> list[Edge]:
    return [edge for port, edge in _ports_by(node) if port.by is By.SAMPLER]


def _rows_at(node: Node, facts: GraphFacts) -> RowSet | None:
    return next((rows for _, rows in rows_read(node, facts)), None)


def _corrections(node: Node) -> list[tuple[Port, Edge]]:
    ports = (port for port in node.op.ports if port.corrects is not None)
    return [(port, edge) for port in ports if (edge := node.input(port.name)) is not None]


def _is_corrected(node: Node, port: Port) -> bool:
    return any(port.name == correction.corrects for correction, _ in _corrections(node))


def _other_weights(
    node: Node, port: Port, edge: Edge, maker: MadeBy, rows: RowSet | None, region: Region | None
) -> Iterator[FlowError]:
    pi = region.params[0].name if region is not None else ""
    sampler = rows.drawn if rows is not None and not _is_corrected(node, port) else None
    if port.by is By.TRAINED and region is not None and not maker.trained:
        wants, hint = f"the model that `{region.name}` trains (`{pi}`)", f"compute it in `{region.name}`, from `{pi}`"
    elif port.by in (By.FIXED, By.SAMPLER) and maker.trained:
        wants, hint = "weights that this loss does not train", f"compute it outside `{region.name}`" if region else ""
    elif port.by is By.SAMPLER and sampler is not None and not maker.reads_as(sampler):
        wants = f"the weights that sampled its rows ({sampler})"
        hint = "rows carry the log-probs they were sampled with: `rollout.logprobs`"
    else:
        return
    name = f"{node.op.name}({port.name}=)"
    yield LawError.other_weights(str(node.at), name, wants, str(maker), edge.made(), hint)


def check_corrections_match_use(graph: Graph) -> Iterator[FlowError]:
    """Yield an error for each importance correction that is applied to values from which it was not computed.

    The ratio would then be applied twice, or not at all. Also an error: a node that reads one value both as the
    sampler's log-probs and on another port, and so corrects nothing; a node that returns a loss may do this. Pure nodes
    that compute the same count as one. Corrections that come from a parameter are not checked.
    """
    ports = [port for node in graph.all_nodes for port in node.op.ports]
    for node in dedupe_nodes(graph).all_nodes if any(port.by is By.SAMPLER or port.corrects for port in ports) else ():
        inputs = [(port, edge) for port in node.op.ports if (edge := node.input(port.name)) is not None]
        for (first, edge), (second, same) in combinations(inputs, 2):
            asked = By.SAMPLER in (first.by, second.by) and not issubclass(node.returns[0], Loss)
            if asked and edge == same:
                names = f"{node.op.name}({first.name}=) and {node.op.name}({second.name}=)"
                hint = "compare the sampler's log-probs with those of the trained model: compute them from the model"
                what = f"{names} read the same, so it corrects nothing"
                yield LawError(what, where=str(node.at), notes=[edge.made()], hint=hint)
        for port, edge in _corrections(node):
            maker = _maker(edge)
            if isinstance(maker.source, Node) and port.corrects:
                yield from _of_others(node, port, port.corrects, maker, maker.source)


def _of_others(node: Node, port: Port, corrects: str, result: Edge, maker: Node) -> Iterator[FlowError]:
    name, used, corrected = f"{node.op.name}({corrects}=)", node.input(corrects), maker.input(corrects)
    if used is None or corrected == used:
        return
    if corrected is None:
        what = f"{node.op.name}({port.name}=) corrects for {name}, but {maker.op.name} takes no `{corrects}`"
        yield LawError(what, where=str(node.at), notes=[result.made()], hint=f"name its port `{corrects}`")
        return
    twice = used in _sampler_edges(maker)
    what = f"{node.op.name}({port.name}=) corrects `{corrected}`, but {name} is `{used}`"
    why = "the ratio would be applied twice" if twice else "the ratio in use would stay uncorrected"
    hint = f"leave {port.name}= out" if twice else f"give {maker.op.name}({corrects}=) and {name} the same"
    yield LawError(f"{what}: {why}", where=str(node.at), notes=[corrected.made(), used.made()], hint=hint)


def _maker(edge: Edge) -> Edge:
    """Return the edge of a value's maker, through nodes that take one value of its type and return that type."""
    while isinstance(edge.source, Node):
        same_type = [read for _, read in edge.source.inputs if read.type is edge.type]
        if len(same_type) != 1:
            break
        edge = same_type[0]
    return edge


def check_distributions_match(graph: Graph) -> Iterator[FlowError]:
    """Yield an error for each node that compares values of two distributions; each node is reported once.

    Distributions differ in temperature, truncation or penalty. Only columns with a value per token, such as log-probs,
    are compared, and only if both distributions are known. Also an error: an on-policy node without a correction whose
    rows were sampled with a repetition penalty, because log-probs of the model do not include the penalty.
    """
    facts = facts_of(graph)
    for node in graph.all_nodes:
        first = dict[type[Value], tuple[str, MadeBy]]()
        rows = _rows_at(node, facts) if node.op.on_policy else None
        penalties = dict(rows.drawn.reshaped) if rows is not None and rows.drawn is not None else {}
        if PENALTY in penalties and not _corrections(node):
            what = f"{node.op.name} wants rows of the model it trains, but those of {rows} are sampled with"
            yield LawError(f"{what} {PENALTY}={penalties[PENALTY]:g}", where=str(node.at), hint=_UNPENALIZED)
            continue
        for port, edge in node.inputs:
            maker = facts.at(edge).made
            if maker is None or maker.temperature is None or edge.type.kind is not Kind.TOKEN:
                continue
            first_port, earlier = first.setdefault(edge.type, (port, maker))
            names = [f"{node.op.name}({name}=)" for name in (port, first_port)]
            if maker.temperature != earlier.temperature:
                what = f"{names[0]} is at temperature {maker.temperature}, but {names[1]} at {earlier.temperature}"
                yield LawError(what, where=str(node.at), notes=[edge.made()], hint="compare them at one temperature")
                break
            if maker.reshaped != earlier.reshaped:
                what = f"{names[0]} is of {_settings(maker)}, but {names[1]} of {_settings(earlier)}"
                has_penalty = PENALTY in dict((*maker.reshaped, *earlier.reshaped))
                hint = _UNPENALIZED if has_penalty else "compare them under one truncation"
                yield LawError(what, where=str(node.at), notes=[edge.made()], hint=hint)
                break


_UNPENALIZED = f"train on samples without {PENALTY}: a forward pass does not compute it"


def _settings(maker: MadeBy) -> str:
    settings = ", ".join(f"{name}={value:g}" for name, value in maker.reshaped)
    return f"the distribution with {settings}" if settings else "the whole distribution"


def check_staleness_is_corrected(graph: Graph) -> Iterator[FlowError]:
    """Yield an error for each loss that does not correct for the staleness of its rows.

    An on-policy node needs a correction of its own if weights that differ from the trained ones may have sampled its
    rows. Otherwise any correction in the loss is enough; one is needed if the trained model may have sampled the rows
    some updates ago, or if a carried state may have kept the rows from an earlier step. Also an error: in a loss
    without a ratio, a correction toward weights that are not the trained ones. `stale(…, corrected=False)` permits lag.
    """
    facts = facts_of(graph)
    sampled = {edge.source for node in graph.nodes if node.op.kind == "generate" and (edge := node.model())}
    for node in graph.nodes:
        for _, region in node.regions:
            reads = [(inner, rows) for inner in region.inner if (rows := _rows_at(inner, facts)) is not None]
            if node.root in sampled or any(isinstance(model, Node) and model.root is node.root for model in sampled):
                yield from _kept_uncorrected(region, reads)
            late = [  # rows that may have been sampled by other weights than those that the node updates
                (inner, rows)
                for inner, rows in reads
                if rows.drawn is not None
                and rows.drawn.corrected
                and (rows.drawn.at_most > 0 or rows.drawn.version != node.carried())
            ]
            plain = [(inner, rows) for inner, rows in late if inner.op.on_policy and not _corrections(inner)]
            lags = [rows for _, rows in late if rows.drawn and rows.drawn.at_most and rows.drawn.param is node.root]
            yield from (fault for inner in region.inner for fault in _leads_elsewhere(inner, node, facts))
            if plain:
                yield _uncorrected(region, *plain[0])
            elif lags and not any(_corrects(inner) for inner in region.inner):
                yield _uncorrected(region, None, lags[0])


def _kept_uncorrected(region: Region, reads: list[tuple[Node, RowSet]]) -> Iterator[FlowError]:
    old = [(inner, rows) for inner, rows in reads if rows.kept]
    plain = next((read for read in old if read[0].op.on_policy and not _corrections(read[0])), None)
    if old and (plain is not None or not any(_corrects(inner) for inner in region.inner)):
        inner, rows = plain or old[0]
        who = f"{inner.op.name} needs rows of the newest weights" if plain else f"`{region.name}` corrects for no lag"
        what = f"{who}, but those of {rows} may be of an earlier step: `{rows.kept}` is carried from step to step"
        correct = "use a loss that corrects by the log-probs they were sampled with"
        hint = f"{correct}; the port of a state without rows declares Annotated[…, Rows.NONE]"
        yield LawError(what, where=str(inner.at if plain else region.at), hint=hint)


def _leads_elsewhere(inner: Node, node: Node, facts: GraphFacts) -> Iterator[FlowError]:
    for port, edge in _corrections(inner):
        maker = _maker(edge).source
        if port.corrects or not isinstance(maker, Node):
            continue
        old = _sampler_edges(maker)
        for name, read in maker.inputs:
            made_by = facts.at(read).made
            if made_by is None or read in old or read.type not in {edge.type for edge in old}:
                continue
            if (
                made_by.param is not node.root
                or not (made_by.trained or made_by.version == node.carried())
                or made_by.at_most
            ):
                leads = f"which {inner.op.name}({port.name}=) leads to"
                wants = f"the weights that are trained (`{node.carried()}`), {leads}"
                hint = "a loss without a ratio has no `old`: its weights correct to the trained model"
                where, what = str(inner.at), f"{maker.op.name}({name}=)"
                yield LawError.other_weights(where, what, wants, str(made_by), read.made(), hint)


def _corrects(node: Node) -> bool:
    return bool(_sampler_edges(node) or _corrections(node))


def _uncorrected(region: Region, plain: Node | None, rows: RowSet) -> LawError:
    made_by, at = rows.drawn, plain.at if plain is not None else region.at
    assert made_by is not None, "late rows have been sampled"
    who = f"{plain.op.name} needs rows of the newest weights" if plain else f"`{region.name}` corrects nothing"
    how = (
        f"may be sampled {made_by.late}"
        if made_by.at_most
        else f"were sampled by {made_by}, and other weights are trained"
    )
    hint = "use a loss that corrects by the log-probs they were sampled with, or write stale(…, corrected=False)"
    return LawError(f"{who}, but those of {rows} {how}", where=str(at), hint=hint)
