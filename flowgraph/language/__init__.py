"""Values, nodes, losses and flows; the names here are those that authors of nodes need beyond `flowgraph`'s own."""

from flowgraph.language.flow import op_of
from flowgraph.language.graph import NodeKind
from flowgraph.language.keys import Key
from flowgraph.language.loss import Aggregation
from flowgraph.language.region import BoundRegion
from flowgraph.language.traits import By, Corrects, NodeName, Parts, Rows
from flowgraph.language.values import Elementwise, Kind, Linear, Measure

__all__ = [
    "Aggregation",
    "BoundRegion",
    "By",
    "Corrects",
    "Elementwise",
    "Key",
    "Kind",
    "Linear",
    "Measure",
    "NodeKind",
    "NodeName",
    "Parts",
    "Rows",
    "op_of",
]
