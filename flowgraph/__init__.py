"""flowgraph: a compiler for typed training pipelines on language models.

Describe a flow with `flow` and the values; `check`, `plan`, `draw` and `run` it. More of the language is in
`flowgraph.language`, and all functions of the Python API are in `flowgraph.app`.
"""

from typing import TYPE_CHECKING

from flowgraph.language.arithmetic import add, multiply, scale
from flowgraph.language.flow import Flow, flow, node, stale
from flowgraph.language.graph import Graph
from flowgraph.language.laws import set_law_table
from flowgraph.language.loss import Loss
from flowgraph.language.notebook import set_notebook_view
from flowgraph.language.values import Mask, Metric, Model, Record, State, Trainable, Value, set_operators

if TYPE_CHECKING:
    from flowgraph.app import check, draw, evaluate, generate, plan, resume, run

set_operators(add=add, multiply=multiply, scale=scale)
set_law_table("flowgraph.checks.table:LAWS")
set_notebook_view("flowgraph.diagrams.notebook:mimebundle")

__all__ = [
    "Flow",
    "Graph",
    "Loss",
    "Mask",
    "Metric",
    "Model",
    "Record",
    "State",
    "Trainable",
    "Value",
    "check",
    "draw",
    "evaluate",
    "flow",
    "generate",
    "node",
    "plan",
    "resume",
    "run",
    "stale",
]

_CALLS = {"check", "draw", "evaluate", "generate", "plan", "resume", "run"}


def __getattr__(name: str) -> object:
    """Return a function of the Python API, imported on first use, since describing a flow does not need it."""
    if name not in _CALLS:
        raise AttributeError(f"module 'flowgraph' has no attribute {name!r}")
    from flowgraph import app

    return getattr(app, name)
