"""flowgraph: a compiler for typed training pipelines on language models."""

from flowgraph.dsl import Flow, flow, node, op_of, stale
from flowgraph.evaluate import BoundRegion
from flowgraph.graph import Graph, NodeKind
from flowgraph.keys import Key
from flowgraph.loss import Aggregation, Loss
from flowgraph.traits import By, Corrects, Parts, Rows
from flowgraph.values import Kind, Linear, Mask, Measure, Metric, Model, Record, State, Trainable, Value

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
