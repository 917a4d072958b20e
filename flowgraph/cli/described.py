"""A flow that a command line names, as described and after the passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowgraph.cli.passes import find_passes
from flowgraph.flows.flow_files import FlowFile, find_flow
from flowgraph.flows.settings import resolve_settings, split_assignments
from flowgraph.language.graph import Graph
from flowgraph.passes import named, simplified

if TYPE_CHECKING:
    from flowgraph.cli.flow_request import FlowRequest


def described_flow(flow: str, sets: Sequence[str]) -> tuple[FlowFile, Graph, dict[str, object]]:
    """Find a flow; give its file, its graph as described, and the settings that are for its nodes."""
    found = find_flow(flow)
    own, chosen = split_assignments(list(found.flow.signature.settings.model_fields), sets)
    return found, found.flow.graph(own), chosen


def compiled_flow(asked: FlowRequest) -> Graph:
    """Find a flow, choose its settings and run the passes."""
    passes = find_passes(asked.passes)
    _, graph, chosen = described_flow(asked.flow, asked.sets)
    return simplified(resolve_settings(named(graph), (), chosen)[0], passes)
