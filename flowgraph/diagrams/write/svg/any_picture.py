"""Write any picture as one SVG, which follows its viewer's choice of light or dark."""

from __future__ import annotations

from flowgraph.diagrams.model.charts import Comparison, Curves, Lanes, MemoryChart, Scatter
from flowgraph.diagrams.model.drawing import Drawing
from flowgraph.diagrams.model.picture import Picture, SequenceDiagram
from flowgraph.diagrams.write.svg.comparison_svg import comparison_svg
from flowgraph.diagrams.write.svg.curves import curves_svg
from flowgraph.diagrams.write.svg.graph_svg import graph_svg
from flowgraph.diagrams.write.svg.lanes_svg import lanes_svg
from flowgraph.diagrams.write.svg.memory_svg import memory_svg
from flowgraph.diagrams.write.svg.scatter_svg import scatter_svg
from flowgraph.diagrams.write.svg.sequence_svg import sequence_svg
from flowgraph.diagrams.write.svg.svg_frame import ALONE, Look


def svg(drawing: Drawing, look: Look = ALONE) -> str:
    """Draw a picture. Raises UsageError if it has boxes and arrows and Graphviz is not installed."""
    match drawing:
        case Picture():
            return graph_svg(drawing, look)
        case SequenceDiagram():
            return sequence_svg(drawing, look)
        case Lanes():
            return lanes_svg(drawing, look)
        case MemoryChart():
            return memory_svg(drawing, look)
        case Comparison():
            return comparison_svg(drawing, look)
        case Scatter():
            return scatter_svg(drawing, look)
        case Curves():
            return curves_svg(drawing.title, drawing.series, look=look)
