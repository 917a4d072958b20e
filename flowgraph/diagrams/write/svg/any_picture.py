"""Write any picture as one SVG, which follows its viewer's choice of light or dark."""

from __future__ import annotations

from flowgraph.diagrams.model.charts import Comparison, Curves, Lanes, MemoryChart, Scatter
from flowgraph.diagrams.model.drawing import Drawing
from flowgraph.diagrams.model.sequence import SequenceDiagram
from flowgraph.diagrams.write.svg.comparison_svg import comparison_svg
from flowgraph.diagrams.write.svg.curves import curves_svg
from flowgraph.diagrams.write.svg.graph_svg import graph_svg
from flowgraph.diagrams.write.svg.lanes_svg import lanes_svg
from flowgraph.diagrams.write.svg.memory_svg import memory_svg
from flowgraph.diagrams.write.svg.scatter_svg import scatter_svg
from flowgraph.diagrams.write.svg.sequence_svg import sequence_svg
from flowgraph.diagrams.write.svg.svg_frame import ALONE, Look


def svg(drawing: Drawing, look: Look = ALONE) -> str:
    """Draw a picture. Raises UsageError where boxes and arrows are to be laid out and Graphviz is not installed."""
    if isinstance(drawing, Lanes):
        return lanes_svg(drawing, look)
    if isinstance(drawing, MemoryChart):
        return memory_svg(drawing, look)
    if isinstance(drawing, Comparison):
        return comparison_svg(drawing, look)
    if isinstance(drawing, Scatter):
        return scatter_svg(drawing, look)
    if isinstance(drawing, SequenceDiagram):
        return sequence_svg(drawing, look)
    if isinstance(drawing, Curves):
        return curves_svg(drawing.title, drawing.series, look=look)

    return graph_svg(drawing, look)
