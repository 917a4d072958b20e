"""The law of written tokens: a loss on conversations counts only tokens that the policy wrote."""

from __future__ import annotations

from collections.abc import Iterator

from flowgraph.analysis.facts import Origin, RowSet, facts_of, masks_along
from flowgraph.errors import FlowError, LawError
from flowgraph.language.graph import Edge, Graph, Node, Param
from flowgraph.language.mask_counts import mask_of
from flowgraph.language.rows import leaf_paths
from flowgraph.language.values import Mask, Turns


def check_masks_are_of_written_tokens(graph: Graph) -> Iterator[FlowError]:
    """Yield an error for each loss on conversations whose mask does not come from that of its rows.

    A mask comes from it if it is the part of a record, or the result of nodes that each read such a mask, which they
    may only narrow (`call_laws.check_result`). A mask that is made from anything else, such as lengths, would count
    tokens of tools and users. Rows without a part of type `Turns` are not checked.
    """
    facts = facts_of(graph)
    for node in graph.all_nodes:
        mask = mask_of(node)
        rows = facts.at(mask).rows if mask is not None else None
        if mask is None or rows is None or not _has_turns(rows.origin):
            continue
        maker = _unread_mask(mask)
        if maker is not None:
            port = next(name for name, edge in node.inputs if edge == mask)
            yield _unwritten(node, port, maker, rows)


def _unwritten(node: Node, port: str, maker: Node, rows: RowSet) -> LawError:
    what = f"{node.op.name}({port}=) counts tokens of {rows} that the policy did not write"
    note = f"{maker.op.name} at {maker.at} makes this mask without reading the one of its rows"
    hint = f"use {' or '.join(f'`{name}`' for name in masks_along(rows))}, or let {maker.op.name} take and narrow it"
    return LawError(what, where=str(node.at), notes=[note], hint=hint)


def _unread_mask(mask: Edge) -> Node | None:
    """Return the node behind a mask that made one without reading one; None if there is none."""
    source = mask.source
    while isinstance(source, Node) and not mask.port:
        reads = [edge for _, edge in source.inputs if any(issubclass(kind, Mask) for _, kind in leaf_paths(edge.type))]
        if not reads:
            return source
        mask = next((edge for edge in reads if issubclass(edge.type, Mask)), reads[0])
        source = mask.source
        if not issubclass(mask.type, Mask):
            return None
    return None


def _has_turns(origin: Origin) -> bool:
    kinds = (origin.type,) if isinstance(origin, Param) else origin.returns
    return any(issubclass(part, Turns) for kind in kinds for _, part in leaf_paths(kind))
