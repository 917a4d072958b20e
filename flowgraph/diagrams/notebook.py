"""What a notebook shows of a flow, a graph or a plan: its text, and its drawing as `draw -o x.svg` writes it.

Without Graphviz the drawing is Mermaid, and front ends without Mermaid show the text. Never both: JupyterLab prefers
Mermaid to SVG (ranks 61 and 80, the lowest first).
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from flowgraph.cluster.plan import Plan
from flowgraph.diagrams.build.flow_picture import flow_picture
from flowgraph.diagrams.build.roles_picture import devices_text, roles_picture
from flowgraph.diagrams.model.labels import printable
from flowgraph.diagrams.model.quantities import layout_text
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

# Mermaid's own limits (`maxEdges`, `maxTextSize`), above which it draws an error.
ARROWS_MAX = 500
CHARACTERS_MAX = 50_000


def mimebundle(thing: Flow[..., Any] | Graph | Plan) -> dict[str, str]:
    """Return what a notebook shows of a flow, a graph or a plan, by MIME type: its text, and a picture if possible.

    The picture is SVG, or Mermaid if pygraphviz is not installed. A picture with more than 500 arrows, or with more
    than 50,000 characters of Mermaid, is left out. If `thing` cannot be compiled or described (FlowError), the result
    has only the text of the error, so that the cell does not fail.
    """
    try:
        if isinstance(thing, Plan):
            pools = [[pool.name, devices_text(pool)] for pool in thing.pools]
            roles = [[placed.role, placed.pool, placed.engine, layout_text(placed.layout)] for placed in thing.placed]
            lines = [f"plan of {thing.flow}, structure {thing.structure_hash[:12]}"]
            lines += [f"  pool  {line}" for line in columns(pools)]
            lines += [f"  role  {line}" for line in columns(roles)]
            text, picture = "\n".join(lines), roles_picture(thing)
        else:
            named = name_nodes(thing) if isinstance(thing, Graph) else compile_graph(thing.graph())
            text, picture = graph_text(named), flow_picture(named)
    except FlowError as error:
        return {TEXT: printable(str(error))}
    bundle = {TEXT: printable(text)}
    if len(picture.arrows) > ARROWS_MAX:
        return bundle
    if find_spec("pygraphviz") is not None:
        return bundle | {SVG: graph_svg(picture)}
    diagram = mermaid(picture)
    return bundle | ({MERMAID: diagram} if len(diagram) <= CHARACTERS_MAX else {})
