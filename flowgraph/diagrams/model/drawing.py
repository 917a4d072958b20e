"""Every kind of picture that can be drawn: what writers take."""

from __future__ import annotations

from flowgraph.diagrams.model.charts import Comparison, Curves, Lanes, MemoryChart, Scatter
from flowgraph.diagrams.model.picture import Picture, SequenceDiagram

Drawing = Picture | SequenceDiagram | Lanes | MemoryChart | Comparison | Scatter | Curves
"""A picture as data. What is drawn with boxes and arrows is a `Picture`; the others have a layout of their own."""
