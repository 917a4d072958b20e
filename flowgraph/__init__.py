"""flowgraph: a compiler for typed training pipelines on language models."""

from flowgraph.language.arithmetic import add, scale
from flowgraph.language.flow import Flow, flow, node, op_of, stale
from flowgraph.language.graph import Graph, NodeKind
from flowgraph.language.keys import Key
from flowgraph.language.laws import look_up_in
from flowgraph.language.loss import Aggregation, Loss
from flowgraph.language.notebook import show_by
from flowgraph.language.region import BoundRegion
from flowgraph.language.traits import By, Corrects, Parts, Rows
from flowgraph.language.values import (
    Kind,
    Linear,
    Mask,
    Measure,
    Metric,
    Model,
    Record,
    State,
    Trainable,
    Value,
    operate_by,
)

operate_by(add=add, scale=scale)
look_up_in("flowgraph.checks.table:LAWS")
show_by("flowgraph.diagrams.notebook:mimebundle")

__all__ = [
    "Aggregation",
    "BoundRegion",
    "By",
    "Corrects",
    "Flow",
    "Graph",
    "Key",
    "Kind",
    "Linear",
    "Loss",
    "Mask",
    "Measure",
    "Metric",
    "Model",
    "NodeKind",
    "Parts",
    "Record",
    "Rows",
    "State",
    "Trainable",
    "Value",
    "flow",
    "node",
    "op_of",
    "stale",
]
