"""What a notebook shows of a flow, a graph or a plan: its text, and its drawing as `draw -o x.svg` writes it.

Without Graphviz the drawing is Mermaid, and front ends that draw none show the text. Never both: JupyterLab prefers
Mermaid to SVG (ranks 61 and 80, the least first).
"""

from __future__ import annotations

import unicodedata
from importlib.util import find_spec
from typing import Any

from flowgraph.cluster.plan import Plan
from flowgraph.diagrams.build.flow_picture import flow_picture
from flowgraph.diagrams.build.plan_picture import devices_text
from flowgraph.diagrams.build.roles_picture import roles_picture
from flowgraph.diagrams.model.layout_text import layout_text
from flowgraph.diagrams.model.picture import Picture
from flowgraph.diagrams.write.mermaid.flowchart import mermaid
from flowgraph.diagrams.write.svg.graph_svg import graph_svg
from flowgraph.errors import FlowError
from flowgraph.language.flow import Flow
from flowgraph.language.graph import Graph
from flowgraph.passes import compile_graph
from flowgraph.passes.name_nodes import name_nodes
from flowgraph.serialize.columns import columns
from flowgraph.serialize.graph_text import graph_text

TEXT = "text/plain"
SVG = "image/svg+xml"
MERMAID = "text/vnd.mermaid"  # drawn by JupyterLab 4.1 and Notebook 7.1, or newer

# Mermaid's own limits (`maxEdges`, `maxTextSize`): of more it draws an error.
ARROWS_AT_MOST = 500
CHARACTERS_AT_MOST = 50_000


def mimebundle(thing: Flow[..., Any] | Graph | Plan) -> dict[str, str]:
    """Give what a notebook shows of a thing, by MIME type.

    A flow that cannot be described shows why, as text: a cell that ends with one does not fail. A picture too large to
    be read, or for Mermaid, is left out.
    """
    try:
        text, picture = _shown(thing)
    except FlowError as error:
        return {TEXT: _readable(str(error))}
    return {TEXT: _readable(text)} | _drawn(picture)


def _drawn(picture: Picture) -> dict[str, str]:
    if len(picture.arrows) > ARROWS_AT_MOST:
        return {}
    if find_spec("pygraphviz") is not None:
        return {SVG: graph_svg(picture)}
    text = mermaid(picture)
    return {MERMAID: text} if len(text) <= CHARACTERS_AT_MOST else {}


def _shown(thing: Flow[..., Any] | Graph | Plan) -> tuple[str, Picture]:
    if isinstance(thing, Plan):
        return _plan_text(thing), roles_picture(thing)
    named = name_nodes(thing) if isinstance(thing, Graph) else compile_graph(thing.graph())
    return graph_text(named), flow_picture(named)


def _plan_text(plan: Plan) -> str:
    pools = [[pool.name, devices_text(pool)] for pool in plan.pools]
    placed = [[each.role, each.pool, each.engine, layout_text(each.layout)] for each in plan.placed]
    lines = [f"plan of {plan.flow}, structure {plan.structure_hash[:12]}"]
    lines += [f"  pool  {line}" for line in columns(pools)]
    lines += [f"  role  {line}" for line in columns(placed)]
    return "\n".join(lines)


def _readable(text: str) -> str:
    """Leave out what a front end would take for colours, links to other terminals or another writing direction."""
    return "".join(each for each in text if each == "\n" or unicodedata.category(each) not in ("Cc", "Cf", "Cs"))
